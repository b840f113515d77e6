"""`kill -9` at random instants, again and again until the run is through: the undisturbed run's model, bit for bit."""

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from reticent.ledger.lines import read_ledger
from tests.ledger.test_verify import rho, verify
from tests.ledger.toy import Toy, noise_of, start, take_up, train

ROUNDS = 40


def worker(path: Path, secrets: Path) -> subprocess.Popen:
    arguments = [sys.executable, "-m", "tests.ledger.worker", str(path), str(secrets)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])


def released(path: Path) -> int:
    ledger = path / "ledger.jsonl"
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


@pytest.mark.parametrize(
    ("kills", "seed"), [(3, 0), pytest.param(20, 1, marks=pytest.mark.full)], ids=["3 kills", "20 kills"]
)
def test_killed_at_random_instants(kills: int, seed: int, tmp_path: Path) -> None:
    random.seed(seed)
    run = start(tmp_path / "undisturbed", tmp_path / "secrets", rounds=ROUNDS, keep_releases=False)
    started = time.monotonic()
    model = train(run, Toy(), checkpoint_every=3).model
    seconds = time.monotonic() - started
    run.close()
    path = tmp_path / "run"
    killed = 0
    while killed < kills:
        process = worker(path, tmp_path / "secrets")
        process.stdout.readline()
        # By rounds done, not by the clock: a busy machine must not let the run end before its last kill.
        due = released(path) + random.randrange(ROUNDS // kills)
        while process.poll() is None and released(path) < due:
            time.sleep(0.001)
        time.sleep(random.uniform(0, seconds / ROUNDS))
        process.kill()
        process.communicate()
        killed += process.returncode == -9
        if process.returncode == 0:
            break
    assert killed >= min(kills, 10)
    assert worker(path, tmp_path / "secrets").wait() == 0
    ledger = read_ledger(path / "ledger.jsonl")
    assert [line["round"] for line in ledger.of_kind("release")] == list(range(ROUNDS))
    run, toy = take_up(path, tmp_path / "secrets")
    run.close()
    assert np.array_equal(toy.model, model)
    assert toy.taken == list(range(ROUNDS))
    assert verify(path, rho, noise_of, tmp_path / "secrets").holds


def test_the_second_of_two_processes_is_refused(tmp_path: Path) -> None:
    with start(tmp_path / "run", tmp_path / "secrets", rounds=ROUNDS):
        process = subprocess.run(
            [sys.executable, "-m", "tests.ledger.worker", str(tmp_path / "run"), str(tmp_path / "secrets")],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
        )
    assert process.returncode == 1
    assert "is in use by process" in process.stderr
