"""Several guarantees of the same people, their records, and the choice among many runs."""

import json
import math

import dp_accounting
import numpy as np
import pytest

from reticent.accounting.amplified import els_guarantee, sampled_guarantee
from reticent.accounting.composition import composed, record, recorded
from reticent.accounting.matrix import matrix_guarantee
from reticent.accounting.renyi import Moments, Renyi
from reticent.accounting.run import guarantee_of
from reticent.accounting.sampled import Poisson
from reticent.accounting.statement import TUNING, statement
from reticent.accounting.tuning import tuned
from reticent.errors import Refused
from reticent.mechanisms import Participation, make

PARTICIPATION = Participation(100, 20)
VOCABULARY = {
    "mechanism": "Gaussian histogram with a threshold", "unit": "user", "adjacency": "add-or-remove",
    "also_holds_for": ["zero-out"], "rho": 0.05, "delta": 1e-9, "assumptions": ["each user's text is under one user id"],
}  # fmt: skip


def training(noise: float = 4.0, **more):
    return matrix_guarantee(make("blt-400", PARTICIPATION), PARTICIPATION, noise, **more)


def test_gaussians_add_their_rho() -> None:
    both = composed([training(4.0), training(5.0)])
    assert both.rho == pytest.approx(training(4.0).rho + training(5.0).rho)
    assert composed([training()]) == training()


def test_a_private_vocabulary_adds_its_own_delta() -> None:
    vocabulary = recorded(VOCABULARY)
    whole = composed([training(), vocabulary])
    assert whole.rho is None
    assert whole.adjacency == "zero-out"
    alone = training().rho + 0.05
    from reticent.accounting.gaussian import epsilon_of_gaussian

    assert whole.epsilon(1e-8) == pytest.approx(epsilon_of_gaussian(alone, 1e-8 - 1e-9))
    assert math.isinf(whole.epsilon(1e-9))
    with_sampling = composed([sampled_guarantee(0.01, 100, 1.0), vocabulary])
    oracle = dp_accounting.pld.PLDAccountant()
    oracle.compose(Poisson(1.0, 0.01, 100).event()).compose(dp_accounting.GaussianDpEvent(1 / math.sqrt(0.1)))
    assert with_sampling.epsilon(1e-6) == pytest.approx(oracle.get_epsilon(1e-6 - 1e-9), rel=1e-3)


def test_what_does_not_compose_is_refused() -> None:
    with pytest.raises(Refused, match="for a user does not compose with one for a device"):
        composed([training(), training(unit="device")])
    with pytest.raises(Refused, match="does not convert"):
        composed([sampled_guarantee(0.01, 100, 1.0), training()])
    with pytest.raises(Refused, match="nothing to compose"):
        composed([])


def test_records_are_read_back() -> None:
    sampled = sampled_guarantee(0.02, 100, 1.3)
    for guarantee in (
        training(),
        sampled,
        els_guarantee(0.02, 100, 4, 2.0),
        composed([training(), recorded(VOCABULARY)]),
        sampled.as_adjacency("replace-one"),
        tuned(sampled, 10),
    ):
        again = recorded(json.loads(json.dumps(record(guarantee))))
        assert again.epsilon(1e-6) == pytest.approx(guarantee.epsilon(1e-6), rel=1e-9)
        assert (again.unit, again.adjacency, again.rho) == (guarantee.unit, guarantee.adjacency, guarantee.rho)
    with pytest.raises(Refused, match="not whole"):
        recorded({"kind": "guarantee"})
    with pytest.raises(Refused, match="recorded"):
        recorded({"kind": "rumour"})


def test_a_run_composes_with_what_it_names() -> None:
    accounting = {
        "rounds": 100,
        "noise_multiplier": 4.0,
        "mechanism": "tree",
        "participation": {"kind": "deterministic", "min_separation": 20},
    }
    count = {"kind": "gaussian", "noise_multiplier": 10.0, "adjacency": "add-or-remove"}
    alone = guarantee_of(accounting)
    whole = guarantee_of(accounting | {"composed_with": [record(training()), count, VOCABULARY]})
    assert whole.extra_delta == 1e-9
    assert sum(part.rho for part in whole.parts) == pytest.approx(alone.rho + training().rho + 0.005 + 0.05)


def test_choosing_among_runs_costs_what_dp_accounting_says() -> None:
    one = sampled_guarantee(0.01, 500, 1.2)
    for shape in (math.inf, 1.0, 0.0, 0.5):
        chosen = tuned(one, 20, shape)
        event = dp_accounting.dp_event.RepeatAndSelectDpEvent(Poisson(1.2, 0.01, 500).event(), 20, shape)
        assert chosen.epsilon(1e-6) == pytest.approx(
            dp_accounting.rdp.RdpAccountant().compose(event).get_epsilon(1e-6), rel=1e-9
        )
        assert one.epsilon(1e-6) < chosen.epsilon(1e-6) < 20 * one.epsilon(1e-6)
        assert chosen.rho is None
    told = statement(tuned(training(), 5), delta=1e-8).markdown()
    assert TUNING[1:] not in told
    assert "Poisson number of runs with mean 5" in told
    for mean, shape in ((0.5, 1.0), (math.inf, 1.0), (5, -1.0)):
        with pytest.raises(Refused):
            tuned(training(), mean, shape)


def test_choosing_among_a_geometric_number_of_gaussians_is_papernot_and_steinkes_formula() -> None:
    # Thm. 2 with eta = 1, so that the mean is 1 / gamma: rdp'(a) = rdp(a) + 2 (1 - 1/c) rdp(c) + 2 log(mean) / c
    # + log(mean) / (a - 1), for any c > 1.
    mean, rho, delta = 10.0, training().rho, 1e-8
    orders, others = np.linspace(1.1, 200, 4000), np.linspace(1.01, 200, 4000)
    best = (2 * (1 - 1 / others) * rho * others + 2 * math.log(mean) / others).min()
    rdp = orders * rho + best + math.log(mean) / (orders - 1)
    epsilon = (rdp + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)).min()
    assert tuned(training(), mean, 1.0).epsilon(delta) == pytest.approx(epsilon, rel=0.02)


def test_renyi_and_moments_are_looser() -> None:
    part = Poisson(1.0, 0.005, 2000)
    tight = sampled_guarantee(0.005, 2000, 1.0).epsilon(1e-8)
    assert tight < Renyi((part,)).epsilon(1e-8) < Moments(part).epsilon(1e-8)
    for other in (Renyi((part,)), Moments(part)):
        assert other.delta(other.epsilon(1e-8)) <= 1e-8 * (1 + 1e-6)
    with pytest.raises(Refused, match="does not compose"):
        Moments(part).with_others([part])
    with pytest.raises(Refused, match="no Renyi accountant|There is no Renyi"):
        Renyi((Poisson(1.0, 0.005, 20, 4),)).epsilon(1e-8)
