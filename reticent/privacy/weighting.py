"""Weighted users, and how a sum of their updates becomes an average (dpfedavg, Sec. 2).

    weights = user_weights(examples, weight_cap)                     # w_k, one per user
    total = ...                                                      # the Contribution of the cohort (`clipping`)
    sums = estimator.before_noise(total)                             # int32, to be noised
    average = estimator.average(releases, grid)                      # float32

Updates are clipped first and weighted after. Lemma 1 asks for less, the norm of the weighted update, and that is not enough
for the clipped estimator: its proof needs every average, hence every update, within the clip norm.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from reticent.errors import Refused
from reticent.privacy.grid import Grid

if TYPE_CHECKING:
    from reticent.privacy.clipping import Contribution

WHOLE = 2**14
"""The weight 1. Weights are whole numbers of its parts, so that sums of them are exact."""


def user_weights(examples: jax.Array, weight_cap: float) -> jax.Array:
    """w_k = min(n_k / w^, 1), in parts of `WHOLE`, rounded down; int32. `examples` is what each user has of them."""
    if not weight_cap > 0:
        raise Refused(f"The weight cap must be positive, got {weight_cap}.")
    return jnp.floor(jnp.clip(examples.astype(jnp.float32) / weight_cap, 0, 1) * WHOLE).astype(jnp.int32)


@dataclass(frozen=True)
class FixedDenominator:
    """f~_f: the sum over a constant chosen in advance, q W or the report goal. One user moves the sum by a clip norm."""

    denominator: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.denominator) and self.denominator > 0):
            raise Refused(f"The denominator must be positive and finite, got {self.denominator}.")

    def before_noise(self, total: "Contribution") -> Any:
        """What is noised: the sum."""
        return total.units

    def average(self, releases: Any, grid: Grid) -> Any:
        """The average that noised sums stand for, float32."""
        return jax.tree.map(lambda value: value / self.denominator, grid.value_of(releases))

    def accounting(self, dimension: int, clip_norm: float, grid: Grid) -> dict[str, Any]:
        """The keys of a run's accounting that tell of the estimator."""
        return {}


@dataclass(frozen=True)
class ClippedDenominator:
    """f~_c: the weighted average, over a weight of q W_min at least. Proven for Poisson sampling.

    `minimum` is q W_min; `cohort` the most users there can be in a round. What is noised is the average times `minimum`,
    that is sum * minimum / max(minimum, weight), which one user moves by two clip norms at most (Lemma 1). It is computed in
    whole numbers and rounded towards zero, each entry by less than one and a half steps; rounding towards zero brings two
    numbers of different sign nearer, so that it adds less than 1.5 grid sqrt(d) to what one user can move.
    """

    minimum: float
    cohort: int

    def __post_init__(self) -> None:
        if not 1 / WHOLE <= self.minimum < 2**31 // WHOLE:
            raise Refused(f"The least weight must be positive and below {2**31 // WHOLE}, got {self.minimum}.")
        if not 1 <= self.cohort < 2**31 // WHOLE:
            raise Refused(f"Weights of at most {2**31 // WHOLE - 1} users fit 32 bits, not of {self.cohort}.")

    @property
    def _parts(self) -> int:
        return math.floor(self.minimum * WHOLE)

    def before_noise(self, total: "Contribution") -> Any:
        """What is noised: the average times the least weight, int32 on the grid."""
        weight = total.weight.astype(jnp.uint32)
        share = _fraction(jnp.uint32(self._parts), weight)
        few = weight <= self._parts
        return jax.tree.map(lambda units: jnp.where(few, units, _shrunk(units, share)), total.units)

    def average(self, releases: Any, grid: Grid) -> Any:
        """The average that noised releases stand for, float32."""
        return jax.tree.map(lambda value: value / (self._parts / WHOLE), grid.value_of(releases))

    def accounting(self, dimension: int, clip_norm: float, grid: Grid) -> dict[str, Any]:
        """The keys of a run's accounting that tell of the estimator. The accountant doubles both, so that a rounding of
        0.75 steps would do; it is told of one."""
        rounding = grid.step * math.sqrt(dimension) / clip_norm
        return {"clipping_estimator": "clipped", "rounding": rounding}


def _fraction(part: jax.Array, whole: jax.Array) -> jax.Array:
    """part / whole, below one, as the 32 bits after the point, rounded down. By long division; whole is below 2^31."""

    def digit(_: int, so_far: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        digits, rest = so_far[0] << 1, so_far[1] << 1
        one = rest >= whole
        return digits | one.astype(jnp.uint32), jnp.where(one, rest - whole, rest)

    return jax.lax.fori_loop(0, 32, digit, (jnp.uint32(0), part))[0]


def _shrunk(units: jax.Array, share: jax.Array) -> jax.Array:
    """units * share / 2^32, rounded towards zero: the upper half of a 64-bit product."""
    size = jnp.abs(units).astype(jnp.uint32)
    (high, low), (left, right) = (size >> 16, size & 0xFFFF), (share >> 16, share & 0xFFFF)
    carried = ((low * right) >> 16) + ((high * right) & 0xFFFF) + ((low * left) & 0xFFFF)
    shrunk = high * left + ((high * right) >> 16) + ((low * left) >> 16) + (carried >> 16)
    return jnp.where(units < 0, -shrunk.astype(jnp.int32), shrunk.astype(jnp.int32))
