"""The examples that are drawn from: every user's rows, at most G of each (ULDP, Alg. 1), chosen once by the run's seed."""

from dataclasses import dataclass

import numpy as np

from reticent.data.batches import Rows, client_rows, fill
from reticent.data.store import Store
from reticent.errors import Refused

_USERS_AT_ONCE = 1 << 16
HARDLY_ANYBODY = 0.5


@dataclass(frozen=True, eq=False)
class Pool:
    """Examples 0 .. size - 1; `starts[u] : starts[u + 1]` are user u's. An example is a row of `sequence_length` tokens."""

    store: Store
    sequence_length: int
    starts: np.ndarray
    start: np.ndarray
    length: np.ndarray

    @property
    def size(self) -> int:
        return len(self.start)

    @property
    def users(self) -> int:
        return len(self.starts) - 1

    def tokens(self, examples: np.ndarray, count: int) -> np.ndarray:
        """int32[count, sequence_length + 1]: these examples, and padding."""
        place = np.arange(len(examples))
        rows = Rows(place, place, self.start[examples], self.length[examples])
        return fill(self.store, rows, place, count, self.sequence_length)


def make_pool(store: Store, sequence_length: int, most: int | None, seed: int, packed: bool) -> Pool:
    """The pool of a store: of each user `most` rows at most, chosen by (seed, user).

    Refuses an empty one, and a `most` that nobody has, whose noise would be paid for nothing.
    """
    starts, start, length, reached = [np.zeros(1, np.int64)], [], [], most is None
    for first in range(0, store.users, _USERS_AT_ONCE):
        users = np.arange(first, min(first + _USERS_AT_ONCE, store.users))
        rows = client_rows(store, users, sequence_length, most, None, seed, packed)
        counts = np.bincount(rows.client, minlength=len(users))
        reached = reached or bool((counts == most).any())
        starts.append(starts[-1][-1] + np.cumsum(counts))
        start.append(rows.start)
        length.append(rows.length.astype(np.int32))
    found = Pool(store, sequence_length, np.concatenate(starts), np.concatenate(start), np.concatenate(length))
    if not found.size:
        raise Refused(f"{store.path} has no example with a next token to predict; import text into it.")
    if not reached:
        raise Refused(nobody_has(most or 0))
    return found


def nobody_has(most: int) -> str:
    """The sentence for a group size that no user has."""
    return (
        f"Nobody has as many as {most:,} examples, so data.max_examples_per_user pays for examples that are not there; "
        "lower it (`reticent tune group-sizes` finds one)."
    )


def check_shared(pool: Pool, what: str) -> None:
    """Refuses data most of which is one user's."""
    if np.diff(pool.starts).max() > HARDLY_ANYBODY * pool.size and pool.users > 1:
        raise Refused(f"One user holds more than half of the examples that would be trained on; {what}.")
