"""Whole rounds: the sum of the survivors, whoever drops out and when; and nothing beyond the tolerated fraction."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.errors import Refused
from reticent.secagg import (
    PHASES,
    Aborted,
    Integers,
    Member,
    RotatedCode,
    Round,
    aggregate_in_process,
    encoded_sum,
    server,
    smallest_scale,
)
from tests.secagg.table import Table


def vectors_for(count, length, largest=1000, seed=0):
    rng = np.random.default_rng(seed)
    return {f"c{place:03}": rng.integers(-largest, largest, length, endpoint=True) for place in range(count)}


def check(vectors, aggregate):
    np.testing.assert_array_equal(aggregate.total, np.sum([vectors[name] for name in aggregate.survivors], axis=0))


def test_everybody_arrives():
    vectors = vectors_for(7, 40)
    aggregate = aggregate_in_process(vectors, Integers(40, 1000, 7))
    assert aggregate.survivors == tuple(vectors)
    check(vectors, aggregate)


@pytest.mark.parametrize("phase", PHASES)
def test_drop_outs_in_one_phase(phase):
    vectors = vectors_for(20, 33)
    gone = ["c003", "c019"]
    aggregate = aggregate_in_process(vectors, Integers(33, 1000, 20), dropout=0.1, corruption=0.1, drop={phase: gone})
    check(vectors, aggregate)
    # Those whose masked input had come are in the sum, whatever they failed to send later.
    assert (set(gone) <= set(aggregate.survivors)) == (PHASES.index(phase) > 2)


def test_drop_outs_in_every_phase_up_to_the_tolerated_fraction():
    vectors = vectors_for(25, 10)
    drop = {phase: [f"c{place:03}"] for place, phase in enumerate(PHASES)}
    aggregate = aggregate_in_process(vectors, Integers(10, 1000, 25), dropout=0.2, corruption=0.04, drop=drop)
    assert len(aggregate.survivors) == 22
    check(vectors, aggregate)


@pytest.mark.parametrize("phase", PHASES)
def test_beyond_the_tolerated_fraction_the_round_aborts_with_the_reason(phase):
    vectors = vectors_for(20, 5)
    with pytest.raises(Aborted, match=f"only 17 clients sent their {phase}.*18 of the cohort of 20"):
        aggregate_in_process(
            vectors, Integers(5, 1000, 20), dropout=0.1, corruption=0.1, drop={phase: ["c001", "c005", "c009"]}
        )


@pytest.mark.parametrize("phase", range(5))
def test_an_aborted_round_has_revealed_nothing(phase):
    """Short of the last step the server has no shares at all; at it, no sum."""
    table = Table.lay(clients=10, dropouts=1, corrupted=1)
    table.play(phase)
    for name in table.names[2:]:
        table.server = server.receive(table.server, table.answer(name))
    before = table.server
    with pytest.raises(Aborted):
        server.close(table.server)
    assert table.server is before
    assert before.total is None
    assert phase == 4 or not before.opened


@given(
    clients=st.integers(3, 14),
    length=st.integers(1, 70),
    bits=st.integers(1, 32),
    data=st.data(),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=15, deadline=None)
def test_sums_are_exact_for_random_rounds(clients, length, bits, data, seed):
    corrupted = data.draw(st.integers(0, (clients - 1) // 3))
    dropouts = data.draw(st.integers(0, max(0, min((clients - corrupted - 1) // 2, clients - corrupted - 2))))
    table = Table.lay(clients, length, bits, dropouts, corrupted, seed=seed)
    gone = data.draw(st.lists(st.sampled_from(table.names), max_size=dropouts, unique=True))
    phases = {name: data.draw(st.integers(0, 4)) for name in gone}
    for phase in range(5):
        table.play(1, drop=[name for name in gone if phases[name] <= phase])
    np.testing.assert_array_equal(table.server.total, table.expected())
    summed = set(table.server.names(table.server.survivors))
    assert summed == {name for name in table.names if phases.get(name, 5) > 2}


@pytest.mark.full
def test_sums_are_exact_at_a_hundred_clients():
    vectors = vectors_for(100, 1000)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        gone = rng.choice(list(vectors), 10, replace=False)
        drop = {phase: [str(name) for name in gone[place::5]] for place, phase in enumerate(PHASES)}
        check(vectors, aggregate_in_process(vectors, Integers(1000, 1000, 100), dropout=0.1, corruption=0.1, drop=drop))


def test_floats_come_back_within_the_rounding():
    rng = np.random.default_rng(0)
    vectors = {f"c{place}": rng.standard_normal(300).astype(np.float32) / 20 for place in range(8)}
    code = RotatedCode(300, 1.0, smallest_scale(1.0, 300, 0.01), 8)
    aggregate = aggregate_in_process(vectors, code, dropout=0.2, corruption=0.1, drop={"masked input": ["c3"]})
    expected = np.sum([vectors[name] for name in aggregate.survivors], axis=0)
    assert np.linalg.norm(aggregate.total * code.step - expected) <= 7 * np.sqrt(code.length) / code.scale
    direct = encoded_sum([vectors[name] for name in aggregate.survivors], code)
    assert np.linalg.norm((aggregate.total - direct) * code.step) <= 14 * np.sqrt(code.length) / code.scale


def test_vectors_are_made_when_needed():
    made = []

    def maker(name):
        def make():
            made.append(name)
            return np.array([len(made)])

        return make

    names = [f"c{place}" for place in range(4)]
    aggregate = aggregate_in_process(
        {name: maker(name) for name in names}, Integers(1, 10, 4), dropout=0.3, corruption=0, drop={"shares": ["c2"]}
    )
    assert made == ["c0", "c1", "c3"]
    assert aggregate.total.tolist() == [6]


def test_every_pair_of_partners_shares_a_mask_and_nobody_else():
    table = Table.lay(clients=60, length=3, dropouts=2, corrupted=2).play(2)
    graph = table.round.graph
    assert not graph.complete
    drawn = {name: state.partners for name, state in table.states.items()}
    assert all(len(partners) == graph.neighbours for partners in drawn.values())
    assert len(set(drawn.values())) == 60
    place = {name: at for at, name in enumerate(table.names)}
    assert all(place[name] not in partners for name, partners in drawn.items())
    # A uniform draw: how often each is drawn, chi-squared against k of 59 for each of the others.
    counts = np.bincount(list(itertools.chain(*drawn.values())), minlength=60)
    expected = graph.neighbours
    assert np.sum((counts - expected) ** 2) / (expected * (1 - expected / 59)) < 59 + 6 * np.sqrt(2 * 59)


def test_too_few_clients_are_refused_before_the_round():
    with pytest.raises(Refused, match="hides nobody"):
        aggregate_in_process(vectors_for(2, 3), Integers(3, 1000, 2))
    with pytest.raises(Refused, match="clients would do"):
        Round("r", 0, 8, 3, 16, 3, 2)


def test_a_modulus_that_cannot_hold_the_cohort_is_refused_before_the_round():
    with pytest.raises(Refused, match="would fit"):
        aggregate_in_process(vectors_for(5, 3), Integers(3, 2**30, 5))


def test_a_cohort_larger_than_the_code_is_refused_before_the_round():
    with pytest.raises(Refused, match="at most 4"):
        aggregate_in_process(vectors_for(5, 3), Integers(3, 1000, 4))


def test_unknown_drop_outs_are_refused():
    with pytest.raises(Refused, match="phases are"):
        aggregate_in_process(vectors_for(5, 3), Integers(3, 1000, 5), drop={"lunch": ["c000"]})
    with pytest.raises(Refused, match="'nobody'"):
        aggregate_in_process(vectors_for(5, 3), Integers(3, 1000, 5), drop={"advert": ["nobody"]})


def test_odd_names_travel():
    members = Member.enrol(["ø", "a b", "c" * 255, "日本"])
    table = Table.lay(members=members, dropouts=0, corrupted=0).play()
    np.testing.assert_array_equal(table.server.total, table.expected())
    with pytest.raises(Refused, match="1 to 255 bytes"):
        Table.lay(members=Member.enrol(["a", "b", "c" * 256]), dropouts=0, corrupted=0).play()


def test_states_are_left_as_they_were():
    table = Table.lay(clients=5, dropouts=1, corrupted=0)
    table.play(2)
    first = server.receive(table.server, table.answer(table.names[0]))
    kept = first.masked.copy()
    second = server.receive(first, table.answer(table.names[1]))
    np.testing.assert_array_equal(first.masked, kept)
    assert (second.masked != kept).any()
    assert len(first.survivors) == 1


def test_a_step_done_again_gives_the_same_message():
    from reticent.secagg import client

    table = Table.lay(clients=5, dropouts=1, corrupted=0)
    for _ in range(4):
        table.play(1)
        name = table.names[2]
        twice = [
            client.step(table.members[name], table.states[name], table.inbox[name], table.words[name]) for _ in range(2)
        ]
        assert twice[0] == twice[1]
