"""The device's timer and its lifetime budget: it refuses too soon, whatever is asked, and remembers through anything."""

import itertools
import math
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.accounting.composition import composed
from reticent.accounting.run import guarantee_of
from reticent.deploy.budget import Budget
from reticent.deploy.diary import KEPT_REFUSALS, Diary
from reticent.errors import Refused
from tests.deploy.made import terms_of

FREE = Budget(math.inf, 1e-6).check
RUN = "a" * 32


@pytest.fixture
def diary(tmp_path):
    return Diary(tmp_path / "diary.sqlite")


def test_too_soon_is_refused_and_the_end_of_the_rest_is_named(diary):
    terms = terms_of(rounds=20, separation=5)
    diary.take_part(terms, RUN, 3, 0, FREE)
    for round in (0, 2, 3, 4, 7):
        with pytest.raises(Refused, match="rests until round 8"):
            diary.take_part(terms, RUN, round, 1, FREE)
    diary.take_part(terms, RUN, 8, 0, FREE)
    assert diary.rounds(RUN) == [3, 8]


def test_the_largest_number_of_participations(diary):
    terms = terms_of(rounds=20, separation=2, most=2)
    diary.take_part(terms, RUN, 0, 0, FREE)
    diary.take_part(terms, RUN, 5, 0, FREE)
    with pytest.raises(Refused, match="as often as"):
        diary.take_part(terms, RUN, 10, 0, FREE)


@pytest.mark.parametrize("round", [-1, 6, 10**9])
def test_a_round_that_the_run_does_not_have(diary, round):
    with pytest.raises(Refused, match="there is no round"):
        diary.check(terms_of(), RUN, round, FREE)


def test_the_wall_clock_and_a_clock_that_is_set_back(tmp_path):
    now = [1e9]
    diary = Diary(tmp_path / "diary.sqlite", clock=lambda: now[0])
    terms = terms_of(rounds=100, separation=2, rest_hours=24)
    diary.take_part(terms, RUN, 0, 0, FREE)
    for moment in (1e9 + 23.9 * 3600, 1e9 - 1e6):
        now[0] = moment
        with pytest.raises(Refused, match="rests for 24 hours"):
            diary.check(terms, RUN, 50, FREE)
        with pytest.raises(Refused, match="rests for 24 hours"):  # by whatever name
            diary.check(terms, "b" * 32, 0, FREE)
    now[0] = 1e9 + 24.1 * 3600
    diary.check(terms, RUN, 50, FREE)


def test_a_run_under_other_terms_of_the_same_name(diary):
    diary.take_part(terms_of(rounds=20), RUN, 0, 0, FREE)
    with pytest.raises(Refused, match="other terms"):
        diary.take_part(terms_of(rounds=20, separation=1), RUN, 1, 0, FREE)


@settings(max_examples=25, deadline=None)
@given(asked=st.lists(st.integers(-2, 40), max_size=40), separation=st.integers(1, 8), most=st.integers(1, 5))
def test_whatever_is_asked_the_schema_is_kept(tmp_path_factory, asked, separation, most):
    diary = Diary(tmp_path_factory.mktemp("diary") / "diary.sqlite")
    terms = terms_of(rounds=40, separation=separation, most=most)
    for round in asked:
        try:
            diary.take_part(terms, RUN, round, 0, FREE)
        except Refused:
            continue
    rounds = diary.rounds(RUN)
    assert len(rounds) <= most
    assert all(later - earlier >= separation for earlier, later in itertools.pairwise(rounds))


def _race(path, round, barrier, won):
    barrier.wait()
    try:
        Diary(path).take_part(terms_of(rounds=20, separation=5), RUN, round, 0, FREE)
        won.put(round)
    except Refused:
        pass


def test_two_processes_at_once_cannot_both_take_part(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, won = context.Barrier(4), context.Queue()
    path = tmp_path / "diary.sqlite"
    workers = [context.Process(target=_race, args=(path, round, barrier, won)) for round in (3, 4, 4, 5)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(Diary(path).rounds(RUN)) == 1
    assert won.qsize() == 1


WRITER = """
import sys
from pathlib import Path
from reticent.deploy.diary import Diary
from tests.deploy.made import terms_of
diary, terms = Diary(Path(sys.argv[1])), terms_of(rounds=100_000, separation=1)
for round in range(int(sys.argv[2]), 100_000):
    diary.take_part(terms, "a" * 32, round, 0, lambda runs: None)
    print(round, flush=True)
"""


def test_killed_at_any_instant_it_forgets_nothing_it_said(tmp_path):
    path, first = tmp_path / "diary.sqlite", 0
    for _ in range(3):
        worker = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(first)], stdout=subprocess.PIPE)
        said = [int(worker.stdout.readline()) for _ in range(5)]
        time.sleep(0.02)
        os.kill(worker.pid, signal.SIGKILL)
        said += [int(line) for line in worker.communicate()[0].split(b"\n")[:-1]]
        kept = Diary(path).rounds(RUN)
        assert set(said) <= set(kept)
        assert len(kept) <= said[-1] + 2
        first = kept[-1] + 1


def test_a_damaged_diary_takes_part_in_nothing(diary):
    diary.path.write_bytes(b"not a database, but long enough to be read as a header" * 40)
    with pytest.raises(Refused, match="takes part in nothing"):
        diary.check(terms_of(), RUN, 0, FREE)


def test_refusals_are_kept_for_the_owner_and_do_not_grow_for_ever(diary):
    diary.refused(RUN, 3, "because")
    assert diary.refusals() == ["because"]
    with sqlite3.connect(diary.path) as database:
        rows = [(0.0, RUN, 1, str(number)) for number in range(KEPT_REFUSALS)]
        database.executemany("INSERT INTO refusals VALUES (?, ?, ?, ?)", rows)
    diary.refused(RUN, 3, "last")
    assert len(diary.refusals()) == KEPT_REFUSALS
    assert diary.path.stat().st_mode & 0o077 == 0


def test_the_budget_is_the_composed_guarantee_of_what_was_taken_part_in(diary):
    """Against the accountant, run by run: languages and tasks add up; rounds not taken part in cost nothing."""
    one = terms_of(rounds=30, separation=10, noise=3.0, name="english")
    other = terms_of(rounds=8, separation=2, noise=2.0, name="german")
    budget = Budget(1e6, 1e-6)
    diary.take_part(one, "a" * 32, 0, 0, budget.check)
    diary.take_part(one, "a" * 32, 10, 0, budget.check)
    diary.take_part(other, "b" * 32, 1, 0, budget.check)

    def of(terms, times):
        event = {**terms.accounting["participation"], "max_participations": times}
        return guarantee_of({**terms.accounting, "participation": event})

    expected = composed([of(one, 2), of(other, 1)])
    assert budget.spent(diary.runs()) == pytest.approx(expected.epsilon(1e-6), rel=1e-9)
    # Independent noise: rho is participations / (2 sigma^2), by hand.
    assert expected.rho == pytest.approx(2 / (2 * 3.0**2) + 1 / (2 * 2.0**2))
    assert budget.spent(diary.runs()) > budget.spent(diary.runs()[:1])


def test_a_spent_budget_refuses_and_takes_nothing(diary):
    terms = terms_of(rounds=30, separation=1, noise=2.0)
    budget = Budget(4.0, 1e-6)
    taken = 0
    for round in range(30):
        try:
            diary.take_part(terms, RUN, round, 0, budget.check)
            taken += 1
        except Refused as error:
            assert "lifetime budget of 4" in str(error)  # noqa: PT017
    assert 1 < taken < 30
    assert len(diary.rounds(RUN)) == taken
    assert budget.spent(diary.runs()) <= 4.0
    with pytest.raises(Refused, match="lifetime budget"):  # another run is charged to the same device
        diary.take_part(terms_of(noise=2.0, name="other"), "b" * 32, 0, 0, budget.check)


def test_a_run_without_noise_is_refused_unless_the_device_was_shipped_to_accept_it(diary):
    terms = terms_of(noise=0.0)
    with pytest.raises(Refused, match="epsilon inf"):
        diary.take_part(terms, RUN, 0, 0, Budget(1e9, 1e-6).check)
    diary.take_part(terms, RUN, 0, 0, Budget(1.0, 1e-6, accept_no_noise=True).check)
