"""Banded mechanisms against dense linear algebra and brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.errors import Refused
from reticent.mechanisms import PREFIX_SUM, Participation, Workload, load, make
from reticent.mechanisms.banded import Banded
from reticent.mechanisms.banded_loss import inverse_workload, loss_and_gradient
from reticent.mechanisms.gram import gram_sensitivity
from reticent.mechanisms.objective import mean_square, soft_peak
from tests.mechanisms.brute import brute_sensitivity, check_stream


def random_banded(rounds: int, bands: int, seed: int, *, positive: bool = False) -> Banded:
    random = np.random.default_rng(seed)
    columns = random.normal(size=(rounds, bands))
    columns[:, 0] = 1 + np.abs(columns[:, 0])
    return Banded(np.abs(columns) if positive else columns)


WORKLOADS = [PREFIX_SUM, Workload(0.9), Workload(0.5, tuple(np.linspace(1, 0.1, 90)))]


@pytest.mark.parametrize("workload", WORKLOADS, ids=["prefix sum", "momentum", "schedule"])
@pytest.mark.parametrize(("rounds", "bands"), [(1, 1), (2, 2), (10, 1), (37, 5), (60, 60), (90, 33)])
def test_errors_are_those_of_the_dense_matrices(rounds: int, bands: int, workload: Workload) -> None:
    mechanism = random_banded(rounds, bands, 1)
    mechanism = Banded(mechanism.columns * np.array([1.0] + [0.1] * (bands - 1)))
    rows = workload.matrix(rounds) @ np.linalg.inv(mechanism.matrix(rounds))
    np.testing.assert_allclose(mechanism.errors(rounds, workload), np.linalg.norm(rows, axis=1), rtol=1e-9)


@pytest.mark.parametrize("weigh", [mean_square, soft_peak(16.0)], ids=["rms", "max"])
@pytest.mark.parametrize("workload", WORKLOADS, ids=["prefix sum", "momentum", "schedule"])
def test_gradient_is_the_slope_of_the_loss(workload: Workload, weigh) -> None:
    rounds, bands = 50, 21
    columns = Banded(random_banded(rounds, bands, 2).columns * np.array([1.0] + [0.1] * (bands - 1))).columns
    inverse = inverse_workload(workload, rounds)
    direction = np.random.default_rng(3).normal(size=columns.shape) * (columns != 0)
    _, slope = loss_and_gradient(columns, inverse, weigh)
    ahead, behind = (loss_and_gradient(columns + step * direction, inverse, weigh)[0] for step in (1e-6, -1e-6))
    assert np.sum(slope * direction) == pytest.approx((ahead - behind) / 2e-6, rel=1e-6)


def test_soft_peak_tends_to_the_peak() -> None:
    squares = np.random.default_rng(0).uniform(size=1000)
    values = [soft_peak(power)(squares)[0] for power in (1, 8, 64, 4096)]
    assert values == sorted(values)
    assert values[0] == pytest.approx(squares.mean())
    assert values[-1] == pytest.approx(squares.max(), rel=2e-3)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 9), st.data(), st.integers(0, 10**6), st.booleans(), st.booleans())
def test_sensitivity_against_brute_force(rounds: int, data, seed: int, exact: bool, positive: bool) -> None:
    bands = data.draw(st.integers(1, rounds))
    separation = data.draw(st.integers(1, rounds))
    participation = Participation(rounds, separation, data.draw(st.integers(1, 4)), exact=exact)
    mechanism = random_banded(rounds, bands, seed, positive=positive)
    claimed = mechanism.sensitivity(participation)
    reached = brute_sensitivity(mechanism.matrix(rounds), participation, seed)
    assert claimed.value >= reached * (1 - 1e-9)
    if claimed.exact:
        assert claimed.value == pytest.approx(reached, rel=1e-9)
    if bands <= 2 * separation:
        assert claimed.exact


def test_up_to_twice_the_separation_is_exact_where_theorem_3_is_a_bound() -> None:
    """Production ran 400 bands at a separation of 385 and had only the bound."""
    participation = Participation(60, 9)
    mechanism = random_banded(60, 12, 6)
    exact, matrix = mechanism.sensitivity(participation), mechanism.matrix(60)
    bound = gram_sensitivity(matrix.T @ matrix, participation)
    assert exact.exact
    assert not bound.exact
    assert exact.value < 0.99 * bound.value


@pytest.mark.parametrize("rounds", [1, 4, 17, 40])
@pytest.mark.parametrize("bands", [1, 2, 9])
def test_stream_is_the_inverse_times_z(rounds: int, bands: int) -> None:
    mechanism = random_banded(40, bands, 4)
    mechanism = Banded(mechanism.columns * np.array([1.0] + [0.1] * (bands - 1)))
    check_stream(mechanism, rounds)


def test_fewer_rounds_are_the_leading_part() -> None:
    mechanism = random_banded(30, 7, 5)
    np.testing.assert_array_equal(mechanism.matrix(11), mechanism.matrix(30)[:11, :11])
    np.testing.assert_allclose(mechanism.column_norms(11), np.linalg.norm(mechanism.matrix(11), axis=0))


def losses(kind: str, participation: Participation, objective: str, **keywords) -> tuple[float, float]:
    mechanism = make(kind, participation, objective, **keywords)  # type: ignore[arg-type]
    sensitivity = mechanism.sensitivity(participation)
    assert sensitivity.exact
    # An independent calculation: nothing but dense matrices.
    rounds = participation.rounds
    rows = np.linalg.norm(np.linalg.inv(mechanism.matrix(rounds)).cumsum(axis=0), axis=1)
    return float(np.sqrt(np.mean(rows**2))) * sensitivity.value, float(rows.max()) * sensitivity.value


def test_figures_at_512_rounds() -> None:
    participation = Participation(512, 64, 8)
    rms, peak = losses("banded", participation, "rms")
    assert rms <= 9.147
    own_rms, own_peak = losses("banded", participation, "max")
    assert own_peak <= 10.11 < peak
    assert own_rms > rms
    free_rms, _ = losses("banded-free", participation, "rms")
    assert free_rms <= 8.951
    epochs_rms, _ = losses("banded-free", Participation(512, 64, 8, exact=True), "rms")
    assert epochs_rms <= 8.927
    assert losses("toeplitz", participation, "rms")[0] > rms


def test_equal_norms_are_equal_and_free_norms_share() -> None:
    participation = Participation(40, 10, 4)
    np.testing.assert_allclose(make("banded", participation, "rms").column_norms(40), 1)
    assert make("banded-free", participation, "rms").sensitivity(participation).value == pytest.approx(1)
    fewer = Participation(40, 10, 3, exact=True)
    assert make("banded-free", fewer, "rms").sensitivity(fewer).value == pytest.approx(1)
    ragged = Participation(43, 10, exact=True)
    assert make("banded-free", ragged, "rms").sensitivity(ragged).value == pytest.approx(1)


@pytest.mark.parametrize("objective", ["rms", "max"])
def test_momentum_is_optimised_for(objective: str) -> None:
    participation, workload = Participation(96, 24), Workload(0.9)
    made = make("banded", participation, objective, workload)  # type: ignore[arg-type]
    other = make("banded", participation, objective)  # type: ignore[arg-type]
    loss = "rms_loss" if objective == "rms" else "max_loss"
    assert getattr(made, loss)(participation, workload) < 0.99 * getattr(other, loss)(participation, workload)


def test_one_band_is_independent_noise() -> None:
    participation = Participation(20, 4)
    np.testing.assert_allclose(make("banded", participation, "rms", PREFIX_SUM, 1).matrix(20), np.eye(20))


@pytest.mark.parametrize("kind", ["banded", "banded-free"])
def test_file_round_trip(kind: str, tmp_path) -> None:
    mechanism = make(kind, Participation(20, 5), "rms")
    mechanism.save(tmp_path / "c.npz")
    again = load(tmp_path / "c.npz")
    assert again.digest == mechanism.digest
    assert type(again) is type(mechanism)


def test_what_is_refused(tmp_path) -> None:
    with pytest.raises(Refused, match="30 bands are more than the 20 rounds"):
        make("banded", Participation(20, 5), "rms", PREFIX_SUM, 30)
    with pytest.raises(Refused, match="GiB"):
        make("banded", Participation(10**6, 1000), "rms")
    with pytest.raises(Refused, match="positive diagonal"):
        Banded(np.array([[1.0], [np.nan]]))
    with pytest.raises(Refused, match="positive diagonal"):
        Banded(np.array([[1.0], [0.0]]))
    with pytest.raises(Refused, match="no more bands than rounds"):
        Banded(np.ones((2, 3)))
    with pytest.raises(Refused, match="cannot serve 21"):
        make("banded", Participation(20, 5), "rms").errors(21)
    with pytest.raises(Refused, match="learning rates of zero"):
        make("banded", Participation(3, 1), "rms", Workload(0, (1.0, 0.0, 1.0)))
