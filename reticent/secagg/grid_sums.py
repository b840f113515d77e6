"""A cohort's clipped updates, summed under an encoding or under the whole protocol, as integers on a release's grid.

    code = RotatedCode.plan(dimension, clip_norm, cohort)       # once per clip norm, before the first round
    sums = GridSums(code, grid)                                 # grid: with room for cohort * code.inflated_clip_norm
    accounting = {..., **sums.accounting()}                     # what the accountant must know of it

    sums.directly(updates, seed)                                # secure_aggregation = "encoding"
    sums.by_protocol(updates, number=round, seed=seed)          # secure_aggregation = "protocol"

where `updates` are float vectors by client. Noise is added to the integers, as to a plain sum.

What one client can change in them, its sensitivity, is not the clip norm:

* An encoded update has norm `code.inflated_clip_norm` at most; every one is checked when it is rounded.
* Decoding is exact, in whole numbers of `code.step`. Where a step is a whole number of the grid's units, nothing is
  added. Otherwise the sum is rounded to the grid, once, to the nearest: each of `dimension` entries moves by half a unit
  at most, in the sum with the client and in the one without, so `grid * sqrt(dimension)` is added to the norm.

Both are known before the first round, and `accounting` states them. `IntegerSums` in its place sums the grid's units as
they are: 32 bits an entry, the plain sum to the last unit, and nothing to account.
"""

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reticent.errors import Refused
from reticent.secagg.encoding import Code, Integers, RotatedCode
from reticent.secagg.in_process import aggregate_in_process, encoded_sum, sum_of_words
from reticent.secagg.keys import Member, derive

LARGEST = 2**31 - 1
# More than float64 can get wrong, in a sum below 2^31 units as in the figures that are accounted.
_SLACK = 1 + 2.0**-18


@dataclass(frozen=True)
class GridSums:
    """Sums on one grid, for one clip norm. `grid`, the value of one unit, is a power of two with room for the sum of a
    whole cohort in 32 bits. Refuses any other.
    """

    code: RotatedCode
    grid: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.grid) and self.grid > 0 and math.frexp(self.grid)[0] == 0.5):
            raise Refused(f"The grid of a release is a power of two, got {self.grid!r}.")
        if self.code.cohort * self.code.inflated_clip_norm > LARGEST * self.grid:
            raise Refused(
                f"A grid of {self.grid:g} is too fine for sums of {self.code.cohort} clients with norms up to "
                f"{self.code.inflated_clip_norm:.4g} in 32 bits; take the one that the inflated clip norm needs."
            )

    @property
    def rounded(self) -> bool:
        """Whether a step of the decoded sum is no whole number of the grid's units."""
        return self._units_per_step() is None

    @property
    def rounding(self) -> float:
        """What rounding the sum adds to the norm of one client's update, as a fraction of the clip norm."""
        return self.grid * math.sqrt(self.code.dimension) / self.code.clip_norm * _SLACK if self.rounded else 0.0

    @property
    def inflated_clip_norm(self) -> float:
        """The norm that an encoded update can have."""
        return self.code.inflated_clip_norm

    def vector_of(self, units: np.ndarray) -> np.ndarray:
        """A clipped update, given in units of the grid, as `directly` and `by_protocol` take it."""
        return units.astype(np.float32) * np.float32(self.grid)

    def accounting(self) -> dict[str, Any]:
        """The keys of a run's accounting that tell of the encoding: the inflated norm over the clip norm, and the
        rounding over the clip norm."""
        told: dict[str, Any] = {"secure_aggregation": {"inflation": (1 + self.code.inflation) * _SLACK}}
        return {**told, "rounding": self.rounding} if self.rounded else told

    def directly(self, updates: Iterable[tuple[str, np.ndarray]], seed: bytes | None = None) -> np.ndarray:
        """The sum of the updates (client, vector), each encoded, in grid units as int32. They are added directly: this
        process sees them all. They may come one by one, and need not fit memory together.

        `seed`, 32 bytes for this round only, makes the round repeat itself bit by bit, and equal the protocol's; it
        protects nothing. Without it, signs and coins are the operating system's.
        """
        code, coins = self._of_round(seed)
        encoded = (code.encode(vector, coins and coins(name)) for name, vector in updates)
        return self.units_of(sum_of_words(encoded, code))

    def by_protocol(
        self,
        updates: Mapping[str, np.ndarray | Callable[[], np.ndarray]],
        *,
        number: int,
        seed: bytes | None = None,
        dropout: float = 0.05,
        corruption: float = 0.05,
        drop: Mapping[str, Collection[str]] | None = None,
        members: Mapping[str, Member] | None = None,
        run: str | None = None,
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        """The sum by the whole protocol, in grid units as int32, and whose it is. See `aggregate_in_process`, also for
        what it refuses; masks and keys are always the operating system's."""
        code, coins = self._of_round(seed)
        aggregate = aggregate_in_process(
            updates,
            code,
            dropout=dropout,
            corruption=corruption,
            drop=drop,
            members=members,
            run=run,
            number=number,
            coins=coins,
        )
        return self.units_of(aggregate.total), aggregate.survivors

    def _of_round(self, seed: bytes | None) -> tuple[RotatedCode, Callable[[str], bytes] | None]:
        """The code with the round's own signs, and every client's coins."""
        if seed is None:
            return replace(self.code, rotation=os.urandom(32)), None
        rotation = derive(seed, "rotation of a simulation")
        return replace(self.code, rotation=rotation), lambda name: derive(seed, "coins of a simulation", name.encode())

    def _units_per_step(self) -> int | None:
        ratio = self.code.step / self.grid
        units = round(ratio)
        # `step` comes from a square root, and is off by an ulp where it should be a power of two.
        return units if units >= 1 and abs(ratio - units) <= units * 2.0**-44 else None

    def units_of(self, total: np.ndarray) -> np.ndarray:
        """A decoded sum in grid units as int32: the server's half of a sum that devices made."""
        # Honest sums fit; an entry that does not is of somebody who broke the norm, and is cut rather than wrapped.
        units = self._units_per_step()
        if units:
            return (np.clip(total, -(LARGEST // units), LARGEST // units) * units).astype(np.int32)
        return np.clip(np.rint(total * (self.code.step / self.grid)), -LARGEST, LARGEST).astype(np.int32)


@dataclass(frozen=True)
class IntegerSums:
    """Sums of updates that are whole units of the grid already: exact, at no cost in privacy, 32 bits an entry or nearly
    so. The same methods as `GridSums`, with integer vectors. Refuses a grid too fine for the sum of a whole cohort.
    """

    dimension: int
    clip_norm: float
    cohort: int
    grid: float

    def __post_init__(self) -> None:
        if self.cohort * self.clip_norm > LARGEST * self.grid:
            raise Refused(f"A grid of {self.grid:g} is too fine for sums of {self.cohort} clients in 32 bits.")

    @property
    def code(self) -> Code:
        return Integers(self.dimension, math.floor(self.clip_norm / self.grid), self.cohort)

    @property
    def inflated_clip_norm(self) -> float:
        return self.clip_norm

    def vector_of(self, units: np.ndarray) -> np.ndarray:
        return units

    def units_of(self, total: np.ndarray) -> np.ndarray:
        return total.astype(np.int32)

    def accounting(self) -> dict[str, Any]:
        return {"secure_aggregation": {"inflation": 1.0}}

    def directly(self, updates: Iterable[tuple[str, np.ndarray]], seed: bytes | None = None) -> np.ndarray:
        return encoded_sum((vector for _, vector in updates), self.code).astype(np.int32)

    def by_protocol(
        self,
        updates: Mapping[str, np.ndarray | Callable[[], np.ndarray]],
        *,
        number: int,
        seed: bytes | None = None,
        **more: Any,
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        aggregate = aggregate_in_process(updates, self.code, number=number, **more)
        return aggregate.total.astype(np.int32), aggregate.survivors
