"""Banded Toeplitz mechanisms, and those with a banded inverse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import solve_triangular

from reticent.errors import Refused
from reticent.mechanisms import PREFIX_SUM, Mechanism, Participation, Workload, load, make
from reticent.mechanisms.gram import gram_sensitivity, has_decaying_coefficients, toeplitz_gram
from reticent.mechanisms.inverse_optimize import _Loss
from reticent.mechanisms.inverse_toeplitz import InverseToeplitz
from reticent.mechanisms.toeplitz import BandedToeplitz
from reticent.mechanisms.toeplitz_loss import (
    ToeplitzError,
    decaying_sensitivity,
    separate_sensitivity,
    square_root_coefficients,
)
from tests.mechanisms.brute import brute_sensitivity, check_stream

KINDS = ["toeplitz", "banded-fhu", "banded-inverse"]
PARTICIPATIONS = [Participation(37, 5, 3), Participation(37, 5), Participation(30, 7, 4), Participation(12, 1)]


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_square_root_squares_to_the_workload(momentum: float) -> None:
    workload = Workload(momentum)
    root = square_root_coefficients(workload, 50)
    np.testing.assert_allclose(np.convolve(root, root)[:50], workload.coefficients(50), rtol=1e-12)


@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=str)
def test_sensitivities_and_their_gradients(participation: Participation) -> None:
    random = np.random.default_rng(0)
    for function, count in [
        (separate_sensitivity, participation.min_separation),
        (decaying_sensitivity, min(9, participation.rounds)),
        (decaying_sensitivity, participation.rounds),
    ]:
        coefficients = np.sort(random.uniform(size=count))[::-1]
        full = np.zeros(participation.rounds)
        full[:count] = coefficients
        pattern = np.arange(participation.most) * participation.min_separation
        squared, slope = function(coefficients, participation)
        gram = toeplitz_gram(full)
        assert squared == pytest.approx(gram[np.ix_(pattern, pattern)].sum(), rel=1e-12)
        direction = random.normal(size=count)
        ahead, behind = (function(coefficients + step * direction, participation)[0] for step in (1e-6, -1e-6))
        assert slope @ direction == pytest.approx((ahead - behind) / 2e-6, rel=1e-6)


@pytest.mark.parametrize("objective", ["max", "rms"])
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_error_and_its_gradient(objective: str, momentum: float) -> None:
    workload, band = Workload(momentum), np.array([1.0, 0.5, 0.3, 0.25])
    error = ToeplitzError(40, objective, workload)
    squared, slope = error(band)
    rows = np.linalg.norm(workload.matrix(40) @ np.linalg.inv(BandedToeplitz(tuple(band)).matrix(40)), axis=1)
    expected = rows.max() if objective == "max" else np.sqrt(np.mean(rows**2))
    # RmsError has a mean over rounds; the weights are those of BLT, Prop. 3.2.
    assert squared**0.5 == pytest.approx(expected, rel=1e-10)
    direction = np.random.default_rng(1).normal(size=4)
    ahead, behind = (error(band + step * direction)[0] for step in (1e-6, -1e-6))
    assert slope @ direction == pytest.approx((ahead - behind) / 2e-6, rel=1e-6)


@pytest.mark.parametrize("objective", ["max", "rms"])
def test_gradient_of_the_inverse_loss(objective: str) -> None:
    loss = _Loss(Participation(60, 9, 5), objective, Workload(0.3), 6)
    random = np.random.default_rng(2)
    point, direction = np.array([0.0, 0.8, 1.2, 1.6, 1.9]), random.normal(size=5)
    value, slope = loss(point)
    assert np.isfinite(value)
    ahead, behind = (loss(point + step * direction)[0] for step in (1e-6, -1e-6))
    assert slope @ direction == pytest.approx((ahead - behind) / 2e-6, rel=1e-6)
    made = InverseToeplitz(tuple(loss.band(point)[2]))
    expected = made.max_loss if objective == "max" else made.rms_loss
    assert np.exp(value / 2) == pytest.approx(expected(Participation(60, 9, 5), Workload(0.3)), rel=1e-10)


def random_mechanism(kind: str, count: int, seed: int, decaying: bool) -> Mechanism:
    random = np.random.default_rng(seed)
    rest = random.uniform(0 if decaying else -1, 1, size=count - 1)
    if kind == "banded-inverse":
        return InverseToeplitz((1.0, *(-rest / count if decaying else rest)))
    return BandedToeplitz((1.0, *(np.sort(rest)[::-1] if decaying else rest)))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["toeplitz", "banded-inverse"]), st.integers(2, 9), st.data(), st.integers(0, 10**6))
def test_sensitivity_against_brute_force(kind: str, rounds: int, data, seed: int) -> None:
    count = data.draw(st.integers(1, rounds))
    participation = Participation(
        rounds, data.draw(st.integers(1, rounds)), data.draw(st.integers(1, 4)), exact=data.draw(st.booleans())
    )
    mechanism = random_mechanism(kind, count, seed, data.draw(st.booleans()))
    claimed = mechanism.sensitivity(participation)
    reached = brute_sensitivity(mechanism.matrix(rounds), participation, seed)
    assert claimed.value >= reached * (1 - 1e-9)
    if claimed.exact:
        assert claimed.value == pytest.approx(reached, rel=1e-9)
    if has_decaying_coefficients(mechanism.matrix(rounds)[:, 0]):
        assert claimed.exact


@pytest.mark.parametrize("rounds", [1, 3, 17, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_stream_is_the_inverse_times_z(kind: str, rounds: int) -> None:
    check_stream(make(kind, Participation(40, 8), "max", PREFIX_SUM, 6), rounds)


def test_no_state_and_as_many_draws_as_bands() -> None:
    mechanism = make("banded-inverse", Participation(40, 8), "max", PREFIX_SUM, 5)
    asked = []

    def source(round: int, draw: int) -> np.ndarray:
        asked.append((round, draw))
        return np.zeros(1)

    stream = mechanism.stream(40)
    state = stream.init(1)
    assert state == ()
    for round in range(40):
        _, state = stream.step(state, round, source)
        assert state == ()
    assert mechanism.memory(40) == 0
    assert mechanism.draws_per_round(40) == len(asked) / 40
    assert {draw for _, draw in asked} == {0}
    assert make("toeplitz", Participation(40, 8), "max", PREFIX_SUM, 5).draws_per_round(40) == 1


def dense_losses(mechanism: Mechanism, participation: Participation) -> tuple[float, float]:
    """RmsLoss and MaxLoss from the dense matrix and the earliest pattern; B = A C^-1 is Toeplitz like C."""
    matrix = mechanism.matrix(participation.rounds)
    rows = np.sqrt(np.cumsum(np.cumsum(solve_triangular(matrix, np.eye(len(matrix))[0], lower=True)) ** 2))
    pattern = np.arange(participation.most) * participation.min_separation
    sensitivity = float(np.linalg.norm(matrix[:, pattern].sum(axis=1)))
    claimed = mechanism.sensitivity(participation)
    assert claimed.exact
    assert claimed.value == pytest.approx(sensitivity, rel=1e-9)
    return float(np.sqrt(np.mean(rows**2))) * sensitivity, float(rows.max()) * sensitivity


def test_bandtoep_at_2052_rounds() -> None:
    participation = Participation(2052, 342, 6)
    rms, _ = dense_losses(make("toeplitz", participation, "rms"), participation)
    assert rms <= 8.805
    fhu, _ = dense_losses(make("banded-fhu", participation, "rms"), participation)
    assert rms < fhu <= 8.979
    _, peak = dense_losses(make("toeplitz", participation, "max"), participation)
    assert peak <= 10.405


def test_more_bands_than_the_separation_are_decreasing_and_exact() -> None:
    participation = Participation(400, 20, 5)
    few = dense_losses(make("toeplitz", participation, "rms"), participation)[0]
    many = dense_losses(make("toeplitz", participation, "rms", PREFIX_SUM, 80), participation)[0]
    assert many < few


@pytest.mark.parametrize(("bands", "most"), [(5, 14.08), (9, 12.49), (17, 11.53)])
def test_banded_inverse_at_2052_rounds(bands: int, most: float) -> None:
    participation = Participation(2052, 342, 6)
    mechanism = make("banded-inverse", participation, "max", PREFIX_SUM, bands)
    assert has_decaying_coefficients(mechanism.matrix(2052)[:, 0])
    assert dense_losses(mechanism, participation)[1] <= most


def test_outside_the_set_the_bound_is_far_above_the_formula() -> None:
    """Why the best banded inverse is sought inside the set: an oscillating C has only a large bound."""
    participation = Participation(100, 10, 5)
    mechanism = InverseToeplitz((1.0, -0.9, 0.85, -0.9))
    coefficients = mechanism.coefficients(100)
    assert not has_decaying_coefficients(coefficients)
    claimed = mechanism.sensitivity(participation)
    assert not claimed.exact
    pattern = np.arange(5) * 10
    formula = np.linalg.norm(mechanism.matrix(100)[:, pattern].sum(axis=1))
    assert claimed.value > 1.1 * formula
    assert claimed.value <= gram_sensitivity(toeplitz_gram(coefficients), participation).value


@pytest.mark.parametrize("kind", KINDS)
def test_momentum_is_optimised_for(kind: str) -> None:
    participation, workload = Participation(96, 24), Workload(0.9)
    made, other = make(kind, participation, "max", workload, 8), make(kind, participation, "max", PREFIX_SUM, 8)
    assert made.max_loss(participation, workload) < 0.99 * other.max_loss(participation, workload)


@pytest.mark.parametrize("kind", KINDS)
def test_file_round_trip(kind: str, tmp_path) -> None:
    mechanism = make(kind, Participation(20, 5), "rms")
    mechanism.save(tmp_path / "c.json")
    assert load(tmp_path / "c.json") == mechanism


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_refused(kind: str) -> None:
    with pytest.raises(Refused, match="30 bands are more than the 20 rounds"):
        make(kind, Participation(20, 5), "rms", PREFIX_SUM, 30)
    with pytest.raises(Refused, match="learning-rate schedule"):
        make(kind, Participation(3, 1), "rms", Workload(0, (1.0, 0.5, 0.25)))
    name = "inverse_coefficients" if kind == "banded-inverse" else "coefficients"
    for wrong in [[], [float("nan")], [0.0, 1.0], [-1.0]]:
        with pytest.raises(Refused, match="coefficient"):
            type(make(kind, Participation(5, 5), "rms")).from_parameters({name: wrong}, {})
