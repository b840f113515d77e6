"""The arithmetic of one round, compiled: a cohort's sum, its row of noise, the server's step."""

import math
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from reticent.data.store import Store
from reticent.ledger.clip_norms import bit_units, first_norms, is_adaptive, norms_after, norms_at
from reticent.privacy.clipping import Contribution
from reticent.privacy.grid import Grid
from reticent.privacy.keys import row_key, simulation_threefry_key
from reticent.privacy.measures import NAMES
from reticent.privacy.noise import add_noise
from reticent.training.planted import RAW_NORM
from reticent.training.server import server_optimizer
from reticent.training.setup import Setup, Terms
from reticent.training.state import State
from reticent.training.updates import CohortSums
from reticent.training.work import local_work as local_work

CANARIES_AT_ONCE = 8


class Rounds:
    """What a run computes, given its setup. `close` ends its threads."""

    def __init__(self, setup: Setup, params: Any) -> None:
        run_file = setup.run_file
        assert run_file.clipping
        assert run_file.privacy
        self.setup = setup
        self.optimizer = server_optimizer(run_file.server, run_file.run.rounds)
        self._folder = tempfile.TemporaryDirectory()
        self.sums = setup.work.sums(setup, self._texts())
        self._present = setup.planted.present
        self._add_canaries = jax.jit(self._with_canaries, donate_argnums=0)
        self._key = simulation_threefry_key if run_file.privacy.random_bits == "threefry" else row_key
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
        self._unravel = partial(unraveled, like=like)
        self.adaptive = is_adaptive(setup.description)
        self._take(setup.terms(run_file.clipping.norm))

    def _take(self, terms: Terms) -> None:
        """Goes on with another clip norm, and with the grid and noise that go with it."""
        self.terms = terms
        setup = self.setup
        self.mechanism = add_noise(
            setup.mechanism, setup.run_file.run.rounds, setup.noise_multiplier, terms.clipping.norm, terms.grid
        )
        # A program belongs to its terms, and is never taken for that of others: `jit` knows two by what they close over.
        bit = bit_units(setup.description, terms.clipping.norm, terms.grid.step) if self.adaptive else 0
        self._noised = jax.jit(partial(self._noise, self.mechanism, bit), donate_argnums=1)
        self._served = jax.jit(partial(self._serve, terms.clipping.norm, terms.grid))

    def _texts(self) -> Store | None:
        """What the simulated users write."""
        planted, tokenizer = self.setup.planted, self.setup.data.train.tokenizer()
        if not planted.writers:
            return None
        length = self.setup.run_file.data.sequence_length
        return planted.write_texts(Path(self._folder.name, "texts"), tokenizer, length)

    def first_state(self, params: Any) -> State:
        """The state before round 0."""
        simulated = self.setup.run_file.run.simulated_row_seed
        empty = jnp.zeros(self.setup.size + self.adaptive, jnp.int32)
        return State(
            params,
            self.optimizer.init(params),
            self.mechanism.init(empty),
            self.setup.sampler.start(simulated),
            first_norms(self.setup.description),
        )

    def placed(self, state: State) -> State:
        """A state that was read or made here, as the rounds work on it."""
        return state

    def local(self, state: State) -> State:
        """The state as it is stored: whole arrays on this process."""
        return state

    def params(self, state: State) -> Any:
        """The parameters, whole, on this process."""
        return state.params

    def compile(self, state: State) -> None:
        """Compiles what takes longest, before the first round."""
        self.sums.compile(state.params, *self._estimate(state))

    def at(self, state: State, round: int) -> State:
        """The state in which a round begins: at a restart of the mechanism the clip norm changes, there and nowhere else."""
        norms = norms_at(self.setup.description, state.norms, round)
        if norms.active != self.terms.clipping.norm:
            self._take(self.setup.terms(norms.active))
            assert isinstance(self.sums, CohortSums)
            self.sums.take(self.terms.clipping)
        return state.replace(norms=norms)

    def _estimate(self, state: State) -> tuple[float, ...]:
        """What sums are also made with: the tracked norm, for adaptive clipping."""
        return (state.norms.tracked,) if self.adaptive else ()

    def sum_of(self, state: State, cohort: np.ndarray, round: int) -> Contribution:
        """The cohort's clipped updates, added up: never to be written, logged or sent."""
        total, planted = self.sums(state.params, cohort, round, *self._estimate(state)), self.setup.planted
        here = [canary for canary in planted.canaries_in(cohort).tolist() if self._present[canary]]
        for start in range(0, len(here), CANARIES_AT_ONCE):
            group = here[start : start + CANARIES_AT_ONCE]
            signs = [planted.whole_direction(canary, self.setup.model.parameters) for canary in group]
            signs += [signs[0]] * (CANARIES_AT_ONCE - len(group))
            total = self._add_canaries(total, np.stack(signs), len(group))
        return total

    def _with_canaries(self, total: Contribution, signs: jax.Array, count: jax.Array) -> Contribution:
        """The sum with the updates of `count` canaries, clipped as everybody's."""
        size = self.setup.model.parameters
        entry = RAW_NORM * self.setup.clipping.norm / math.sqrt(size)

        def add(number: jax.Array, total: Contribution) -> Contribution:
            update = entry * (1 - 2 * jnp.unpackbits(signs[number])[:size].astype(jnp.float32))
            return jax.tree.map(jnp.add, total, self.setup.clipping(self._unravel(update)))

        return jax.lax.fori_loop(0, count, add, total)

    def noised(self, total: Contribution, noise: Any, key: bytes) -> tuple[jax.Array, Any]:
        """The release, one vector, and the mechanism's buffers after it; the buffers before it are used up."""
        return self._noised(total, noise, self._key(key))

    def skipped(self, state: State, key: bytes) -> Any:
        """The mechanism's buffers after a row whose noise is spent: its release is there already, or never will be."""
        nobody = self.sums.of_nobody(state.params, self.sums.devices[0], *self._estimate(state))
        return self.noised(nobody, state.noise, key)[1]

    def _noise(
        self, mechanism: Any, bit: int, total: Contribution, noise: Any, key: jax.Array
    ) -> tuple[jax.Array, Any]:
        """A release: the update, then for adaptive clipping the count of bits, under the same row of noise; then metrics,
        under noise of their own."""
        sums, _ = ravel_pytree(self.setup.estimator.before_noise(total))
        nobody = jnp.zeros(self.setup.planted.zero_coordinates, jnp.int32)
        sums = jnp.concatenate([nobody, sums])
        if total.within is not None:
            sums = jnp.concatenate([sums, (total.within * bit)[None]])
        release, noise = mechanism.update(sums, noise, key=key)
        if total.measured is not None:
            assert self.setup.measures
            release = jnp.concatenate([release, self.setup.measures.noised(total.measured, key)])
        return release, noise

    def served(self, state: State, release: jax.Array) -> State:
        """The state whose model has taken a release, and whose tracked norm its count."""
        params, optimizer = self._served(state.params, state.optimizer, release)
        norms = state.norms
        if self.adaptive:
            count = int(release[self.setup.size])
            norms = norms_after(self.setup.description, norms, self.terms.grid.step, count)
        return state.replace(params=params, optimizer=optimizer, norms=norms)

    def told(self, state: State, payload: np.ndarray) -> dict[str, float]:
        """What a release says beside the update; `state` is that after it."""
        record: dict[str, float] = {}
        if "clip_norms" in self.setup.description:
            record["clip_norm"] = self.terms.clipping.norm
        if self.adaptive:
            record["tracked_norm"] = state.norms.tracked
        if self.setup.measures is not None:
            record |= self.setup.measures.means(payload[-len(NAMES) :], self.setup.sampler.expected_cohort)
        return record

    def _gradient(self, norm: float, grid: Grid, units: jax.Array) -> jax.Array:
        """What the server's optimiser takes for a gradient, of the part of a release that is the model's."""
        # What is released are model deltas, and a gradient points the other way.
        average = -self.setup.estimator.average(units, grid)
        assert self.setup.run_file.clipping
        return average / norm if self.setup.run_file.clipping.normalised else average

    def _serve(self, norm: float, grid: Grid, params: Any, optimizer: Any, release: jax.Array) -> tuple[Any, Any]:
        of_model = release[self.setup.planted.zero_coordinates : self.setup.size]
        gradient = self._unravel(self._gradient(norm, grid, of_model))
        step, optimizer = self.optimizer.update(gradient, optimizer, params)
        return optax.apply_updates(params, step), optimizer

    def close(self) -> None:
        self.sums.close()
        self._folder.cleanup()


def unraveled(vector: Any, like: Any) -> Any:
    """A vector as a pytree of arrays of the shapes of `like`, in their order; the inverse of `ravel_pytree`."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves]).tolist()
    starts = [0, *ends[:-1]]
    cut = zip(leaves, starts, ends, strict=True)
    return jax.tree.unflatten(structure, [vector[start:end].reshape(leaf.shape) for leaf, start, end in cut])
