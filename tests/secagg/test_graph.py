"""The graph's numbers against exact rational arithmetic, and against simulation."""

import math
from fractions import Fraction

import numpy as np
import pytest

from reticent.errors import Refused
from reticent.secagg.graph import (
    FAILURE_BITS,
    _largest_threshold,
    _log2_exposed,
    _log2_tail,
    graph_for,
    quorum,
    tolerated,
)

HALF = FAILURE_BITS + 1


def tail(population, marked, drawn, at_least):
    ways = sum(
        math.comb(marked, hit) * math.comb(population - marked, drawn - hit)
        for hit in range(at_least, drawn + 1)
        if drawn - hit <= population - marked
    )
    return Fraction(ways, math.comb(population, drawn))


def log2(value):
    return math.log2(value.numerator) - math.log2(value.denominator) if value else -math.inf


def exposed(cohort, dropouts, corrupted, neighbours, threshold):
    """The union bound of graph.py, in fractions and from its description."""
    honest, total = cohort - corrupted, Fraction(0)
    for size in range(1, honest // 2 + 1):
        marked = min(corrupted + size - 1, cohort - dropouts - 1)
        guarded = tail(cohort - dropouts - 1, marked, neighbours, threshold) ** size * math.comb(honest, size)
        others = honest - dropouts - size
        miss_others = Fraction(math.comb(cohort - 1 - others, neighbours), math.comb(cohort - 1, neighbours))
        choices = math.comb(honest, dropouts) * (dropouts + 1) * math.comb(honest, size)
        total += min(guarded, choices * miss_others**size)
    return total


@pytest.mark.parametrize(
    ("population", "marked", "drawn", "at_least"), [(99, 5, 20, 4), (949, 50, 37, 19), (30, 7, 9, 0)]
)
def test_tails_are_exact(population, marked, drawn, at_least):
    assert _log2_tail(population, marked, drawn, at_least) == pytest.approx(
        log2(tail(population, marked, drawn, at_least)), abs=1e-8
    )


def test_impossible_tails():
    assert _log2_tail(99, 3, 10, 4) == -math.inf
    assert _log2_tail(99, 3, 10, 11) == -math.inf


@pytest.mark.parametrize(
    ("cohort", "dropouts", "corrupted", "neighbours", "threshold"),
    [(60, 3, 3, 12, 7), (60, 6, 6, 20, 12), (41, 0, 4, 9, 6), (120, 12, 6, 25, 14)],
)
def test_union_bound_is_exact(cohort, dropouts, corrupted, neighbours, threshold):
    expected = log2(exposed(cohort, dropouts, corrupted, neighbours, threshold))
    computed = _log2_exposed(cohort, dropouts, corrupted, neighbours, threshold)
    first = log2(cohort * tail(cohort - dropouts - 1, corrupted, neighbours, threshold))
    assert computed == pytest.approx(expected if first <= -HALF else first, abs=1e-6)


@pytest.mark.parametrize(("cohort", "fraction"), [(100, 0.05), (200, 0.1), (300, 0.05), (64, 0.15)])
def test_graph_meets_both_bounds_and_none_sparser_does(cohort, fraction):
    gone = tolerated(cohort, fraction)
    graph = graph_for(cohort, gone, gone)
    lost = tail(cohort - 1, gone, graph.neighbours, graph.neighbours - graph.threshold + 1)
    assert log2(cohort * lost) <= -HALF
    assert log2(exposed(cohort, gone, gone, graph.neighbours, graph.threshold)) <= -HALF
    for fewer in range(2, graph.neighbours):
        threshold = _largest_threshold(cohort, gone, fewer)
        assert threshold < 2 or _log2_exposed(cohort, gone, gone, fewer, threshold) > -HALF


def test_a_production_round():
    graph = graph_for(1000, 50, 50)
    assert graph.neighbours == 37
    assert graph.threshold == 19
    # Drawing 37 and being drawn by as many: 72.6 shared masks a client, on average.
    masks = 2 * graph.neighbours - graph.neighbours**2 / 999
    assert masks == pytest.approx(72.6, abs=0.05)


@pytest.mark.parametrize("cohort", [3, 4, 5, 7, 10, 16])
def test_small_cohorts(cohort):
    for dropouts in range(cohort):
        for corrupted in range(cohort):
            if cohort - dropouts < quorum(cohort, corrupted) or cohort - dropouts - corrupted < 2:
                with pytest.raises(Refused):
                    graph_for(cohort, dropouts, corrupted)
                continue
            graph = graph_for(cohort, dropouts, corrupted)
            # Whoever drops out: the accomplices among the partners never reach the threshold if all partners are known.
            assert 2 <= graph.threshold <= graph.neighbours or graph.complete
            if graph.complete:
                assert corrupted < graph.threshold <= cohort - dropouts - 1


@pytest.mark.parametrize(("cohort", "dropouts", "corrupted"), [(3, 1, 1), (10, 4, 2), (21, 7, 7)])
def test_refusals_name_a_cohort_that_works(cohort, dropouts, corrupted):
    with pytest.raises(Refused, match="clients would do") as refusal:
        graph_for(cohort, dropouts, corrupted)
    named = int(str(refusal.value).split(" clients would do")[0].split()[-1])
    graph_for(named, tolerated(named, dropouts / cohort), tolerated(named, corrupted / cohort))


def test_hopeless_fractions_are_refused():
    with pytest.raises(Refused, match="fewer drop-outs"):
        graph_for(10, 5, 1)


def test_two_quorums_share_an_honest_client():
    for cohort in range(3, 60):
        for corrupted in range(cohort):
            assert 2 * quorum(cohort, corrupted) - cohort > corrupted


def test_the_bound_holds_in_simulation():
    """At a bound weak enough to be seen: how often is some honest client guarded by corrupted partners alone?"""
    rng = np.random.default_rng(3)
    cohort, corrupted, neighbours, threshold = 30, 8, 5, 4
    trials, seen = 4000, 0
    for _ in range(trials):
        draws = rng.permuted(np.tile(np.arange(cohort - 1), (cohort - corrupted, 1)), axis=1)[:, :neighbours]
        seen += bool((np.sum(draws < corrupted, axis=1) >= threshold).any())
    bound = float((cohort - corrupted) * tail(cohort - 1, corrupted, neighbours, threshold))
    assert 0.5 * bound < seen / trials <= 1.1 * bound
    assert _log2_exposed(cohort, 0, corrupted, neighbours, threshold) >= math.log2(bound)
