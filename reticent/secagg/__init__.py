"""Sums nobody can look into: encoding and protocol.

A training loop needs `RotatedCode.plan` and `GridSums`. A deployment runs `Device` on each client and
`server.open_round`, `server.receive`, `server.close` on its side.
"""

from reticent.secagg.device import Device
from reticent.secagg.encoding import Code, Integers, RotatedCode, inflated_clip_norm, smallest_scale
from reticent.secagg.faults import Aborted, Fault
from reticent.secagg.graph import Graph, graph_for
from reticent.secagg.grid_sums import GridSums, IntegerSums
from reticent.secagg.in_process import PHASES, Aggregate, aggregate_in_process, encoded_sum
from reticent.secagg.keys import Member, Registry
from reticent.secagg.round import Round

__all__ = [
    "PHASES",
    "Aborted",
    "Aggregate",
    "Code",
    "Device",
    "Fault",
    "Graph",
    "GridSums",
    "IntegerSums",
    "Integers",
    "Member",
    "Registry",
    "RotatedCode",
    "Round",
    "aggregate_in_process",
    "encoded_sum",
    "graph_for",
    "inflated_clip_norm",
    "smallest_scale",
]
