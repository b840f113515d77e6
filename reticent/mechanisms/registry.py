"""All kinds of mechanisms by name: one line each. A family's code is imported when it is asked for."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from reticent.errors import Refused
from reticent.mechanisms.base import Mechanism
from reticent.mechanisms.participation import Participation
from reticent.mechanisms.workload import PREFIX_SUM, Workload

Objective = Literal["max", "rms"]


@dataclass(frozen=True)
class Kind:
    """Where a kind lives, and whether it takes a size (`buffers` or `bands`) when it is made.

    `maker` names a function (participation, objective, workload, size) -> Mechanism in `module`, where participation is
    a Participation, objective "max" or "rms", and size None for the family's own choice.
    """

    module: str
    type: str
    maker: str = "make"
    size: Literal["buffers", "bands"] | None = None

    def load(self, name: str) -> Callable:
        return getattr(importlib.import_module(f"reticent.mechanisms.{self.module}"), name)


KINDS = {
    "independent": Kind("independent", "Independent"),
    "tree": Kind("tree", "Tree"),
    "tree-full": Kind("tree", "TreeFull", "make_full"),
    "banded": Kind("banded", "Banded", size="bands"),
    "banded-free": Kind("banded", "BandedFree", "make_free", size="bands"),
    "toeplitz": Kind("toeplitz", "BandedToeplitz", size="bands"),
    "banded-fhu": Kind("toeplitz", "BandFhu", "make_fhu", size="bands"),
    "banded-inverse": Kind("inverse_toeplitz", "InverseToeplitz", size="bands"),
    "blt": Kind("blt", "BLT", size="buffers"),
    "blt-100": Kind("blt", "BLT", "make_100"),
    "blt-400": Kind("blt", "BLT", "make_400"),
    "blt-1000": Kind("blt", "BLT", "make_1000"),
    "dense": Kind("dense", "Dense"),
}

# Kinds that are found in files but not made by name: wrappers around another mechanism.
WRAPPERS = {
    "restarted": Kind("restarted", "Restarted"),
}


def kind_named(kind: str) -> Kind:
    """The registry line of a kind."""
    if kind not in KINDS:
        raise Refused(f"There is no mechanism kind {kind!r}; the kinds are {', '.join(KINDS)}.")
    return KINDS[kind]


def mechanism_class(kind: str) -> type[Mechanism]:
    """The class of a kind, wrappers included."""
    entry = WRAPPERS.get(kind) or kind_named(kind)
    return entry.load(entry.type)  # type: ignore[return-value]


def make(
    kind: str,
    participation: Participation,
    objective: Objective = "max",
    workload: Workload = PREFIX_SUM,
    size: int | None = None,
) -> Mechanism:
    """The mechanism of this kind for this participation, optimised where the kind can be."""
    entry = kind_named(kind)
    if size is not None and entry.size is None:
        raise Refused(f"A mechanism of kind {kind} has neither buffers nor bands; leave the option out.")
    if size is not None and size < 1:
        raise Refused(f"{entry.size} must be at least 1, got {size}.")
    return entry.load(entry.maker)(participation, objective, workload, size)
