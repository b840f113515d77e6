"""Bounds against what is known without them: exact enumeration, closed forms, simulated attacks of known strength."""

import itertools
import math

import numpy as np
import pytest

from reticent.accounting.gaussian import epsilon_of_gaussian
from reticent.audit.bounds import by_counting, from_scores, largest_auc, log_tail

DELTA = 1e-5


def test_the_tail_bounds_every_sum_of_signs():
    rng = np.random.default_rng(1)
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=12)))
    for weights in (
        np.ones(12),
        np.r_[np.ones(2), np.zeros(10)],
        np.r_[5.0, np.ones(11)],
        *rng.exponential(size=(4, 12)),
    ):
        sums = np.sort(signs @ (weights / np.linalg.norm(weights)))
        for value in np.unique(sums.round(9)):
            reached = (sums >= value - 1e-9).mean()
            assert math.log(reached) <= log_tail(float(value)) + 1e-9


@pytest.mark.parametrize("strength", [0.5, 1.0, 2.0, 4.0])
def test_it_is_a_lower_bound_for_attacks_of_known_strength(strength):
    rng = np.random.default_rng(2)
    truth = epsilon_of_gaussian(strength**2 / 2, DELTA)
    bounds = [from_scores(rng.normal(strength, size=200), DELTA, 0.95) for _ in range(300)]
    assert np.mean(np.array(bounds) > truth) <= 0.05
    if strength >= 2:
        assert np.median(bounds) > 0.3 * truth


def test_the_smallest_excess_is_not_found_out_by_chance():
    """Canaries that sent nothing: the bound is 0 in at least 95 of 100 audits."""
    rng = np.random.default_rng(3)
    found = [from_scores(rng.normal(size=100), DELTA, 0.95) for _ in range(1000)]
    assert np.mean(np.array(found) > 0) <= 0.05


def test_without_noise_it_knows_no_limit():
    assert from_scores(np.full(100, 25.0), DELTA, 0.95) > 300
    assert from_scores(np.full(100, 1e9), DELTA, 0.95) == 1e4
    assert from_scores(np.array([]), DELTA, 0.95) == 0


@pytest.mark.parametrize("canaries", [10, 100, 1000])
def test_counting_without_an_error(canaries):
    """All right: (e^eps / (1 + e^eps))^n is what is not believed any more."""
    right = 0.05 ** (1 / canaries)
    assert by_counting(canaries, canaries, canaries, 0.0, 0.95) == pytest.approx(
        math.log(right / (1 - right)), abs=1e-5
    )


def test_counting_is_modest():
    assert by_counting(100, 100, 50, DELTA, 0.95) == 0
    assert by_counting(100, 0, 0, DELTA, 0.95) == 0
    bounds = [by_counting(100, 100, correct, DELTA, 0.95) for correct in range(55, 101, 5)]
    assert bounds == sorted(bounds)
    assert by_counting(100, 80, 78, 1e-2, 0.95) < by_counting(100, 80, 78, 0.0, 0.95)


def test_counting_is_a_lower_bound_for_randomised_response():
    """Each coin told rightly with probability e^eps / (1 + e^eps) is eps-DP, and no better can be had of eps-DP."""
    rng, epsilon = np.random.default_rng(4), 1.5
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    found = [by_counting(200, 200, int(rng.binomial(200, right)), 0.0, 0.95) for _ in range(400)]
    assert np.mean(np.array(found) > epsilon) <= 0.08  # 0.05, and what 400 trials can be off by
    assert np.median(found) > 1


def test_the_largest_area():
    for epsilon in (0.0, 0.5, 3.0):
        # Two straight lines that meet at 1 / (1 + e^eps): a triangle and its mirror image.
        assert largest_auc(epsilon, 0.0) == pytest.approx(math.exp(epsilon) / (1 + math.exp(epsilon)), abs=1e-6)
    assert largest_auc(1.0, 0.1) > largest_auc(1.0, 0.0)
    assert largest_auc(1e4, 0.0) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.peers
def test_counting_agrees_with_jax_privacy():
    from jax_privacy.auditing import CanaryScoreAuditor, Explicit

    rng = np.random.default_rng(5)
    for strength, count in ((0.5, 60), (1.5, 120), (3.0, 400)):
        inside, outside = rng.normal(strength, size=count), rng.normal(size=count)
        for threshold in (0.0, 1.0, 2.0):
            guesses = int((inside >= threshold).sum() + (outside >= threshold).sum())
            theirs = CanaryScoreAuditor(inside, outside).epsilon_one_run(
                0.05, DELTA, threshold_strategy=Explicit(threshold)
            )
            ours = by_counting(2 * count, guesses, int((inside >= threshold).sum()), DELTA, 0.95)
            assert ours == pytest.approx(theirs, abs=1e-4)


@pytest.mark.peers
def test_scores_agree_with_jax_privacy_where_many_absent_canaries_stand_in_for_the_known_null():
    from jax_privacy.auditing import Bonferroni, CanaryScoreAuditor

    rng = np.random.default_rng(6)
    inside, outside = rng.normal(2.0, size=400), rng.normal(size=200_000)
    theirs = CanaryScoreAuditor(inside, outside).epsilon_clopper_pearson(0.05, DELTA, threshold_strategy=Bonferroni())
    assert from_scores(inside, DELTA, 0.95) == pytest.approx(theirs, abs=1.5)
