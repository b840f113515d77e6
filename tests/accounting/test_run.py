"""A run's guarantee from its plain-JSON accounting, and the noise for a target."""

import json
import subprocess
import sys

import numpy as np
import pytest

from reticent.accounting.run import calibrated, guarantee_of
from reticent.errors import Refused
from reticent.mechanisms import Participation, make
from reticent.mechanisms.restarted import Restarted
from reticent.mechanisms.storage import to_header
from reticent.population import MinSeparated, ShuffledEpochs


def described(kind: str = "blt-400", rounds: int = 100, separation: int = 20, **changes) -> dict:
    event = MinSeparated(4000, rounds, 10, separation).event
    accounting = {
        "rounds": rounds,
        "noise_multiplier": 3.0,
        "mechanism": to_header(make(kind, Participation(rounds, separation))),
        "participation": event,
    }
    return json.loads(json.dumps(accounting | changes))


@pytest.mark.parametrize("kind", ["independent", "tree", "blt-400", "toeplitz"])
@pytest.mark.parametrize("restarts", [(), (33, 70)])
def test_one_gaussian(kind: str, restarts: tuple[int, ...]) -> None:
    mechanism = make(kind, Participation(100, 20))
    arrays = mechanism.arrays()
    guarantee = guarantee_of(described(kind, restarts=list(restarts)), arrays)
    whole = Restarted(mechanism, (0, *restarts)) if restarts else mechanism
    assert guarantee.rho == pytest.approx((whole.sensitivity(Participation(100, 20)).value / 3) ** 2 / 2)
    assert guarantee.adjacency == "zero-out"
    told = guarantee.describe(1e-8)
    assert {"rho", "epsilon", "delta", "noise_multiplier", "sensitivity", "unit", "adjacency", "assumptions"} <= set(
        told
    )
    assert json.loads(json.dumps(told)) == told
    assert any("20 rounds apart" in assumption for assumption in told["assumptions"])


def test_fixed_epochs_keep_their_exact_separation() -> None:
    event = ShuffledEpochs(1000, 100, 50).event
    told = guarantee_of(described("tree", participation=event)).describe(1e-8)
    assert told["exact_separation"]
    assert told["sensitivity"] == pytest.approx(
        make("tree", Participation(100, 20)).sensitivity(Participation(100, 20, exact=True)).value
    )


def test_adaptive_clipping_is_gboards_theorem() -> None:
    # One run at z equals an adaptive one at z_delta = (z^-2 - (2 sigma_b)^-2)^-1/2.
    z, sigma_b = 3.0, 5.0
    z_delta = (z**-2 - (2 * sigma_b) ** -2) ** -0.5
    plain = guarantee_of(described(noise_multiplier=z))
    adaptive = guarantee_of(described(noise_multiplier=z_delta, adaptive_clipping={"noise_multiplier": sigma_b}))
    assert adaptive.rho == pytest.approx(plain.rho, rel=1e-12)


def test_what_else_is_released_adds_up() -> None:
    plain = guarantee_of(described()).rho
    longer = guarantee_of(described(secure_aggregation={"inflation": 1.1})).rho
    assert longer == pytest.approx(1.21 * plain)
    metrics = guarantee_of(described(metrics={"noise_multiplier": 10.0})).rho
    assert metrics == pytest.approx(plain + 5 / 100 / 2)


@pytest.mark.parametrize("beside", [{}, {"adaptive_clipping": {"noise_multiplier": 30.0}}])
def test_calibration(beside: dict) -> None:
    accounting = described(**beside)
    noise = calibrated(accounting, 1e-8, epsilon=2.0)
    reached = guarantee_of({**accounting, "noise_multiplier": noise})
    assert reached.epsilon(1e-8) <= 2.0
    assert reached.epsilon(1e-8) == pytest.approx(2.0, rel=1e-6)
    assert guarantee_of({**accounting, "noise_multiplier": calibrated(accounting, 1e-8, rho=0.3)}).rho == pytest.approx(
        0.3
    )


def test_refusals() -> None:
    for changes, sentence in (
        ({"noise_multiplier": 0.0}, "epsilon is infinite"),
        ({"noise_multiplier": float("inf")}, "positive and finite"),
        ({"participation": {"kind": "sometimes"}}, "no participation"),
        ({"surprise": 1}, "does not know what 'surprise'"),
        ({"unit": "family"}, "unit of privacy"),
        ({"secure_aggregation": {"inflation": 0.9}}, "at least 1"),
        ({"clipping_estimator": "clipped"}, "Poisson"),
    ):
        with pytest.raises(Refused, match=sentence):
            guarantee_of(described(**changes) if "noise_multiplier" not in changes else described() | changes)
    with pytest.raises(Refused, match="no noise"):
        calibrated(described(metrics={"noise_multiplier": 0.1}), 1e-8, epsilon=1.0)


def test_deterministic_participation_needs_no_dp_accounting() -> None:
    code = (
        "import sys, json; from reticent.accounting.run import guarantee_of;"
        "guarantee_of(json.loads(sys.argv[1])).describe(1e-8);"
        "assert not any(name.startswith(('dp_accounting', 'jax')) for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, json.dumps(described("blt-400"))], check=True)


def test_what_banded_holds_comes_as_arrays() -> None:
    mechanism = make("banded", Participation(40, 8))
    accounting = described(rounds=40, separation=8) | {"mechanism": to_header(mechanism)}
    guarantee = guarantee_of(accounting, mechanism.arrays())
    assert guarantee.sensitivity == pytest.approx(np.sqrt(5.0) * mechanism.column_norms(40).max(), rel=1e-6)
