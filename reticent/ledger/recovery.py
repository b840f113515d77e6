"""Resuming a run: what the two directories say was released, and what is to be done about it.

- A release file without its line: the sum left the process. It is adopted: its line is written.
- A line without its file: the row is burnt. The stream moves on, the row's noise made again from its key; the model
  takes nothing for it.
- Neither: nothing was released. The round is done anew, as a new attempt with a new row key.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reticent.errors import Refused
from reticent.ledger.checkpoints import Checkpoint, checkpoint_body, read_checkpoint, rounds_of
from reticent.ledger.description import difference, plain
from reticent.ledger.durable import Files
from reticent.ledger.lines import Ledger, Line, canonical, digest, read_ledger
from reticent.ledger.releases import read_release, release_path, release_rounds
from reticent.ledger.run import RunDirectory, burnt_body
from reticent.ledger.secrets import Intent, finish_destroying, place_of_secrets

LOST = "its release file was lost before the model had taken it"


@dataclass(frozen=True)
class Replay:
    """A spent row that the state to start from does not have yet. Its noise is made again from the intent's row key, so
    that the mechanism moves on; the model takes `RunDirectory.read_release(round)`, or nothing where it is burnt."""

    round: int
    intent: Intent
    clip_norm: float
    grid: float
    burnt: bool


@dataclass(frozen=True)
class Recovery:
    """Where to go on from: the state to load (None: the run's beginning), the rows to replay, in order, and the intents
    of attempts that released nothing. `notes` tell people what was found."""

    checkpoint: Checkpoint | None
    replay: tuple[Replay, ...]
    abandoned: tuple[Intent, ...]
    notes: tuple[str, ...]


def resume(
    path: str | Path,
    description: dict[str, Any] | None = None,
    run_file: str | None = None,
    *,
    secrets: str | Path | None = None,
    files: Files | None = None,
) -> tuple[RunDirectory, Recovery]:
    """Takes a run up where it stopped, in whatever instant that was; refuses one of another configuration.

    `description` and `run_file`, if given, must be those the run was created with. Resuming may itself be killed and
    done again. A finished run is returned too, for what remains to be done with it.
    """
    path = Path(path).absolute()
    if not (path / "ledger.jsonl").is_file():
        raise Refused(f"{path} holds no run to resume; start it without --resume.")
    run = RunDirectory(path, files or Files())
    try:
        return run, _recover(run, description, run_file, secrets)
    except BaseException:
        run.close()
        raise


def _recover(
    run: RunDirectory, description: dict[str, Any] | None, run_file: str | None, place: str | Path | None
) -> Recovery:
    ledger = read_ledger(run.ledger_path)
    run.lines = list(ledger.lines)
    _check_configuration(run, description, run_file)
    if ledger.finished and not place_of_secrets(run.run_id, place).is_dir():
        finish_destroying(place_of_secrets(run.run_id, place), run.files)
        raise Refused(f"The run in {run.path} is finished and its secrets are destroyed: nothing is left to be done.")
    run.open_secrets(place)
    for unfinished in (run.unfinished, run.secrets.unfinished):
        run.files.make_directory(unfinished, 0o700)
        run.files.empty_directory(unfinished)
    intents = list(run.secrets.intents())
    notes: list[str] = []
    ledger = _adopt_checkpoint(run, ledger, notes)
    ledger = _adopt_release(run, ledger, intents, notes)
    _check_secrets(run, ledger, intents)
    checkpoint = _newest_checkpoint(run)
    first = checkpoint.rounds if checkpoint else 0
    ledger = _burn_lost(run, ledger, first, notes)
    # Written anew whether changed or not: after a failed fsync the old file may be whole only in memory.
    run.replace_ledger(list(ledger.lines))
    for folder in (run.releases, run.checkpoints, run.secrets.intent_directory, run.secrets.checkpoint_directory):
        run.files.sync_directory(folder)
    run.next_round = ledger.rounds
    run.metrics.recover(run.unfinished)
    run.forget_before(checkpoint, keep=None)
    abandoned = tuple(intent for intent in intents if intent.round >= run.next_round)
    for intent in abandoned:
        run.attempts[intent.round] = max(run.attempts.get(intent.round, 0), intent.attempt + 1)
    if abandoned:
        notes.append(f"Round {run.next_round} was begun and not released: it is done anew, as a new attempt.")
    return Recovery(checkpoint, _replays(ledger, intents, first), abandoned, tuple(notes))


def _check_configuration(run: RunDirectory, description: dict[str, Any] | None, run_file: str | None) -> None:
    if description is not None:
        found = difference(run.description, plain(description))
        if found:
            raise Refused(
                f"{run.path} is a run of another configuration ({found}); resume it with the run file it was started "
                f"with, {run.path / 'run.toml'}, or start a new run in another directory."
            )
    if run_file is not None and digest(run_file.encode()) != run.first["documents"]["run.toml"]:
        raise Refused(
            f"{run.path} is a run of another run file; resume it with its own, {run.path / 'run.toml'}, or start a new "
            f"run in another directory."
        )


def _adopt_checkpoint(run: RunDirectory, ledger: Ledger, notes: list[str]) -> Ledger:
    """Writes the line of a checkpoint that is there without it, with the lines of the rounds that it released."""
    recorded = {line["rounds"] for line in ledger.of_kind("checkpoint")}
    for rounds in rounds_of(run.checkpoints):
        if rounds in recorded:
            continue
        name = f"{rounds:08d}"
        found = read_checkpoint(run.checkpoints / name, run.secrets.checkpoint_directory / name)
        lines: tuple[Line, ...] = found.lines
        if ledger.rounds + len(lines) != rounds or (lines and lines[0]["previous"] != ledger.head):
            raise Refused(f"The checkpoint {run.checkpoints / name} is not of this run; remove it and resume.")
        ledger = Ledger((*ledger.lines, *lines), ledger.torn).with_line(checkpoint_body(rounds, found.digest))
        notes.append(f"The checkpoint after {rounds} rounds was complete and is adopted.")
    return ledger


def _adopt_release(run: RunDirectory, ledger: Ledger, intents: list[Intent], notes: list[str]) -> Ledger:
    """Writes the line of a release that is there without it, and accounts for what a crash left at the ledger's end."""
    adopted = b""
    for round in (round for round in release_rounds(run.releases) if round >= ledger.rounds):
        path = release_path(run.releases, round)
        line, _ = read_release(path)
        attempts = [intent.attempt for intent in intents if intent.round == round]
        if round != ledger.rounds or line["previous"] != ledger.head or line["attempt"] != max(attempts, default=-1):
            raise Refused(f"The release {path} does not continue this ledger; it is of another copy of the run.")
        ledger = Ledger((*ledger.lines, line), ledger.torn)
        adopted = canonical(line) + b"\n"
        notes.append(f"The release of round {round} was complete and is adopted.")
    # What is after the last newline is the beginning of the line that was being written (a file system may have left
    # zeros for what it did not write): the adopted release's, since all other lines are written in one step.
    torn = ledger.torn
    if len(torn) > len(adopted) or any(byte not in (0, meant) for byte, meant in zip(torn, adopted, strict=False)):
        raise Refused(
            f"Line {len(ledger.lines) + 1 - bool(adopted)} of {run.ledger_path} is damaged (it is not the beginning of "
            f"the line that was to follow); restore the ledger from a copy."
        )
    return Ledger(ledger.lines)


def _check_secrets(run: RunDirectory, ledger: Ledger, intents: list[Intent]) -> None:
    """Refuses secrets that went another way than this run directory: rows would be spent twice."""
    hashes = {line["hash"] for line in ledger.lines}
    spent = {line["round"]: line["attempt"] for line in ledger.lines if line["kind"] in ("release", "burnt")}
    newest = {intent.round: intent.attempt for intent in intents}
    ahead = [intent.round for intent in intents if intent.previous not in hashes]
    if ahead:
        raise Refused(
            f"The secrets in {run.secrets.directory} know a round {max(ahead)} that this ledger leads up to no more: "
            f"another copy of the run went on with them. Resume that copy."
        )
    for round, attempt in spent.items():
        if newest.get(round) != attempt:
            found = "no row key" if round not in newest else "another attempt"
            raise Refused(
                f"The secrets in {run.secrets.directory} have {found} for round {round}, which this ledger has spent: "
                f"they are of another copy of the run, or incomplete."
            )


def _newest_checkpoint(run: RunDirectory) -> Checkpoint | None:
    """The newest checkpoint with both halves there, checked."""
    both = set(rounds_of(run.checkpoints)) & set(rounds_of(run.secrets.checkpoint_directory))
    if not both:
        return None
    name = f"{max(both):08d}"
    return read_checkpoint(run.checkpoints / name, run.secrets.checkpoint_directory / name)


def _burn_lost(run: RunDirectory, ledger: Ledger, first: int, notes: list[str]) -> Ledger:
    """Marks the rows whose releases were lost before the model had taken them."""
    recorded = max((line["rounds"] for line in ledger.of_kind("checkpoint")), default=0)
    burnt = {line["round"] for line in ledger.of_kind("burnt")}
    there = set(release_rounds(run.releases))
    lost = [
        line
        for line in ledger.of_kind("release")
        if line["round"] >= first and line["round"] not in burnt and line["round"] not in there
    ]
    if lost and recorded > first:
        raise Refused(
            f"The checkpoint after {recorded} rounds is lost, and so are releases before it; restore "
            f"{run.checkpoints / f'{recorded:08d}'} and its secret half from a copy."
        )
    for line in lost:
        ledger = ledger.with_line(burnt_body(line["round"], line["attempt"], LOST))
        notes.append(f"The release of round {line['round']} is lost: its row is burnt, the model goes on without it.")
    return ledger


def _replays(ledger: Ledger, intents: list[Intent], first: int) -> tuple[Replay, ...]:
    burnt = {line["round"] for line in ledger.of_kind("burnt")}
    spent = {line["round"]: line for line in ledger.lines if line["kind"] in ("burnt", "release")}
    released: dict[int, Line] = {line["round"]: line for line in ledger.of_kind("release")}
    by_attempt = {(intent.round, intent.attempt): intent for intent in intents}
    replays = []
    for round in range(first, ledger.rounds):
        # A row burnt before its release has no norm of its own; nothing of it reaches the model.
        terms: Line = released.get(round) or ledger.first["description"]
        intent = by_attempt[round, spent[round]["attempt"]]
        replays.append(Replay(round, intent, terms["clip_norm"], terms["grid"], round in burnt))
    return tuple(replays)
