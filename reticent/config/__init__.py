"""The run file: one schema, read by planning, training and deployment."""

from reticent.config.reading import differences, load, parse, resolved
from reticent.config.schema import RunFile

__all__ = ["RunFile", "differences", "load", "parse", "resolved"]
