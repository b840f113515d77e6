"""Random cohorts: against a bracket by rounding losses down and up, dp_accounting, and one Gaussian in closed form."""

import math
import time

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.accounting.gaussian import delta_of_gaussian, epsilon_of_gaussian
from reticent.accounting.losses import Gaussian, delta_of, epsilon_of
from reticent.accounting.mixture import ALWAYS, binomial, loss_range, losses
from reticent.accounting.pld import Together
from reticent.accounting.sampled import FixedSize, Poisson
from tests.accounting.brackets import bracket


class Disguised(Gaussian):
    """A Gaussian that keeps its rho to itself, so that its loss distribution is used."""

    rho = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("noise", "probability", "group", "times", "delta", "step"),
    [(8.0, 0.01, 32, 2000, 1e-6, 1e-4), (1.5, 0.01, 4, 500, 1e-6, 1e-4), (1.0, 0.02, 1, 100, 1e-6, 4e-5)],
)
def test_between_the_rounded_down_and_the_rounded_up(noise, probability, group, times, delta, step) -> None:
    both = [bracket(noise, binomial(group, probability), times, delta, step, direction) for direction in (0, 1)]
    found = epsilon_of([Poisson(noise, probability, times, group)], delta)
    assert max(down for down, _ in both) <= found <= 1.005 * max(up for _, up in both)


@settings(deadline=None, max_examples=8)
@given(st.floats(0.5, 8), st.floats(-3, -0.3), st.floats(0, 3), st.floats(3, 9))
def test_poisson_is_dp_accountings(noise: float, log_probability: float, log_times: float, digits: float) -> None:
    release = Poisson(noise, 10**log_probability, int(10**log_times), 1)
    delta = 10**-digits
    oracle = dp_accounting.pld.PLDAccountant(value_discretization_interval=3e-4).compose(release.event())
    assert epsilon_of([release], delta) == pytest.approx(oracle.get_epsilon(delta), rel=0.01, abs=2e-3)


@pytest.mark.full
@pytest.mark.parametrize(("noise", "group", "times"), [(8.0, 32, 2000), (1.0, 4, 300), (3.0, 8, 50)])
def test_groups_are_dp_accountings(noise: float, group: int, times: int) -> None:
    mixture = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
        noise, list(range(group + 1)), binomial(group, 0.01).tolist()
    )
    oracle = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    oracle.compose(dp_accounting.SelfComposedDpEvent(mixture, times))
    assert epsilon_of([Poisson(noise, 0.01, times, group)], 1e-6) == pytest.approx(oracle.get_epsilon(1e-6), rel=3e-3)


@settings(deadline=None, max_examples=12)
@given(st.floats(-4, 1.3), st.floats(2, 15), st.integers(1, 30))
def test_gaussians_have_their_closed_form_far_into_the_tail(log_rho: float, digits: float, times: int) -> None:
    rho, delta = 10**log_rho, 10**-digits
    parts = [Disguised(math.sqrt(2 * rho / times))] * times
    due = epsilon_of_gaussian(rho, delta)
    found = epsilon_of(parts, delta)
    assert due <= found * (1 + 1e-9) + 1e-12
    assert found <= due * 1.001 + 1e-6
    assert delta_of_gaussian(rho, found) <= delta
    if due:  # where delta alone covers the run, epsilon is 0 and the true delta less than asked
        assert delta <= delta_of(parts, 0.99 * due) + 1e-30


@settings(deadline=None, max_examples=5)
@given(st.floats(0.7, 4), st.floats(-3, -1), st.integers(2, 300), st.integers(1, 299))
def test_self_composed_is_composed(noise: float, log_probability: float, times: int, first: int) -> None:
    probability, first = 10**log_probability, min(first, times - 1)
    whole = epsilon_of([Poisson(noise, probability, times)], 1e-7)
    halves = [Poisson(noise, probability, first), Poisson(noise, probability, times - first)]
    assert epsilon_of(halves, 1e-7) == pytest.approx(whole, rel=1e-3)


def test_epsilon_falls_with_noise_and_delta_and_rises_with_the_rest() -> None:
    def epsilon(noise=1.0, probability=0.01, times=200, group=3, delta=1e-6) -> float:
        return epsilon_of([Poisson(noise, probability, times, group)], delta)

    for name, values in {
        "noise": (4.0, 1.2, 0.8),
        "probability": (0.001, 0.01, 0.1),
        "times": (1, 100, 1000),
        "group": (1, 2, 8),
        "delta": (1e-3, 1e-6, 1e-12),
    }.items():
        found = [epsilon(**{name: value}) for value in values]
        assert found == sorted(found)
        assert len(set(found)) == 3


def test_delta_and_epsilon_are_inverse() -> None:
    for part in (Poisson(1.1, 0.02, 300), Poisson(3.0, 0.05, 40, 5), FixedSize(2.0, 0.02, 300)):
        epsilon = epsilon_of([part], 1e-7)
        assert delta_of([part], epsilon) == pytest.approx(1e-7, rel=2e-3)
        assert delta_of([part], 0.9 * epsilon) > 1e-7
    assert epsilon_of([Poisson(5.0, 0.001, 1)], 0.4) == 0


def test_different_releases_compose() -> None:
    parts = [Poisson(1.0, 0.01, 500), Gaussian(0.5), Poisson(2.0, 0.1, 20)]
    oracle = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4)
    for part in parts:
        oracle.compose(part.event())
    assert epsilon_of(parts, 1e-6) == pytest.approx(oracle.get_epsilon(1e-6), rel=1e-3)


def integrated(noise: float, probability: float, epsilon: float) -> float:
    """The hockey-stick divergence of one fixed-size round under replace-one, by the advanced joint convexity of
    subsampling: probability times that of the whole Gaussian at log(1 + (exp(epsilon) - 1) / probability)."""
    return probability * delta_of_gaussian((2 / noise) ** 2 / 2, math.log1p(math.expm1(epsilon) / probability))


@pytest.mark.parametrize(("noise", "probability"), [(2.0, 0.1), (1.0, 0.01), (6.0, 0.5)])
def test_one_fixed_size_round_is_exact(noise: float, probability: float) -> None:
    part = FixedSize(noise, probability, 1)
    for delta in (1e-3, 1e-6, 1e-10):
        epsilon = epsilon_of([part], delta)
        assert integrated(noise, probability, epsilon) <= delta
        assert integrated(noise, probability, epsilon - 2e-3 * epsilon - 1e-4) > delta or epsilon == 0


@pytest.mark.parametrize("times", [1, 30, 1000])
def test_fixed_size_is_above_poisson_of_twice_the_step_and_below_renyi(times: int) -> None:
    found = epsilon_of([FixedSize(4.0, 0.02, times)], 1e-6)
    assert found >= epsilon_of([Poisson(2.0, 0.02, times)], 1e-6) * (1 - 1e-3)
    event = dp_accounting.SampledWithoutReplacementDpEvent(5000, 100, dp_accounting.GaussianDpEvent(2.0))
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    oracle = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)
    oracle.compose(dp_accounting.SelfComposedDpEvent(event, times))
    assert found <= oracle.get_epsilon(1e-6)


def test_the_grid_keeps_all_mass_and_both_distributions() -> None:
    for weights in (ALWAYS, binomial(1, 0.01), binomial(32, 0.01), binomial(3, 0.9)):
        for one in losses(1.3, weights, 1e-3, 1e-20):
            grid = (one.low + np.arange(len(one.mass))) * 1e-3
            assert one.mass.min() >= 0
            assert one.mass.sum() + one.infinite == pytest.approx(1, abs=1e-12)
            # The other distribution's mass is that of exp(-loss) under this one.
            assert one.mass @ np.exp(-grid) == pytest.approx(1, abs=1e-9)


def test_speed() -> None:
    together = Together([Poisson(8.0, 0.01, 2000, 32)])
    together.epsilon(1e-6)
    start = time.perf_counter()
    together.epsilon(1e-6)
    assert time.perf_counter() - start < 0.3


@pytest.mark.parametrize("weights", [ALWAYS, binomial(1, 0.3), binomial(9, 0.4)])
def test_what_lies_beyond_the_grid_is_put_higher(weights: np.ndarray) -> None:
    # With a tail of a tenth a good part of both distributions is beyond: all of it is kept, none of it below its loss.
    fine, coarse = losses(1.3, weights, 1e-3, 1e-14), losses(1.3, weights, 1e-3, 0.1)
    for exact, cut in zip(fine, coarse, strict=True):
        assert cut.mass.sum() + cut.infinite == pytest.approx(1, abs=1e-12)
        assert 1e-4 < cut.infinite < 0.2 or cut.mass[0] > 1e-4
        for epsilon in (-1.0, -0.2, 0.1, 0.5, 1.0, 2.0):
            assert divergence(cut, epsilon) >= divergence(exact, epsilon) - 1e-12


def divergence(one, epsilon: float) -> float:
    above = (one.low + np.arange(len(one.mass))) * 1e-3 - epsilon
    return float(one.infinite + (one.mass * -np.expm1(-np.maximum(above, 0))).sum())


@pytest.mark.parametrize("weights", [ALWAYS, binomial(1, 0.05), binomial(6, 0.2)])
def test_the_grid_equals_the_truth_at_its_points(weights: np.ndarray) -> None:
    from scipy.integrate import quad
    from scipy.stats import norm

    noise = 1.1

    def mixture(x: float) -> float:
        return sum(weight * norm.pdf(x, shift, noise) for shift, weight in enumerate(weights))

    removed, added = losses(noise, weights, 1e-3, 1e-14)
    for epsilon in (-0.02, 0.0, 0.3, 1.2):
        for one, first, second in (
            (removed, mixture, lambda x: norm.pdf(x, 0, noise)),
            (added, lambda x: norm.pdf(x, 0, noise), mixture),
        ):
            due = quad(lambda x: max(0.0, first(x) - math.exp(epsilon) * second(x)), -9, 16, limit=400)[0]  # noqa: B023
            assert divergence(one, epsilon) == pytest.approx(due, abs=3e-7)


def test_few_looks_are_enough(monkeypatch) -> None:
    from reticent.accounting.pld import _Tilted

    looks: list[float] = []
    delta = _Tilted.delta
    monkeypatch.setattr(_Tilted, "delta", lambda self, epsilon: looks.append(epsilon) or delta(self, epsilon))
    for part in (
        Poisson(8.0, 0.01, 2000, 32),
        Poisson(1.0, 0.001, 500),
        Poisson(0.7, 0.05, 20),
        FixedSize(2.0, 0.02, 300),
    ):
        looks.clear()
        epsilon_of([part], 1e-6)
        assert len(looks) <= 24


@pytest.mark.parametrize("weights", [ALWAYS, binomial(1, 0.2), binomial(5, 0.3)])
@pytest.mark.parametrize("noise", [0.8, 3.0])
def test_the_range_of_losses_is_theirs(noise: float, weights: np.ndarray) -> None:
    from scipy.stats import norm

    random = np.random.default_rng(0)
    shift = random.choice(len(weights), 400_000, p=weights / weights.sum())
    seen = shift + noise * random.standard_normal(len(shift))
    mixture = sum(weight * norm.pdf(seen, place, noise) for place, weight in enumerate(weights))
    drawn = np.log(mixture / norm.pdf(seen, 0, noise))
    deviation, largest = loss_range(noise, weights, 1e-6)
    assert deviation == pytest.approx(drawn.std(), rel=0.015)
    assert np.quantile(drawn, 1 - 1e-5) <= largest
    top = len(weights) - 1 + 5.5 * noise
    of_top = sum(weight * norm.pdf(top, place, noise) for place, weight in enumerate(weights)) / norm.pdf(top, 0, noise)
    assert largest <= math.log(of_top)
