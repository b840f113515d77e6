"""Dense mechanisms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.errors import Refused
from reticent.mechanisms import PREFIX_SUM, Participation, Workload, load, make
from reticent.mechanisms.dense import Dense
from tests.mechanisms.brute import brute_sensitivity, check_stream


def random_dense(rounds: int, seed: int) -> Dense:
    matrix = np.tril(np.random.default_rng(seed).normal(size=(rounds, rounds)))
    np.fill_diagonal(matrix, 1 + np.abs(matrix.diagonal()))
    return Dense(matrix)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 8), st.data(), st.integers(0, 10**6), st.booleans())
def test_sensitivity_against_brute_force(rounds: int, data, seed: int, exact: bool) -> None:
    participation = Participation(rounds, data.draw(st.integers(1, rounds)), data.draw(st.integers(1, 4)), exact)
    mechanism = random_dense(rounds, seed)
    claimed = mechanism.sensitivity(participation)
    reached = brute_sensitivity(mechanism.matrix(rounds), participation, seed)
    assert claimed.value >= reached * (1 - 1e-9)
    if claimed.exact:
        assert claimed.value == pytest.approx(reached, rel=1e-9)


@pytest.mark.parametrize("rounds", [1, 5, 12])
def test_stream_is_the_inverse_times_z(rounds: int) -> None:
    mechanism = random_dense(12, 3)
    check_stream(Dense(np.tril(mechanism.full, -1) * 0.2 + np.diag(mechanism.full.diagonal())), rounds)


@pytest.mark.parametrize("workload", [PREFIX_SUM, Workload(0.9)], ids=["prefix sum", "momentum"])
def test_nothing_beats_it_for_one_participation(workload: Workload) -> None:
    """For one participation Problem 1 is convex with diag X = 1: BandMF with all bands is a way to the same optimum."""
    participation = Participation(24, 24)
    dense = make("dense", participation, "rms", workload)
    banded = make("banded", participation, "rms", workload, 24)
    assert dense.sensitivity(participation).exact
    assert dense.rms_loss(participation, workload) == pytest.approx(banded.rms_loss(participation, workload), rel=1e-4)


def test_it_is_a_stationary_point() -> None:
    """The gradient of tr(A^T A X^-1) vanishes along everything that leaves diag X alone (BandMF, eq. 6)."""
    matrix = make("dense", Participation(16, 16), "rms").matrix(16)
    workload = PREFIX_SUM.matrix(16)
    inverse = np.linalg.inv(matrix.T @ matrix)
    slope = -inverse @ workload.T @ workload @ inverse
    off_diagonal = slope - np.diag(slope.diagonal())
    assert np.abs(off_diagonal).max() < 2e-2 * np.abs(slope.diagonal()).max()


def test_fixed_epochs() -> None:
    participation = Participation(128, 16, 8, exact=True)
    dense = make("dense", participation, "rms")
    claimed = dense.sensitivity(participation)
    assert claimed.exact
    assert claimed.value == pytest.approx(1)
    patterns = np.abs(np.array([dense.matrix(128)[:, start::16].sum(axis=1) for start in range(16)]))
    assert np.linalg.norm(patterns, axis=1).max() == pytest.approx(1)
    loss = dense.rms_loss(participation)
    assert loss < make("banded-free", participation, "rms").rms_loss(participation)
    assert loss <= 7.5096
    peak = make("dense", participation, "max").max_loss(participation)
    assert peak < dense.max_loss(participation)
    # Under a min separation only, there is but a bound, and it is some way above (BandMF, Table 2).
    looser = Participation(128, 16, 8)
    assert not dense.sensitivity(looser).exact
    assert dense.rms_loss(looser) > 1.05 * loss


def test_equal_norms_under_a_min_separation() -> None:
    np.testing.assert_allclose(make("dense", Participation(48, 12), "rms").column_norms(48), 1)


def test_file_round_trip(tmp_path) -> None:
    mechanism = make("dense", Participation(12, 4), "rms")
    mechanism.save(tmp_path / "c.npz")
    assert load(tmp_path / "c.npz").digest == mechanism.digest


def test_what_is_refused() -> None:
    with pytest.raises(Refused, match=r"needs 22 GiB, above the limit of 4 GiB; use at most"):
        make("dense", Participation(10000, 100), "rms")
    with pytest.raises(Refused, match="square"):
        Dense(np.ones((2, 3)))
    with pytest.raises(Refused, match="lower-triangular"):
        Dense(np.ones((2, 2)))
    with pytest.raises(Refused, match="positive diagonal"):
        Dense(np.diag([1.0, np.nan]))
    with pytest.raises(Refused, match="cannot serve 13"):
        make("dense", Participation(12, 4), "rms").matrix(13)
