"""Metrics of the people being trained on: how their model did on what they wrote, summed, noised and paid for.

Both halves: what one person adds, and what the noised sum says. A person adds a vector of three numbers, centred, of norm 1
at most: loss (cut off at a ceiling), accuracy, and whether the update was clipped. Its noise is drawn afresh in each round.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from reticent.privacy.gaussian import rounded_normal
from reticent.privacy.grid import Grid

NAMES = ("training_loss", "training_accuracy", "training_clipped")
# Of three numbers within 1/2 of zero: rounding and float32 leave the norm below 1.
WORTH = 2 / math.sqrt(3) * (1 - 2.0**-20)
# Tells the key of a row's metrics from those of its mechanism's draws.
PURPOSE = 0x6D657472


@dataclass(frozen=True)
class Measures:
    """`noise_multiplier` is the standard deviation of each number for one person's norm of 1; `ceiling` the largest loss
    that counts, in nats per word."""

    noise_multiplier: float
    ceiling: float
    grid: Grid

    @classmethod
    def of(cls, noise_multiplier: float, vocabulary: int, cohort: int) -> "Measures":
        """Those for sums over at most `cohort` people. A model that knows nothing has two thirds of the ceiling as loss."""
        return cls(noise_multiplier, 1.5 * math.log(vocabulary), Grid.finest(cohort, 1.0, noise_multiplier))

    @property
    def described(self) -> dict[str, Any]:
        """What the ledger's first line tells of them."""
        return {"entries": len(NAMES), "grid": self.grid.step, "ceiling": self.ceiling}

    def of_one(self, sums: Mapping[str, jax.Array], clipped: jax.Array) -> jax.Array:
        """What one person adds: int32[3]. Nothing that is no number gets in."""
        words = jnp.maximum(sums["tokens"], 1)
        shares = jnp.stack([sums["loss"] / words / self.ceiling, sums["correct"] / words, clipped.astype(jnp.float32)])
        centred = jnp.clip(jnp.nan_to_num(shares, nan=1.0, posinf=1.0, neginf=0.0), 0, 1) - 0.5
        return jnp.trunc(centred * (WORTH / self.grid.step)).astype(jnp.int32)

    def noised(self, total: jax.Array, key: jax.Array) -> jax.Array:
        """The sum with its noise; `key` is the row key of the round."""
        own = jax.random.fold_in(key, PURPOSE)
        return total + rounded_normal(own, total.shape, self.noise_multiplier / self.grid.step)

    def means(self, released: np.ndarray, cohort: float) -> dict[str, float]:
        """What a noised sum says of the average of a cohort of (about) this size."""
        shares = released.astype(np.float64) * self.grid.step / WORTH / cohort + 0.5
        return dict(zip(NAMES, (shares * [self.ceiling, 1.0, 1.0]).tolist(), strict=True))


def measures_of(description: Mapping[str, Any]) -> Measures | None:
    """Those of a run, as its ledger's first line tells of them; None for a run without."""
    told = description.get("metrics")
    if told is None:
        return None
    noise = description["accounting"]["metrics"]["noise_multiplier"]
    return Measures(noise, told["ceiling"], Grid.of_step(told["grid"]))
