"""Secure aggregation in a run: what a run file asks for, and a cohort's sum through the encoding or the whole protocol.

Every member's clipped update leaves the device's arithmetic by itself, is encoded on the host and summed modulo 2^m; what
is decoded is again a vector of the release's integers, to which noise is added as to any sum.
"""

import hashlib
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from reticent.config import RunFile
from reticent.data.batches import ClientBatches, assemble_in_shapes
from reticent.models.clients import local_updates
from reticent.privacy.clipping import Contribution
from reticent.privacy.grid import Grid
from reticent.secagg import GridSums, IntegerSums, RotatedCode
from reticent.secagg.graph import graph_for, tolerated
from reticent.training.updates import CohortSums

INFLATION = 0.01
TOLERATED = 0.05
# Groups whose updates are held at once, for the protocol to ask for them in its own order.
GROUPS_AT_ONCE = 4


@dataclass(frozen=True)
class Aggregation:
    """How a run sums its updates, but for the grid. `dropout` and `corruption` are the fractions of a cohort that are
    tolerated; `code` is None where the grid's own integers are summed. Refuses, before the first round, a cohort that no
    graph makes safe and an encoding that does not fit."""

    setting: str
    dimension: int
    clip_norm: float
    cohort: int
    code: RotatedCode | None
    dropout: float
    corruption: float

    def __post_init__(self) -> None:
        if self.setting == "protocol":
            graph_for(self.cohort, tolerated(self.cohort, self.dropout), tolerated(self.cohort, self.corruption))

    @property
    def inflated_clip_norm(self) -> float:
        """The norm that an encoded update can have."""
        return self.clip_norm if self.code is None else self.code.inflated_clip_norm

    def on(self, grid: Grid) -> GridSums | IntegerSums:
        """The sums on a release's grid."""
        if self.code is None:
            return IntegerSums(self.dimension, self.clip_norm, self.cohort, grid.step)
        return GridSums(self.code, grid.step)

    def described(self, sums: GridSums | IntegerSums) -> dict[str, Any]:
        """What the ledger's first line tells of it, beside the accounting."""
        told: dict[str, Any] = {
            "setting": self.setting,
            "modulus_bits": sums.code.modulus_bits,
            "words": sums.code.length,
        }
        if self.code is not None:
            told["scale"] = self.code.scale
        if self.setting == "protocol":
            told |= {"tolerated_dropout": self.dropout, "tolerated_corruption": self.corruption}
        return told


def aggregation_of(run_file: RunFile, dimension: int, cohort: int) -> Aggregation | None:
    """The secure aggregation of a run file, for vectors of `dimension` of at most `cohort` clients; None if it is off."""
    table = run_file.run
    if table.secure_aggregation == "off":
        return None
    assert run_file.clipping
    norm = run_file.clipping.norm
    inflation = INFLATION if table.encoding_inflation is None else table.encoding_inflation
    code = RotatedCode.plan(dimension, norm, cohort, inflation) if inflation else None
    dropout = TOLERATED if table.tolerated_dropout is None else table.tolerated_dropout
    corruption = TOLERATED if table.tolerated_corruption is None else table.tolerated_corruption
    return Aggregation(table.secure_aggregation, dimension, norm, cohort, code, dropout, corruption)


class SecureSums(CohortSums):
    """Sums over cohorts by secure aggregation. With `simulated_seed` its coins repeat, and protect nobody."""

    def __init__(self, aggregation: Aggregation, grid: Grid, simulated_seed: int | None, *cohort_sums: Any) -> None:
        super().__init__(*cohort_sums)
        self.aggregation = aggregation
        self.by_grid = aggregation.on(grid)
        self.simulated_seed = simulated_seed
        self._updates = jax.jit(self._group_updates)

    def compile(self, params: Any, estimate: float | None = None) -> None:
        nobody = np.full(self.clients, -1)
        for device in dict.fromkeys(self.devices):
            own = jax.device_put(params, device), self._frozen[device]
            for steps, batch in self.shapes:
                tokens = np.full((self.clients, steps, batch, self.work.sequence_length + 1), -1, np.int32)
                empty = np.zeros(self.clients, np.int32)
                jax.block_until_ready(self._of_group(own, ClientBatches(tokens, empty, empty, empty, nobody)))

    def __call__(self, params: Any, cohort: np.ndarray, round: int, estimate: float | None = None) -> Contribution:
        if not len(cohort):
            return self.of_nobody(params, self.devices[0])
        seed = None if self.simulated_seed is None else simulated_coins(self.simulated_seed, round)
        if self.aggregation.setting == "encoding":
            total = self.by_grid.directly(self._one_by_one(params, cohort, round), seed)
        else:
            total = self._by_protocol(params, cohort, round, seed)
        return _sum(jax.device_put(total, self.devices[0]))

    def of_nobody(self, params: Any, device: Any, estimate: Any = None) -> Contribution:
        return jax.device_put(_sum(jnp.zeros(self.aggregation.dimension, jnp.int32)), device)

    def _by_protocol(self, params: Any, cohort: np.ndarray, round: int, seed: bytes | None) -> np.ndarray:
        """Every member and the server by itself, over bytes, with identities and keys of this round only."""
        made = self._in_order(params, cohort, round)

        def updated(name: str) -> np.ndarray:
            return next(vector for other, vector in made if other == name)

        names = map(name_of, sorted(cohort.tolist()))
        total, _ = self.by_grid.by_protocol(
            {name: partial(updated, name) for name in names},
            number=round,
            seed=seed,
            dropout=self.aggregation.dropout,
            corruption=self.aggregation.corruption,
        )
        return total

    def _in_order(self, params: Any, cohort: np.ndarray, round: int) -> Iterator[tuple[str, np.ndarray]]:
        """Every member's update in the order of their names, in which the protocol asks for them."""
        ordered, at_once = np.sort(cohort), GROUPS_AT_ONCE * self.clients
        for start in range(0, len(ordered), at_once):
            yield from sorted(self._one_by_one(params, ordered[start : start + at_once], round), key=lambda one: one[0])

    def _one_by_one(self, params: Any, cohort: np.ndarray, round: int) -> Iterator[tuple[str, np.ndarray]]:
        """Every member's name and clipped update, a few groups ahead of whoever takes them."""
        seed = (self.seed << 32) + round
        groups = assemble_in_shapes(self.store, cohort, self.shapes, clients=self.clients, seed=seed, **self.work.rows)
        own = {device: (jax.device_put(params, device), frozen) for device, frozen in self._frozen.items()}
        turns = itertools.cycle(self.devices)
        waiting: deque[Any] = deque()
        for group in itertools.chain(groups, [None] * len(self.devices)):
            if group is not None:
                waiting.append((group.clients, self._pool.submit(self._on_host, own[next(turns)], group)))
            if waiting and (group is None or len(waiting) > len(self.devices)):
                clients, made = waiting.popleft()
                for client, units in zip(clients.tolist(), made.result(), strict=True):
                    if client >= 0:
                        yield name_of(int(cohort[client])), self.by_grid.vector_of(units)

    def _on_host(self, own: tuple[Any, Any], group: ClientBatches) -> np.ndarray:
        return np.asarray(self._of_group(own, group))

    def _of_group(self, own: tuple[Any, Any], group: ClientBatches) -> jax.Array:
        return self._updates(*own, group.tokens, self.work.weights(group))

    def _group_updates(self, params: Any, frozen: Any, tokens: jax.Array, weights: jax.Array) -> jax.Array:
        """Each client's clipped update as one vector of units."""

        def one(update: Any, weight: jax.Array) -> jax.Array:
            return ravel_pytree(self.each(update, weight).units)[0]

        repeated = jnp.tile(tokens, (1, self.work.epochs, 1, 1))
        model = self.model.holding(frozen)
        return local_updates(model, params, repeated, self.work.learning_rate, one, beside=(weights,))


def name_of(user: int) -> str:
    """A member's name in the protocol; names sort as their users do."""
    return f"{user:012d}"


def simulated_coins(seed: int, round: int) -> bytes:
    """What a simulated round's rotation and rounding come from: the same for every attempt."""
    return hashlib.sha256(f"reticent simulated coins, seed {seed}, round {round}".encode()).digest()


def _sum(units: jax.Array) -> Contribution:
    # Nobody may know of a single client whether its update was bad, so that their number is not summed.
    return Contribution(units, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))
