"""Who is drawn: pools, cyclic groups of users, and what each brings."""

import numpy as np
import pytest

from reticent.errors import Refused
from reticent.finetune.pool import check_shared, make_pool
from reticent.finetune.sources import ExamplesOfUsers, OfExamples, OfUsers
from reticent.population.pooled import PooledPoisson
from reticent.privacy.weighting import WHOLE


def test_a_pool_has_at_most_so_many_of_each_and_the_same_ones_each_time(people_store):
    whole = make_pool(people_store, 6, None, 0, False)
    capped, again = (make_pool(people_store, 6, 3, 0, False) for _ in range(2))
    np.testing.assert_array_equal(np.diff(capped.starts), np.minimum(np.diff(whole.starts), 3))
    np.testing.assert_array_equal(capped.start, again.start)
    other = make_pool(people_store, 6, 3, 1, False)
    assert (capped.start != other.start).any()
    for user in (0, 17):
        mine = {tuple(row) for row in whole.tokens(np.arange(*whole.starts[user : user + 2]), 20)[:, :].tolist()}
        assert {
            tuple(row) for row in capped.tokens(np.arange(*capped.starts[user : user + 2]), 3).tolist() if row[0] >= 0
        } <= mine


def test_a_group_size_that_nobody_has_is_refused(people_store):
    with pytest.raises(Refused, match="Nobody has as many as 400 examples"):
        make_pool(people_store, 6, 400, 0, False)


def test_data_of_one_person_is_refused(people_store):
    pool = make_pool(people_store, 6, 3, 0, False)
    check_shared(pool, "bring more")
    lonely = type(pool)(pool.store, 6, np.array([0, pool.size - 2, pool.size]), pool.start, pool.length)
    with pytest.raises(Refused, match="One user holds more than half.*; bring more"):
        check_shared(lonely, "bring more")


def sampler(groups, users=400, probability=0.3, seed=3):
    counts = np.random.default_rng(seed).integers(0, 5, users)
    starts = np.concatenate([[0], np.cumsum(counts)])
    return PooledPoisson(int(starts[-1]), 40, groups, probability, 4, int(starts[-1]), starts)


def test_all_of_a_users_examples_are_drawn_in_one_residue():
    drawn = sampler(groups=5)
    state, residues = drawn.start(seed=1), {}
    owner = np.repeat(np.arange(drawn.users), np.diff(drawn.starts))
    sizes = []
    for round in range(40):
        cohort, state = drawn.cohort(state, round)
        assert len(set(cohort.tolist())) == len(cohort)
        sizes.append(len(cohort))
        for user in owner[cohort].tolist():
            assert residues.setdefault(user, round % 5) == round % 5
    assert np.mean(sizes) == pytest.approx(drawn.expected_cohort, rel=0.1)
    assert max(sizes) <= drawn.drawn_from
    assert drawn.event == {
        "kind": "cyclic", "sampling": "poisson", "groups": 5, "groups_of": "users", "probability": 0.3
    }  # fmt: skip


def test_examples_are_drawn_independently():
    drawn = sampler(groups=1)
    state, counts = drawn.start(seed=1), np.zeros(drawn.population)
    pairs = 0
    for round in range(40):
        cohort, state = drawn.cohort(state, round)
        counts[cohort] += 1
        pairs += bool({0, 1} <= set(cohort.tolist()))
    assert counts.mean() == pytest.approx(12, rel=0.05)
    assert counts.var() == pytest.approx(40 * 0.3 * 0.7, rel=0.2)


def test_a_state_goes_on_bit_for_bit():
    drawn = sampler(groups=3)
    state = drawn.start()
    for round in range(4):
        _, state = drawn.cohort(state, round)
    again = drawn.from_bytes(drawn.to_bytes(state))
    np.testing.assert_array_equal(drawn.cohort(state, 4)[0], drawn.cohort(again, 4)[0])
    with pytest.raises(Refused, match="belongs to another sampler"):
        sampler(groups=3, seed=4).from_bytes(drawn.to_bytes(state))


def gathered(batches):
    tokens, weights = [], []
    for rows, shares in batches:
        assert (rows[shares == 0] == -1).all()
        tokens += [unit for unit, share in zip(rows, shares, strict=True) if share]
        weights += shares[shares > 0].tolist()
    return tokens, weights


@pytest.mark.parametrize("rows", [1, 4, 64])
def test_everybody_in_a_cohort_is_in_one_micro_batch(people_store, rows):
    pool = make_pool(people_store, 6, 3, 0, False)
    cohort = np.array([0, 5, 9, 12, 30])
    tokens, weights = gathered(OfExamples(pool).micro_batches(cohort, 0, rows))
    np.testing.assert_array_equal(np.concatenate(tokens), pool.tokens(cohort, 5))
    assert weights == [WHOLE] * 5
    users, source = np.arange(23), OfUsers(people_store, 6, 4, seed=2)
    tokens, weights = gathered(source.micro_batches(users, 3, rows))
    held = np.diff(make_pool(people_store, 6, 4, 0, False).starts)[users]
    assert sorted((unit[:, 1] >= 0).sum() for unit in tokens) == sorted(held[held > 0].tolist())
    assert {len(unit) for unit in tokens} <= set(source.heights)


def test_what_a_user_brings_depends_on_nobody_else(people_store):
    pool = make_pool(people_store, 6, None, 0, False)
    source = ExamplesOfUsers(pool, 2, seed=0)

    def brought(cohort, round=1):
        tokens, _ = gathered(source.micro_batches(np.array(cohort), round, 8))
        return {tuple(unit[0].tolist()) for unit in tokens}

    assert brought([3, 7]) == brought([3]) | brought([7])
    assert all(len(brought([user])) <= 2 for user in range(10))
    assert any(brought([user], 1) != brought([user], 2) for user in range(10))
