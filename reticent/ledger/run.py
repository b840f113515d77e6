"""The run directory and the release protocol.

A round is released in this order, each step durable before the next:

1. `begin`: the intent (round, attempt, row key, cohort), in the secrets directory;
2. `write_release`: the noised sum, as a file of the run directory;
3. `write_line`: its line in the ledger;
4. the model takes the release; from time to time `checkpoint`.

A step that fails ends the work with this object: nothing can be released after it, and `resume` finds out from the two
directories what was. For models above 256 MB the checkpoint is the release point: steps 2 and 3 wait in memory for it.
"""

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from reticent.errors import Refused
from reticent.ledger.checkpoints import Checkpoint, Writer, checkpoint_body, read_checkpoint, rounds_of, write_half
from reticent.ledger.description import check_description, enforced, most_rounds, simulated_users, zero_out
from reticent.ledger.durable import Files
from reticent.ledger.lines import NOTHING_BEFORE, Ledger, Line, canonical, digest, sealed
from reticent.ledger.lock import Lock
from reticent.ledger.metrics import Metrics
from reticent.ledger.participations import check, counting, occurred, of_simulated
from reticent.ledger.releases import read_release, release_head, release_path, release_rounds
from reticent.ledger.secrets import Intent, Secrets, cohort_bytes, place_of_secrets

if TYPE_CHECKING:
    from reticent.ledger.verify import Verdict

ReleasePoint = Literal["round", "checkpoint"]
LARGE_MODEL_BYTES = 256 * 2**20
OURS = {"run.toml", "mechanism.npz", "ledger.jsonl", "metrics.jsonl", "releases", "checkpoints", ".unfinished", ".lock"}


def release_point(parameters: int) -> ReleasePoint:
    """Where releases of a model of this many parameters happen: every round, or above 256 MB with each checkpoint."""
    return "checkpoint" if 4 * parameters > LARGE_MODEL_BYTES else "round"


class RunDirectory:
    """A run that this process works on, and nobody else (it holds the locks). Made by `create` and `resume`."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self.files = files
        self.releases = path / "releases"
        self.checkpoints = path / "checkpoints"
        self.unfinished = path / ".unfinished"
        self.ledger_path = path / "ledger.jsonl"
        self.metrics = Metrics(path / "metrics.jsonl", files)
        self.lines: list[Line] = []
        self.waiting: list[Line] = []  # released in memory, to leave the process with the next checkpoint
        self.next_round = 0
        self.attempts: dict[int, int] = {}  # of rounds that were begun and not released: the next attempt
        self.intent: Intent | None = None
        self.stopped: str | None = None
        self.secrets: Secrets
        self._locks = [Lock(path)]

    @classmethod
    def create(
        cls,
        path: str | Path,
        description: dict[str, Any],
        run_file: str,
        *,
        mechanism_file: bytes | None = None,
        secrets: str | Path | None = None,
        release_at: ReleasePoint = "round",
        keep_releases: bool = True,
        exposed: bool = False,
        simulated_row_seed: int | None = None,
        files: Files | None = None,
    ) -> "RunDirectory":
        """Begins a run: makes its two directories and the first line of its ledger.

        `description` is all that the guarantee is computed from (see `reticent.ledger.description`); `run_file` the
        resolved run file, kept as `run.toml`; `mechanism_file` a saved mechanism, kept as `mechanism.npz`, where the
        description's header is not all of it (families that hold a matrix); `secrets` the folder in which the run's
        secrets directory is made; `exposed` says that updates leave devices before a release does, so that abandoned
        rounds count too. With `simulated_row_seed` row keys come from that seed: the run repeats exactly, protects
        nobody, and says so.
        """
        files = files or Files()
        path = Path(path).absolute()
        check_description(description)
        if (path / "ledger.jsonl").exists():
            raise Refused(f"{path} holds a run already; resume it with --resume, or give another directory with --out.")
        if path.is_dir() and not {entry.name for entry in path.iterdir()} <= OURS:
            raise Refused(f"{path} holds other files; give a new or empty directory with --out.")
        run_id = os.urandom(16).hex()
        place = place_of_secrets(run_id, secrets)
        if place.resolve().is_relative_to(path.resolve()):
            raise Refused(f"The secrets must not lie in the run directory {path}; give another place with --secrets.")
        for folder in reversed([folder for folder in (path, *path.parents) if not folder.is_dir()]):
            files.make_directory(folder)
        run = cls(path, files)
        try:
            documents = {"run.toml": run_file.encode(), "mechanism.npz": mechanism_file}
            first = {
                "kind": "run",
                "run": run_id,
                "row_keys": "operating system" if simulated_row_seed is None else "simulated",
                "release_at": release_at,
                "keep_releases": keep_releases,
                "exposed": exposed,
                "documents": {name: digest(content) for name, content in documents.items() if content is not None},
                "description": description,
                "previous": NOTHING_BEFORE,
            }
            run._make(first, place, documents, simulated_row_seed)
        except BaseException:
            run.close()
            raise
        return run

    def _make(
        self, first: dict[str, Any], place: Path, documents: dict[str, bytes | None], simulated_row_seed: int | None
    ) -> None:
        for folder, mode in ((self.releases, 0o755), (self.checkpoints, 0o755), (self.unfinished, 0o700)):
            self.files.make_directory(folder, mode)
        self.files.empty_directory(self.unfinished)
        self.secrets = Secrets.create(place, first["run"], simulated_row_seed, self.files)
        self._locks.append(Lock(place))
        for name, content in documents.items():
            if content is not None:
                self.files.write_file(self.path / name, content, by_way_of=self.unfinished, replace=True)
        self.replace_ledger([sealed(first)])

    @property
    def first(self) -> Line:
        return self.lines[0]

    @property
    def run_id(self) -> str:
        return self.first["run"]

    @property
    def description(self) -> dict[str, Any]:
        return self.first["description"]

    @property
    def simulated(self) -> bool:
        """Whether row keys come from a seed, so that the guarantee is only a simulated one."""
        return self.first["row_keys"] == "simulated"

    @property
    def finished(self) -> bool:
        return self.lines[-1]["kind"] == "finish"

    @property
    def shown_rounds(self) -> int:
        """Rounds that have left the process: no metric, evaluation or export of a later state may be written."""
        return self.next_round - len(self.waiting)

    @contextlib.contextmanager
    def _step(self, what: str) -> Iterator[None]:
        if self.stopped:
            raise Refused(f"This run stopped while {self.stopped}; resume it: what was released is found out then.")
        try:
            yield
        except BaseException:
            self.stopped = what
            raise

    def begin(self, cohort: Sequence[int] | bytes, contributions: int | None = None) -> Intent:
        """Step 1. From its return on, the cohort's members count as having taken part if anything can have left.

        `cohort`: the users, as numbers, or as bytes where they have none; `contributions`: the largest number of
        clipped vectors in the sum, where it is not one for each member. The row key is fresh for every attempt.
        """
        if self.finished:
            raise Refused("This run is finished; training on is a new run, its guarantee composed with this one's.")
        if self.next_round >= most_rounds(self.description):
            raise Refused(f"All {most_rounds(self.description)} rounds of this run were made; finish it.")
        if self.intent is not None:
            raise Refused(f"Round {self.intent.round} was begun; release, burn or abandon it before the next.")
        round = self.next_round
        with self._step(f"writing the intent of round {round}"):
            intent = Intent(
                round=round,
                attempt=self.attempts.get(round, 0),
                row_key=self.secrets.row_key(round),
                cohort=cohort_bytes(cohort),
                integers=not isinstance(cohort, bytes),
                contributions=len(cohort) if contributions is None else contributions,
                exposed=self.first["exposed"],
                previous=self.lines[-1]["hash"],
            )
            self.secrets.write_intent(intent)
        self.intent = intent
        return intent

    def abandon(self, intent: Intent) -> None:
        """Gives an attempt up before anything of its sum was seen; the round is begun anew with a new row key."""
        self._check_open(intent)
        self.attempts[intent.round] = intent.attempt + 1
        self.intent = None

    def release(self, intent: Intent, payload: bytes | memoryview, clip_norm: float, grid: float) -> Line:
        """Steps 2 and 3. `payload`: the noised sum as little-endian 32-bit integers, each a multiple of `grid`."""
        line = self.write_release(intent, payload, clip_norm, grid)
        self.write_line(line)
        return line

    def write_release(self, intent: Intent, payload: bytes | memoryview, clip_norm: float, grid: float) -> Line:
        """Step 2: the release file; its return value is the line for step 3."""
        self._check_open(intent)
        payload = memoryview(payload).cast("B")
        if len(payload) == 0 or len(payload) % 4:
            raise Refused(f"A release is a vector of 32-bit integers, which {len(payload)} bytes are not.")
        line = self._chained(
            {
                "kind": "release",
                "round": intent.round,
                "attempt": intent.attempt,
                "mechanism": self.description["mechanism_digest"],
                "clip_norm": float(clip_norm),
                "grid": float(grid),
                "values": len(payload) // 4,
                "release": digest(payload),
            }
        )
        if self.first["release_at"] == "round":
            path = release_path(self.releases, intent.round)
            with self._step(f"writing the release of round {intent.round}"):
                self.files.write_file(path, release_head(line), payload, by_way_of=self.unfinished)
        return line

    def write_line(self, line: Line) -> None:
        """Step 3: the ledger line of a release."""
        with self._step(f"writing the ledger line of round {line['round']}"):
            if self.first["release_at"] == "round":
                self.files.append_to_file(self.ledger_path, canonical(line) + b"\n")
                self.lines.append(line)
            else:
                self.waiting.append(line)
        self._spent(line["round"])

    def burn(self, intent: Intent, reason: str) -> None:
        """Spends the row of a round without a release: for a sum that somebody may have seen and that cannot be
        released. The mechanism's stream moves on with the row's noise; the model takes nothing."""
        self._check_open(intent)
        self._refuse_waiting("burn a row")
        with self._step(f"burning the row of round {intent.round}"):
            self.replace_ledger([*self.lines, self._chained(burnt_body(intent.round, intent.attempt, reason))])
        self._spent(intent.round)

    def read_release(self, round: int) -> bytes:
        """The integers of a released round, checked against the ledger."""
        line, payload = read_release(release_path(self.releases, round))
        if line["round"] != round or line not in self.lines:
            raise Refused(f"The release of round {round} is not the one in the ledger; restore it from a copy.")
        return payload

    def checkpoint(self, public: Writer, secret: Writer, keep: Collection[int] = ()) -> Checkpoint:
        """Step 4: stores the state after `next_round` rounds; `public` and `secret` write the two halves.

        Each is given an empty directory. Earlier checkpoints are deleted, but for the public halves of those named in
        `keep` by their rounds; so are, unless the run keeps them, earlier releases.
        """
        if self.intent is not None:
            raise Refused(f"Round {self.intent.round} was begun; release, burn or abandon it before a checkpoint.")
        rounds, name = self.next_round, f"{self.next_round:08d}"
        with self._step(f"writing the checkpoint after {rounds} rounds"):
            if (self.checkpoints / name).is_dir():
                return read_checkpoint(self.checkpoints / name, self.secrets.checkpoint_directory / name)
            hidden, shown = self.secrets.checkpoint_directory, self.checkpoints
            write_half(hidden, rounds, secret, self.secrets.unfinished, 0o700, [], self.files)
            half_digest = write_half(shown, rounds, public, self.unfinished, 0o755, self.waiting, self.files)
            stored = Checkpoint(rounds, shown / name, hidden / name, half_digest)
            self.replace_ledger([*self.lines, *self.waiting, self._chained(checkpoint_body(rounds, half_digest))])
            self.waiting = []
            self.metrics.write(self.shown_rounds)
            self.forget_before(stored, keep)
        return stored

    def forget_before(self, checkpoint: Checkpoint | None, keep: Collection[int] | None) -> None:
        """Deletes what a durable checkpoint made unnecessary.

        Public halves are deleted only where `keep` says which of them stay. Without any
        checkpoint, what goes are secret halves whose public half a crash prevented.
        """
        rounds = checkpoint.rounds if checkpoint else -1
        for older in rounds_of(self.secrets.checkpoint_directory):
            if older != rounds:
                self.files.remove_tree(self.secrets.checkpoint_directory / f"{older:08d}", self.secrets.unfinished)
        for older in rounds_of(self.checkpoints) if keep is not None else ():
            if older < rounds and older not in keep:  # type: ignore[operator]
                self.files.remove_tree(self.checkpoints / f"{older:08d}", self.unfinished)
        if not self.first["keep_releases"]:
            older_releases = [round for round in release_rounds(self.releases) if round < rounds]
            for round in older_releases:
                self.files.unlink(release_path(self.releases, round))
            if older_releases:
                self.files.sync_directory(self.releases)

    def record(self, **values: Any) -> None:
        """Adds a line to `metrics.jsonl`: as soon as all rounds so far have been released. Never anything unnoised of
        the users trained on."""
        self.metrics.hold(self.next_round, values)
        with self._step("writing metrics"):
            self.metrics.write(self.shown_rounds)

    def finish(self) -> Line:
        """Writes the last line: what was enforced and, under zero-out adjacency, the largest participation that
        occurred; and when simulated users took part. Refuses where a user took part more often, or sooner again, than
        was to be enforced."""
        if self.finished:
            return self.lines[-1]
        if self.intent is not None:
            raise Refused(f"Round {self.intent.round} was begun; release, burn or abandon it before the end.")
        self._refuse_waiting("finish")
        schema = enforced(self.description, self.next_round)
        largest = closest = None
        simulated: dict[str, Any] = {}
        intents = list(counting(self.secrets.intents(), self.lines))
        if zero_out(self.description) and all(intent.integers for intent in intents):
            what = occurred(intents)
            check(what, schema)
            largest, closest = what.largest, what.smallest_separation
        planted = simulated_users(self.description)
        if planted and all(intent.integers for intent in intents):
            simulated["simulated_users"] = of_simulated(intents, planted)
        body = {"kind": "finish", **schema, "largest_participation": largest, "smallest_separation": closest}
        body |= simulated
        with self._step("finishing"):
            self.replace_ledger([*self.lines, self._chained(body)])
        return self.lines[-1]

    def destroy_secrets(self, verdict: "Verdict") -> None:
        """Deletes the secrets directory of a finished run, on the verdict that this very ledger holds."""
        if not self.finished or not verdict.holds or verdict.head != self.lines[-1]["hash"]:
            raise Refused("Secrets are destroyed when the run is finished and verified; run `reticent verify` first.")
        with self._step("destroying the secrets"):
            self.secrets.destroy()

    def close(self) -> None:
        """Gives the locks back."""
        for lock in self._locks:
            lock.release()
        self.stopped = self.stopped or "closed"

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open_secrets(self, place: str | Path | None) -> None:
        """Finds, checks and locks the secrets directory of the run."""
        self.secrets = Secrets.open(place_of_secrets(self.run_id, place), self.run_id, self.files)
        self._locks.append(Lock(self.secrets.directory))

    def replace_ledger(self, lines: list[Line]) -> None:
        """Writes the whole ledger anew, in one step: for lines that are no release, and for what a crash left."""
        content = Ledger(tuple(lines)).content()
        self.files.write_file(self.ledger_path, content, by_way_of=self.unfinished, replace=True)
        self.lines = lines

    def _chained(self, body: dict[str, Any]) -> Line:
        return sealed({**body, "previous": [*self.lines[-1:], *self.waiting][-1]["hash"]})

    def _spent(self, round: int) -> None:
        self.next_round = round + 1
        self.attempts.pop(round, None)
        self.intent = None

    def _check_open(self, intent: Intent) -> None:
        if intent is not self.intent:
            raise Refused(f"Attempt {intent.attempt} of round {intent.round} is not open; begin the round.")

    def _refuse_waiting(self, purpose: str) -> None:
        if self.waiting:
            raise Refused(f"{len(self.waiting)} rounds wait for a checkpoint to be released; make one, then {purpose}.")


def burnt_body(round: int, attempt: int, reason: str) -> dict[str, Any]:
    """The line of a row that was spent for nothing."""
    return {"kind": "burnt", "round": round, "attempt": attempt, "reason": reason}
