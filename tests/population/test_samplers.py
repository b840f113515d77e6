"""What every sampler promises: its participation or event is what happens, and it resumes bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.errors import Refused
from reticent.population import (
    SAMPLERS,
    CyclicFixed,
    CyclicPoisson,
    FixedSize,
    MinSeparated,
    ParticipationTable,
    Poisson,
    ShuffledEpochs,
    ShuffledShards,
    make_sampler,
    sampler_of,
)

EXAMPLES = [
    MinSeparated(100, 40, 7, 13),
    MinSeparated(100, 40, 7, 13, 3),
    Poisson(100, 40, 0.1),
    FixedSize(100, 40, 7),
    CyclicPoisson(100, 40, 6, 0.4),
    CyclicFixed(100, 40, 6, 5),
    ShuffledEpochs(100, 40, 7),
    ShuffledShards(100, 40, 7, 3),
]


def draw(sampler, seed=0, stops=()):
    """All cohorts; at each stop the run goes on from saved bytes."""
    state, cohorts = sampler.start(seed), []
    for round in range(sampler.rounds):
        if round in stops:
            state = sampler.from_bytes(sampler.to_bytes(state))
        users, state = sampler.cohort(state, round)
        cohorts.append(users)
    return cohorts


def rounds_of(cohorts, population):
    rounds = [[] for _ in range(population)]
    for round, users in enumerate(cohorts):
        for user in users:
            rounds[user].append(round)
    return rounds


def check_against(sampler, cohorts):
    """Brute force: every user's rounds fit the participation the sampler claims."""
    schema = sampler.participation
    for rounds in rounds_of(cohorts, sampler.population):
        gaps = np.diff(rounds)
        assert len(rounds) <= schema.most
        assert np.all(gaps == schema.min_separation if schema.exact else gaps >= schema.min_separation)


@pytest.mark.parametrize("sampler", EXAMPLES, ids=str)
def test_cohorts_are_users_once_each_and_resume_bit_for_bit(sampler):
    cohorts = draw(sampler, seed=5)
    for users in cohorts:
        assert len(np.unique(users)) == len(users)
        assert np.all((users >= 0) & (users < sampler.population))
    for again, users in zip(draw(sampler, seed=5, stops=(0, 1, 17, 39)), cohorts, strict=True):
        np.testing.assert_array_equal(again, users)
    other = draw(sampler, seed=6)
    assert any(len(a) != len(b) or np.any(a != b) for a, b in zip(cohorts, other, strict=True))
    if sampler.participation is not None:
        check_against(sampler, cohorts)


@pytest.mark.parametrize("sampler", EXAMPLES, ids=str)
def test_without_a_seed_the_cohorts_are_a_secret_of_the_operating_system(sampler):
    one, other = sampler.start(), sampler.start()
    assert not one.simulated
    assert sampler.start(3).simulated
    assert one.key != other.key
    assert len(one.key) == 32


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_min_separated_never_breaks_separation_or_cap(data):
    goal = data.draw(st.integers(1, 12))
    separation = data.draw(st.integers(1, 12))
    population = goal * separation + data.draw(st.integers(0, 40))
    rounds = data.draw(st.integers(separation, separation + 60))
    fewest = -(-rounds * goal // population)
    cap = data.draw(st.one_of(st.none(), st.integers(fewest, fewest + 3)))
    sampler = MinSeparated(population, rounds, goal, separation, cap)
    stops = data.draw(st.sets(st.integers(0, rounds - 1), max_size=3))
    cohorts = draw(sampler, data.draw(st.integers(0, 5)), stops)
    assert all(len(np.unique(users)) == goal for users in cohorts)
    check_against(sampler, cohorts)
    if cap is not None:
        # The cap is kept by taking turns: nobody is ever two rounds ahead of a user who could have been asked.
        assert max(len(rounds) for rounds in rounds_of(cohorts, population)) <= fewest


@settings(max_examples=80, deadline=None)
@given(
    population=st.integers(1, 90),
    rounds=st.integers(1, 60),
    size=st.integers(1, 12),
    parts=st.integers(1, 9),
    seed=st.integers(0, 3),
)
def test_epochs_and_shards_keep_what_they_claim(population, rounds, size, parts, seed):
    for make in (
        lambda: ShuffledEpochs(population, rounds, size),
        lambda: ShuffledShards(population, rounds, size, parts),
        lambda: CyclicFixed(population, rounds, parts, size),
    ):
        try:
            sampler = make()
        except Refused:
            continue
        cohorts = draw(sampler, seed)
        assert all(len(np.unique(users)) == size for users in cohorts)
        if sampler.participation is not None:
            check_against(sampler, cohorts)
        else:
            check_groups(sampler, cohorts)


def check_groups(sampler, cohorts):
    """Nobody is ever seen in two groups."""
    for rounds in rounds_of(cohorts, sampler.population):
        assert len({round % sampler.groups for round in rounds}) <= 1


def test_cyclic_poisson_keeps_to_its_groups_and_everybody_has_one():
    sampler = CyclicPoisson(103, 400, 7, 0.5)
    cohorts = draw(sampler)
    check_groups(sampler, cohorts)
    assert len(np.unique(np.concatenate(cohorts))) == 103
    assert sampler.smallest_group == 14


def test_shuffled_epochs_pass_over_everybody_but_those_left_out():
    sampler = ShuffledEpochs(100, 28, 7)
    cohorts = draw(sampler)
    assert sampler.left_out == 2
    assert len(np.unique(np.concatenate(cohorts[:14]))) == 98
    np.testing.assert_array_equal(np.concatenate(cohorts[:14]), np.concatenate(cohorts[14:]))
    assert sampler.participation.exact


def test_shards_mix_anew_and_reach_their_bound():
    sampler = ShuffledShards(60, 400, 5, 3)
    cohorts = draw(sampler)
    gaps = np.concatenate([np.diff(rounds) for rounds in rounds_of(cohorts, 60) if len(rounds) > 1])
    assert gaps.min() == sampler.participation.min_separation == 9
    for round, users in enumerate(cohorts):
        assert np.all(users // 20 == round // 4 % 3)


@pytest.mark.parametrize("population", [40, 400])
def test_min_separated_draws_evenly_among_the_rested(population):
    """Each round is an even draw from those who may be drawn: counts of rested users against their expectation."""
    goal, separation, rounds = 5, 8, 400
    chosen, expected, variance = np.zeros(population), np.zeros(population), np.zeros(population)
    for seed in range(20):
        last = np.full(population, -(10**6))
        for round, users in enumerate(draw(MinSeparated(population, rounds, goal, separation), seed)):
            rested = round - last >= separation
            probability = goal / rested.sum()
            expected[rested] += probability
            variance[rested] += probability * (1 - probability)
            chosen[users] += 1
            last[users] = round
    if population == goal * separation:
        assert np.all(chosen == 1000)  # no choice is left at the largest separation: everybody, in turn
    else:
        scores = (chosen - expected) / np.sqrt(variance)
        assert np.abs(scores).max() < 4.5
        assert abs(np.mean(scores**2) - 1) < 0.4


def test_poisson_keeps_each_user_independently():
    sampler = Poisson(300, 4000, 0.07)
    there = np.zeros((4000, 300))
    for round, users in enumerate(draw(sampler)):
        there[round, users] = 1
    deviation = np.sqrt(0.07 * 0.93)
    assert np.abs((there.mean(0) - 0.07) / (deviation / np.sqrt(4000))).max() < 4.5
    sizes = there.sum(1)
    assert abs(sizes.mean() - 21) < 4.5 * np.sqrt(300) * deviation / np.sqrt(4000)
    assert abs(sizes.var() / (300 * 0.07 * 0.93) - 1) < 0.12
    neighbours = np.mean((there[:, 1:] - 0.07) * (there[:, :-1] - 0.07)) / deviation**2
    assert abs(neighbours) < 4.5 / np.sqrt(4000 * 299)


def test_fixed_size_draws_every_pair_equally_often():
    pairs = np.zeros((6, 6))
    for users in draw(FixedSize(6, 30_000, 2)):
        pairs[tuple(np.sort(users))] += 1
    counts = pairs[np.triu_indices(6, 1)]
    assert counts.sum() == 30_000
    assert ((counts - 2000) ** 2 / 2000).sum() < 45  # chi-square with 14 degrees: beyond this once in 20,000


def test_a_probability_of_one_takes_everybody():
    assert all(len(users) == 9 for users in draw(Poisson(9, 3, 1.0)))


def test_an_infeasible_separation_names_the_largest():
    with pytest.raises(Refused, match=r"largest min_separation that can be kept is 2,553"):
        MinSeparated(16_600_000, 5000, 6500, 3000)
    MinSeparated(16_600_000, 5000, 6500, 2553)
    with pytest.raises(Refused, match="raise max_participations from 1 to 2"):
        MinSeparated(100, 21, 5, 2, 1)


def test_states_are_used_once_and_in_order():
    sampler = MinSeparated(50, 20, 5, 4)
    state = sampler.start(1)
    _, after = sampler.cohort(state, 0)
    with pytest.raises(Refused, match="used already"):
        sampler.cohort(state, 0)
    with pytest.raises(Refused, match="next round is 1"):
        sampler.cohort(after, 3)


@pytest.mark.parametrize("sampler", EXAMPLES, ids=str)
def test_damaged_or_foreign_states_are_refused(sampler):
    content = sampler.to_bytes(sampler.start(0))
    for damaged in (b"", content[: len(content) // 2], content + b"x", content.replace(b'"key": "', b'"key": "zz')):
        with pytest.raises(Refused):
            sampler.from_bytes(damaged)
    with pytest.raises(Refused, match="another sampler"):
        Poisson(7, 7, 0.5).from_bytes(content)


def test_samplers_by_name():
    assert make_sampler("poisson", population=10, rounds=3, probability=0.5) == Poisson(10, 3, 0.5)
    assert all(kind == sampler.kind for kind, sampler in SAMPLERS.items())
    with pytest.raises(Refused, match="the samplers are min-separated, poisson"):
        make_sampler("uniform", population=10)
    with pytest.raises(Refused, match="has no 'probabilty'; it takes population, rounds, probability"):
        make_sampler("poisson", population=10, rounds=3, probabilty=0.5)
    with pytest.raises(Refused, match="needs more than population"):
        make_sampler("poisson", population=10)
    for bad in ({"population": 0}, {"population": 2.5}, {"population": True}, {"rounds": 0}, {"probability": 0.0}):
        with pytest.raises(Refused):
            make_sampler("poisson", **{"population": 10, "rounds": 3, "probability": 0.5, **bad})


def test_events_are_what_the_accountant_takes():
    assert MinSeparated(100, 40, 7, 13, 3).event == {
        "kind": "deterministic",
        "min_separation": 13,
        "max_participations": 3,
        "exact": False,
    }
    assert Poisson(100, 40, 0.1).event == {"kind": "poisson", "probability": 0.1}
    assert FixedSize(100, 40, 7).event == {"kind": "fixed", "cohort": 7, "population": 100}
    assert FixedSize(100, 40, 7, 90).event == {"kind": "fixed", "cohort": 7, "population": 90}
    cyclic = {"kind": "cyclic", "groups": 6}
    assert CyclicPoisson(103, 40, 6, 0.4, 90).event == {
        **cyclic,
        "sampling": "poisson",
        "smallest_group": 15,
        "probability": 0.4,
    }
    assert CyclicFixed(103, 40, 6, 5).event == {**cyclic, "sampling": "fixed", "smallest_group": 17, "cohort": 5}
    epochs = ShuffledEpochs(100, 40, 7)
    assert epochs.event == {"kind": "deterministic", "min_separation": 14, "max_participations": 3, "exact": True}
    assert epochs.shuffled(7) == {**cyclic, "groups": 7, "sampling": "shuffle", "smallest_group": 14, "cohort": 7}
    with pytest.raises(Refused, match="use a divisor"):
        epochs.shuffled(4)
    with pytest.raises(Refused, match="between the two"):
        FixedSize(100, 40, 7, 101)  # each would be drawn more often than stated
    with pytest.raises(Refused, match="between the two"):
        CyclicFixed(100, 40, 3, 7, 120)


def test_samplers_of_a_run_file():
    table = {"sampler": "poisson", "size": 90, "probability": 0.1, "groups": None, "simulated_cohort": None}
    assert sampler_of(table, 100, 40) == Poisson(100, 40, 0.1, 90)
    table = {"size": 90, "report_goal": 7, "min_separation": 13, "max_participations": None}
    assert sampler_of(table, 100, 40) == MinSeparated(100, 40, 7, 13)
    assert sampler_of({"sampler": "shuffled-shards", "report_goal": 7, "shards": 3}, 100, 40) == ShuffledShards(
        100, 40, 7, 3
    )
    with pytest.raises(Refused, match="has no 'shards'"):
        sampler_of({"sampler": "poisson", "probability": 0.1, "shards": 3}, 100, 40)


def test_the_expected_cohort_of_poisson_needs_a_public_estimate():
    with pytest.raises(Refused, match="public estimate"):
        _ = Poisson(1017, 3, 0.01).expected_cohort
    assert Poisson(1017, 3, 0.01, 1000).expected_cohort == 10
    assert CyclicPoisson(1017, 3, 5, 0.05, 1000).expected_cohort == 10
    assert "1017" not in str(Poisson(1017, 3, 0.01, 1000).event)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_table_tells_what_occurred(data):
    population = data.draw(st.integers(1, 12))
    rounds = data.draw(st.integers(1, 15))
    table = ParticipationTable.empty(population)
    there = np.zeros((rounds, population), bool)
    for round in range(rounds):
        there[round] = data.draw(st.lists(st.booleans(), min_size=population, max_size=population))
        users = np.flatnonzero(there[round])
        table.record(round, users)
        table.record(round, users)  # a round done anew is one round
    gaps = [int(np.diff(np.flatnonzero(column)).min()) for column in there.T if column.sum() > 1]
    occurred = table.occurred(rounds)
    assert occurred.min_separation == min(gaps, default=rounds)
    np.testing.assert_array_equal(table.count, there.sum(0))
    assert occurred.most >= there.sum(0).max()
    assert occurred.most == max(there.sum(0).max(), 1)


def test_the_table_enforces_timers_and_caps_and_survives_a_restart(tmp_path):
    from reticent.mechanisms import Participation

    table = ParticipationTable.empty(4)
    schema = Participation(100, 10, 2)
    table.record(0, np.array([0, 1]))
    table.record(10, np.array([0]))
    everybody = np.arange(4)
    np.testing.assert_array_equal(table.may_take_part(everybody, 9, schema), [False, False, True, True])
    np.testing.assert_array_equal(table.may_take_part(everybody, 20, schema), [False, True, True, True])
    path = tmp_path / "participation"
    table.save(path)
    assert path.stat().st_mode & 0o077 == 0
    again = ParticipationTable.load(path)
    np.testing.assert_array_equal(again.last_round, table.last_round)
    assert again.occurred(100) == table.occurred(100) == Participation(100, 10, 2)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(Refused, match="no whole participation table"):
        ParticipationTable.load(path)
    with pytest.raises(Refused, match="in order"):
        table.record(5, np.array([0]))
    with pytest.raises(Refused, match="no user 9"):
        table.record(30, np.array([9]))


def test_public_estimates_say_where_they_come_from():
    from reticent.population import estimates

    assert str(estimates.given(5000)) == "5,000 (given by the user)"
    with pytest.raises(Refused, match="leaks"):
        estimates.counted(4711)
    assert "named as a leak" in str(estimates.counted(4711, may_leak=True))
    noised = [estimates.noised(10_000, 100.0) for _ in range(400)]
    values = np.array([int(one) for one in noised])
    assert abs(values.mean() - 10_000) < 25
    assert 85 < values.std() < 115
    assert noised[0].event == {"kind": "gaussian", "noise_multiplier": 100.0, "adjacency": "add-or-remove"}
