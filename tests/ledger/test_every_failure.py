"""A failure at every durable operation of a run: what is resumed ends bit for bit where the undisturbed run does."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from reticent.ledger.lines import read_ledger
from tests.ledger.failing import Crash, FailingFiles, PowerCut
from tests.ledger.toy import CLIP_NORM, GRID, Toy, begin_or_take_up, start, sum_of, train

ROUNDS = 4
MEMORY = Path("/dev/shm")  # thousands of small files, where a disk would take minutes


def temporary_folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)


def undisturbed(**options) -> tuple[np.ndarray, list[str]]:
    files = FailingFiles()
    with temporary_folder() as folder:
        run = start(Path(folder) / "run", Path(folder) / "secrets", rounds=ROUNDS, files=files, **options)
        model = train(run, Toy()).model
        run.close()
    return model, files.done


def disturbed(folder: Path, files: FailingFiles, **options) -> tuple[Toy, bool]:
    """Trains with failing files; then, if they failed, takes the run up with files that do not."""
    path, secrets = folder / "run", folder / "secrets"
    failed = False
    for attempt_files in (files, FailingFiles()):
        try:
            run, toy = begin_or_take_up(path, secrets, attempt_files, rounds=ROUNDS, **options)
        except (OSError, Crash):
            failed = True
            continue
        try:
            train(run, toy)
            return toy, failed
        except (OSError, Crash):
            failed = True
        finally:
            run.close()
    raise AssertionError("the run did not finish")


def check(folder: Path, toy: Toy, model: np.ndarray) -> None:
    ledger = read_ledger(folder / "run" / "ledger.jsonl")
    assert not ledger.torn
    assert np.array_equal(toy.model, model)
    assert toy.taken == list(range(ROUNDS))
    assert [line["round"] for line in ledger.of_kind("release")] == list(range(ROUNDS))
    assert not ledger.of_kind("burnt")
    assert ledger.finished


OPTIONS = {
    "every round": {},
    "releases deleted": {"keep_releases": False},
    "large model": {"release_at": "checkpoint", "keep_releases": False},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("how", ["before", "after", "halfway", "full"])
def test_a_failure_at_every_operation(how: str, options: dict) -> None:
    model, operations = undisturbed(**options)
    assert {"create", "write", "fsync", "rename", "unlink", "mkdir", "sync_directory"} <= set(operations)
    for at, name in enumerate(operations):
        if how in ("halfway", "full") and name != "write":
            continue  # the same as "after" and "before"
        with temporary_folder() as folder:
            toy, failed = disturbed(Path(folder), FailingFiles(at, how), **options)
            assert failed
            check(Path(folder), toy, model)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("keep_names", [False, True], ids=["names lost", "names kept"])
def test_the_power_cut_after_every_operation(keep_names: bool, options: dict) -> None:
    model, operations = undisturbed(**options)
    for at in range(len(operations)):
        with temporary_folder() as folder:
            toy, failed = disturbed(Path(folder), PowerCut(at, keep_names), **options)
            assert failed
            check(Path(folder), toy, model)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_a_failure_at_every_operation_of_a_resume(options: dict) -> None:
    """The crash is in round 3, after its release and before its line; then the resume fails too, everywhere."""
    model, _ = undisturbed(**options)
    resumed = FailingFiles()
    at = 0
    while at == 0 or at <= len(resumed.done):
        with temporary_folder() as name:
            folder = Path(name)
            run = start(folder / "run", folder / "secrets", rounds=ROUNDS, files=FailingFiles(), **options)
            toy = train(run, Toy(), until=3, checkpoint_every=2)
            intent = run.begin([9, 10, 11])
            release = (sum_of(3) + toy.noise(intent.row_key)).astype("<i4").tobytes()
            run.write_release(intent, release, CLIP_NORM, GRID)
            run.close()
            resumed = FailingFiles(at, "after" if at % 2 else "before")
            toy, _ = disturbed(folder, resumed, **options)
            check(folder, toy, model)
        at += 1


def test_after_a_failed_write_nothing_more_is_released(tmp_path: Path) -> None:
    """A full disk in the middle of a release: the file is not there, and the object does no more."""
    files = FailingFiles()
    run = start(tmp_path / "run", tmp_path / "secrets", files=files)
    toy = Toy()
    train(run, toy, until=1, checkpoint_every=100)
    intent = run.begin([3, 4, 5])
    files.at, files.how = len(files.done) + 1, "full"
    release = toy.noise(intent.row_key).astype("<i4").tobytes()
    with pytest.raises(OSError, match="No space left"):
        run.write_release(intent, release, 1.0, 2**-10)
    assert sorted(path.name for path in (tmp_path / "run" / "releases").iterdir()) == ["00000000.release"]
    assert not list((tmp_path / "run" / ".unfinished").iterdir())
    for action in (lambda: run.write_release(intent, release, 1.0, 2**-10), lambda: run.finish()):
        with pytest.raises(ValueError, match=r"stopped while writing the release of round 1|was begun"):
            action()
    run.close()


def test_the_power_cut_loses_what_was_not_made_durable(tmp_path: Path) -> None:
    """The instrument itself: without its fsyncs, a file and a name are lost."""
    files = PowerCut()
    handle = files.create(tmp_path / "a", 0o600)
    files.write(handle, b"0123456789")
    files.lose()
    assert not (tmp_path / "a").exists()

    files = PowerCut(keep_names=True)
    handle = files.create(tmp_path / "b", 0o600)
    files.write(handle, b"0123456789")
    files.lose()
    assert (tmp_path / "b").read_bytes() == b"01234"

    files = PowerCut()
    (tmp_path / "c").write_text(json.dumps(1))
    files.rename(tmp_path / "c", tmp_path / "d")
    files.lose()
    assert (tmp_path / "c").exists()
    assert not (tmp_path / "d").exists()
