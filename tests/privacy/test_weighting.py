import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from reticent.accounting.run import guarantee_of
from reticent.errors import Refused
from reticent.privacy.clipping import Clipping, Contribution
from reticent.privacy.grid import Grid
from reticent.privacy.weighting import WHOLE, ClippedDenominator, FixedDenominator, user_weights

from .test_clipping import squared_units


def test_weights_are_examples_over_the_cap_rounded_down():
    weights = user_weights(jnp.asarray([0, 1, 7, 799, 800, 801, 10**6]), 800)
    assert np.asarray(weights).tolist() == [
        math.floor(min(Fraction(n, 800), 1) * WHOLE) for n in (0, 1, 7, 799, 800, 801, 10**6)
    ]


def contribution(units, weight: int) -> Contribution:
    return Contribution(jnp.asarray(units, jnp.int32), jnp.asarray(weight, jnp.int32), jnp.zeros((), jnp.int32))


def test_a_fixed_denominator_divides_by_what_was_chosen():
    estimator, grid = FixedDenominator(400.0), Grid(-10)
    sums = estimator.before_noise(contribution([1024, -2048, 5], 17))
    assert np.asarray(sums).tolist() == [1024, -2048, 5]
    np.testing.assert_allclose(estimator.average(sums, grid), np.array([1.0, -2.0, 5 / 1024]) / 400)
    assert estimator.accounting(10, 1.0, grid) == {}


@pytest.mark.parametrize("minimum", [1.0, 3.7, 800.0, 131071.0])
def test_a_clipped_denominator_is_exact_to_one_and_a_half_units(minimum):
    estimator = ClippedDenominator(minimum, cohort=100_000)
    parts = math.floor(minimum * WHOLE)
    rng = np.random.default_rng(0)
    units = np.concatenate([rng.integers(-(2**31) + 1, 2**31, 2000), [0, 1, -1, 2**31 - 1, -(2**31) + 1, 65535, 65536]])
    before = jax.jit(estimator.before_noise)
    for weight in {1, parts // 2, parts, min(parts + 1, 2**31 - 1), min(3 * parts, 2**31 - 1), 2**31 - 1}:
        got = np.asarray(before(contribution(units, weight))).tolist()
        for one, made in zip(units.tolist(), got, strict=True):
            exact = Fraction(abs(one)) * min(1, Fraction(parts, weight)) if weight else abs(one)
            assert 0 <= exact - abs(made) < Fraction(3, 2)
            assert made * one >= 0
            assert weight > parts or made == one


def worst_move(clip, minimum: float, cohorts) -> float:
    """How far leaving out one user moves what is noised, in clip norms: the most, over these cohorts."""
    grid = Grid.finest(200, 1.0, 0.0)
    estimator, clipping = ClippedDenominator(minimum, 200), clip(grid)

    @jax.jit
    def noised(updates, weights, present):
        made = jax.vmap(clipping)(updates, weights)
        return estimator.before_noise(jax.tree.map(lambda leaf: (leaf.T * present).T.sum(0, dtype=leaf.dtype), made))

    worst = 0.0
    for updates, weights in cohorts:
        everybody, values = np.ones(len(weights), np.int32), jnp.asarray(updates, jnp.float32)
        whole = np.asarray(noised(values, weights, everybody), np.int64)
        for user in range(len(weights)):
            present = everybody.copy()
            present[user] = 0
            moved = whole - np.asarray(noised(values, weights, present))
            worst = max(worst, (math.sqrt(squared_units(moved)) - 1.5 * math.sqrt(updates.shape[1])) * grid.step)
    return worst


def cohorts(size: int):
    """Random cohorts; one user against nineteen; and what breaks the estimator where weights come first: a hundred users of
    weight 0.01 who all pull one way, and one of weight 1 who does not pull at all."""
    rng = np.random.default_rng(1)
    for _ in range(10):
        few = rng.integers(0, 20) < np.arange(20)
        yield rng.normal(size=(20, size)) * 10.0 ** rng.uniform(-3, 2), rng.integers(0, WHOLE + 1, 20) * few
    yield np.outer([100.0] * 19 + [-100.0], np.eye(size)[0]), np.full(20, WHOLE)
    pull = np.zeros((101, size))
    pull[:100, 0] = 100.0
    yield pull, np.array([WHOLE // 100] * 100 + [WHOLE])


def test_one_user_moves_a_clipped_average_by_two_clip_norms_at_most():
    """Lemma 1 of dpfedavg, as its proof has it."""
    assert worst_move(lambda grid: Clipping(1.0, grid), 1.0, cohorts(5)) <= 2
    assert 1.8 < worst_move(lambda grid: Clipping(1.0, grid), 19.0, cohorts(5)) <= 2


def test_the_check_sees_weights_that_come_before_clipping():
    """As the lemma is printed: then the counterexample moves it by fifty."""

    def weighted_first(grid):
        clipping = Clipping(1.0, grid)

        def faulty(update, weight):
            made = clipping(update * (weight.astype(jnp.float32) / WHOLE))
            return Contribution(made.units, weight, made.zeroed)

        return faulty

    assert worst_move(weighted_first, 1.0, cohorts(5)) > 40


def test_the_accountant_is_told_of_a_clipped_denominator():
    grid = Grid.finest(1000, 1.0, 7.0)
    told = ClippedDenominator(500.0, 2000).accounting(10**6, 1.0, grid)
    run = {
        "rounds": 100,
        "noise_multiplier": 1.0,
        "mechanism": "independent",
        "participation": {"kind": "poisson", "probability": 0.01},
    }
    plain, twice = guarantee_of({**run, "noise_multiplier": 0.5}), guarantee_of({**run, **told})
    # Twice what a sum is moved by, and the rounding besides: as much as at half the noise, and a little more.
    assert 1 < twice.epsilon(1e-6) / plain.epsilon(1e-6) < 1.01
    assert 2 * told["rounding"] >= 1.5 * grid.step * 1000


def test_what_makes_no_estimate_is_refused():
    for make in (
        lambda: FixedDenominator(0.0),
        lambda: FixedDenominator(math.inf),
        lambda: ClippedDenominator(0.0, 10),
        lambda: ClippedDenominator(1e6, 10),
        lambda: ClippedDenominator(1.0, 10**6),
        lambda: user_weights(jnp.asarray([1]), 0.0),
    ):
        with pytest.raises(Refused):
            make()
