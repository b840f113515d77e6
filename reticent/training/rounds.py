"""The arithmetic of one round, compiled: a cohort's sum, its row of noise, the server's step."""

import math
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from reticent.data.store import Store
from reticent.privacy.clipping import Contribution
from reticent.privacy.keys import row_key, simulation_threefry_key
from reticent.privacy.noise import add_noise
from reticent.training.planted import RAW_NORM
from reticent.training.server import server_optimizer
from reticent.training.setup import Setup
from reticent.training.state import State
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
        self.mechanism = add_noise(
            setup.mechanism, run_file.run.rounds, setup.noise_multiplier, run_file.clipping.norm, setup.grid
        )
        self._folder = tempfile.TemporaryDirectory()
        self.sums = setup.work.sums(setup, self._texts())
        self._present = setup.planted.present
        self._add_canaries = jax.jit(self._with_canaries, donate_argnums=0)
        self._key = simulation_threefry_key if run_file.privacy.random_bits == "threefry" else row_key
        _, self._unravel = ravel_pytree(params)
        self._noised = jax.jit(self._noise, donate_argnums=1)
        self._served = jax.jit(self._serve)
        self._empty = jnp.zeros(setup.size, jnp.int32)

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
        return State(
            params, self.optimizer.init(params), self.mechanism.init(self._empty), self.setup.sampler.start(simulated)
        )

    def sum_of(self, state: State, cohort: np.ndarray, round: int) -> Contribution:
        """The cohort's clipped updates, added up: never to be written, logged or sent."""
        total, planted = self.sums(state.params, cohort, round), self.setup.planted
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
        return self.noised(self.sums.of_nobody(state.params, self.sums.devices[0]), state.noise, key)[1]

    def _noise(self, total: Contribution, noise: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        sums, _ = ravel_pytree(self.setup.estimator.before_noise(total))
        nobody = jnp.zeros(self.setup.planted.zero_coordinates, jnp.int32)
        return self.mechanism.update(jnp.concatenate([nobody, sums]), noise, key=key)

    def served(self, state: State, release: jax.Array) -> State:
        """The state whose model has taken a release."""
        params, optimizer = self._served(state.params, state.optimizer, release)
        return state.replace(params=params, optimizer=optimizer)

    def _serve(self, params: Any, optimizer: Any, release: jax.Array) -> tuple[Any, Any]:
        # What is released are model deltas, and a gradient points the other way.
        average = -self.setup.estimator.average(release[self.setup.planted.zero_coordinates :], self.setup.grid)
        assert self.setup.run_file.clipping
        if self.setup.run_file.clipping.normalised:
            average = average / self.setup.clipping.norm
        step, optimizer = self.optimizer.update(self._unravel(average), optimizer, params)
        return optax.apply_updates(params, step), optimizer

    def close(self) -> None:
        self.sums.close()
        self._folder.cleanup()
