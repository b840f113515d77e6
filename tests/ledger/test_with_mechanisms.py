"""`verify` with the real accountant and the real noise of every streaming mechanism, as `reticent verify` has them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from reticent.ledger import RunDirectory
from reticent.ledger.verify import Verdict, verify
from reticent.mechanisms import KINDS, Mechanism, Participation, make
from reticent.mechanisms.restarted import Restarted
from reticent.mechanisms.storage import to_header

jax = pytest.importorskip("jax")
accounting = pytest.importorskip("reticent.accounting.run")
privacy = pytest.importorskip("reticent.privacy.noise")
again = pytest.importorskip("reticent.privacy.again")

ROUNDS = 7
SIZE = 3000
SIGMA = 1.5
CLIP_NORM = 0.5
COHORT = 20


def released(
    path: Path, secrets: Path, mechanism: Mechanism, sigma: float = SIGMA, restarts: tuple[int, ...] = ()
) -> None:
    """A run of seven rounds of real noise on sums of twenty clipped updates; `sigma` is what is really added."""
    whole = Restarted(mechanism, (0, *restarts)) if restarts else mechanism
    grid = privacy.Grid.finest(COHORT, CLIP_NORM, privacy.noise_deviation(whole, ROUNDS, SIGMA, CLIP_NORM))
    described = {
        "rounds": ROUNDS,
        "noise_multiplier": SIGMA,
        "mechanism": to_header(mechanism),
        "participation": {"kind": "deterministic", "min_separation": 3, "max_participations": 3},
        **({"restarts": list(restarts)} if restarts else {}),
    }
    description = {
        "accounting": described,
        "delta": 1e-6,
        "mechanism_digest": mechanism.digest,
        "clip_norm": CLIP_NORM,
        "grid": grid.step,
    }
    noise = privacy.add_noise(whole, ROUNDS, sigma, CLIP_NORM, grid)
    update = jax.jit(lambda sums, state, key: noise.update(sums, state, key=key))
    state = noise.init(jax.numpy.zeros(SIZE, jax.numpy.int32))
    rng = np.random.default_rng(0)
    with RunDirectory.create(path, description, "", secrets=secrets) as run:
        for round in range(ROUNDS):
            intent = run.begin([(round * COHORT + member) % (4 * COHORT) for member in range(COHORT)])
            updates = rng.normal(size=(COHORT, SIZE))
            updates *= CLIP_NORM / np.linalg.norm(updates, axis=1, keepdims=True)
            sums = np.trunc(updates / grid.step).astype(np.int32).sum(axis=0, dtype=np.int32)
            release, state = update(jax.numpy.asarray(sums), state, again.row_key(intent.row_key))
            run.release(intent, np.asarray(release, "<i4").data, CLIP_NORM, grid.step)
        run.finish()


def in_one_process(path: Path, secrets: Path, mechanism: Mechanism) -> Verdict:
    arrays = mechanism.arrays()
    return verify(
        path,
        lambda run, delta: accounting.guarantee_of(run, arrays).describe(delta),
        lambda description, rows, size: again.noise_of(description, rows, size, arrays),
        secrets,
    )


def made(kind: str) -> Mechanism:
    return make(kind, Participation(ROUNDS, 3))


EVERY_KIND = [(kind, ()) for kind in KINDS if not kind.startswith("blt-")]
RESTARTED = [("blt", (2, 5)), ("tree", (4,)), ("toeplitz", (4,)), ("banded-inverse", (3,)), ("dense", (5,))]


@pytest.mark.parametrize(("kind", "restarts"), EVERY_KIND + RESTARTED)
def test_real_noise_is_made_again(kind: str, restarts: tuple, tmp_path: Path) -> None:
    released(tmp_path / "run", tmp_path / "secrets", made(kind), restarts=restarts)
    verdict = in_one_process(tmp_path / "run", tmp_path / "secrets", made(kind))
    assert all(check.holds for check in verdict.checks), verdict.checks


def test_the_command_states_the_guarantee_and_destroys_the_secrets(tmp_path: Path) -> None:
    mechanism = made("blt")
    released(tmp_path / "run", tmp_path / "secrets", mechanism)
    options = ["--secrets", str(tmp_path / "secrets"), "--json", "--destroy-secrets"]
    arguments = [sys.executable, "-m", "reticent", "verify", str(tmp_path / "run"), *options]
    told = json.loads(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout)
    assert all(check["holds"] for check in told["checks"]), told
    sensitivity = mechanism.sensitivity(Participation(ROUNDS, 3)).value
    assert told["guarantee"]["rho"] == pytest.approx((sensitivity / SIGMA) ** 2 / 2)
    assert list((tmp_path / "secrets").iterdir()) == []


@pytest.mark.parametrize("kind", ["independent", "tree", "blt", "banded-inverse"])
def test_halved_noise_does_not_hold(kind: str, tmp_path: Path) -> None:
    released(tmp_path / "run", tmp_path / "secrets", made(kind), sigma=SIGMA / 2)
    verdict = in_one_process(tmp_path / "run", tmp_path / "secrets", made(kind))
    assert [check.name for check in verdict.checks if check.holds is False] == ["noise"]
