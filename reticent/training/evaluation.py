"""What a model can do, measured on people it was not trained on. The guarantee does not cover them, and reports say so."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from reticent.data.batches import client_rows, fill
from reticent.data.store import Store
from reticent.models import Model
from reticent.models.metrics import summary

ROWS = 256
USERS_AT_ONCE = 4096


@dataclass(frozen=True)
class HeldOut:
    """Who a model is evaluated on: the first `users` of a store, in rows of `sequence_length`."""

    store: Store
    users: int
    sequence_length: int
    unknown: int

    def rows(self) -> Iterator[np.ndarray]:
        """All rows as int32[ROWS, sequence_length + 1], the last filled up with padding."""
        for start in range(0, self.users, USERS_AT_ONCE):
            users = np.arange(start, min(start + USERS_AT_ONCE, self.users))
            found = client_rows(self.store, users, self.sequence_length, None, None, 0)
            count = -(-len(found.rank) // ROWS) * ROWS
            tokens = fill(self.store, found, np.arange(len(found.rank)), count, self.sequence_length)
            yield from tokens.reshape(-1, ROWS, self.sequence_length + 1)

    def unigram_top1(self, of_tokens: bool = True) -> float:
        """The accuracy of always predicting one word, the best there is for these people; the unknown word is no
        prediction. Of rows that are no text (`of_tokens` false), of always predicting one label."""
        counts = np.zeros(self.store.header["tokenizer"]["size"], np.int64)
        for rows in self.rows():
            targets = rows[:, 1:] if of_tokens else rows[:, -1]
            counts += np.bincount(targets[targets >= 0], minlength=len(counts))
        total = int(counts.sum())
        if self.unknown >= 0:
            counts[self.unknown] = 0
        return float(counts.max() / total) if total else 0.0


def held_out(store: Store, users: int | None, sequence_length: int) -> HeldOut:
    """The first `users` of a store (all without a number) to evaluate on."""
    most = store.users if users is None else min(users, store.users)
    return HeldOut(store, most, sequence_length, store.header["tokenizer"]["unknown"])


def evaluator(model: Model, people: HeldOut) -> Callable[[Any], dict[str, Any]]:
    """A function from parameters to a plain record of what they can do.

    top1 counts the unknown word as wrong, top1_in_vocabulary leaves it out, top3 counts the three likeliest words; loss
    is in nats per target.
    """
    sums_of = jax.jit(lambda params, rows, frozen: model.holding(frozen).loss(params, rows, None)[1])
    baseline: list[float] = []

    def evaluate(params: Any) -> dict[str, Any]:
        baseline.extend([] if baseline else [people.unigram_top1(model.of_tokens)])
        totals: dict[str, float] = {}
        for rows in people.rows():
            for name, value in sums_of(params, rows, model.frozen).items():
                totals[name] = totals.get(name, 0.0) + float(value)
        found = summary(totals)
        return {
            "loss": found["loss"],
            "perplexity": found["perplexity"],
            "top1": found["accuracy"],
            "top1_in_vocabulary": found["accuracy_in_vocabulary"],
            "top3": found["accuracy_top3"],
            "targets": int(found["tokens"]),
            "users": people.users,
            "unigram_top1": baseline[0],
        }

    return evaluate
