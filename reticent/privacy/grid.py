"""The integer grid that updates, sums, noise and releases lie on."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from reticent.errors import Refused

LARGEST = 2**31 - 1
NOISE_DEVIATIONS = 10
# Steps and their inverses are powers of two that float32 holds with room for 32-bit multiples of them.
EXPONENTS = range(-90, 91)


@dataclass(frozen=True)
class Grid:
    """The multiples of 2^exponent. Everything on it is an int32: how many steps.

    Integers are added modulo 2^32. Where a sum and its noise leave 32 bits, the release has wrapped: it is wrong by a
    multiple of 2^32 steps in that entry, and exactly as private, since wrapping is done to the noised sum, whatever it is.
    """

    exponent: int

    def __post_init__(self) -> None:
        if self.exponent not in EXPONENTS:
            raise Refused(
                f"A grid of 2^{self.exponent} is out of reach of float32 updates; give the clip norm in larger "
                "units, or smaller ones."
            )

    @classmethod
    def finest(cls, cohort: int, clip_norm: float, deviation: float) -> "Grid":
        """The finest grid on which a cohort's sum and ten standard deviations of noise fit 32 bits.

        `cohort` is the most vectors that may be summed, each of norm `clip_norm` at most; `deviation` is that of one
        entry of a round's noise (`noise_deviation`).
        """
        if cohort < 1:
            raise Refused(f"A cohort has at least one member, got {cohort}.")
        if not (math.isfinite(clip_norm) and clip_norm > 0):
            raise Refused(f"The clip norm must be positive and finite, got {clip_norm}.")
        if not (math.isfinite(deviation) and deviation >= 0):
            raise Refused(f"The deviation of the noise must be finite and not negative, got {deviation}.")
        largest = cohort * clip_norm + NOISE_DEVIATIONS * deviation
        grid = cls(math.frexp(largest / LARGEST)[1] - 1)
        return grid if grid.holds(largest) else cls(grid.exponent + 1)

    @classmethod
    def of_step(cls, step: float) -> "Grid":
        """The grid with this step, as a ledger states it."""
        fraction, exponent = math.frexp(step)
        if fraction != 0.5:
            raise Refused(f"The step of a grid is a power of two, got {step}.")
        return cls(exponent - 1)

    @property
    def step(self) -> float:
        """The value of one unit."""
        return 2.0**self.exponent

    def holds(self, value: float) -> bool:
        """Whether 32 bits hold this value and its negative."""
        return abs(value) / self.step <= LARGEST

    def value_of(self, units: Any) -> Any:
        """What integers of this grid are worth, as float32."""
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float32) * jnp.float32(self.step), units)


def round_towards_zero(update: Any, grid: Grid) -> Any:
    """The update (a pytree of float32) in whole steps, as int32; what is left over is dropped.

    No entry grows, so neither does the norm. Dividing by a power of two is exact. For entries that 32 bits hold.
    """
    return jax.tree.map(lambda leaf: jnp.trunc(leaf * jnp.float32(1 / grid.step)).astype(jnp.int32), update)
