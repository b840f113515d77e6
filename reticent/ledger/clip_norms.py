"""The clip norm of every round, where it changes: from the description of a run and what it released, and nothing else.

`clip_norms` in a description says how, for runs whose mechanism restarts, since a norm changes nowhere else:

- {"kind": "scheduled", "norms": [...]}: the norm from each restart on, known from the start;
- {"kind": "adaptive", "quantile": q, "learning_rate": r, "cohort": m}: at a restart the norm becomes an estimate of the
  quantile q of update norms, tracked all the while (Gboard, Alg. 1 and ERRATA). In each release the noised count follows on
  the update: over the cohort, +1/2 for an update no longer than the estimate and -1/2 for a longer one, one bit being worth
  so many units of the release that their noise is, in people, that of `adaptive_clipping` in the accounting.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# How far an estimate can go from the first norm, as a factor.
REACH = 2.0**20


@dataclass(frozen=True)
class Norms:
    """`active` is what updates are clipped to; `tracked` the estimate that their norms are compared with."""

    active: float
    tracked: float


def first_norms(description: Mapping[str, Any]) -> Norms:
    """Those of round 0."""
    return Norms(description["clip_norm"], description["clip_norm"])


def is_adaptive(description: Mapping[str, Any]) -> bool:
    """Whether releases end in a count of bits."""
    return description.get("clip_norms", {}).get("kind") == "adaptive"


def norms_at(description: Mapping[str, Any], norms: Norms, round: int) -> Norms:
    """The norms of a round, from those after the round before. The one place where the active norm changes."""
    restarts = description["accounting"].get("restarts", ())
    if "clip_norms" not in description or round not in restarts:
        return norms
    if is_adaptive(description):
        return dataclasses.replace(norms, active=norms.tracked)
    return Norms(*(description["clip_norms"]["norms"][list(restarts).index(round)],) * 2)


def norms_after(description: Mapping[str, Any], norms: Norms, grid: float, count: int) -> Norms:
    """The norms after a round whose release ends in this count. Centred bits are off by half the cohort's size: the size is
    taken to be what was expected, which is what random cohorts have on average."""
    if not is_adaptive(description):
        return norms
    rule = description["clip_norms"]
    within = count / (2 * bit_units(description, norms.active, grid) * rule["cohort"]) + 0.5
    change = -rule["learning_rate"] * (within - rule["quantile"])
    first = description["clip_norm"]
    tracked = norms.tracked * math.exp(max(-50.0, min(50.0, change)))
    return dataclasses.replace(norms, tracked=max(first / REACH, min(first * REACH, tracked)))


def bit_worth(accounting: Mapping[str, Any], clip_norm: float) -> float:
    """What one centred bit adds to a release beside the update, as a norm: half of clip norm * sigma / sigma_b, rounded down
    to whole units when it is used. Without noise there is nothing to compare it with, and it is half the clip norm."""
    noise = accounting["noise_multiplier"]
    return clip_norm * (noise / accounting["adaptive_clipping"]["noise_multiplier"] if noise else 1.0) / 2


def bit_units(description: Mapping[str, Any], clip_norm: float, grid: float) -> int:
    """The units of a release that one centred bit is worth."""
    return math.floor(bit_worth(description["accounting"], clip_norm) / grid)


def norms_due(description: Mapping[str, Any], counts: Iterator[tuple[int | None, float]]) -> Iterator[Norms]:
    """The norms of each round, from the counts and grids of the rounds before it; a burnt row has no count."""
    norms = first_norms(description)
    for round, (count, grid) in enumerate(counts):
        norms = norms_at(description, norms, round)
        yield norms
        if count is not None:
            norms = norms_after(description, norms, grid, count)
