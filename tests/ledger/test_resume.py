"""What is found on resuming, case by case: adopted, burnt, done anew; copies, locks, foreign and damaged files."""

import json
import os
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest

from reticent.errors import Refused
from reticent.ledger import RunDirectory, release_point, resume
from reticent.ledger.lines import canonical, read_ledger, sealed
from tests.ledger.toy import CLIP_NORM, GRID, Toy, cohort_of, description, start, sum_of, take_up, train


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    return tmp_path / "secrets"


def ledger_of(path: Path):
    return read_ledger(path / "ledger.jsonl")


def intents_of(secrets: Path) -> list[bytes]:
    """The row keys of all intents below a place, raw."""
    headers = [json.loads(file.read_bytes().partition(b"\n")[0]) for file in sorted(secrets.glob("*/intents/*"))]
    return [header["row_key"] for header in headers]


def killed_in_round_2(path: Path, secrets: Path, step: str, **options) -> Toy:
    """A run killed in round 2 after its intent, its release, or its line."""
    run = start(path, secrets, **options)
    toy = train(run, Toy(), until=2, checkpoint_every=1)
    intent = run.begin(cohort_of(2))
    release = (sum_of(2) + toy.noise(intent.row_key)).astype("<i4").tobytes()
    if step != "intent":
        line = run.write_release(intent, release, CLIP_NORM, GRID)
        if step == "line":
            run.write_line(line)
        toy.take(2, release)
    run.close()
    return toy


@pytest.mark.parametrize("step", ["release", "line"])
def test_a_release_that_left_is_taken_as_it_is(step: str, path: Path, secrets: Path) -> None:
    """With row keys from the operating system: only the very release can give this model."""
    before = killed_in_round_2(path, secrets, step, simulated_row_seed=None)
    keys = intents_of(secrets)
    run, toy = take_up(path, secrets)
    assert np.array_equal(toy.model, before.model)
    assert np.array_equal(toy.buffer, before.buffer)
    assert run.next_round == 3
    assert intents_of(secrets) == keys
    train(run, toy)
    run.close()


def test_a_round_that_released_nothing_is_done_anew_under_a_new_key(path: Path, secrets: Path) -> None:
    killed_in_round_2(path, secrets, "intent", simulated_row_seed=None)
    run, recovery = resume(path, secrets=secrets)
    (abandoned,) = recovery.abandoned
    assert (abandoned.round, abandoned.attempt, abandoned.members.tolist()) == (2, 0, cohort_of(2))
    again = run.begin(cohort_of(2))
    assert (again.round, again.attempt) == (2, 1)
    assert again.row_key != abandoned.row_key
    assert len(set(intents_of(secrets))) == 4
    run.close()
    assert "anew" in recovery.notes[0]


def test_a_row_whose_release_was_lost_is_burnt_and_the_noise_moves_on(path: Path, secrets: Path) -> None:
    before = killed_in_round_2(path, secrets, "line")
    (path / "releases" / "00000002.release").unlink()
    run, recovery = resume(path, secrets=secrets)
    assert [(replay.round, replay.burnt) for replay in recovery.replay] == [(2, True)]
    run.close()
    run, toy = take_up(path, secrets)  # and found burnt again
    assert toy.taken == [0, 1]
    assert np.array_equal(toy.buffer, before.buffer)
    train(run, toy)
    run.close()
    ledger = ledger_of(path)
    assert [(line["round"], line["attempt"]) for line in ledger.of_kind("burnt")] == [(2, 0)]
    assert ledger.finished["rounds"] == 6
    undisturbed = train(start(path.parent / "other", secrets), Toy())
    lost = (sum_of(2) + undisturbed_noise(2)).astype(np.int64)
    assert np.array_equal(toy.model, undisturbed.model - lost)


def undisturbed_noise(round: int) -> np.ndarray:
    from reticent.ledger.secrets import simulated_row_key

    toy = Toy()
    return [toy.noise(simulated_row_key(5, number)) for number in range(round + 1)][round]


def test_a_row_can_be_burnt_on_purpose(path: Path, secrets: Path) -> None:
    run = start(path, secrets)
    toy = train(run, Toy(), until=1, checkpoint_every=10)
    intent = run.begin(cohort_of(1))
    toy.noise(intent.row_key)
    run.burn(intent, "the sum was seen and the release could not be made")
    train(run, toy, checkpoint_every=10)
    run.close()
    assert ledger_of(path).finished["rounds"] == 6
    assert ledger_of(path).finished["largest_participation"] == 2


@pytest.mark.parametrize(("exposed", "largest", "separation"), [(True, 2, 5), (False, 1, None)])
def test_an_abandoned_round_of_devices_counts(
    exposed: bool, largest: int, separation: int | None, path: Path, secrets: Path
) -> None:
    """Where updates leave the devices first, an abandoned attempt is a participation; in one process it is not."""
    with start(path, secrets, exposed=exposed) as run:
        run.abandon(run.begin([0, 1, 2]))
        for cohort in ([10], [11], [12], [13], [14], [0, 15]):
            run.release(run.begin(cohort), bytes(20), CLIP_NORM, GRID)
        finish = run.finish()
    assert (finish["largest_participation"], finish["smallest_separation"]) == (largest, separation)


def test_an_abandoned_round_of_devices_keeps_its_separation(path: Path, secrets: Path) -> None:
    run = start(path, secrets, rounds=1, exposed=True)
    run.abandon(run.begin([0, 1, 2]))
    intent = run.begin([2, 3, 4])
    run.release(intent, np.zeros(5, "<i4").tobytes(), CLIP_NORM, GRID)
    with pytest.raises(Refused, match="rounds 0 and 0, closer than the separation of 3"):
        run.finish()
    run.close()


def test_two_copies_of_a_killed_run_share_no_row_key(path: Path, secrets: Path, tmp_path: Path) -> None:
    killed_in_round_2(path, secrets, "intent", simulated_row_seed=None)
    shared = set(intents_of(secrets))
    shutil.copytree(path, tmp_path / "copy")
    shutil.copytree(secrets, tmp_path / "secrets of the copy")
    pairs = [(path, secrets), (tmp_path / "copy", tmp_path / "secrets of the copy")]
    for run_path, place in pairs:
        run, toy = take_up(run_path, place)
        train(run, toy)
        run.close()
    one, other = (set(intents_of(place)) for _, place in pairs)
    assert len(one) == len(other) == 3 + 4
    assert one & other == shared
    released = [{line["release"] for line in ledger_of(run_path).of_kind("release")} for run_path, _ in pairs]
    assert len(released[0] & released[1]) == 2  # rounds 0 and 1, from before the kill


@pytest.mark.parametrize("step", ["intent", "line"])
def test_a_copy_behind_its_secrets_is_refused(step: str, path: Path, secrets: Path, tmp_path: Path) -> None:
    killed_in_round_2(path, secrets, step)
    shutil.copytree(path, tmp_path / "copy")
    run, toy = take_up(path, secrets)
    train(run, toy)
    run.close()
    with pytest.raises(Refused, match="another copy of the run went on"):
        resume(tmp_path / "copy", secrets=secrets)


def test_secrets_of_an_attempt_elsewhere_are_refused(path: Path, secrets: Path, tmp_path: Path) -> None:
    """The copy makes round 2 again under the shared secrets; then the original, which has released it, stops."""
    killed_in_round_2(path, secrets, "intent")
    shutil.copytree(path, tmp_path / "copy")
    run, toy = take_up(path, secrets)
    train(run, toy, until=3)
    run.close()
    run, _ = resume(tmp_path / "copy", secrets=secrets)
    run.begin(cohort_of(2))
    run.close()
    with pytest.raises(Refused, match="have another attempt for round 2"):
        resume(path, secrets=secrets)


def test_of_two_resumes_the_second_is_refused(path: Path, secrets: Path, tmp_path: Path) -> None:
    killed_in_round_2(path, secrets, "intent")
    shutil.copytree(path, tmp_path / "copy")
    run, _ = resume(path, secrets=secrets)
    for other in (path, tmp_path / "copy"):  # by the run's lock, and by that of the secrets
        with pytest.raises(Refused, match=f"is in use by process {os.getpid()} on "):
            resume(other, secrets=secrets)
    run.close()
    run, _ = resume(path, secrets=secrets)
    run.close()


def test_a_directory_of_another_configuration_is_refused(path: Path, secrets: Path) -> None:
    killed_in_round_2(path, secrets, "intent")
    other = description()
    other["accounting"]["noise_multiplier"] = 1.0
    with pytest.raises(Refused, match=r"accounting\.noise_multiplier was 2\.0 and is now 1\.0"):
        resume(path, other, secrets=secrets)
    with pytest.raises(Refused, match="extra was null and is now 3"):
        resume(path, description(extra=3), secrets=secrets)
    with pytest.raises(Refused, match="of another run file"):
        resume(path, description(), "seed = 2\n", secrets=secrets)
    run, _ = resume(path, description(), "seed = 1\n", secrets=secrets)
    run.close()


def test_a_damaged_line_is_located(path: Path, secrets: Path) -> None:
    killed_in_round_2(path, secrets, "line")
    content = (path / "ledger.jsonl").read_bytes()
    lines = content.split(b"\n")[:-1]
    assert len(lines) == 1 + 2 * 2 + 1
    rng = np.random.default_rng(0)
    for number, line in enumerate(lines, start=1):
        for place in rng.integers(0, len(line), 10):
            damaged = bytearray(line)
            damaged[place] ^= 1 << rng.integers(0, 7)
            if b"\n" in damaged:
                continue
            (path / "ledger.jsonl").write_bytes(
                b"\n".join([*lines[: number - 1], bytes(damaged), *lines[number:], b""])
            )
            with pytest.raises(Refused, match=f"^Line {number} of .* is damaged"):
                resume(path, secrets=secrets)
    for number in range(2, len(lines)):  # a line taken out, and two exchanged
        (path / "ledger.jsonl").write_bytes(b"\n".join([*lines[: number - 1], *lines[number:], b""]))
        with pytest.raises(Refused, match=f"Line {number} .* does not continue the line before it"):
            resume(path, secrets=secrets)
    (path / "ledger.jsonl").write_bytes(content)
    run, _ = resume(path, secrets=secrets)
    run.close()


@pytest.mark.parametrize("torn", [b"x", b'{"attempt":0,"clip', b"{", b"null", b"\0\0"])
def test_what_is_no_beginning_of_the_next_line_is_damage(torn: bytes, path: Path, secrets: Path) -> None:
    killed_in_round_2(path, secrets, "line")
    with (path / "ledger.jsonl").open("ab") as file:
        file.write(torn)
    with pytest.raises(Refused, match=r"^Line 7 of .* is damaged"):
        resume(path, secrets=secrets)


@pytest.mark.parametrize("kept", [1, 100, -1])
@pytest.mark.parametrize("zeros", [0, 5])
def test_a_line_cut_short_is_completed_from_its_release(kept: int, zeros: int, path: Path, secrets: Path) -> None:
    killed_in_round_2(path, secrets, "release")
    line = (path / "releases" / "00000002.release").read_bytes().split(b"\n")[1]
    before = (path / "ledger.jsonl").read_bytes()
    (path / "ledger.jsonl").write_bytes(before + line[:kept] + b"\0" * min(zeros, len(line) - len(line[:kept])))
    run, _ = take_up(path, secrets)
    run.close()
    assert (path / "ledger.jsonl").read_bytes() == before + line + b"\n"


def test_a_damaged_release_is_not_taken(path: Path, secrets: Path) -> None:
    killed_in_round_2(path, secrets, "line")
    release = path / "releases" / "00000002.release"
    content = release.read_bytes()
    release.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(Refused, match=r"release .*00000002.release is damaged"):
        take_up(path, secrets)
    other = (path / "releases" / "00000001.release").read_bytes()
    release.write_bytes(other)
    with pytest.raises(Refused, match="not the one in the ledger"):
        take_up(path, secrets)


def test_a_release_of_another_copy_is_not_adopted(path: Path, secrets: Path, tmp_path: Path) -> None:
    killed_in_round_2(path, secrets, "intent")
    killed_in_round_2(tmp_path / "other", secrets, "release")
    shutil.copy(tmp_path / "other" / "releases" / "00000002.release", path / "releases")
    with pytest.raises(Refused, match="of another copy of the run"):
        resume(path, secrets=secrets)


@pytest.mark.parametrize("half", ["public", "secret"])
def test_a_damaged_checkpoint_is_named(half: str, path: Path, secrets: Path) -> None:
    killed_in_round_2(path, secrets, "line")
    file = path / "checkpoints" / "00000002" / "model.json"
    if half == "secret":
        (file,) = secrets.glob("*/checkpoints/00000002/buffer.json")
    content = file.read_text()
    file.write_text(content + " ")
    with pytest.raises(Refused, match=rf"The file {file.name} of the checkpoint .* is damaged"):
        resume(path, secrets=secrets)
    file.write_text(content)
    run, _ = resume(path, secrets=secrets)
    run.close()


def test_a_lost_checkpoint_whose_releases_are_gone_is_refused(path: Path, secrets: Path) -> None:
    killed_in_round_2(path, secrets, "line", keep_releases=False)
    assert sorted(file.name for file in (path / "releases").iterdir()) == ["00000002.release"]
    shutil.rmtree(path / "checkpoints" / "00000002")
    with pytest.raises(Refused, match="The checkpoint after 2 rounds is lost"):
        resume(path, secrets=secrets)


def test_a_lost_checkpoint_is_replayed_from_kept_releases(path: Path, secrets: Path) -> None:
    before = killed_in_round_2(path, secrets, "line")
    shutil.rmtree(path / "checkpoints" / "00000002")
    run, toy = take_up(path, secrets)
    run.close()
    assert np.array_equal(toy.model, before.model)
    assert np.array_equal(toy.buffer, before.buffer)


def test_lost_secrets_are_refused(path: Path, secrets: Path, tmp_path: Path) -> None:
    killed_in_round_2(path, secrets, "line")
    with pytest.raises(Refused, match="The secrets of this run are not at"):
        resume(path, secrets=tmp_path / "elsewhere")
    (directory,) = secrets.iterdir()
    directory.chmod(0o750)
    with pytest.raises(Refused, match="chmod 700"):
        resume(path, secrets=secrets)
    directory.chmod(0o700)
    intent = directory / "intents" / "00000001-0000"
    content = intent.read_bytes()
    intent.write_bytes(content[:-1] + b"x")
    with pytest.raises(Refused, match="00000001-0000 is damaged"):
        resume(path, secrets=secrets)
    intent.unlink()
    with pytest.raises(Refused, match="no row key for round 1"):
        resume(path, secrets=secrets)


def test_secrets_are_nobody_elses(path: Path, secrets: Path) -> None:
    killed_in_round_2(path, secrets, "line")
    (directory,) = secrets.iterdir()
    for entry in [secrets, directory, *directory.rglob("*")]:
        mode = stat.S_IMODE(entry.stat().st_mode)
        if "checkpoints/" in str(entry) and entry.is_file():
            continue  # written by others, inside a directory of mode 0700
        assert mode & 0o077 == 0, entry
    keys = intents_of(secrets)
    for file in path.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert not any(key.encode() in content or bytes.fromhex(key) in content for key in keys), file


def test_the_place_of_secrets(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with start(path, None) as run:
        assert run.secrets.directory == tmp_path / "state" / "reticent" / run.run_id
    monkeypatch.setenv("RETICENT_SECRETS", str(tmp_path / "variable"))
    with start(tmp_path / "second", None) as run:
        assert run.secrets.directory == tmp_path / "variable" / run.run_id
    with start(tmp_path / "third", tmp_path / "option") as run:
        assert run.secrets.directory == tmp_path / "option" / run.run_id
    with pytest.raises(Refused, match="must not lie in the run directory"):
        start(tmp_path / "fourth", tmp_path / "fourth" / "secrets")


def test_an_intent_does_not_print_its_secrets(path: Path, secrets: Path) -> None:
    with start(path, secrets) as run:
        intent = run.begin([7, 8, 9])
        assert repr(intent) == "Intent(round=0, attempt=0, exposed=False)"


def test_what_cannot_be_begun(path: Path, secrets: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="holds no run to resume"):
        resume(path)
    start(path, secrets).close()
    with pytest.raises(Refused, match="holds a run already"):
        start(path, secrets)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(Refused, match="holds other files"):
        start(tmp_path / "full", secrets)
    for changes, sentence in (
        ({"grid": 0.0}, "grid must be positive"),
        ({"clip_norm": float("nan")}, "plain JSON"),
        ({"accounting": {}}, "needs 'rounds'"),
    ):
        with pytest.raises(Refused, match=sentence):
            RunDirectory.create(tmp_path / "bad", description(**changes), "", secrets=secrets)
    assert not (tmp_path / "bad").exists()


def test_steps_out_of_order_are_refused(path: Path, secrets: Path) -> None:
    run = start(path, secrets, rounds=1)
    intent = run.begin([1])
    for action in (lambda: run.begin([2]), run.finish, lambda: run.checkpoint(lambda _: None, lambda _: None)):
        with pytest.raises(Refused, match="Round 0 was begun"):
            action()
    with pytest.raises(Refused, match="which 3 bytes are not"):
        run.release(intent, b"abc", 1.0, 1.0)
    run.release(intent, bytes(4), 1.0, 1.0)
    with pytest.raises(Refused, match="is not open"):
        run.release(intent, bytes(4), 1.0, 1.0)
    with pytest.raises(Refused, match="All 1 rounds"):
        run.begin([2])
    run.finish()
    with pytest.raises(Refused, match="a new run"):
        run.begin([2])
    run.close()
    with pytest.raises(Refused, match="stopped"):
        run.checkpoint(lambda _: None, lambda _: None)


def test_a_large_model_shows_nothing_before_its_checkpoint(path: Path, secrets: Path) -> None:
    run = start(path, secrets, release_at="checkpoint")
    toy = train(run, Toy(), until=1, checkpoint_every=2)
    assert (run.next_round, run.shown_rounds) == (1, 0)
    assert not ledger_of(path).of_kind("release")
    assert not (path / "metrics.jsonl").exists()
    with pytest.raises(Refused, match="1 rounds wait for a checkpoint"):
        run.finish()
    train(run, toy, until=2, checkpoint_every=2)
    assert run.shown_rounds == 2
    assert [line["round"] for line in ledger_of(path).of_kind("release")] == [0, 1]
    assert [record["rounds"] for record in run.metrics.read()] == [1, 2]
    train(run, toy, until=3, checkpoint_every=2)
    run.close()
    run, recovery = resume(path, secrets=secrets)
    assert (run.next_round, recovery.checkpoint.rounds, recovery.replay) == (2, 2, ())
    assert [intent.round for intent in recovery.abandoned] == [2]
    run.close()
    assert release_point(2**26) == "round"
    assert release_point(2**26 + 1) == "checkpoint"


def test_a_metric_cut_short_is_dropped(path: Path, secrets: Path) -> None:
    killed_in_round_2(path, secrets, "line")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"schema": 1, "rou')
    run, _ = take_up(path, secrets)
    assert [record["rounds"] for record in run.metrics.read()] == [1, 2]
    run.close()


def test_best_checkpoints_may_stay(path: Path, secrets: Path) -> None:
    with start(path, secrets) as run:
        toy = Toy()
        for rounds in (1, 2, 3):
            train(run, toy, until=rounds, checkpoint_every=10)
            run.checkpoint(lambda folder: (folder / "a").touch(), lambda folder: (folder / "b").touch(), keep=(1,))
        assert sorted(file.name for file in (path / "checkpoints").iterdir()) == ["00000001", "00000003"]
        assert [file.name for file in run.secrets.checkpoint_directory.iterdir()] == ["00000003"]


def test_a_line_is_sealed_over_everything() -> None:
    line = sealed({"kind": "run", "b": 1.5, "a": [1, None, "ü"]})
    assert canonical(line) == canonical(json.loads(canonical(line)))
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical({"a": float("nan")})
