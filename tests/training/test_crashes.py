"""A failure at every durable operation of a run, and `kill -9` at random instants: the resumed model is bit for bit that
of an undisturbed run, and each row of noise was spent once."""

import contextlib
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from reticent.errors import Refused
from reticent.ledger.lines import read_ledger
from reticent.training import train
from tests.ledger.failing import Crash, FailingFiles
from tests.training.runs import ROUNDS, parameters, run_file

ROOT = Path(__file__).parents[2]


def settings_of(store, large: bool = False):
    return run_file(store.path, run={"keep_releases": not large}, data={"held_out_users": 0.0})


@pytest.fixture(scope="module")
def undisturbed(people_store, tmp_path_factory):
    folder, files = tmp_path_factory.mktemp("undisturbed"), FailingFiles()
    outcome = train(settings_of(people_store), folder / "run", secrets=folder / "s", files=files)
    return parameters(outcome.path), files.done


def check(folder: Path, model: np.ndarray) -> None:
    ledger = read_ledger(folder / "run" / "ledger.jsonl")
    assert [line["round"] for line in ledger.of_kind("release")] == list(range(ROUNDS))
    assert not ledger.of_kind("burnt")
    assert ledger.finished
    np.testing.assert_array_equal(parameters(folder / "run"), model)
    # What died before it was a run leaves an empty place; of one that was, nothing is left.
    assert not list((folder / "s").glob("*.condemned"))
    assert not list((folder / "s").glob("*/intents/*"))
    assert not list((folder / "s").glob("*/checkpoints/*"))


def disturbed(store, folder: Path, files: FailingFiles) -> None:
    """Trains with failing files, then goes on with files that do not fail; a run that had not begun is begun."""
    settings = settings_of(store)
    with contextlib.suppress(OSError, Crash):
        train(settings, folder / "run", secrets=folder / "s", files=files)
        return  # it made a file fewer than the undisturbed run
    begun = (folder / "run" / "ledger.jsonl").exists()
    try:
        train(settings, folder / "run", secrets=folder / "s", files=FailingFiles(), going_on=begun)
    except Refused as error:
        if "nothing is left to be done" not in str(error):
            raise


def fail_at(people_store, folder: Path, undisturbed, at: int, how: str) -> None:
    model, _ = undisturbed
    folder = folder / f"{how}-{at}"
    folder.mkdir()
    disturbed(people_store, folder, FailingFiles(at, how))
    check(folder, model)


def test_a_failure_at_some_operations(people_store, tmp_path, undisturbed):
    operations = undisturbed[1]
    assert {"create", "write", "fsync", "rename", "unlink", "mkdir", "sync_directory"} <= set(operations)
    for number in range(8):
        at = (2 * number + 1) * len(operations) // 16
        fail_at(people_store, tmp_path, undisturbed, at, ("before", "after")[number % 2])
    fail_at(people_store, tmp_path, undisturbed, len(operations) - 3, "after")  # the secrets are on their way out


@pytest.mark.full
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("how", ["before", "after", "full"])
def test_a_failure_at_every_operation(people_store, tmp_path, undisturbed, how, part):
    for at in range(part, len(undisturbed[1]), 8):
        if how != "full" or undisturbed[1][at] == "write":
            fail_at(people_store, tmp_path, undisturbed, at, how)


WORKER = """
import sys
import jax
jax.config.update("jax_compilation_cache_dir", sys.argv[4])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
from pathlib import Path
from reticent.data.store import Store
from reticent.training import Callback, train
from tests.training.test_crashes import settings_of

class Say(Callback):
    def on_start(self, facts):
        print("at work", flush=True)

out = Path(sys.argv[2])
going_on = (out / "ledger.jsonl").exists()
train(settings_of(Store.open(sys.argv[1])), out, secrets=sys.argv[3], callbacks=[Say()], going_on=going_on)
"""


def worker(store, folder: Path, cache: Path) -> subprocess.Popen:
    arguments = [sys.executable, "-c", WORKER, store.path, folder / "run", folder / "s", cache]
    return subprocess.Popen(list(map(str, arguments)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kills", "seed"), [(3, 0), pytest.param(20, 1, marks=pytest.mark.full)], ids=["3 kills", "20 kills"]
)
def test_killed_at_random_instants(people_store, tmp_path, undisturbed, kills, seed):
    random.seed(seed)
    cache = tmp_path / "compiled"
    measured = tmp_path / "measured"
    process = worker(people_store, measured, cache)
    process.stdout.readline()
    began = time.monotonic()
    assert process.wait() == 0, process.stderr.read()
    seconds = time.monotonic() - began
    killed, attempt = 0, 0
    while killed < kills:
        folder = tmp_path / f"run-{attempt}"
        attempt += 1
        while killed < kills:
            process = worker(people_store, folder, cache)
            said = process.stdout.readline()
            time.sleep(random.uniform(0, seconds) if said else 0)
            process.kill()
            process.communicate()
            if process.returncode != -9:
                break
            killed += 1
        if not (folder / "run" / "ledger.jsonl").exists():
            continue
        process = worker(people_store, folder, cache)
        _, error = process.communicate()
        assert process.returncode == 0 or b"nothing is left to be done" in error, error.decode()
        check(folder, undisturbed[0])


def test_a_second_resume_at_once_is_refused(people_store, tmp_path):
    from tests.training.test_train import Heard

    settings = settings_of(people_store)

    class Second(Heard):
        def on_round(self, record):
            if record["rounds"] == 2:
                with pytest.raises(Refused, match="is in use by process"):
                    train(settings, tmp_path / "run", secrets=tmp_path / "s", going_on=True)
                self.events.append(("refused", None))

    heard = Second()
    train(settings, tmp_path / "run", secrets=tmp_path / "s", callbacks=[heard])
    assert ("refused", None) in heard.events


def test_two_copies_of_a_killed_run_share_no_noise(people_store, tmp_path):
    """Each copy goes its own way; what they release of the next round has noise of its own."""
    import shutil

    settings = run_file(people_store.path, run={"simulated_row_seed": None, "keep_secrets": True})
    with pytest.raises(Crash):
        train(settings, tmp_path / "a" / "run", secrets=tmp_path / "a" / "s", files=StopAfter(3))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    releases = []
    for copy in "ab":
        train(settings, tmp_path / copy / "run", secrets=tmp_path / copy / "s", going_on=True)
        content = sorted((tmp_path / copy / "run" / "releases").iterdir())
        releases.append([path.read_bytes().split(b"\n", 2)[2] for path in content])
    assert releases[0][:3] == releases[1][:3]
    for mine, theirs in zip(releases[0][3:], releases[1][3:], strict=True):
        difference = np.frombuffer(mine, "<i4").astype(float) - np.frombuffer(theirs, "<i4").astype(float)
        # Independent noise: twice the variance of one release's, not none.
        spread = np.frombuffer(mine, "<i4").astype(float).std()
        assert difference.std() > 1.2 * spread


class StopAfter(FailingFiles):
    """Dies when the release after `rounds` is about to be written."""

    def __init__(self, rounds):
        super().__init__()
        self.rounds = rounds

    def _operate(self, name, arguments):
        if name == "rename" and arguments[1].name == f"{self.rounds:08d}.release":
            raise Crash("before the rename of a release")
        return super()._operate(name, arguments)


def test_another_configuration_refuses_to_resume(people_store, tmp_path):
    with pytest.raises(Crash):
        train(settings_of(people_store), tmp_path / "run", secrets=tmp_path / "s", files=StopAfter(2))
    other = run_file(
        people_store.path, ("client.learning_rate=0.25",), run={"keep_releases": True}, data={"held_out_users": 0.0}
    )
    with pytest.raises(Refused, match=r"client.learning_rate: 0.5, now 0.25"):
        train(other, tmp_path / "run", secrets=tmp_path / "s", going_on=True)


def test_other_text_refuses_to_resume(people_store, tmp_path):
    import shutil

    from tests.training.conftest import write_people

    store = tmp_path / "store"
    shutil.copytree(people_store.path, store)
    from reticent.data.store import Store

    settings = settings_of(Store.open(store))
    with pytest.raises(Crash):
        train(settings, tmp_path / "run", secrets=tmp_path / "s", files=StopAfter(2))
    shutil.rmtree(store)
    write_people(store, seed=1)
    with pytest.raises(Refused, match="not what this run began with"):
        train(settings, tmp_path / "run", secrets=tmp_path / "s", going_on=True)
