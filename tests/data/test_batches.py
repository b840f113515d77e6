from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.data.batches import assemble, assemble_in_shapes, least_padding, shapes
from reticent.data.lanes import assemble_in_lanes
from reticent.data.store import Store, StoreWriter
from reticent.data.tokenizers import WordTokenizer
from reticent.errors import Refused


def windows(example, length):
    """The rows of one example, said another way: every target once, each row at most `length` targets."""
    return [tuple(example[start : start + length + 1]) for start in range(0, len(example) - 1, length)]


def rows_of(client):
    """The rows of one client's batches, in order; checks that padding is only at the end, and steps are even."""
    found, sizes = [], []
    for step in client:
        lengths = (step >= 0).sum(-1).tolist()
        assert lengths == sorted(lengths, key=lambda length: length == 0)
        sizes.append(sum(length > 0 for length in lengths))
        for row, length in zip(step, lengths, strict=True):
            assert (row[:length] >= 0).all()
            assert (row[length:] == -1).all()
            if length:
                found.append(tuple(row[:length].tolist()))
    busy = [size for size in sizes if size]
    assert sizes[: len(busy)] == busy
    assert all(size == busy[0] for size in busy[:-1])
    assert not busy or busy[-1] <= busy[0]
    return found


@settings(deadline=None, max_examples=40)
@given(
    people=st.lists(
        st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=6), min_size=1, max_size=6
    ),
    batch_size=st.integers(1, 4),
    sequence_length=st.integers(1, 6),
    max_examples=st.none() | st.integers(1, 5),
    max_tokens=st.none() | st.integers(1, 15),
    data=st.data(),
)
def test_against_a_plain_implementation(
    tmp_path_factory, people, batch_size, sequence_length, max_examples, max_tokens, data
):
    path = tmp_path_factory.mktemp("b") / "store"
    with StoreWriter(path, WordTokenizer("abcdef")) as writer:
        for index, examples in enumerate(people):
            writer.add_user(str(index), [np.array(example) for example in examples])
    store = Store.open(path)
    cohort = np.array(data.draw(st.lists(st.integers(0, len(people) - 1), min_size=1, max_size=8)))
    options = {"batch_size": batch_size, "sequence_length": sequence_length}
    caps = {"max_examples": max_examples, "max_tokens": max_tokens, "seed": 5}
    uncapped = assemble(store, cohort, **options, seed=5)
    capped = assemble(store, cohort, **options, **caps)
    packed = assemble(store, cohort, **options, packed=True)
    assert capped.tokens.dtype == np.int32
    assert capped.tokens.shape[2:] == (batch_size, sequence_length + 1)
    for place, user in enumerate(cohort.tolist()):
        expected = [row for example in people[user] for row in windows(example, sequence_length)]
        rows = rows_of(uncapped.tokens[place])
        assert Counter(rows) == Counter(expected)
        rows = rows[:max_examples]
        if max_tokens is not None:
            left, cut = max_tokens, []
            for row in rows:
                if left:
                    cut.append(row[: left + 1])
                    left -= min(left, len(row) - 1)
            rows = cut
        assert rows_of(capped.tokens[place]) == rows
        assert capped.examples[place] == len(rows)
        assert capped.token_counts[place] == sum(len(row) - 1 for row in rows)
        assert capped.steps[place] == -(-len(rows) // batch_size)
        # Joined end to end first, a user's targets are the same and the tokens between examples too.
        joined = windows([token for example in people[user] for token in example], sequence_length)
        assert Counter(rows_of(packed.tokens[place])) == Counter(joined)
    # The same contents in few shapes.
    allowed = shapes(store, **options, max_examples=max_examples, max_tokens=max_tokens, most=3)
    assert len(allowed) <= 3
    seen = []
    for group in assemble_in_shapes(store, cohort, allowed, clients=3, **options, **caps):
        assert group.tokens.shape[0] == 3
        assert group.tokens.shape[1:3] in allowed
        for place, member in enumerate(group.clients.tolist()):
            if member < 0:
                assert (group.tokens[place] == -1).all()
                continue
            seen.append(member)
            assert rows_of(group.tokens[place]) == rows_of(capped.tokens[member])
            assert group.token_counts[place] == capped.token_counts[member]
    assert sorted(seen) == list(range(len(cohort)))
    # And in lanes: every client's batches in order, in one lane, between `first` and `last`.
    lanes, steps = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    found = {}
    running = {}
    for window in assemble_in_lanes(store, cohort, lanes=lanes, steps=steps, **options, **caps):
        assert window.tokens.shape == (lanes, steps, batch_size, sequence_length + 1)
        for lane in range(lanes):
            for step, client in enumerate(window.clients[lane].tolist()):
                if client < 0:
                    assert (window.tokens[lane, step] == -1).all()
                    assert not window.first[lane, step]
                    assert not window.last[lane, step]
                    continue
                assert (running.get(lane) is None) == bool(window.first[lane, step])
                if window.first[lane, step]:
                    assert client not in found
                    running[lane], found[client] = client, []
                assert running[lane] == client
                found[client].append(window.tokens[lane, step])
                if window.last[lane, step]:
                    running[lane] = None
    assert not any(client is not None for client in running.values())
    for client, batches in found.items():
        assert np.array_equal(np.stack(batches), capped.tokens[client, : capped.steps[client]])
    assert set(found) == set(np.flatnonzero(capped.steps).tolist())


def test_a_client_does_not_depend_on_the_others(store):
    options = {"batch_size": 2, "sequence_length": 8, "max_examples": 3, "seed": 9}
    alone = assemble(store, np.array([20]), **options)
    among = assemble(store, np.arange(40), **options, steps=5)
    assert rows_of(alone.tokens[0]) == rows_of(among.tokens[20])
    assert among.tokens.shape[1] == 5


def test_the_seed_shuffles(store):
    index = int(np.argmax(store.examples_per_user))
    rows = {
        tuple(rows_of(assemble(store, np.array([index]), batch_size=4, sequence_length=40, seed=seed).tokens[0]))
        for seed in range(20)
    }
    assert len(rows) > 15
    first = Counter(order[0] for order in rows)
    assert max(first.values()) < 10


def test_inputs_targets_and_mask(store, people):
    batches = assemble(store, np.array([store.index("ann")]), batch_size=4, sequence_length=12, seed=0)
    inputs, targets = np.maximum(batches.tokens[..., :-1], 0), batches.tokens[..., 1:]
    mask = targets >= 0
    assert mask.sum() == batches.token_counts[0] == sum(len(example) - 1 for example in people["ann"])
    assert sorted(targets[mask]) == sorted(np.concatenate([example[1:] for example in people["ann"]]))
    assert sorted(inputs[mask]) == sorted(np.concatenate([example[:-1] for example in people["ann"]]))


def test_refusals(store):
    with pytest.raises(Refused, match="sequence_length"):
        assemble(store, np.array([0]), batch_size=1, sequence_length=0)
    with pytest.raises(Refused, match="batch_size"):
        assemble(store, np.array([0]), batch_size=0, sequence_length=1)
    with pytest.raises(Refused, match="max_examples"):
        assemble(store, np.array([0]), batch_size=1, sequence_length=1, max_examples=0)
    with pytest.raises(Refused, match="local steps"):
        assemble(store, np.arange(10), batch_size=1, sequence_length=1, steps=1)
    with pytest.raises(Refused, match="no shape"):
        list(assemble_in_shapes(store, np.arange(10), ((1, 1),), clients=2, batch_size=1, sequence_length=1))
    with pytest.raises(IndexError):
        assemble(store, np.array([store.users]), batch_size=1, sequence_length=1)


def test_an_empty_cohort(store):
    batches = assemble(store, np.array([], int), batch_size=2, sequence_length=4)
    assert batches.tokens.shape == (0, 1, 2, 5)


def cost(chosen, counts):
    return sum(count * min(s * b for s, b in chosen if s >= size[0] and b >= size[1]) for size, count in counts.items())


def test_the_chosen_shapes_pad_hardly_more_than_the_best():
    generator = np.random.default_rng(0)
    excess = []
    for _ in range(60):
        sizes = {(int(s), int(b)) for s, b in generator.integers(1, 7, (8, 2))}
        counts = {size: int(generator.integers(1, 9)) for size in sizes}
        whole = (max(s for s, _ in sizes), max(b for _, b in sizes))
        corners = [(s, b) for s in {s for s, _ in sizes} for b in {b for _, b in sizes}]
        best = min(cost((one, two, whole), counts) for one in corners for two in corners)
        chosen = least_padding(counts, 3)
        assert whole in chosen
        excess.append(cost(chosen, counts) / best - 1)
    assert max(excess) < 0.1
    assert np.mean(excess) < 0.01


def test_where_empty_steps_are_skipped_hardly_anything_else_is_padding():
    generator = np.random.default_rng(1)
    rows = np.maximum(generator.lognormal(2.3, 0.7, 20_000).astype(int), 1)
    steps = -(-rows // 16)
    sizes, counts = np.unique(np.stack([steps, -(-rows // steps)]), axis=1, return_counts=True)
    found = {tuple(size): int(count) for size, count in zip(sizes.T.tolist(), counts, strict=True)}
    chosen = least_padding(found, 4, skipping=True)
    assert {steps for steps, _ in chosen} == {max(steps for steps, _ in found)}
    computed = sum(count * s * min(batch for _, batch in chosen if batch >= b) for (s, b), count in found.items())
    assert computed < 1.15 * rows.sum()


def test_a_cap_that_leaves_fewer_rows_may_need_more_of_them_in_a_step(tmp_path):
    # Four rows are two steps of two; the three that five targets leave are one step of three.
    with StoreWriter(tmp_path / "store", WordTokenizer("abcdef")) as writer:
        for user, length in enumerate((2, 8, 40)):
            writer.add_user(str(user), [np.zeros(length, np.int64)])
    store = Store.open(tmp_path / "store")
    for cap in range(1, 12):
        options = {"batch_size": 3, "sequence_length": 2, "max_tokens": cap}
        allowed = shapes(store, **options)
        assert allowed[-1][0] * allowed[-1][1] <= cap // 2 + 4
        for seed in range(8):
            groups = assemble_in_shapes(store, np.arange(3), allowed, clients=3, **options, seed=seed)
            assert sum(int(group.token_counts.sum()) for group in groups) == sum(min(cap, n) for n in (1, 7, 39))
