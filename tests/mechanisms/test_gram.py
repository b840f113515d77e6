"""Sensitivity from a Gram matrix: exact where it says so, never too small."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.mechanisms import Participation
from reticent.mechanisms.base import invert_series, lower_toeplitz
from reticent.mechanisms.gram import gram_sensitivity, heaviest_pattern, toeplitz_gram, toeplitz_sensitivity
from tests.mechanisms.brute import brute_sensitivity, patterns


@st.composite
def participations(draw, most_rounds=8):
    rounds = draw(st.integers(1, most_rounds))
    separation = draw(st.integers(1, rounds))
    return Participation(rounds, separation, draw(st.integers(1, rounds)), exact=draw(st.booleans()))


def assert_honest(sensitivity, matrix, participation):
    true = brute_sensitivity(matrix, participation)
    assert sensitivity.value >= true * (1 - 1e-9)
    if sensitivity.exact:
        assert sensitivity.value == pytest.approx(true, rel=1e-7)


@settings(max_examples=60, deadline=None)
@given(participations(), st.integers(0, 10**6), st.integers(1, 8), st.booleans())
def test_any_matrix(participation, seed, bands, signed):
    random = np.random.default_rng(seed)
    matrix = random.normal(size=(participation.rounds,) * 2)
    matrix = matrix if signed else np.abs(matrix)
    matrix[np.subtract.outer(range(len(matrix)), range(len(matrix))) >= bands] = 0
    assert_honest(gram_sensitivity(matrix.T @ matrix, participation), matrix, participation)


@settings(max_examples=60, deadline=None)
@given(
    participations(),
    st.lists(st.floats(-1, 1), min_size=8, max_size=8),
    st.sampled_from(["any", "positive", "decaying"]),
)
def test_any_toeplitz(participation, numbers, sort):
    coefficients = np.array(numbers)[: participation.rounds]
    if sort != "any":
        coefficients = np.abs(coefficients)
    if sort == "decaying":
        coefficients = np.sort(coefficients)[::-1].copy()
    coefficients[0] = 1.0
    found = toeplitz_sensitivity(coefficients, participation)
    assert_honest(found, lower_toeplitz(coefficients), participation)
    if sort == "decaying":
        assert found.exact


def test_heaviest_pattern_is_the_best_of_all_patterns():
    random = np.random.default_rng(3)
    for separation in (1, 2, 4, 9):
        participation = Participation(9, separation, 3)
        values = random.exponential(size=9)
        best = max(sum(values[list(pattern)]) for pattern in patterns(participation))
        assert heaviest_pattern(values, participation) == pytest.approx(best)


def test_the_gram_matrix_of_a_toeplitz_matrix_keeps_its_zeros():
    coefficients = np.array([1.0, 0.3, -0.2, 0, 0, 0, 0])
    matrix = lower_toeplitz(coefficients)
    np.testing.assert_allclose(toeplitz_gram(coefficients), matrix.T @ matrix, atol=1e-15)
    assert not np.tril(toeplitz_gram(coefficients), -3).any()


def test_inverting_a_series():
    coefficients = np.r_[1.0, 0.5 / np.arange(1, 40)]
    inverse = np.linalg.inv(lower_toeplitz(coefficients))[:, 0]
    np.testing.assert_allclose(invert_series(coefficients), inverse, atol=1e-14)
