"""Personalisation (ULDP, App. J.2): a model trained further on half of a person's examples, measured on the other half."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from reticent.data.batches import Rows, client_rows, fill, row_counts
from reticent.data.mixing import spread
from reticent.data.store import Store
from reticent.errors import Refused
from reticent.models import Model
from reticent.models.clients import local_updates

PEOPLE_AT_ONCE = 8


@dataclass(frozen=True)
class Personalised:
    """Means over people, each counting the same: the loss on the half that was kept back, in nats per token, before and
    after. `left_out` had fewer than two examples."""

    people: int
    left_out: int
    loss: float
    personalised_loss: float
    better: int

    @property
    def gain(self) -> float:
        return self.loss - self.personalised_loss


def personalise(
    model: Model,
    params: Any,
    people: Store,
    *,
    sequence_length: int,
    users: int | None = None,
    epochs: int = 4,
    batch_size: int = 16,
    learning_rate: float = 0.1,
    most: int = 64,
    seed: int = 0,
) -> Personalised:
    """Trains on the first half of each person's rows, in an order decided by the seed, with `epochs` of SGD, and measures
    on the rest. At most `most` rows of a person are used, and at most `users` people."""
    cohort = np.arange(people.users if users is None else min(users, people.users))
    rows = client_rows(people, cohort, sequence_length, most, None, seed)
    counts = row_counts(rows, len(cohort))
    fit = np.flatnonzero(counts >= 2)
    if not len(fit):
        raise Refused("Nobody has two examples, one to train on and one to measure on; give people who wrote more.")
    steps = -(-(int(counts.max()) // 2) // batch_size)
    halves = (steps * batch_size, int(counts.max()) - int(counts.max()) // 2)

    @jax.jit
    def measure(params: Any, frozen: Any, train: jax.Array, kept: jax.Array) -> tuple[jax.Array, jax.Array]:
        own = model.holding(frozen)

        def loss(params: Any, rows: jax.Array) -> jax.Array:
            return own.loss(params, rows, None)[0]

        def after(update: Any, rows: jax.Array) -> jax.Array:
            return loss(jax.tree.map(jnp.add, params, update), rows)

        repeated = jnp.tile(train, (1, epochs, 1, 1))
        trained = local_updates(own, params, repeated, learning_rate, after, beside=(kept,))
        return jax.lax.map(lambda rows: loss(params, rows), kept), trained

    begins = np.cumsum(counts) - counts
    before, after = [], []
    for first in range(0, len(fit), PEOPLE_AT_ONCE):
        group = fit[first : first + PEOPLE_AT_ONCE]
        train, kept = (
            _half(people, rows, begins[group] + skipped, taken, room, sequence_length)
            for skipped, taken, room in (
                (0, counts[group] // 2, halves[0]),
                (counts[group] // 2, counts[group] - counts[group] // 2, halves[1]),
            )
        )
        both = measure(params, model.frozen, train.reshape(PEOPLE_AT_ONCE, steps, batch_size, -1), kept)
        before.append(np.asarray(both[0], np.float64)[: len(group)])
        after.append(np.asarray(both[1], np.float64)[: len(group)])
    plain, own = np.concatenate(before), np.concatenate(after)
    return Personalised(
        len(fit), len(cohort) - len(fit), float(plain.mean()), float(own.mean()), int((own < plain).sum())
    )


def _half(
    store: Store, rows: Rows, begins: np.ndarray, counts: np.ndarray, room: int, sequence_length: int
) -> np.ndarray:
    """int32[PEOPLE_AT_ONCE, room, sequence_length + 1]: `counts` rows of each person, from `begins` on."""
    chosen = spread(begins, counts)
    places = spread(np.arange(len(counts)) * room, counts)
    part = Rows(places, places, rows.start[chosen], rows.length[chosen])
    tokens = fill(store, part, places, PEOPLE_AT_ONCE * room, sequence_length)
    return tokens.reshape(PEOPLE_AT_ONCE, room, sequence_length + 1)
