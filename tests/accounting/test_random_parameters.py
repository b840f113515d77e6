"""Every accountant against an independent one on random parameters; self-composed against composed; monotone."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from reticent.accounting.amplified import amplified_guarantee, els_guarantee, sampled_guarantee
from reticent.accounting.composition import composed
from reticent.accounting.gaussian import delta_of_gaussian, epsilon_of_gaussian
from reticent.accounting.guarantee import Guarantee
from reticent.accounting.losses import delta_of, epsilon_of
from reticent.accounting.matrix import matrix_guarantee
from reticent.accounting.mixture import binomial
from reticent.accounting.renyi import Moments, _log_moment
from reticent.accounting.sampled import FixedSize, Poisson
from reticent.accounting.shuffled import Shuffled
from reticent.mechanisms import Participation, make
from tests.accounting.brackets import bracket

FEW = settings(deadline=None, max_examples=6)
DELTA = st.floats(2, 8).map(lambda digits: 10.0**-digits)


@FEW
@given(st.integers(1, 24), st.floats(0.4, 4), st.floats(-2.5, -0.2), st.integers(1, 300), DELTA)
def test_els_lies_between_losses_rounded_down_and_up(
    group: int, noise: float, log_probability: float, times: int, delta: float
) -> None:
    noise *= math.sqrt(group)
    part = Poisson(noise, 10**log_probability, times, group)
    found = epsilon_of([part], delta)
    assume(0.05 < found < 40)
    weights = binomial(group, part.probability)
    both = [bracket(noise, weights, times, delta, found / (1000 * max(times, 4) ** 0.5), turn) for turn in (0, 1)]
    assert max(low for low, _ in both) * (1 - 1e-9) <= found <= 1.005 * max(high for _, high in both)
    assert delta_of([part], found) <= delta * (1 + 1e-6)


def of_one_round(noise: float, probability: float, epsilon: float) -> float:
    """The divergence of one fixed-size round at any epsilon: joint convexity above 0, and symmetry below."""
    if epsilon < 0:
        return 1 - math.exp(epsilon) * (1 - of_one_round(noise, probability, -epsilon))
    inside = math.log1p(math.expm1(epsilon) / probability)
    return probability * delta_of_gaussian((2 / noise) ** 2 / 2, inside)


@FEW
@given(st.floats(0.8, 6), st.floats(-2, -0.1), st.integers(1, 5), st.floats(2, 6))
def test_fixed_size_rounds_compose_as_their_curves_do(
    noise: float, log_probability: float, times: int, digits: float
) -> None:
    probability, delta = 10**log_probability, 10**-digits
    found = epsilon_of([FixedSize(noise, probability, times)], delta)
    assume(0.02 < found < 20)
    # The losses whose divergences are those of one round at every point of a grid, convolved one by one.
    top = math.log1p(probability * math.expm1(min(2 * (6 + 2 / noise) / noise + 2 / noise**2 * 2, 30)))
    step = top / 3000
    grid = np.arange(-3000, 3001) * step
    curve = np.array([of_one_round(noise, probability, float(epsilon)) for epsilon in grid])
    # delta(e) = sum of mass (1 - exp(e - loss)) is linear in exp(e) between losses; its slope jumps by mass / exp(loss).
    slope = np.diff(curve) / np.diff(np.exp(grid))
    mass = np.zeros(len(grid))
    mass[1:-1] = np.diff(slope) * np.exp(grid[1:-1])
    mass[0] = (slope[0] + 1) * math.exp(grid[0])
    mass[-1] = -slope[-1] * math.exp(grid[-1])
    mass = np.maximum(mass, 0)
    total, infinite = mass, 0.0
    for _ in range(times - 1):
        total = np.convolve(total, mass)
    losses = np.arange(-3000 * times, 3000 * times + 1) * step
    infinite = 1 - (1 - max(curve[-1], 0.0)) ** times

    def due(epsilon: float) -> float:
        above = losses > epsilon
        return infinite + float((total[above] * -np.expm1(epsilon - losses[above])).sum())

    assert due(found * 1.003 + 1e-4) <= delta
    assert due(found * 0.99 - 2e-3) >= delta


@FEW
@given(st.integers(2, 33), st.floats(0.6, 5), st.floats(-3, -0.3))
def test_moments_are_the_integrals_they_are_named_after(order: int, noise: float, log_probability: float) -> None:
    probability = 10**log_probability
    assume(order * (order - 1) / (2 * noise**2) < 300)
    top = order + 12 * noise

    def integrand(x: float) -> float:
        ratio = 1 - probability + probability * math.exp((2 * x - 1) / (2 * noise**2))
        return math.exp(order * math.log(ratio) + norm.logpdf(x, 0, noise) - shift)

    shift = 0.0
    shift = max(math.log(max(integrand(x), 1e-300)) for x in np.linspace(-8 * noise, top, 400))
    value = quad(integrand, -12 * noise, top, limit=500, points=[0, order / 2, order])[0]
    assert _log_moment(order, probability, noise) == pytest.approx(math.log(value) + shift, abs=1e-6)


@FEW
@given(st.floats(0.8, 4), st.floats(-3, -1), st.integers(1, 3000), DELTA)
def test_older_accountants_are_never_below(noise: float, log_probability: float, times: int, delta: float) -> None:
    part = Poisson(noise, 10**log_probability, times)
    assert epsilon_of([part], delta) <= Moments(part).epsilon(delta)


@FEW
@given(st.integers(2, 6), st.floats(-2, 1), st.floats(0.1, 4))
def test_the_generic_group_bound_is_a_chain_of_neighbours(size: int, log_rho: float, epsilon: float) -> None:
    one = matrix_guarantee(make("independent", Participation(1)), Participation(1), 1 / math.sqrt(2 * 10**log_rho))
    generic = one.by_generic_bound(size)
    # From one dataset to the next, `size` times: the deltas add up, each worth exp(epsilon) more than the one after.
    each = epsilon / size
    chained = sum(delta_of_gaussian(10**log_rho, each) * math.exp(step * each) for step in range(size))
    assert generic.delta(epsilon) == pytest.approx(min(1.0, chained), rel=1e-9)
    exact = one.for_group(size)
    assert exact.rho == pytest.approx(size**2 * one.rho)
    assert exact.delta(epsilon) <= generic.delta(epsilon) * (1 + 1e-9)
    found = generic.epsilon(1e-5)
    assert generic.delta(found) <= 1e-5 < generic.delta(0.999 * found) or math.isinf(found)


@FEW
@given(st.floats(1, 6), st.integers(1, 40), st.integers(1, 10), st.integers(1, 6), DELTA)
def test_matrix_guarantees_compose_and_are_monotone(
    noise: float, rounds: int, separation: int, devices: int, delta: float
) -> None:
    participation = Participation(rounds, min(separation, rounds))
    tree = make("tree", participation)
    one = matrix_guarantee(tree, participation, noise, unit="device")
    both = composed([one, one])
    assert both.rho == pytest.approx(2 * one.rho)
    assert both.epsilon(delta) == pytest.approx(epsilon_of_gaussian(2 * one.rho, delta))
    grouped = one.for_group(devices, "user")
    assert grouped.epsilon(delta) >= one.epsilon(delta)
    assert f"a user has at most {devices} device" in grouped.assumptions[-1]
    assert matrix_guarantee(tree, participation, 1.1 * noise).epsilon(delta) <= one.epsilon(delta)
    assert one.epsilon(delta / 2) >= one.epsilon(delta)
    longer = Participation(rounds + 1, participation.min_separation)
    assert matrix_guarantee(tree, longer, noise).rho >= one.rho
    closer = Participation(rounds, max(participation.min_separation - 1, 1))
    assert matrix_guarantee(tree, closer, noise).rho >= one.rho
    beside = matrix_guarantee(tree, participation, noise, clip_count_noise=5.0, metrics_noise=9.0)
    lengthened = matrix_guarantee(tree, participation, noise, clip_norm_inflation=1.05)
    assert beside.rho > one.rho
    assert lengthened.rho == pytest.approx(1.05**2 * one.rho)


@FEW
@given(st.floats(0.8, 4), st.floats(-2.5, -0.5), st.integers(1, 200), st.integers(1, 8), DELTA)
def test_sampled_guarantees_are_monotone(
    noise: float, log_probability: float, rounds: int, group: int, delta: float
) -> None:
    def epsilon(noise: float, probability: float, rounds: int, group: int, delta: float) -> float:
        return els_guarantee(probability, rounds, group, noise).epsilon(delta)

    probability = 10**log_probability
    here = epsilon(noise, probability, rounds, group, delta)
    slack = 1 + 1e-3  # the grid differs from one to the other
    assert here <= slack * epsilon(0.9 * noise, probability, rounds, group, delta)
    assert here <= slack * epsilon(noise, 1.1 * probability, rounds, group, delta)
    assert here <= slack * epsilon(noise, probability, rounds + 1 + rounds // 10, group, delta)
    assert here <= slack * epsilon(noise, probability, rounds, group + 1, delta)
    assert here <= slack * epsilon(noise, probability, rounds, group, delta / 3)
    assert here <= slack * epsilon_of_gaussian(rounds * (group / noise) ** 2 / 2, delta)


@FEW
@given(st.integers(1, 6), st.integers(0, 3), st.floats(1, 5), st.floats(0.01, 0.9), st.integers(6, 40))
def test_amplified_guarantees_are_so_many_sampled_gaussians(
    bands: int, more: int, noise: float, probability: float, rounds: int
) -> None:
    mechanism = make("banded-fhu", Participation(rounds, bands))
    groups = bands + more
    kappa = math.sqrt(max((column**2).sum() for column in mechanism.matrix(rounds).T))
    for sampling, kind in (("poisson", Poisson), ("fixed", FixedSize)):
        found = amplified_guarantee(mechanism, rounds, noise, probability, groups=groups, sampling=sampling)
        due = kind(noise / kappa, probability, -(-rounds // groups))
        assert found.epsilon(1e-5) == pytest.approx(epsilon_of([due], 1e-5), rel=1e-6)


@FEW
@given(st.floats(2, 8), st.integers(1, 2000), st.floats(0.05, 3))
def test_shuffling_never_harms_and_helps_more_people_more(noise: float, slots: int, epsilon: float) -> None:
    plain = delta_of_gaussian((2 / noise) ** 2 / 2, epsilon)
    assert Shuffled(noise, slots).delta(epsilon) <= plain
    assert Shuffled(noise, 2 * slots).delta(epsilon) <= Shuffled(noise, slots).delta(epsilon) * 1.05 + 1e-15


@FEW
@given(st.floats(1, 4), st.floats(-2.5, -1), st.integers(2, 200), st.integers(1, 199))
def test_self_composed_guarantees_are_composed_ones(
    noise: float, log_probability: float, rounds: int, first: int
) -> None:
    probability, first = 10**log_probability, min(first, rounds - 1)
    halves: list[Guarantee] = [
        sampled_guarantee(probability, first, noise), sampled_guarantee(probability, rounds - first, noise)
    ]  # fmt: skip
    whole = sampled_guarantee(probability, rounds, noise)
    assert composed(halves).epsilon(1e-6) == pytest.approx(whole.epsilon(1e-6), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("rho", [1e-40, 1e-20, 1e-16, 4.9e-15, 5.1e-15, 1e-12])
def test_next_to_no_loss_is_never_called_none(rho: float) -> None:
    # At 0 the divergence of two Gaussians mu apart is 2 Phi(mu / 2) - 1, which is mu / sqrt(2 pi).
    mu = math.sqrt(2 * rho)
    assert mu / math.sqrt(2 * math.pi) * (1 - 1e-8) <= delta_of_gaussian(rho, 0.0) <= mu / math.sqrt(2 * math.pi) * 1.01
    assert delta_of_gaussian(rho, 4 * mu) == pytest.approx(mu * (norm.pdf(4) - 4 * norm.sf(4)), rel=1e-5)
