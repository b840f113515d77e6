"""Amplification by sampling: which Gaussian, how often, under which adjacency, and what is refused."""

import math

import pytest

from reticent.accounting.amplified import amplified_guarantee, els_guarantee, sampled_guarantee
from reticent.accounting.losses import epsilon_of
from reticent.accounting.matrix import matrix_guarantee
from reticent.accounting.run import calibrated, guarantee_of, prepared
from reticent.accounting.sampled import FixedSize, Poisson
from reticent.errors import Refused
from reticent.mechanisms import Participation, make
from reticent.mechanisms.restarted import Restarted
from reticent.mechanisms.storage import to_header
from reticent.population import CyclicFixed, CyclicPoisson
from reticent.population import FixedSize as FixedSampler
from reticent.population import Poisson as PoissonSampler


def test_a_banded_mechanism_is_a_sampled_gaussian_of_its_largest_column() -> None:
    mechanism = make("banded-fhu", Participation(100, 8))
    kappa = mechanism.column_norms(100).max()
    poisson = amplified_guarantee(mechanism, 100, 2.0, 0.1, groups=10)
    assert poisson.parts == (Poisson(pytest.approx(2.0 / kappa), 0.1, 10),)
    assert (poisson.adjacency, poisson.also_holds_for, poisson.rho) == ("add-or-remove", ("zero-out",), None)
    fixed = amplified_guarantee(mechanism, 100, 2.0, 0.1, groups=8, sampling="fixed")
    assert fixed.parts == (FixedSize(pytest.approx(2.0 / kappa), 0.1, 13),)
    assert fixed.adjacency == "replace-one"
    with pytest.raises(Refused, match="bands"):
        amplified_guarantee(mechanism, 100, 2.0, 0.1, groups=7)
    restarted = Restarted(mechanism, (0, 40))
    assert amplified_guarantee(restarted, 100, 2.0, 0.1, groups=8).epsilon(1e-6) <= poisson.epsilon(1e-6) * 1.5


def test_everybody_in_every_round_is_one_gaussian() -> None:
    sampled = sampled_guarantee(1.0, 50, 5.0)
    assert sampled.rho == pytest.approx(50 / 25 / 2)
    every = matrix_guarantee(make("independent", Participation(50)), Participation(50), 5.0)
    assert sampled.as_adjacency("zero-out").epsilon(1e-6) == pytest.approx(every.epsilon(1e-6))


@pytest.mark.parametrize("kind", ["blt-400", "tree", "banded-inverse"])
def test_what_is_not_banded_is_refused(kind: str) -> None:
    with pytest.raises(Refused, match="not banded"):
        amplified_guarantee(make(kind, Participation(64, 8)), 64, 2.0, 0.1, groups=64)


def test_what_else_one_round_releases_shares_its_sampling() -> None:
    # Gboard, Thm. 1, holds for the round's Gaussian, sampled or not.
    z, sigma_b = 1.5, 4.0
    z_delta = (z**-2 - (2 * sigma_b) ** -2) ** -0.5
    adaptive = sampled_guarantee(0.01, 200, z_delta, clip_count_noise=sigma_b)
    assert adaptive.epsilon(1e-6) == pytest.approx(sampled_guarantee(0.01, 200, z).epsilon(1e-6), rel=1e-9)
    longer = sampled_guarantee(0.01, 200, 1.1 * z, clip_norm_inflation=1.1)
    assert longer.epsilon(1e-6) == pytest.approx(sampled_guarantee(0.01, 200, z).epsilon(1e-6), rel=1e-9)
    with_metrics = sampled_guarantee(0.01, 200, z, metrics_noise=2.0).parts[0]
    assert with_metrics.noise == pytest.approx(1 / math.hypot(1 / z, 1 / 2.0))


def test_the_clipped_estimator_moves_twice_as_far() -> None:
    clipped = sampled_guarantee(0.01, 200, 3.0, estimator="clipped")
    assert clipped.parts == sampled_guarantee(0.01, 200, 1.5).parts
    with pytest.raises(Refused, match="Poisson"):
        amplified_guarantee(make("independent", Participation(9)), 9, 1.0, 0.1, sampling="fixed", estimator="clipped")


def test_els_is_for_the_user_and_below_the_generic_bound() -> None:
    user = els_guarantee(0.01, 500, 8, 4.0)
    example = sampled_guarantee(0.01, 500, 4.0, unit="example")
    assert user.unit == "user"
    assert user.parts == (Poisson(4.0, 0.01, 500, 8),)
    generic = example.by_generic_bound(8)
    assert user.epsilon(1e-6) < generic.epsilon(1e-6)
    assert els_guarantee(0.01, 500, 1, 4.0).epsilon(1e-6) == example.epsilon(1e-6)


def test_conversions() -> None:
    poisson = sampled_guarantee(0.02, 50, 2.0)
    replaced = poisson.as_adjacency("replace-one")
    # Generic: twice epsilon at a larger delta; never the guarantee of two who leave together.
    assert replaced.group == 2
    assert replaced.epsilon(1e-6) >= poisson.for_group(2).epsilon(1e-6)
    fixed = guarantee_of(run(FixedSampler(1000, 50, 20)))
    for other in ("add-or-remove", "zero-out"):
        with pytest.raises(Refused, match="does not convert"):
            fixed.as_adjacency(other)


def run(sampler, mechanism=None, **changes) -> dict:
    mechanism = mechanism or make("independent", Participation(sampler.rounds))
    return {
        "rounds": sampler.rounds,
        "noise_multiplier": 2.0,
        "mechanism": to_header(mechanism),
        "participation": sampler.event,
    } | changes


def test_runs_of_every_sampler() -> None:
    banded = make("banded-fhu", Participation(60, 6))
    kappa = float(banded.column_norms(60).max())
    found = {
        "poisson": guarantee_of(run(PoissonSampler(1000, 60, 0.02))).parts[0],
        "fixed": guarantee_of(run(FixedSampler(1000, 60, 20))).parts[0],
        "cyclic-poisson": guarantee_of(run(CyclicPoisson(1000, 60, 6, 0.1, public_population=1003), banded)).parts[0],
        "cyclic-fixed": guarantee_of(run(CyclicFixed(1003, 60, 6, 20), banded)).parts[0],
    }
    assert found == {
        "poisson": Poisson(2.0, 0.02, 60),
        "fixed": FixedSize(2.0, 0.02, 60),
        "cyclic-poisson": Poisson(pytest.approx(2.0 / kappa), 0.1, 10),
        # The smallest of six groups of 1003 has 167.
        "cyclic-fixed": FixedSize(pytest.approx(2.0 / kappa), 20 / 167, 10),
    }


def test_runs_of_groups() -> None:
    sampler = PoissonSampler(1000, 60, 0.02)
    assert guarantee_of(run(sampler, group_size=16)).parts == (Poisson(2.0, 0.02, 60, 16),)
    assert guarantee_of(run(sampler, group_size=16)).unit == "user"
    assert guarantee_of(run(sampler, unit="example")).unit == "example"
    devices = guarantee_of(run(sampler, unit="device", group_size=3))
    assert devices.unit == "user"
    assert any("3 devices" in told for told in devices.assumptions)
    assert guarantee_of(run(FixedSampler(1000, 60, 20), group_size=2)).group == 2


def test_calibration_of_random_cohorts() -> None:
    for accounting in (
        run(PoissonSampler(1000, 60, 0.02)),
        run(FixedSampler(1000, 60, 20)),
        run(PoissonSampler(1000, 60, 0.02), group_size=8),
        run(PoissonSampler(1000, 60, 0.02), adaptive_clipping={"noise_multiplier": 30.0}),
    ):
        noise, guarantee = prepared(accounting, 1e-6, epsilon=2.0)
        assert guarantee.epsilon(1e-6) == pytest.approx(2.0, rel=2e-4)
        assert guarantee.epsilon(1e-6) <= 2.0
        assert guarantee.noise_multiplier == noise
    with pytest.raises(Refused, match="no rho"):
        calibrated(run(PoissonSampler(1000, 60, 0.02)), 1e-6, rho=0.1)
    noise, guarantee = prepared(run(PoissonSampler(1000, 60, 0.02)), 1e-6)
    assert (noise, guarantee.noise_multiplier) == (2.0, 2.0)


def test_calibration_against_binary_search() -> None:
    noise, _ = prepared(run(PoissonSampler(1000, 60, 0.02), group_size=4), 1e-6, epsilon=3.0)
    low, high = 0.1, 50.0
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if epsilon_of([Poisson(middle, 0.02, 60, 4)], 1e-6) <= 3.0 else (middle, high)
    assert noise == pytest.approx(high, rel=3e-5)


def test_refusals() -> None:
    for changes, sentence in (
        ({"participation": {"kind": "poisson", "probability": 1.5}}, "at most 1"),
        ({"participation": {"kind": "fixed", "cohort": 20, "population": 10}}, "cannot be drawn"),
        ({"noise_multiplier": 0.0}, "epsilon is infinite"),
        ({"mechanism": to_header(make("tree", Participation(60)))}, "not banded"),
    ):
        with pytest.raises(Refused, match=sentence):
            guarantee_of(run(PoissonSampler(1000, 60, 0.02)) | changes)
