"""Mechanisms that several figures share, each optimised once."""

import functools
from typing import Literal

from reticent.mechanisms import Mechanism, Participation, make


@functools.lru_cache(maxsize=64)
def made(
    kind: str,
    rounds: int,
    separation: int,
    most: int | None = None,
    objective: Literal["max", "rms"] = "rms",
    size: int | None = None,
    exact: bool = False,
) -> Mechanism:
    """`make`, remembered for as long as the program runs."""
    return make(kind, Participation(rounds, separation, most, exact), objective, size=size)
