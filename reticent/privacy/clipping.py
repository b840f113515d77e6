"""Clipping one user's update onto the grid: what bounds everything that a user can change.

    clipping = Clipping(norm=1.0, grid=grid)
    local_updates(model, params, tokens, rate, clipping, total=True)                          # everybody weighs the same
    local_updates(model, params, tokens, rate, clipping, beside=(weights,), total=True)       # see `weighting`

There is nothing to undo at the server: it adds up integers, whose worth is `grid.value_of`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from reticent.errors import Refused
from reticent.privacy.grid import Grid, round_towards_zero
from reticent.privacy.measures import Measures
from reticent.privacy.norms import largest_entry, norm_of, rounded_down
from reticent.privacy.weighting import WHOLE

LARGEST_FLOAT = float(jnp.finfo(jnp.float32).max)


class Contribution(NamedTuple):
    """What one user adds to a round, or many of them together. All of it is secret until it is noised.

    `units`: the clipped update, a pytree of int32 on the grid; `weight`, in parts of `weighting.WHOLE`; `zeroed`: whether
    the update was bad and counts as zero (how many were is as private as any raw count). `within`: for adaptive clipping,
    1 for an update no longer than the tracked estimate and -1 for a longer one; `measured`: for training metrics, what
    `measures` makes of them. Somebody of weight 0 adds nothing to any.
    """

    units: Any
    weight: jax.Array
    zeroed: jax.Array
    within: jax.Array | None = None
    measured: jax.Array | None = None


@dataclass(frozen=True)
class Clipping:
    """Clips an update to a Euclidean norm of at most `norm`, in exact arithmetic.

    `flat` clips the whole (dpfedavg, eq. 1); `per-layer` every one of its m arrays, to `layer_norms`, by default norm /
    sqrt(m) each. An update with an entry above `zero_above` in absolute value, or with one that is no finite number, counts
    as zero. Weights come after clipping: weighted first, a long update of little weight would count as much as any.

    The bound holds since a scaled update has the norm `norm` less twice what float32 arithmetic can get wrong
    (`norms.norm_of`, some 1e-5 of it), and every entry is then rounded towards zero. An update up to there is not scaled.
    """

    norm: float
    grid: Grid
    style: Literal["flat", "per-layer"] = "flat"
    zero_above: float | None = None
    layer_norms: tuple[float, ...] | None = None
    measures: Measures | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.norm) and self.norm > 0):
            raise Refused(f"The clip norm must be positive and finite, got {self.norm}.")
        if not self.grid.holds(self.norm) or self.norm < self.grid.step:
            raise Refused(
                f"A grid of {self.grid.step:g} does not suit a clip norm of {self.norm:g}: clipped entries must be whole "
                "steps that 32 bits hold. Take Grid.finest."
            )
        if self.style not in ("flat", "per-layer"):
            raise Refused(f"Clipping is 'flat' or 'per-layer', not {self.style!r}.")
        if self.zero_above is not None and not self.zero_above > 0:
            raise Refused(f"zero_above must be positive, got {self.zero_above}.")
        if self.layer_norms is not None:
            if self.style == "flat":
                raise Refused("layer_norms are for style 'per-layer'.")
            if not all(norm >= 0 for norm in self.layer_norms) or math.hypot(*self.layer_norms) > self.norm * (
                1 + 1e-12
            ):
                raise Refused(
                    f"layer_norms make a norm of {math.hypot(*self.layer_norms):g} together, more than {self.norm:g}."
                )

    def __call__(
        self,
        update: Any,
        weight: jax.Array | int = WHOLE,
        *,
        estimate: jax.Array | None = None,
        sums: Mapping[str, jax.Array] | None = None,
    ) -> Contribution:
        """The user's contribution: the update (a pytree of float32), clipped, then weighted, then rounded.

        `weight` is in parts of `WHOLE`; `estimate` is the tracked norm of adaptive clipping, `sums` those of the model's
        loss on the user's text, for training metrics. Pure, for use under `jit`, `vmap` and `scan`.
        """
        leaves, structure = jax.tree.flatten(update)
        good = largest_entry(update) <= rounded_down(min(self.zero_above or math.inf, LARGEST_FLOAT))
        share = jnp.asarray(weight, jnp.int32).astype(jnp.float32) / WHOLE
        if self.style == "flat":
            factors = [_factor(update, self.norm)] * len(leaves)
        else:
            factors = [_factor(leaf, norm) for leaf, norm in zip(leaves, self._norms(len(leaves)), strict=True)]
        clipped = [jnp.where(good, leaf * (factor * share), 0) for leaf, factor in zip(leaves, factors, strict=True)]
        units = round_towards_zero(jax.tree.unflatten(structure, clipped), self.grid)
        within = measured = None
        counts = (jnp.asarray(weight) > 0).astype(jnp.int32)
        if estimate is not None:
            # The estimate, not the norm that is clipped to; what is no number is longer than any (ERRATA on Gboard, Alg. 1).
            within = jnp.where(good & (norm_of(update)[0] <= estimate), counts, -counts)
        if self.measures is not None:
            assert sums is not None
            shortened = jnp.stack(factors).min() < 1
            measured = self.measures.of_one(sums, shortened | ~good) * counts
        return Contribution(units, jnp.asarray(weight, jnp.int32), (~good).astype(jnp.int32), within, measured)

    def _norms(self, layers: int) -> tuple[float, ...]:
        if self.layer_norms is None:
            return (self.norm / math.sqrt(layers),) * layers
        if len(self.layer_norms) != layers:
            raise Refused(f"There are {len(self.layer_norms)} layer_norms for an update of {layers} arrays.")
        return self.layer_norms


def _factor(update: Any, norm: float) -> jax.Array:
    """What to multiply an update with for its norm to be at most `norm`."""
    measured, error = norm_of(update)
    return jnp.minimum(1, rounded_down(norm * (1 - 2 * error)) / measured)
