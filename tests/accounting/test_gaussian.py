"""One Gaussian: against numerical integration in high precision, the PLD accountant, and the papers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.accounting.gaussian import delta_of_gaussian, epsilon_of_gaussian, rho_of_gaussian
from reticent.errors import Refused


def integrated_delta(rho: float, epsilon: float) -> float:
    """delta by quadrature of (1 - exp(epsilon - loss))^+ over the normal privacy loss."""
    mean, deviation = rho, math.sqrt(2 * rho)
    start = max((epsilon - mean) / deviation, -40.0)
    nodes, weights = np.polynomial.legendre.leggauss(200)
    total = 0.0
    for block in range(24):
        t = start + block + (nodes + 1) / 2
        density = np.exp(-t * t / 2) / math.sqrt(2 * math.pi)
        total += float((weights / 2 * density * -np.expm1(np.minimum(epsilon - mean - deviation * t, 0))).sum())
    return total


@settings(deadline=None, max_examples=60)
@given(st.floats(-4, 2), st.floats(0, 8))
def test_delta_is_the_integral_of_its_definition(log_rho: float, deviations: float) -> None:
    rho = 10**log_rho
    epsilon = rho + deviations * math.sqrt(2 * rho)
    assert delta_of_gaussian(rho, epsilon) == pytest.approx(integrated_delta(rho, epsilon), rel=1e-9)


@settings(deadline=None, max_examples=60)
@given(st.floats(-4, 2), st.floats(1, 15))
def test_epsilon_and_rho_invert_delta(log_rho: float, digits: float) -> None:
    rho, delta = 10**log_rho, 10**-digits
    epsilon = epsilon_of_gaussian(rho, delta)
    assert delta_of_gaussian(rho, epsilon) <= delta
    if epsilon > 0:
        assert delta_of_gaussian(rho, epsilon) == pytest.approx(delta, rel=1e-6)
        assert rho_of_gaussian(epsilon, delta) == pytest.approx(rho, rel=1e-7)


@pytest.mark.parametrize(
    ("rho", "epsilon"),
    [(0.1506840301548885, 3.42400), (0.014342572340349278, 0.99355), (0.52, 6.690), (0.24, 4.394), (0.89, 9.01)],
)
def test_golden(rho: float, epsilon: float) -> None:
    digits = len(str(epsilon).split(".")[1])
    assert round(epsilon_of_gaussian(rho, 1e-10), digits) == epsilon


def test_bad_input() -> None:
    for delta in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(Refused, match="delta must be above 0"):
            epsilon_of_gaussian(1.0, delta)
    with pytest.raises(Refused, match="epsilon"):
        delta_of_gaussian(1.0, -1.0)
