"""The noise: participation, the matrix C, its sensitivity and error, and the stream of noise rows."""

from reticent.mechanisms.base import Mechanism, Sensitivity, Source, Stream
from reticent.mechanisms.participation import Participation
from reticent.mechanisms.registry import KINDS, make
from reticent.mechanisms.storage import load
from reticent.mechanisms.workload import PREFIX_SUM, Workload

__all__ = [
    "KINDS",
    "PREFIX_SUM",
    "Mechanism",
    "Participation",
    "Sensitivity",
    "Source",
    "Stream",
    "Workload",
    "load",
    "make",
]
