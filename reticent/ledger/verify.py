"""Checks a run from what it wrote, knowing nothing of how it was trained.

From the run directory alone: the chain of the ledger, the order of its lines, one release for each row, the terms that
stay, the digests of what is there, and the guarantee, computed anew from the ledger. With the secrets: that every row
had its own key, that participations kept their separation, and that the noise of each row, made again from its key,
leaves of the release an integer sum that the cohort's clipped updates can add up to.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reticent.errors import Refused
from reticent.ledger.checkpoints import read_manifest, rounds_of
from reticent.ledger.clip_norms import is_adaptive, norms_due
from reticent.ledger.description import (
    accounting_of,
    enforced,
    longest_contribution,
    metrics_entries,
    most_rounds,
    simulated_users,
    zero_coordinates,
    zero_out,
)
from reticent.ledger.durable import Files
from reticent.ledger.lines import Ledger, Line, canonical, digest, read_ledger
from reticent.ledger.participations import check as check_participations
from reticent.ledger.participations import counting, occurred, of_simulated
from reticent.ledger.releases import read_release, release_path, release_rounds
from reticent.ledger.secrets import Intent, Secrets, place_of_secrets

# Noise made again, compiled with other things around it, can come out this many units of the grid beside what it was; the
# noise of a run is hundreds of thousands of them.
LAST_DIGITS = 64

GuaranteeOf = Callable[[dict[str, Any], float], dict[str, Any]]
"""From the accounting of a run (`reticent.accounting.run`), of the rounds that were made, and delta, its guarantee."""


@dataclass(frozen=True)
class Row:
    """A spent row of noise: what it takes to make it again."""

    round: int
    row_key: bytes
    clip_norm: float
    grid: float


NoiseOf = Callable[[dict[str, Any], Iterable[Row], int], Iterator[np.ndarray]]
"""From the description, the rows in order from round 0, and the length of a release: each row's noise, as integers that
may be off by multiples of 2^32."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; `holds` is None where it could not be, and `detail` says why or what was found."""

    name: str
    holds: bool | None
    detail: str


@dataclass(frozen=True)
class Verdict:
    """What verification found. `head` is the hash of the last ledger line it read."""

    checks: tuple[Check, ...]
    finished: bool = False
    simulated: bool = False
    head: str = ""
    guarantee: dict[str, Any] | None = None

    @property
    def holds(self) -> bool:
        return all(check.holds is not False for check in self.checks)


def verify(
    path: str | Path,
    guarantee_of: GuaranteeOf | None = None,
    noise_of: NoiseOf | None = None,
    secrets: str | Path | None = None,
) -> Verdict:
    """Checks the run in a directory; reads only. Refuses a directory that holds no run."""
    path = Path(path).absolute()
    if not (path / "ledger.jsonl").is_file():
        raise Refused(f"{path} holds no run; give the directory of one.")
    checks: list[Check] = []

    def look(name: str, what: Callable[[], str]) -> None:
        try:
            checks.append(Check(name, True, what()))
        except Unknown as reason:
            checks.append(Check(name, None, str(reason)))
        except Refused as problem:
            checks.append(Check(name, False, str(problem)))

    try:
        ledger = read_ledger(path / "ledger.jsonl")
    except Refused as problem:
        return Verdict((Check("chain", False, str(problem)),))
    look("chain", lambda: _chain(ledger, path))
    look("order", lambda: _order(ledger))
    look("terms", lambda: _terms(ledger, path))
    look("releases", lambda: _releases(ledger, path))
    if "clip_norms" in ledger.first["description"]:
        look("clip norms", lambda: _clip_norms(ledger, path))
    look("checkpoints", lambda: _checkpoints(ledger, path))
    look("end", lambda: _end(ledger))
    found: list[Any] = []
    look("guarantee", lambda: _guarantee(ledger, guarantee_of, found))
    place = place_of_secrets(ledger.first["run"], secrets)
    if not place.is_dir():
        checks.append(
            Check("secrets", None, f"not at {place}: destroyed, or elsewhere; what needs them is not checked")
        )
    else:
        kept: list[Intent] = []
        look("row keys", lambda: _row_keys(ledger, place, kept))
        if kept:
            look("participations", lambda: _participations(ledger, kept))
            look("noise", lambda: _noise(ledger, path, kept, noise_of))
    simulated = ledger.first["row_keys"] == "simulated"
    guarantee = found[0] if found else None
    return Verdict(tuple(checks), ledger.finished is not None, simulated, ledger.head, guarantee)


class Unknown(Exception):
    """This cannot be checked here."""


def _chain(ledger: Ledger, path: Path) -> str:
    if ledger.torn:
        # A crash while a line was written leaves its beginning, and the release that the line was to be of.
        waiting = release_path(path / "releases", ledger.rounds)
        meant = canonical(read_release(waiting)[0]) + b"\n" if waiting.is_file() else b""
        if any(
            byte not in (0, due) for byte, due in zip(ledger.torn, meant.ljust(len(ledger.torn), b"?"), strict=False)
        ):
            raise Refused(f"Line {len(ledger.lines) + 1} of the ledger is damaged; restore the ledger from a copy.")
        return f"{len(ledger.lines)} lines, and one that a crash cut short: resume the run to complete it"
    return f"{len(ledger.lines)} lines, each intact and continuing the one before"


def _order(ledger: Ledger) -> str:
    spent, released, burnt = 0, 0, 0
    for number, line in enumerate(ledger.lines, start=1):
        if line["kind"] == "release" and line["round"] != spent:
            raise Refused(f"Line {number} releases round {line['round']}, where round {spent} was due.")
        if line["kind"] == "burnt" and line["round"] > spent:
            raise Refused(f"Line {number} burns round {line['round']}, where round {spent} was due.")
        if line["kind"] == "checkpoint" and line["rounds"] != spent:
            raise Refused(f"Line {number} is a checkpoint after {line['rounds']} rounds, when {spent} were made.")
        if line["kind"] in ("release", "burnt"):
            spent = max(spent, line["round"] + 1)
        released += line["kind"] == "release"
        burnt += line["kind"] == "burnt"
    most = most_rounds(ledger.first["description"])
    if spent > most:
        raise Refused(f"{spent} rounds were made, where {most} were the most.")
    return f"{released} releases, in order, one for each row; {burnt} rows burnt"


def _terms(ledger: Ledger, path: Path) -> str:
    description = ledger.first["description"]
    for name, due in ledger.first["documents"].items():
        if not (path / name).is_file() or digest((path / name).read_bytes()) != due:
            raise Refused(f"{name} is not the one the run began with; restore it from a copy.")
    mechanism, norm, grid = description["mechanism_digest"], description["clip_norm"], description["grid"]
    restarts = description["accounting"].get("restarts", ())
    values = None
    for line in ledger.of_kind("release"):
        where = f"The release of round {line['round']}"
        if line["mechanism"] != mechanism:
            raise Refused(f"{where} is of another mechanism than the run's.")
        if line["values"] != (values := values or line["values"]):
            raise Refused(f"{where} has {line['values']} values, where those before it have {values}.")
        if (line["clip_norm"], line["grid"]) != (norm, grid) and line["round"] not in restarts:
            raise Refused(f"{where} changes the clip norm or the grid, where the mechanism does not restart.")
        norm, grid = line["clip_norm"], line["grid"]
    return "one mechanism; clip norm and grid change nowhere but at restarts; run.toml is the run's"


def _releases(ledger: Ledger, path: Path) -> str:
    lines = {line["round"]: line for line in ledger.of_kind("release")}
    burnt = {line["round"] for line in ledger.of_kind("burnt")}
    there = release_rounds(path / "releases")
    for round in there:
        line, _ = read_release(release_path(path / "releases", round))
        waiting = round == ledger.rounds and not ledger.finished
        if line != lines.get(round) and not (waiting and line["previous"] == ledger.head):
            raise Refused(f"The release file of round {round} is not what the ledger says was released.")
    if ledger.first["release_at"] == "checkpoint":
        return "released with the checkpoints"
    newest = max((line["rounds"] for line in ledger.of_kind("checkpoint")), default=0)
    needed = {round for round in lines if ledger.first["keep_releases"] or round >= newest} - burnt
    missing = sorted(needed - set(there))
    if missing:
        raise Refused(f"The release file of round {missing[0]} is missing ({len(missing)} are in all).")
    return f"{len(there)} files, each what the ledger says was released"


def _clip_norms(ledger: Ledger, path: Path) -> str:
    description: Line = ledger.first["description"]
    lines = {line["round"]: line for line in ledger.of_kind("release")}
    burnt = {line["round"] for line in ledger.of_kind("burnt")}
    there = set(release_rounds(path / "releases"))
    known = ledger.rounds
    if is_adaptive(description):
        # What was released before a restart decides the norm after it.
        known = min((round for round in lines if round not in there and round not in burnt), default=known)

    def counts() -> Iterator[tuple[int | None, float]]:
        for round in range(known):
            counted = is_adaptive(description) and round in lines and round not in burnt
            payload = read_release(release_path(path / "releases", round))[1] if counted else b""
            place = -1 - metrics_entries(description)
            terms: Line = lines.get(round, description)
            yield int(np.frombuffer(payload, "<i4")[place]) if counted else None, terms["grid"]

    checked = 0
    for round, due in enumerate(norms_due(description, counts())):
        if round in lines and not math.isclose(lines[round]["clip_norm"], due.active, rel_tol=1e-9):
            raise Refused(
                f"Round {round} was clipped to {lines[round]['clip_norm']:.6g}, where what was released before it makes "
                f"{due.active:.6g}: the norm came from elsewhere, and what it tells is not accounted for."
            )
        checked += 1
    if checked < ledger.rounds:
        raise Unknown(f"the norms after round {checked} follow from releases that are not kept")
    return "each follows from what was released before it" if is_adaptive(description) else "each is the one planned"


def _checkpoints(ledger: Ledger, path: Path) -> str:
    recorded = {line["rounds"]: line for line in ledger.of_kind("checkpoint")}
    there = rounds_of(path / "checkpoints")
    for rounds in there:
        manifest = read_manifest(path / "checkpoints" / f"{rounds:08d}")
        if rounds in recorded and recorded[rounds]["digest"] != digest(canonical(manifest)):
            raise Refused(f"The checkpoint after {rounds} rounds is not the one in the ledger.")
        if rounds not in recorded and (ledger.finished or rounds < ledger.rounds):
            raise Refused(f"The checkpoint after {rounds} rounds is not in the ledger.")
    return f"{len(there)} there, each what the ledger says was stored"


def _end(ledger: Ledger) -> str:
    if not ledger.finished:
        raise Unknown(f"not finished: {ledger.rounds} of {most_rounds(ledger.first['description'])} rounds so far")
    due = enforced(ledger.first["description"], ledger.rounds)
    if {key: ledger.finished[key] for key in due} != due:
        raise Refused(f"The last line states {ledger.finished}, where the run gives {due}.")
    return (
        f"states {due['rounds']} rounds, separation {due['min_separation']}, participations {due['max_participations']}"
    )


def _guarantee(ledger: Ledger, guarantee_of: GuaranteeOf | None, found: list[Any]) -> str:
    if guarantee_of is None:
        raise Unknown("there is no accountant here to compute it")
    if not ledger.rounds:
        raise Unknown("nothing was released yet")
    description = ledger.first["description"]
    if "estimate" in description:
        raise Unknown(f"there is none, the run is an estimate: {description['estimate']}")
    if description["accounting"]["noise_multiplier"] == 0:
        raise Unknown("there is none, no noise was added: epsilon is infinite")
    simulated = ledger.first["row_keys"] == "simulated"
    guarantee = guarantee_of(accounting_of(description, ledger.rounds, simulated), description["delta"])
    found.append(guarantee)
    stated = f"epsilon {guarantee['epsilon']:.4g} at delta {description['delta']:.4g}, from the ledger alone"
    return f"SIMULATED, it protects nobody: {stated}" if simulated else stated


def _row_keys(ledger: Ledger, place: Path, kept: list[Intent]) -> str:
    intents = list(Secrets.open(place, ledger.first["run"], Files()).intents())
    newest = {intent.round: intent for intent in intents}
    hashes: dict[str, int] = {line["hash"]: number for number, line in enumerate(ledger.lines)}
    for number, line in enumerate(ledger.lines):
        if line["kind"] not in ("release", "burnt"):
            continue
        intent = newest.get(line["round"])
        if intent is None or intent.attempt != line["attempt"]:
            raise Refused(f"Round {line['round']} was released without an intent, or after a later attempt was begun.")
        if hashes.get(intent.previous, number) >= number:
            raise Refused(f"The intent of round {line['round']} was written for another ledger than this.")
    keys = [intent.row_key for intent in intents]
    if ledger.first["row_keys"] != "simulated" and len(set(keys)) < len(keys):
        again = next(intent for number, intent in enumerate(intents) if intent.row_key in keys[:number])
        raise Refused(f"Round {again.round} used the row key of an earlier attempt or round: noise was used twice.")
    kept.extend(intents)
    return f"{len(intents)} intents" + (
        ", all with keys of their own" if ledger.first["row_keys"] != "simulated" else ""
    )


def _participations(ledger: Ledger, intents: list[Intent]) -> str:
    if not all(intent.integers for intent in intents):
        raise Unknown("cohorts are not lists of user numbers")
    what = occurred(counting(intents, ledger.lines))
    check_participations(what, enforced(ledger.first["description"], ledger.rounds))
    stated, planted = ledger.finished, simulated_users(ledger.first["description"])
    if stated and planted and stated.get("simulated_users") != of_simulated(counting(intents, ledger.lines), planted):
        raise Refused("The last line does not state when the simulated users took part, as the intents record it.")
    if not zero_out(ledger.first["description"]):
        return "within what was enforced"
    if stated and (stated["largest_participation"], stated["smallest_separation"]) != (
        what.largest,
        what.smallest_separation,
    ):
        raise Refused("The last line does not state the participations that the intents record.")
    return f"at most {what.largest} of one user, the closest {what.smallest_separation} rounds apart"


def _noise(ledger: Ledger, path: Path, intents: list[Intent], noise_of: NoiseOf | None) -> str:
    if noise_of is None:
        raise Unknown("noise cannot be made here; install the extra 'train'")
    lines = {line["round"]: line for line in ledger.of_kind("release")}
    there = [round for round in release_rounds(path / "releases") if round in lines]
    if not there:
        raise Unknown("no release files are left to hold the noise against")
    newest = {intent.round: intent for intent in intents}
    description = ledger.first["description"]
    longest, metrics = longest_contribution(description), metrics_entries(description)
    noises = noise_of(description, _rows(ledger, newest, lines, there[-1] + 1), _size(lines))
    for round, noise in zip(range(there[-1] + 1), noises, strict=True):
        if round not in there:
            continue
        line, payload = read_release(release_path(path / "releases", round))
        sums = (np.frombuffer(payload, "<i4").astype(np.int64) - noise).astype(np.int32)
        if (np.abs(sums[: zero_coordinates(description)]) > LAST_DIGITS).any():
            raise Refused(
                f"The noise of round {round}, made again, is not what was released in coordinates that nobody moves: "
                "other noise was released than the keys claim, or something was added to them."
            )
        most = newest[round].contributions
        _explained(round, "sum", sums[: len(sums) - metrics], line["grid"], most * line["clip_norm"] * longest)
        if metrics:
            _explained(round, "sum of metrics", sums[-metrics:], description["metrics"]["grid"], float(most))
    return f"made again for {len(there)} releases, each leaves a sum that its cohort can explain"


def _explained(round: int, what: str, sums: np.ndarray, unit: float, most: float) -> None:
    norm = unit * float(np.linalg.norm(sums.astype(np.float64)))
    if norm > most:
        raise Refused(
            f"The noise of round {round}, made again, leaves a {what} of norm {norm:.4g}, where its cohort can explain "
            f"{most:.4g} at most: other noise was released than the keys claim."
        )


def _rows(ledger: Ledger, newest: dict[int, Intent], lines: dict[int, Line], rounds: int) -> Iterator[Row]:
    terms: Line = ledger.first["description"]
    for round in range(rounds):
        terms = lines.get(round, terms)
        yield Row(round, newest[round].row_key, terms["clip_norm"], terms["grid"])


def _size(lines: dict[int, Line]) -> int:
    return next(iter(lines.values()))["values"]
