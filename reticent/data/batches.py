"""From a cohort to the arrays that a device computes on."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from reticent.data.mixing import mix, salt, spread
from reticent.data.store import Store
from reticent.errors import Refused

PADDING = -1


Shape = tuple[int, int]
"""Local steps, and rows in each."""


@dataclass(frozen=True, eq=False)
class ClientBatches:
    """One cohort's local data: `tokens` is int32[clients, steps, batch, sequence_length + 1], padded with -1.

    Inputs are `maximum(tokens[..., :-1], 0)`, targets `tokens[..., 1:]`, and a target counts where it is not -1.
    `examples` and `token_counts` say how many rows and how many targets each client has, `steps` how many local steps:
    all as private as the text. A device need not go beyond the largest of `steps`. `clients` says which member of the
    cohort each client of `tokens` is; -1 is nobody.
    """

    tokens: np.ndarray
    examples: np.ndarray
    token_counts: np.ndarray
    steps: np.ndarray
    clients: np.ndarray


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of at most sequence_length + 1 tokens, ordered by client; `rank` counts within the client."""

    client: np.ndarray
    rank: np.ndarray
    start: np.ndarray
    length: np.ndarray


def assemble(
    store: Store,
    cohort: np.ndarray,
    *,
    batch_size: int,
    sequence_length: int,
    max_examples: int | None = None,
    max_tokens: int | None = None,
    packed: bool = False,
    seed: int = 0,
    steps: int | None = None,
) -> ClientBatches:
    """The batches of one local epoch of every member of a cohort (numbers of users in `store`).

    An example longer than sequence_length + 1 goes on in further rows, each starting with the last token of the one
    before, so that every token is a target once; a row counts as an example. `packed` first joins a user's examples
    end to end, which leaves hardly any padding. A client's rows are shuffled by (seed, user), whoever else is in the
    cohort; the first `max_examples` of them are used, and of those the first `max_tokens` targets. They are spread
    evenly over as few steps as rows of `batch_size` need. With `steps` that many are returned, and a client that needs
    more is refused.
    """
    cohort = np.asarray(cohort, np.int64)
    rows = client_rows(store, cohort, sequence_length, max_examples, max_tokens, seed, packed)
    needed = local_steps(row_counts(rows, len(cohort)), batch_size)
    most = int(needed.max(initial=1))
    if steps is not None and most > steps:
        raise Refused(f"A client has {most} local steps and the batches have {steps}; lower max_examples.")
    shape = (max(most, 1) if steps is None else steps, batch_size)
    return _fill(store, rows, np.arange(len(cohort)), shape, batch_size, sequence_length)


def shapes(
    store: Store,
    *,
    batch_size: int,
    sequence_length: int,
    max_examples: int | None = None,
    max_tokens: int | None = None,
    packed: bool = False,
    skipping: bool = False,
    most: int = 4,
) -> tuple[Shape, ...]:
    """At most `most` shapes of a client's data, for `assemble_in_shapes`: those that leave little padding over all users.

    The last holds every user. With `skipping`, steps without a target cost nothing where the shapes are computed (one
    client after another). They shape the computation and nothing that is released, though its duration shows them; on
    data whose sizes are secret give shapes of your own.
    """
    found: dict[Shape, int] = {}
    for start in range(0, store.users, 1 << 18):
        users = np.arange(start, min(start + (1 << 18), store.users))
        owners, _, lengths = _texts(store, users, packed)
        rows = np.bincount(owners, -(-(lengths - 1) // sequence_length), len(users)).astype(np.int64)
        if max_examples is not None:
            rows = np.minimum(rows, max_examples)
        cut = np.zeros(len(users), bool)
        if max_tokens is not None:
            # How many rows so many targets are depends on which rows come first; only a text's last one is short.
            cut = np.bincount(owners, lengths - 1, len(users)) > max_tokens
            most_rows = np.bincount(owners, minlength=len(users)) - (-max_tokens // sequence_length)
            rows = np.where(cut, np.minimum(rows, np.minimum(most_rows, max_tokens)), rows)
        steps = np.maximum(local_steps(rows, batch_size), 1)
        # Fewer rows may be fewer steps of more rows each.
        batches = np.where(cut, np.minimum(rows, batch_size), -(-rows // steps))
        pairs, counts = np.unique(np.stack([steps, batches]), axis=1, return_counts=True)
        for (step, batch), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
            shape = (step, max(batch, 1))
            found[shape] = found.get(shape, 0) + count
    return least_padding(found, most, skipping)


def least_padding(counts: dict[Shape, int], most: int, skipping: bool = False) -> tuple[Shape, ...]:
    """`most` shapes that pad little when each of counts[shape] clients takes the smallest that holds it, largest last.

    From the one that holds all of them, each next is the one that saves the most; then each is tried again.
    """
    sizes = np.array(list(counts), np.int64).reshape(-1, 2)
    clients = np.array(list(counts.values()), np.int64)
    whole = sizes.max(0)
    heights = whole[:1] if skipping else np.unique(sizes[:, 0])
    corners = np.array([(step, batch) for step in heights for batch in np.unique(sizes[:, 1])])
    if len(corners) * len(sizes) > 1 << 22:  # hundreds of sizes: the common ones say where the corners are
        corners = np.unique(sizes[np.argsort(-clients)[: (1 << 22) // len(sizes)]], axis=0)
    holds = (corners[:, None] >= sizes[None]).all(-1)
    steps = sizes[None, :, 0] if skipping else corners[:, None, 0]
    cost = np.where(holds, steps * corners[:, None, 1], np.iinfo(np.int32).max)
    all_in_one = (sizes[:, 0] if skipping else whole[0]) * whole[1] * np.ones(len(sizes), np.int64)

    def with_one_more(taken: np.ndarray) -> int:
        return int(np.argmin(np.minimum(cost, taken) @ clients))

    def together(chosen: list[int]) -> np.ndarray:
        return np.minimum.reduce([all_in_one, *(cost[one] for one in chosen)])

    chosen: list[int] = []
    for _ in range(most - 1):
        chosen.append(with_one_more(together(chosen)))
    for _ in range(most):
        for place in range(len(chosen)):
            others = chosen[:place] + chosen[place + 1 :]
            chosen[place] = with_one_more(together(others))
    found = {tuple(corners[one].tolist()) for one in chosen} | {tuple(whole.tolist())}
    return tuple(sorted(found, key=lambda shape: (shape[0] * shape[1], shape)))  # type: ignore[arg-type]


def assemble_in_shapes(
    store: Store,
    cohort: np.ndarray,
    shapes: tuple[Shape, ...],
    *,
    clients: int,
    batch_size: int,
    sequence_length: int,
    max_examples: int | None = None,
    max_tokens: int | None = None,
    packed: bool = False,
    seed: int = 0,
) -> Iterator[ClientBatches]:
    """The cohort in groups of exactly `clients` clients whose data has one of `shapes`: as many computations to compile.

    Each client takes the smallest shape that holds it, largest first; the last group of a shape is filled up with empty
    clients. The contents are those of `assemble` with the same seed. One group is in memory at a time.
    """
    cohort = np.asarray(cohort, np.int64)
    rows = client_rows(store, cohort, sequence_length, max_examples, max_tokens, seed, packed)
    counts = row_counts(rows, len(cohort))
    steps = local_steps(counts, batch_size)
    batch = -(-counts // np.maximum(steps, 1))
    fits = np.array([(steps <= shape[0]) & (batch <= shape[1]) for shape in shapes])
    if not fits.any(0).all():
        raise Refused(
            f"A client has {steps.max()} local steps of up to {batch.max()} rows, which no shape of {list(shapes)} holds; "
            "lower max_examples, or take the shapes of this store."
        )
    sizes = np.array([shape[0] * shape[1] for shape in shapes])
    choice = np.where(fits, sizes[:, None], np.iinfo(np.int64).max).argmin(0)
    begins = np.searchsorted(rows.client, np.arange(len(cohort) + 1))
    for place in np.argsort(-sizes, kind="stable").tolist():
        members = np.flatnonzero(choice == place)
        for start in range(0, len(members), clients):
            group = members[start : start + clients]
            chosen = spread(begins[group], begins[group + 1] - begins[group])
            owner = np.repeat(np.arange(len(group)), begins[group + 1] - begins[group])
            part = Rows(owner, rows.rank[chosen], rows.start[chosen], rows.length[chosen])
            padded = np.full(clients, PADDING, np.int64)
            padded[: len(group)] = group
            yield _fill(store, part, padded, shapes[place], batch_size, sequence_length)


def client_rows(
    store: Store,
    cohort: np.ndarray,
    sequence_length: int,
    max_examples: int | None,
    max_tokens: int | None,
    seed: int,
    packed: bool = False,
) -> Rows:
    """The shuffled and capped rows of a cohort, as `assemble` says."""
    if sequence_length < 1:
        raise Refused(f"sequence_length must be at least 1, got {sequence_length}.")
    for name, cap in (("max_examples", max_examples), ("max_tokens", max_tokens)):
        if cap is not None and cap < 1:
            raise Refused(f"{name} must be at least 1, got {cap}.")
    client, start, length = _texts(store, cohort, packed)
    pieces = -(-(length - 1) // sequence_length)
    if (pieces != 1).any():
        part = spread(np.zeros_like(pieces), pieces) * sequence_length
        client, start, length = (np.repeat(array, pieces) for array in (client, start, length))
        start, length = start + part, np.minimum(length - part, sequence_length + 1)
    counts = np.bincount(client, minlength=len(cohort))
    rank = spread(np.zeros_like(counts), counts)
    keys = mix(mix(store.user_keys(cohort) ^ salt("row order", seed))[client] + rank.astype(np.uint64))
    # One sort for client and key: the key's own low bits decide within a client, 2^-40 apart.
    bits = np.uint64(max(len(cohort).bit_length(), 1))
    order = np.argsort((client.astype(np.uint64) << (np.uint64(64) - bits)) | (keys >> bits))
    start, length = start[order], length[order]
    keep = np.ones(len(rank), bool)
    if max_examples is not None:
        keep &= rank < max_examples
    if max_tokens is not None:
        targets = np.cumsum(length - 1)
        before = targets - (length - 1)
        first = np.cumsum(counts) - counts
        before -= np.append(before, 0)[first][client]
        length = np.minimum(length, max_tokens - before + 1)
        keep &= length > 1
    return Rows(client[keep], rank[keep], start[keep], length[keep])


def _texts(store: Store, users: np.ndarray, packed: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `Store.locate` finds, or with `packed` the stretches without a gap that it makes up."""
    owner, start, length = store.locate(users)
    if not packed or not len(owner):
        return owner, start, length
    goes_on = (owner[1:] == owner[:-1]) & (start[1:] == start[:-1] + length[:-1])
    first = np.flatnonzero(np.concatenate([[True], ~goes_on]))
    return owner[first], start[first], np.add.reduceat(length, first)


def row_counts(rows: Rows, clients: int) -> np.ndarray:
    """How many rows each client has."""
    return np.bincount(rows.client, minlength=clients)


def local_steps(counts: np.ndarray, batch_size: int) -> np.ndarray:
    """How many steps of at most `batch_size` rows so many rows make."""
    if batch_size < 1:
        raise Refused(f"batch_size must be at least 1, got {batch_size}.")
    return (-(-counts // batch_size)).astype(np.int32)


def step_and_place(rows: Rows, clients: int, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each row its step and its place therein: a client's rows are spread evenly over its steps."""
    counts = row_counts(rows, clients)
    batch = -(-counts // np.maximum(local_steps(counts, batch_size), 1))
    return np.divmod(rows.rank, batch[rows.client])


def _fill(
    store: Store, rows: Rows, members: np.ndarray, shape: Shape, batch_size: int, sequence_length: int
) -> ClientBatches:
    clients, (steps, batch) = len(members), shape
    step, place = step_and_place(rows, clients, batch_size)
    places = (rows.client * steps + step) * batch + place
    tokens = fill(store, rows, places, clients * steps * batch, sequence_length)
    counts = row_counts(rows, clients)
    return ClientBatches(
        tokens=tokens.reshape(clients, steps, batch, sequence_length + 1),
        examples=counts.astype(np.int32),
        token_counts=np.bincount(rows.client, rows.length - 1, clients).astype(np.int32),
        steps=local_steps(counts, batch_size),
        clients=members,
    )


def fill(store: Store, rows: Rows, places: np.ndarray, count: int, sequence_length: int) -> np.ndarray:
    """int32[count, sequence_length + 1]: each row at its place, padding elsewhere."""
    tokens = np.full(count * (sequence_length + 1), PADDING, np.int32)
    tokens[spread(places * (sequence_length + 1), rows.length)] = store.read_tokens(rows.start, rows.length)
    return tokens.reshape(count, sequence_length + 1)
