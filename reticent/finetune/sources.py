"""From a cohort to micro-batches of units of fixed shapes: padded, never cut, nothing to compile anew."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp
import numpy as np

from reticent.data.batches import PADDING, Rows, client_rows, fill, row_counts, shapes
from reticent.data.mixing import mix, salt, spread
from reticent.data.store import Store
from reticent.finetune.pool import Pool
from reticent.privacy.weighting import WHOLE, user_weights

MicroBatch = tuple[np.ndarray, np.ndarray]
"""int32[units, rows, sequence_length + 1] padded with -1, and each unit's weight in parts of `WHOLE`: 0 for nobody."""


class Source(Protocol):
    """Whose data a cohort is of."""

    @property
    def heights(self) -> tuple[int, ...]:
        """The rows that units have: the fewest that each fits in."""
        ...

    @property
    def tallest(self) -> int:
        """The most rows that a unit may have, whatever the data."""
        ...

    @property
    def sequence_length(self) -> int: ...

    def micro_batches(self, cohort: np.ndarray, round: int, rows: int) -> Iterator[MicroBatch]:
        """All of a cohort, in micro-batches of about `rows` rows whose units have one of `heights` rows each. The same
        ones in the same order for the same cohort."""
        ...


@dataclass(frozen=True, eq=False)
class OfExamples:
    """Every example is a unit."""

    pool: Pool

    @property
    def heights(self) -> tuple[int, ...]:
        return (1,)

    @property
    def tallest(self) -> int:
        return 1

    @property
    def sequence_length(self) -> int:
        return self.pool.sequence_length

    def micro_batches(self, cohort: np.ndarray, round: int, rows: int) -> Iterator[MicroBatch]:
        for first in range(0, len(cohort), rows):
            part = cohort[first : first + rows]
            weights = np.where(np.arange(rows) < len(part), WHOLE, 0).astype(np.int32)
            yield self.pool.tokens(part, rows)[:, None], weights


@dataclass(frozen=True, eq=False)
class ExamplesOfUsers:
    """A cohort of users, of whom each brings up to `each` examples of the pool, drawn anew each round: the units."""

    pool: Pool
    each: int
    seed: int

    @property
    def heights(self) -> tuple[int, ...]:
        return (1,)

    @property
    def tallest(self) -> int:
        return 1

    @property
    def sequence_length(self) -> int:
        return self.pool.sequence_length

    def micro_batches(self, cohort: np.ndarray, round: int, rows: int) -> Iterator[MicroBatch]:
        counts = np.diff(self.pool.starts)[cohort]
        owner = np.repeat(np.arange(len(cohort)), counts)
        examples = spread(self.pool.starts[cohort], counts)
        rank = spread(np.zeros_like(counts), counts)
        # By (seed, round, user) alone: whoever else is there must not change what anybody brings.
        keys = self.pool.store.user_keys(cohort) ^ salt("examples of a round", (self.seed << 32) + round)
        order = np.lexsort((mix(mix(keys)[owner] + rank.astype(np.uint64)), owner))
        yield from OfExamples(self.pool).micro_batches(examples[order][rank < self.each], round, rows)


class OfUsers:
    """Every user is a unit, with up to `most` of its rows, drawn anew each round (ULDP, Alg. 2)."""

    def __init__(
        self,
        store: Store,
        sequence_length: int,
        most: int,
        seed: int,
        packed: bool = False,
        max_tokens: int | None = None,
        weight_cap: float | None = None,
    ) -> None:
        self.store, self.most, self.seed = store, most, seed
        self.sequence_length: int = sequence_length
        self.packed, self.max_tokens, self.weight_cap = packed, max_tokens, weight_cap
        found = shapes(
            store,
            batch_size=most,
            sequence_length=sequence_length,
            max_examples=most,
            max_tokens=max_tokens,
            packed=packed,
        )
        self.heights: tuple[int, ...] = tuple(sorted({rows for _, rows in found}))

    @property
    def tallest(self) -> int:
        return self.most

    def micro_batches(self, cohort: np.ndarray, round: int, rows: int) -> Iterator[MicroBatch]:
        seed = (self.seed << 32) + round
        found = client_rows(self.store, cohort, self.sequence_length, self.most, self.max_tokens, seed, self.packed)
        counts = row_counts(found, len(cohort))
        begins = np.cumsum(counts) - counts
        height = np.array(self.heights)[np.searchsorted(self.heights, np.minimum(counts, self.heights[-1]))]
        for tall in self.heights:
            # Who has nothing to predict adds nothing.
            members = np.flatnonzero((height == tall) & (counts > 0))
            units = max(1, rows // tall)
            for first in range(0, len(members), units):
                group = members[first : first + units]
                chosen = spread(begins[group], counts[group])
                owner = np.repeat(np.arange(len(group)), counts[group])
                place = spread(np.arange(len(group)) * tall, counts[group])
                part = Rows(owner, place, found.start[chosen], found.length[chosen])
                tokens = fill(self.store, part, place, units * tall, self.sequence_length)
                weights = np.zeros(units, np.int32)
                weights[: len(group)] = self._weights(counts[group])
                yield tokens.reshape(units, tall, -1), weights

    def _weights(self, examples: np.ndarray) -> np.ndarray:
        if self.weight_cap is None:
            return np.full(len(examples), WHOLE, np.int32)
        return np.asarray(user_weights(jnp.asarray(examples), self.weight_cap))


def nothing(units: int, height: int, length: int) -> MicroBatch:
    """A micro-batch of nobody, to compile with."""
    return np.full((units, height, length + 1), PADDING, np.int32), np.zeros(units, np.int32)
