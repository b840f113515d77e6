"""A cohort with hardly any padding: clients one after another in parallel lanes.

Clients differ so much in size that few shapes of whole clients leave a quarter or more of the steps empty. Here a lane
is a place that runs one client after another, so that all lanes are busy to the end, in one shape.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from reticent.data.batches import PADDING, Rows, client_rows, fill, local_steps, row_counts, step_and_place
from reticent.data.mixing import spread
from reticent.data.store import Store
from reticent.errors import Refused


@dataclass(frozen=True, eq=False)
class LaneBatches:
    """A window of local steps: `tokens` is int32[lanes, steps, batch, sequence_length + 1], padded with -1.

    `clients[lane, step]` says which member of the cohort it is that steps there; -1 is nobody. Where `first` holds the
    lane begins anew from the global model; where `last` holds the client's update is complete after the step. A client
    may go on in the next window, in the same lane.
    """

    tokens: np.ndarray
    clients: np.ndarray
    first: np.ndarray
    last: np.ndarray


def assemble_in_lanes(
    store: Store,
    cohort: np.ndarray,
    *,
    lanes: int,
    steps: int,
    batch_size: int,
    sequence_length: int,
    max_examples: int | None = None,
    max_tokens: int | None = None,
    packed: bool = False,
    seed: int = 0,
) -> Iterator[LaneBatches]:
    """The cohort as windows of `steps` steps in `lanes` lanes: one shape, one window in memory at a time.

    The batches of each client are those of `assemble` with the same seed. A client without a target is in no lane: its
    update is zero. The largest clients are placed first, each in the lane that is free the earliest.
    """
    if lanes < 1 or steps < 1:
        raise Refused(f"At least 1 lane and 1 step are needed, got {lanes} and {steps}.")
    cohort = np.asarray(cohort, np.int64)
    rows = client_rows(store, cohort, sequence_length, max_examples, max_tokens, seed, packed)
    needed = local_steps(row_counts(rows, len(cohort)), batch_size)
    lane, begin = np.zeros(len(cohort), np.int64), np.zeros(len(cohort), np.int64)
    free = [(0, number) for number in range(lanes)]
    for client in np.argsort(-needed, kind="stable").tolist():
        load, number = free[0]
        lane[client], begin[client] = number, load
        heapq.heapreplace(free, (load + int(needed[client]), number))
    windows = -(-max(load for load, _ in free) // steps)
    schedule = np.full((lanes, windows * steps), PADDING, np.int32)
    clients = np.repeat(np.arange(len(cohort)), needed)
    schedule[lane[clients], spread(begin, needed)] = clients
    change = schedule[:, 1:] != schedule[:, :-1]
    busy, edge = schedule != PADDING, np.ones((lanes, 1), bool)
    first, last = busy & np.hstack([edge, change]), busy & np.hstack([change, edge])
    step, within = step_and_place(rows, len(cohort), batch_size)
    at = begin[rows.client] + step
    order = np.argsort(at // steps, kind="stable")
    cuts = np.searchsorted(at[order] // steps, np.arange(windows + 1))
    for window in range(windows):
        chosen = order[cuts[window] : cuts[window + 1]]
        part = Rows(rows.client[chosen], rows.rank[chosen], rows.start[chosen], rows.length[chosen])
        places = (lane[part.client] * steps + at[chosen] - window * steps) * batch_size + within[chosen]
        tokens = fill(store, part, places, lanes * steps * batch_size, sequence_length)
        here = slice(window * steps, (window + 1) * steps)
        yield LaneBatches(
            tokens.reshape(lanes, steps, batch_size, sequence_length + 1),
            schedule[:, here],
            first[:, here],
            last[:, here],
        )
