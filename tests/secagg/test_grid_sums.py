"""Sums on a release's grid: exact where they are said to be, and never further from another than is accounted."""

import dataclasses
import math
import os
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard

from reticent.accounting.run import guarantee_of
from reticent.errors import Refused
from reticent.secagg import GridSums, RotatedCode, inflated_clip_norm
from reticent.secagg.hadamard import flip_signs, walsh_hadamard


def cohort_of(count, dimension, norm=1.0, seed=0):
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((count, dimension))
    vectors *= norm / np.linalg.norm(vectors, axis=1, keepdims=True)
    return {f"c{place}": vector.astype(np.float32) for place, vector in enumerate(vectors)}


def sums(dimension=300, clip_norm=1.0, cohort=10, grid=2.0**-20, inflation=0.01):
    return GridSums(RotatedCode.plan(dimension, clip_norm, cohort, inflation), grid)


@given(st.integers(2, 70), st.floats(1e-6, 1e6), st.sampled_from([0.001, 0.01, 0.1]), st.integers(1, 500))
@settings(max_examples=60, deadline=None)
def test_a_planned_step_is_a_power_of_two_and_inflates_no_more_than_asked(dimension, clip_norm, inflation, cohort):
    code = RotatedCode.plan(dimension, clip_norm, cohort, inflation)
    fraction = math.frexp(code.step)[0]
    assert min(abs(fraction - 0.5), abs(fraction - 1)) < 1e-14
    assert code.inflation <= inflation * (1 + 1e-9)
    # The next coarser one would inflate more.
    assert inflated_clip_norm(clip_norm, code.scale / 2, dimension) > clip_norm * (1 + inflation) * (1 - 1e-9)


@pytest.mark.parametrize("dimension", [2, 37, 64, 500])
def test_decoding_is_the_inverse_in_whole_numbers(dimension):
    """Against Python's integers and SciPy's matrix, at sums as large as the modulus allows."""
    code = RotatedCode.plan(dimension, 1.0, 20, 1e-4)
    rng = np.random.default_rng(dimension)
    total = rng.integers(0, 2 * code.largest * 20, code.length, endpoint=True, dtype=np.uint32)
    signs = np.ones(dimension)
    flip_signs(signs, code.rotation)
    centred = [int(word) - 20 * code.largest for word in total]
    rows = hadamard(code.length).astype(int).tolist()[:dimension]
    expected = [
        int(sign) * sum(one * other for one, other in zip(row, centred, strict=True))
        for row, sign in zip(rows, signs, strict=True)
    ]
    assert code.decode(total, 20).tolist() == expected
    # One step is 1 / (s sqrt(d)).
    assert code.step**2 * code.scale**2 * code.length == pytest.approx(1, rel=1e-14)


def test_the_float_transform_counts_exactly_up_to_two_to_the_53():
    code = RotatedCode(3000, 1.0, 9e6, 900)
    total = np.full(code.length, 2 * 900 * code.largest, np.uint32)
    plus = code.decode(total, 900)
    # All entries at the bound is one spike of the transform, the largest there is.
    assert sorted(np.abs(plus).tolist())[-2:] == [0, code.length * 900 * code.largest]
    total[0] -= 1
    assert set(np.abs(code.decode(total, 900) - plus).tolist()) == {1}


def one_client_less(plan, updates, seed):
    """The largest change in the sum when one client's update is left out, in units of the clip norm."""
    with_all = plan.directly(updates.items(), seed).astype(np.int64)
    changes = []
    for name in updates:
        rest = {other: vector for other, vector in updates.items() if other != name}
        without = plan.directly(rest.items(), seed).astype(np.int64)
        changes.append(plan.grid * np.linalg.norm(with_all - without) / plan.code.clip_norm)
    return max(changes)


@pytest.mark.parametrize("grid", [2.0**-26, 2.0**-20, 2.0**-12, 2.0**-6])
@pytest.mark.parametrize("norm", [1.0, 30.0])
def test_one_client_changes_the_sum_by_no_more_than_is_accounted(grid, norm):
    plan = sums(grid=grid, inflation=0.1)
    # The finest grids hold a step as whole units, the coarsest do not.
    assert plan.rounded == (grid > plan.code.step)
    told = plan.accounting()
    most = told["secure_aggregation"]["inflation"] + told.get("rounding", 0.0)
    for seed in range(8):
        assert one_client_less(plan, cohort_of(5, 300, norm, seed), os.urandom(32)) <= most


def test_an_update_made_to_be_inflated_stays_within():
    plan = sums(dimension=256, grid=2.0**-20, inflation=0.1)
    seed = os.urandom(32)
    # Rotated, it has all entries half way between two whole numbers: rounding then lengthens it the most.
    code, _ = plan._of_round(seed)
    rng = np.random.default_rng(0)
    halves = (rng.integers(-2, 2, code.length) + 0.5).astype(np.float32)
    flat = walsh_hadamard(halves)
    flip_signs(flat, code.rotation)
    flat *= 1 / code.scale
    updates = cohort_of(3, 256) | {"flat": flat}
    changed = one_client_less(plan, updates, seed)
    assert changed <= plan.accounting()["secure_aggregation"]["inflation"]


def test_an_exact_sum_is_that_of_the_encoded_updates():
    plan = sums(grid=2.0**-22)
    assert not plan.rounded
    assert plan.rounding == 0
    assert "rounding" not in plan.accounting()
    updates, seed = cohort_of(7, 300), os.urandom(32)
    apart = [plan.directly([item], seed).astype(np.int64) for item in updates.items()]
    np.testing.assert_array_equal(plan.directly(updates.items(), seed), np.sum(apart, axis=0))


def test_rounding_is_once_to_the_nearest_and_has_to_be_accounted():
    plan = sums(dimension=64, grid=2.0**-4)
    per_unit = round(plan.grid / plan.code.step)
    assert plan.rounded
    below, above = np.full(64, per_unit // 2 - 1), np.full(64, per_unit // 2 + 1)
    true_change = np.linalg.norm(above - below) * plan.code.step
    change = np.linalg.norm(plan.units_of(above).astype(float) - plan.units_of(below)) * plan.grid
    # Two sums that are all but the same, and come out a unit apart in every entry.
    assert change > 10 * true_change
    assert change <= true_change + plan.rounding
    assert plan.rounding == pytest.approx(2.0**-4 * 8, rel=1e-5)
    totals = np.random.default_rng(0).integers(-(10**7), 10**7, 64)
    exact = [round(Fraction(int(total)) * Fraction(1, per_unit)) for total in totals]
    assert plan.units_of(totals).tolist() == exact


@pytest.mark.parametrize("drop", [{}, {"masked input": ["c3"], "agreement": ["c1"]}])
@pytest.mark.parametrize("grid", [2.0**-22, 2.0**-8])
def test_the_protocol_gives_the_direct_sum_bit_for_bit(drop, grid):
    plan, updates, seed = sums(dimension=90, grid=grid), cohort_of(9, 90), os.urandom(32)
    total, survivors = plan.by_protocol(updates, number=3, seed=seed, dropout=0.3, corruption=0.1, drop=drop)
    assert set(survivors) == set(updates) - set(drop.get("masked input", ()))
    np.testing.assert_array_equal(total, plan.directly(((name, updates[name]) for name in survivors), seed))
    assert total.dtype == np.int32


def test_rounds_repeat_by_their_seed_only():
    plan, updates = sums(grid=2.0**-22), cohort_of(4, 300)
    first, second = os.urandom(32), os.urandom(32)
    np.testing.assert_array_equal(plan.directly(updates.items(), first), plan.directly(updates.items(), first))
    for other in (second, None):
        assert (plan.directly(updates.items(), first) != plan.directly(updates.items(), other)).any()
    assert (plan.directly(updates.items()) != plan.directly(updates.items())).any()


def test_sums_are_the_updates_within_the_rounding():
    plan, updates = sums(dimension=1000, cohort=50, grid=2.0**-14), cohort_of(50, 1000)
    total = plan.directly(updates.items()) * plan.grid
    bound = (50 * math.sqrt(plan.code.length) / plan.code.scale) + plan.grid * math.sqrt(1000)
    assert np.linalg.norm(total - np.sum(list(updates.values()), axis=0)) < bound


@pytest.mark.parametrize("grid", [2.0**-22, 2.0**-8])
def test_the_accountant_takes_it_as_it_is(grid):
    plan = sums(dimension=100, grid=grid)
    run = {
        "rounds": 1,
        "noise_multiplier": 4.0,
        "mechanism": "independent",
        "participation": {"kind": "deterministic", "min_separation": 1},
    }
    # Of one Gaussian: (sensitivity / sigma)^2 / 2, the sensitivity lengthened by both.
    lengthened = math.sqrt(
        1
        + plan.code.length / (4 * plan.code.scale**2)
        + 1 / plan.code.scale
        + math.sqrt(plan.code.length) / (2 * plan.code.scale**2)
    )
    lengthened += grid * 10 if grid > plan.code.step else 0
    guarantee = guarantee_of({**run, **plan.accounting()})
    assert guarantee.rho == pytest.approx((lengthened / 4) ** 2 / 2, rel=2e-5)
    assert guarantee.rho >= (lengthened / 4) ** 2 / 2


def test_a_vector_beyond_its_norm_is_cut_not_wrapped():
    plan = sums(dimension=64, grid=2.0**-22)
    for coarse in (plan, dataclasses.replace(plan, grid=2.0**-2)):
        huge = np.array([2**52, -(2**52)] * 32)
        assert coarse.units_of(huge).tolist()[0] > 2**31 - 2**14
        assert coarse.units_of(huge).tolist()[1] < -(2**31) + 2**14


def test_bad_grids_are_refused_before_the_round():
    code = RotatedCode.plan(100, 1.0, 50)
    for grid in (0.3, 0.0, -1.0, math.inf, math.nan):
        with pytest.raises(Refused, match="power of two"):
            GridSums(code, grid)
    with pytest.raises(Refused, match="32 bits"):
        GridSums(code, 2.0**-26)
    GridSums(code, 2.0**-25)
    with pytest.raises(Refused, match="1 to 50 vectors"):
        GridSums(code, 2.0**-20).directly(cohort_of(51, 100).items())
    with pytest.raises(Refused, match="at most 50"):
        GridSums(code, 2.0**-20).by_protocol(cohort_of(51, 100), number=0)
