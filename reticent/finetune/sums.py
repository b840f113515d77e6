"""The sum of a cohort's clipped gradients, micro-batch by micro-batch: in memory are one of them and one accumulator."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from reticent.errors import Refused
from reticent.finetune.bookkeeping import clipped_sums, unit_loss
from reticent.finetune.sources import MicroBatch, Source, nothing
from reticent.models import Model
from reticent.models.clients import map_clients
from reticent.models.losses import token_losses
from reticent.models.model import inputs_of, targets_of
from reticent.privacy.clipping import Clipping, Contribution
from reticent.privacy.grid import round_towards_zero
from reticent.privacy.norms import rounded_down
from reticent.privacy.weighting import WHOLE

# Room for what float32 can get wrong in clip factors.
SAFE = 1 - 2.0**-18
Accumulator = Any


class Together:
    """Gradients clipped without making single ones: float sums, rounded once (`bookkeeping`)."""

    def __init__(self, model: Model, clipping: Clipping) -> None:
        self.model, self.clipping = model, clipping

    def holding(self, frozen: Any) -> "Together":
        """The same of a model with these arrays for those that stay as they are."""
        return Together(self.model.holding(frozen), self.clipping)

    def nothing(self, params: Any) -> Accumulator:
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), params)
        return zeros, jnp.int32(0), jnp.int32(0)

    def add(self, total: Accumulator, params: Any, tokens: jax.Array, weights: jax.Array) -> Accumulator:
        shares = weights.astype(jnp.float32) / WHOLE
        found = clipped_sums(self.model, params, tokens, float(rounded_down(self.clipping.norm * SAFE)), shares)
        sums, weight, bad = total
        bad = bad + jnp.where(weights > 0, found.bad, 0).sum()
        return jax.tree.map(jnp.add, sums, found.total), weight + weights.sum(), bad

    def contribution(self, total: Accumulator) -> Contribution:
        sums, weight, bad = total
        # A release is of model deltas: the gradient with its sign turned.
        return Contribution(round_towards_zero(jax.tree.map(jnp.negative, sums), self.clipping.grid), weight, bad)


class Single:
    """Gradients one by one, each clipped in exact arithmetic: for any model."""

    def __init__(self, model: Model, clipping: Clipping) -> None:
        self.model, self.clipping = model, clipping

    def holding(self, frozen: Any) -> "Single":
        """The same of a model with these arrays for those that stay as they are."""
        return Single(self.model.holding(frozen), self.clipping)

    def nothing(self, params: Any) -> Accumulator:
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.int32), params)
        return Contribution(zeros, jnp.int32(0), jnp.int32(0))

    def add(self, total: Accumulator, params: Any, tokens: jax.Array, weights: jax.Array) -> Accumulator:
        def one(rows: jax.Array, weight: jax.Array) -> Contribution:
            slope = jax.grad(lambda params: loss_of_unit(self.model, params, rows))(params)
            return self.clipping(jax.tree.map(jnp.negative, slope), weight)

        return jax.tree.map(jnp.add, total, map_clients(one, tokens, weights, total=True))

    def contribution(self, total: Accumulator) -> Contribution:
        return total


def added(
    how: Together | Single, total: Accumulator, params: Any, frozen: Any, tokens: Any, weights: Any
) -> Accumulator:
    """`how.add`, with what is not trained as an argument: compiled in, it would be in memory twice."""
    return how.holding(frozen).add(total, params, tokens, weights)


def loss_of_unit(model: Model, params: Any, rows: jax.Array) -> jax.Array:
    """The loss whose gradient is a unit's, of int32[rows, length + 1]: for language models the mean over rows of each row's
    mean; for others, whose `loss` is no mean over tokens, the mean over rows of that."""
    if model.of_tokens:
        losses = token_losses(model.apply(params, inputs_of(rows)).astype(jnp.float32), targets_of(rows))
        return unit_loss(losses[None], targets_of(rows)[None])[0]
    there = (rows[:, -1] >= 0).astype(jnp.float32)
    losses = jax.vmap(lambda row: model.loss(params, row[None], None)[0])(rows)
    return (losses * there).sum() / jnp.maximum(there.sum(), 1.0)


class UnitSums:
    """Sums over cohorts drawn from one source, on all local devices; the same number for number whenever it is done.

    `largest` is the cohort that the release's grid has room for: one above it is refused, never cut.
    """

    def __init__(self, how: Together | Single, source: Source, rows: int, largest: int) -> None:
        self.how, self.source, self.rows, self.largest = how, source, rows, largest
        self.devices = jax.local_devices()
        self._add = jax.jit(added, static_argnums=0, donate_argnums=1)
        self._frozen = {device: jax.device_put(how.model.frozen, device) for device in self.devices}
        self._contribution = jax.jit(self.how.contribution)

    def compile(self, params: Any) -> None:
        """Compiles everything before the first round, with nobody in the cohort."""
        for device in self.devices:
            own = jax.device_put(params, device)
            total = jax.device_put(self.how.nothing(params), device)
            for height in self.source.heights:
                units = max(1, self.rows // height)
                empty = nothing(units, height, self.source.sequence_length)
                total = self._add(self.how, total, own, self._frozen[device], *empty)
            jax.block_until_ready(total)

    def __call__(self, params: Any, cohort: np.ndarray, round: int) -> Contribution:
        """The sum over the cohort, on the first device. Secret until it is noised."""
        if len(cohort) > self.largest:
            raise Refused(
                f"A cohort came out larger than the {self.largest:,} that the run has planned for, which sampling as stated "
                "does not do; check population.size and population.probability, and resume."
            )
        own = [jax.device_put(params, device) for device in self.devices]
        totals = [jax.device_put(self.how.nothing(params), device) for device in self.devices]
        for number, (tokens, weights) in enumerate(self._micro_batches(cohort, round)):
            # In turn, so that every sum is made in the same order each time.
            place = number % len(self.devices)
            frozen = self._frozen[self.devices[place]]
            totals[place] = self._add(self.how, totals[place], own[place], frozen, tokens, weights)
        first, *others = (jax.device_put(total, self.devices[0]) for total in totals)
        for other in others:
            first = jax.tree.map(jnp.add, first, other)
        return self._contribution(first)

    def _micro_batches(self, cohort: np.ndarray, round: int) -> Iterator[MicroBatch]:
        return self.source.micro_batches(cohort, round, self.rows)

    def of_nobody(self, params: Any, device: Any) -> Contribution:
        """The sum over an empty cohort, on this device."""
        return jax.device_put(self._contribution(self.how.nothing(params)), device)

    def close(self) -> None:
        return None
