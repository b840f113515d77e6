"""`verify`: what it finds, and that nothing else passes. Faults are planted as somebody would who knows the format."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reticent.errors import Refused
from reticent.ledger import RunDirectory, resume
from reticent.ledger import run as run_module
from reticent.ledger.lines import NOTHING_BEFORE, canonical, digest, read_ledger, sealed
from reticent.ledger.releases import read_release, release_head, release_path
from reticent.ledger.verify import Check, Verdict, verify
from tests.ledger.toy import CLIP_NORM, GRID, Toy, cohort_of, description, noise_of, start, sum_of, take_up, train


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    return tmp_path / "secrets"


def rho(accounting: dict, delta: float) -> dict:
    """A guarantee for C = I: rho = k / (2 sigma^2), with the simple bound on epsilon."""
    most = accounting["participation"].get("max_participations", accounting["rounds"])
    rho = most / accounting["noise_multiplier"] ** 2 / 2
    return {
        "rho": rho,
        "epsilon": rho + 2 * math.sqrt(-rho * math.log(delta)),
        "simulated": accounting["simulated"],
    }


def verdict_on(path: Path, secrets: Path) -> Verdict:
    return verify(path, rho, noise_of, secrets)


def broken(verdict: Verdict) -> list[str]:
    assert not verdict.holds
    return [check.name for check in verdict.checks if check.holds is False]


def detail(verdict: Verdict, name: str) -> str:
    return next(check.detail for check in verdict.checks if check.name == name)


def finished(path: Path, secrets: Path, **options) -> None:
    options.setdefault("simulated_row_seed", None)
    with start(path, secrets, **options) as run:
        train(run, Toy())


def rewritten(path: Path, change: Callable[[list[dict]], list[dict]]) -> None:
    """Forges the ledger: changes lines and seals the whole chain again, and the releases with it."""
    lines = change([dict(line) for line in read_ledger(path / "ledger.jsonl").lines])
    chain, previous = [], NOTHING_BEFORE
    for line in lines:
        body = {key: value for key, value in line.items() if key not in ("hash", "schema")}
        line = sealed({**body, "previous": previous})
        previous = line["hash"]
        chain.append(line)
        release = release_path(path / "releases", line.get("round", -1))
        if line["kind"] == "release" and release.exists():
            release.write_bytes(release_head(line) + release.read_bytes().split(b"\n", 2)[2])
    (path / "ledger.jsonl").write_bytes(b"".join(canonical(line) + b"\n" for line in chain))


def test_a_sound_run_holds(path: Path, secrets: Path) -> None:
    finished(path, secrets)
    verdict = verdict_on(path, secrets)
    assert verdict.holds
    assert verdict.finished
    assert all(check.holds for check in verdict.checks), verdict.checks
    assert verdict.guarantee["rho"] == 2 / 4 / 2
    assert not verdict.guarantee["simulated"]
    assert detail(verdict, "guarantee") == "epsilon 3.967 at delta 1e-06, from the ledger alone"
    assert detail(verdict, "participations") == "at most 2 of one user, the closest 4 rounds apart"
    finish = read_ledger(path / "ledger.jsonl").finished
    assert {key: finish[key] for key in ("rounds", "min_separation", "max_participations")} == {
        "rounds": 6, "min_separation": 3, "max_participations": 2,
    }  # fmt: skip
    assert (finish["largest_participation"], finish["smallest_separation"]) == (2, 4)


@pytest.mark.parametrize(
    "options",
    [{"keep_releases": False}, {"release_at": "checkpoint", "keep_releases": False}, {"simulated_row_seed": 3}],
    ids=str,
)
def test_sound_runs_of_other_kinds_hold(options: dict, path: Path, secrets: Path) -> None:
    finished(path, secrets, **options)
    verdict = verdict_on(path, secrets)
    assert verdict.holds
    assert verdict.simulated == ("simulated_row_seed" in options)
    assert verdict.guarantee["simulated"] == verdict.simulated
    if verdict.simulated:
        assert "SIMULATED" in detail(verdict, "guarantee")


def test_a_run_in_the_middle_holds_so_far(path: Path, secrets: Path) -> None:
    with start(path, secrets) as run:
        assert verdict_on(path, secrets).holds
        toy = train(run, Toy(), until=2)
        assert verdict_on(path, secrets).holds
        intent = run.begin(cohort_of(2))
        release = (sum_of(2) + toy.noise(intent.row_key)).astype("<i4").tobytes()
        line = run.write_release(intent, release, CLIP_NORM, GRID)
        with (path / "ledger.jsonl").open("ab") as file:
            file.write(canonical(line)[:77])
    verdict = verdict_on(path, secrets)
    assert verdict.holds
    assert not verdict.finished
    assert "a crash cut short" in detail(verdict, "chain")
    with (path / "ledger.jsonl").open("ab") as file:
        file.write(b"?")
    assert broken(verdict_on(path, secrets)) == ["chain"]


def test_a_burnt_row_holds(path: Path, secrets: Path) -> None:
    with start(path, secrets, simulated_row_seed=None) as run:
        train(run, Toy(), until=1, checkpoint_every=10)
    (path / "releases" / "00000000.release").unlink()
    assert broken(verdict_on(path, secrets)) == ["releases"]
    run, toy = take_up(path, secrets)
    with run:
        train(run, toy, checkpoint_every=10)
    verdict = verdict_on(path, secrets)
    assert verdict.holds, verdict.checks
    assert "1 rows burnt" in detail(verdict, "order")


def test_a_damaged_ledger_line_is_located(path: Path, secrets: Path) -> None:
    finished(path, secrets)
    content = (path / "ledger.jsonl").read_bytes()
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        damaged = line.replace(b'":', b'" :', 1)
        (path / "ledger.jsonl").write_bytes(b"".join([*lines[: number - 1], damaged, *lines[number:]]))
        assert detail(verdict_on(path, secrets), "chain").startswith(f"Line {number} of ")


def test_every_byte_of_the_run_directory_counts(path: Path, secrets: Path) -> None:
    """Any one changed byte of ledger, releases, checkpoints and run file is found."""
    finished(path, secrets)
    files = [file for file in path.rglob("*") if file.is_file() and file.name not in (".lock", "metrics.jsonl")]
    assert len(files) == 1 + 1 + 6 + 2
    rng = np.random.default_rng(1)
    for file in files:
        content = file.read_bytes()
        for place in {0, len(content) - 1, *rng.integers(0, len(content), 6).tolist()}:
            if place == len(content) - 1 and file.name == "manifest.json":
                continue  # its last newline is not part of what it says
            file.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
            assert not verify(path, rho, noise_of, secrets).holds, (file, place)
        file.write_bytes(content)
        file.unlink()
        if file.name != "ledger.jsonl":
            verdict = verify(path, rho, noise_of, secrets)
            assert not verdict.holds or file.parent.parent.name == "checkpoints", file
        file.write_bytes(content)
    assert verdict_on(path, secrets).holds


def changed(number: int, **changes) -> Callable[[list[dict]], list[dict]]:
    return lambda lines: [line | changes if place == number else line for place, line in enumerate(lines)]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (changed(2, round=2), {"order", "releases"}),
        (changed(2, round=0), {"order", "releases"}),
        (lambda lines: [*lines[:2], *lines[1:]], {"order"}),
        (lambda lines: lines[:-3] + lines[-1:], {"end", "releases", "checkpoints"}),
        (changed(2, mechanism="1" * 64), {"terms"}),
        (changed(2, clip_norm=0.5), {"terms"}),
        (changed(2, grid=GRID / 2), {"terms"}),
        (changed(2, values=4), {"terms"}),
        (changed(2, release="1" * 64), {"releases"}),
        (changed(9, rounds=1), {"order", "checkpoints"}),
        (changed(9, digest="1" * 64), {"checkpoints"}),
    ],
)
def test_a_forged_ledger_does_not_hold(change: Callable, names: set, path: Path, secrets: Path) -> None:
    """The chain is sealed anew after each change, and is found out without the secrets."""
    finished(path, secrets)
    rewritten(path, lambda lines: lines)
    assert verify(path, rho).holds
    kinds = [line["kind"] for line in read_ledger(path / "ledger.jsonl").lines]
    assert kinds == ["run", *["release", "release", "checkpoint"] * 3, "finish"]
    rewritten(path, change)
    assert names <= set(broken(verify(path, rho)))


@pytest.mark.parametrize(
    "stated",
    [{"min_separation": 4}, {"max_participations": 1}, {"rounds": 5}, {"largest_participation": 1}],
    ids=str,
)
def test_a_false_last_line_does_not_hold(stated: dict, path: Path, secrets: Path) -> None:
    finished(path, secrets)
    count = len(read_ledger(path / "ledger.jsonl").lines)
    rewritten(path, changed(count - 1, **stated))
    assert {"end", "participations"} & set(broken(verdict_on(path, secrets)))


def test_a_chain_sealed_anew_does_not_match_the_intents(path: Path, secrets: Path) -> None:
    """Another noise multiplier in the first line, all hashes made again: the intents still name the old ones."""
    finished(path, secrets)

    def claim(lines: list[dict]) -> list[dict]:
        lines[0]["description"]["accounting"]["noise_multiplier"] = 20.0
        return lines

    rewritten(path, claim)
    assert broken(verdict_on(path, secrets)) == ["row keys"]


class HalfNoise(Toy):
    def noise(self, row_key: bytes) -> np.ndarray:
        return super().noise(row_key) // 2


class RowsAgain(Toy):
    """Uses the noise of the first row again."""

    def noise(self, row_key: bytes) -> np.ndarray:
        self.first = getattr(self, "first", None) or row_key
        return super().noise(self.first)


@pytest.mark.parametrize("fault", [HalfNoise, RowsAgain])
def test_other_noise_than_the_keys_claim_does_not_hold(
    fault: type[Toy], path: Path, secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.ledger.toy.SIZE", 400)  # long enough for noise to stand out from any cohort's sum
    with start(path, secrets, simulated_row_seed=None) as run:
        train(run, fault_sized(fault))
    verdict = verdict_on(path, secrets)
    assert broken(verdict) == ["noise"]
    assert "other noise was released than the keys claim" in detail(verdict, "noise")


def fault_sized(fault: type[Toy]) -> Toy:
    toy = fault()
    assert len(toy.model) == 400
    return toy


def test_long_releases_hold_with_the_right_noise(path: Path, secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.ledger.toy.SIZE", 400)
    finished(path, secrets)
    assert verdict_on(path, secrets).holds


def test_a_sum_larger_than_its_cohort_does_not_hold(path: Path, secrets: Path) -> None:
    """One unclipped update: the noise is right, the sum is more than three clip norms."""
    with start(path, secrets, simulated_row_seed=None) as run:
        toy = Toy()
        intent = run.begin(cohort_of(0))
        large = np.full(5, 3.01 * CLIP_NORM / np.sqrt(5) / GRID).astype(np.int64)
        run.release(intent, (large + toy.noise(intent.row_key)).astype("<i4").tobytes(), CLIP_NORM, GRID)
        assert broken(verdict_on(path, secrets)) == ["noise"]


def test_a_reused_row_key_does_not_hold(path: Path, secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reticent.ledger.secrets.fresh_row_key", lambda: bytes(32))
    finished(path, secrets)
    verdict = verdict_on(path, secrets)
    assert broken(verdict) == ["row keys"]
    assert "noise was used twice" in detail(verdict, "row keys")


def test_an_ignored_separation_does_not_hold(path: Path, secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger refuses to end such a run; one ended by force does not verify."""
    monkeypatch.setattr("tests.ledger.toy.cohort_of", lambda round: [round % 2, 7, 8 + round])
    with start(path, secrets, simulated_row_seed=None) as run:
        with pytest.raises(Refused, match="A user took part in rounds 0 and 1, closer than the separation of 3"):
            train(run, Toy())
        assert not run.finished
        monkeypatch.setattr(run_module, "check", lambda what, schema: None)
        run.finish()
    assert broken(verdict_on(path, secrets)) == ["participations"]


def test_too_many_participations_do_not_hold(path: Path, secrets: Path) -> None:
    described = description()
    described["accounting"]["participation"]["max_participations"] = 1
    with RunDirectory.create(path, described, "", secrets=secrets) as run:
        with pytest.raises(Refused, match="took part 2 times, where at most 1"):
            train(run, Toy())
        assert "participations" in broken(verdict_on(path, secrets))


def test_random_participation_states_no_counts(path: Path, secrets: Path) -> None:
    described = description()
    described["accounting"]["participation"] = {"kind": "poisson", "probability": 0.25}
    with RunDirectory.create(path, described, "", secrets=secrets) as run:
        train(run, Toy())
    finish = read_ledger(path / "ledger.jsonl").finished
    assert {finish[key] for key in ("min_separation", "max_participations", "largest_participation")} == {None}
    verdict = verdict_on(path, secrets)
    assert verdict.holds
    assert detail(verdict, "participations") == "within what was enforced"


def test_fewer_rounds_give_the_guarantee_of_fewer(path: Path, secrets: Path) -> None:
    """A run that an epsilon budget ended after 3 of 6 rounds: one participation each."""
    with start(path, secrets) as run:
        train(run, Toy(), until=3)
        run.finish()
    verdict = verdict_on(path, secrets)
    assert verdict.holds
    assert verdict.guarantee["rho"] == 1 / 4 / 2


def test_an_estimate_and_a_run_without_noise_have_no_guarantee(path: Path, secrets: Path) -> None:
    with RunDirectory.create(path, description(estimate="3 users stand for 300"), "", secrets=secrets) as run:
        train(run, Toy())
    verdict = verdict_on(path, secrets)
    assert verdict.guarantee is None
    assert "3 users stand for 300" in detail(verdict, "guarantee")
    described = description()
    described["accounting"]["noise_multiplier"] = 0
    with RunDirectory.create(path.with_name("second"), described, "", secrets=secrets) as run:
        train(run, Toy())
    verdict = verdict_on(path.with_name("second"), secrets)
    assert "epsilon is infinite" in detail(verdict, "guarantee")


def test_secrets_are_destroyed_after_a_verdict_that_holds(path: Path, secrets: Path) -> None:
    with start(path, secrets) as run:
        train(run, Toy(), until=3)
        with pytest.raises(Refused, match="finished and verified"):
            run.destroy_secrets(verdict_on(path, secrets))
        before_the_end = verdict_on(path, secrets)
        run.finish()
        verdict = verdict_on(path, secrets)
        that_does_not_hold = replace(verdict, checks=(*verdict.checks, Check("a", False, "b")))
        for other in (before_the_end, that_does_not_hold):
            with pytest.raises(Refused, match="finished and verified"):
                run.destroy_secrets(other)
        run.destroy_secrets(verdict)
    assert list(secrets.iterdir()) == []
    verdict = verdict_on(path, secrets)
    assert verdict.holds
    assert "destroyed, or elsewhere" in detail(verdict, "secrets")


def test_a_run_taken_up_holds(path: Path, secrets: Path) -> None:
    """Killed after an intent, after a release, and resumed: the verdict is that of a sound run."""
    with start(path, secrets, simulated_row_seed=None) as run:
        train(run, Toy(), until=2)
        run.begin(cohort_of(2))
    run, toy = take_up(path, secrets)
    with run:
        intent = run.begin(cohort_of(2))
        release = (sum_of(2) + toy.noise(intent.row_key)).astype("<i4").tobytes()
        run.write_release(intent, release, CLIP_NORM, GRID)
    run, toy = take_up(path, secrets)
    with run:
        train(run, toy)
    assert all(check.holds for check in verdict_on(path, secrets).checks)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="holds no run"):
        verify(tmp_path)


def test_the_ledger_imports_nothing_of_training() -> None:
    code = """
import sys, reticent.ledger, reticent.ledger.recovery
assert "numpy" not in sys.modules
import reticent.ledger.verify
ours = sorted(name for name in sys.modules if name.startswith("reticent.") and not name.startswith("reticent.ledger"))
assert ours == ["reticent.errors"], ours
assert not {"jax", "optax", "orbax", "pydantic"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command(path: Path, secrets: Path) -> None:
    pytest.importorskip("reticent.accounting.run")
    pytest.importorskip("reticent.privacy.noise")
    finished(path, secrets)

    def command(*options: str) -> subprocess.CompletedProcess:
        arguments = [sys.executable, "-m", "reticent", "verify", str(path), "--secrets", str(secrets), *options]
        return subprocess.run(arguments, capture_output=True, text=True)

    told = json.loads(command("--json").stdout)
    assert told["finished"]
    assert told["head"] == read_ledger(path / "ledger.jsonl").head
    assert {check["name"] for check in told["checks"]} >= {"chain", "order", "terms", "releases", "row keys"}
    first = release_path(path / "releases", 0)
    line, payload = read_release(first)
    first.write_bytes(release_head(line) + payload[:-1] + b"?")
    done = command()
    assert done.returncode == 1
    assert "does NOT hold" in done.stdout
    assert digest(payload) == line["release"]


def test_resuming_a_finished_run_changes_nothing(path: Path, secrets: Path) -> None:
    finished(path, secrets)
    before = (path / "ledger.jsonl").read_bytes()
    run, recovery = resume(path, secrets=secrets)
    assert run.finished
    assert not recovery.abandoned
    run.close()
    assert (path / "ledger.jsonl").read_bytes() == before
