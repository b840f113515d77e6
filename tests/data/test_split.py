import numpy as np
import pytest

from reticent.data.batches import assemble
from reticent.data.forget import forget
from reticent.data.store import Store, StoreWriter
from reticent.errors import Refused


@pytest.fixture
def large(tmp_path, tokenizer):
    generator = np.random.default_rng(1)
    examples = generator.integers(1, 20, 2000)
    with StoreWriter(tmp_path / "large", tokenizer) as writer:
        writer.add_users(
            [f"p{index}" for index in range(2000)],
            examples,
            np.full(examples.sum(), 3),
            np.resize([1, 7, 2], 3 * examples.sum()),
        )
    return Store.open(tmp_path / "large")


def contents(store):
    """Where each user's examples are in the file: each is one place."""
    return {
        user: tuple(example.__array_interface__["data"][0] for example in store.examples(index))
        for index, user in enumerate(store.user_ids)
    }


def test_parts_are_a_partition(large):
    split = large.split(0.2, 0.1, seed=3)
    whole, train, users, examples = map(contents, (large, split.train, split.held_out_users, split.held_out_examples))
    assert set(train).isdisjoint(users)
    assert set(train) | set(users) == set(whole)
    assert list(train) == list(examples)
    for user in users:
        assert users[user] == whole[user]
    for user in train:
        assert sorted(train[user] + examples[user]) == sorted(whole[user])
        assert train[user]
    assert len(users) / 2000 == pytest.approx(0.2, abs=0.03)
    held = sum(map(len, examples.values()))
    # The first example of everybody stays.
    assert held / sum(len(places) - 1 for user, places in whole.items() if user in train) == pytest.approx(
        0.1, abs=0.01
    )


def test_sizes_and_batches_follow_the_part(large):
    split = large.split(0.2, 0.3, seed=3)
    for part in (split.train, split.held_out_users, split.held_out_examples):
        kept = [len(part.examples(user)) for user in range(part.users)]
        assert part.examples_per_user.tolist() == kept
        assert part.tokens_per_user.tolist() == [3 * count for count in kept]
        cohort = np.arange(0, part.users, 7)
        batches = assemble(part, cohort, batch_size=4, sequence_length=2)
        assert batches.examples.tolist() == [kept[user] for user in cohort]
        assert part.header["split"]["seed"] == 3
        user = part.users // 2
        assert part.index(part.user_ids[user]) == user
    with pytest.raises(Refused, match="no user"):
        split.train.index(split.held_out_users.user_ids[0])


def test_seeded(large):
    def users(seed):
        return set(large.split(0.2, 0.1, seed=seed).held_out_users.user_ids)

    assert users(1) == users(1)
    assert users(1) != users(2)
    assert contents(large.split(0.2, 0.1, 1).train) == contents(large.split(0.2, 0.1, 1).train)


def test_forgetting_one_moves_nobody_else(large):
    before = large.split(0.2, 0.1, seed=1)
    train, held = set(before.train.user_ids), set(before.held_out_users.user_ids)
    counts = dict(zip(before.train.user_ids, before.train.examples_per_user.tolist(), strict=True))
    forget(large.path, ["p77"])
    after = Store.open(large.path).split(0.2, 0.1, seed=1)
    assert set(after.train.user_ids) == train - {"p77"}
    assert set(after.held_out_users.user_ids) == held - {"p77"}
    counts.pop("p77", None)
    assert dict(zip(after.train.user_ids, after.train.examples_per_user.tolist(), strict=True)) == counts


def test_bad_splits(large, store):
    with pytest.raises(Refused, match="less than 1"):
        large.split(1.0)
    with pytest.raises(Refused, match="cannot be split again"):
        large.split(0.5).train.split(0.5)
    with pytest.raises(Refused, match="leaves one side"):
        store.split(1e-9)
    assert large.split(0.0, 0.0).held_out_users.users == 0
