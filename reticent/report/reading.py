"""A run as its directory tells it: ledger, metrics, run file, verdict, guarantee. Reads only.

Nothing here is taken from what the run meant to do: the guarantee is that of the rounds in the ledger, and no epsilon is
given for a run that does not verify, added no noise, or was a simulation.
"""

import functools
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from reticent.accounting.run import guarantee_of
from reticent.errors import Refused
from reticent.ledger.description import accounting_of, most_rounds
from reticent.ledger.lines import Ledger, read_ledger
from reticent.ledger.verify import NoiseOf, Verdict, verify

if TYPE_CHECKING:
    from reticent.accounting.guarantee import Guarantee

Record = dict[str, Any]
Standing = Literal["private", "simulated", "estimate", "no privacy", "nothing released", "broken"]

TRIES = 5


@dataclass(frozen=True)
class Run:
    """What a report or a comparison says of a run. Made by `read_run`."""

    path: Path
    ledger: Ledger
    records: tuple[Record, ...]
    run_file: str
    settings: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    verdict: Verdict

    @property
    def name(self) -> str:
        """The run's name, on one line."""
        name = self.settings.get("run", {}).get("name") or self.path.name
        return " ".join("".join(sign if sign.isprintable() else " " for sign in str(name)).split()) or "run"

    @property
    def label(self) -> str:
        """The name, with a word where all that is said of the run is an estimate."""
        return f"{self.name} (estimate)" if self.simulated else self.name

    @property
    def description(self) -> dict[str, Any]:
        return self.ledger.first["description"]

    @property
    def accounting(self) -> dict[str, Any]:
        return self.description["accounting"]

    @property
    def delta(self) -> float:
        return self.description["delta"]

    @property
    def rounds(self) -> int:
        """Rounds that were made: rows of noise that were spent."""
        return self.ledger.rounds

    @property
    def planned_rounds(self) -> int:
        return most_rounds(self.description)

    @property
    def finished(self) -> bool:
        return self.ledger.finished is not None

    @property
    def mechanism_kind(self) -> str:
        described = self.accounting["mechanism"]
        return described if isinstance(described, str) else described["kind"]

    @property
    def simulated(self) -> bool:
        """Whether noise or cohorts are not those of a real run: everything it shows is an estimate."""
        return self.ledger.first["row_keys"] == "simulated" or "estimate" in self.description

    @functools.cached_property
    def standing(self) -> Standing:
        """Whether a guarantee may be stated, and if not, why not."""
        if not self.verdict.holds:
            return "broken"
        if self.accounting["noise_multiplier"] == 0:
            return "no privacy"
        if "estimate" in self.description:
            return "estimate"
        if not self.rounds:
            return "nothing released"
        if not math.isfinite(self.epsilon_after(self.rounds)):
            return "no privacy"
        return "simulated" if self.ledger.first["row_keys"] == "simulated" else "private"

    @functools.cached_property
    def guarantee(self) -> "Guarantee | None":
        """The guarantee of the rounds that were made: of a simulated run it is labelled so; None where there is none."""
        return self.guarantee_after(self.rounds) if self.standing in ("private", "simulated") else None

    def guarantee_after(self, rounds: int) -> "Guarantee":
        """The guarantee of the first rounds of the run, had it ended there."""
        simulated = self.ledger.first["row_keys"] == "simulated"
        return guarantee_of(accounting_of(self.description, rounds, simulated), self.arrays)

    def epsilon_after(self, rounds: int, delta: float | None = None) -> float:
        return self.guarantee_after(rounds).epsilon(self.delta if delta is None else delta)

    def epsilon(self, delta: float | None = None) -> float | None:
        """Epsilon at the run's delta or another; None where nothing may be stated."""
        return self.epsilon_after(self.rounds, delta) if self.standing == "private" else None

    def estimated_epsilon(self, delta: float | None = None) -> float | None:
        """What epsilon would be, had the row keys of a simulated run been secret."""
        return self.epsilon_after(self.rounds, delta) if self.standing == "simulated" else None

    @functools.cached_property
    def adjacency(self) -> str | None:
        """The adjacency of the guarantee that the run has or would have; None where the accountant knows none."""
        try:
            return self._any_guarantee().adjacency
        except Refused:
            return None

    @functools.cached_property
    def unit(self) -> str:
        return self.guarantee.unit if self.guarantee else self.accounting.get("unit", "user")

    def _any_guarantee(self) -> "Guarantee":
        noise = self.accounting["noise_multiplier"] or 1.0
        accounting = accounting_of(self.description, max(1, self.rounds), False) | {"noise_multiplier": noise}
        return guarantee_of(accounting, self.arrays)

    @property
    def shows_cohort_sizes(self) -> bool:
        """Whether sizes of cohorts, and what gives them away, may be shown: not where sampling makes them private."""
        return self.adjacency in ("zero-out", "replace-one")

    @functools.cached_property
    def evaluations(self) -> tuple[Record, ...]:
        """Evaluations on held-out users, by rounds; the last of those after the same rounds."""
        found = {
            record["rounds"]: record
            for record in self.records
            if record.get("kind") == "evaluation" and number(record, "top1") is not None
        }
        return tuple(found[rounds] for rounds in sorted(found))

    @functools.cached_property
    def best(self) -> Record | None:
        """The evaluation of the model that was chosen: as training says; while it does not, the best top-1."""
        if not self.evaluations:
            return None
        ends = [record.get("best_round") for record in self.records if record.get("kind") == "end"]
        chosen = [one for one in self.evaluations if ends and ends[-1] is not None and one.get("round") == ends[-1]]
        return chosen[-1] if chosen else max(self.evaluations, key=lambda one: one["top1"])

    @functools.cached_property
    def clients_per_second(self) -> float | None:
        """The median over the rounds; None where it would tell the size of cohorts that are private."""
        if not self.shows_cohort_sizes:
            return None
        rates = [number(record, "clients_per_second") for record in self.records if record.get("kind") == "round"]
        known = [rate for rate in rates if rate is not None]
        return float(np.median(known)) if known else None

    def facts(self, delta: float | None = None) -> dict[str, Any]:
        """The run as one plain JSON object."""
        guarantee, at = self.guarantee, self.delta if delta is None else delta
        best, last = self.best or {}, self.evaluations[-1] if self.evaluations else {}
        return {
            "name": self.name,
            "standing": self.standing,
            "epsilon": self.epsilon(at),
            "estimated_epsilon": self.estimated_epsilon(at),
            "delta": at,
            "rho": guarantee.rho if guarantee and self.standing == "private" else None,
            "unit": self.unit,
            "adjacency": self.adjacency,
            "assumptions": list(guarantee.assumptions) if guarantee else [],
            "mechanism": self.mechanism_kind,
            "noise_multiplier": self.accounting["noise_multiplier"],
            "clip_norm": self.description["clip_norm"],
            "rounds": self.rounds,
            "planned_rounds": self.planned_rounds,
            "finished": self.finished,
            "verified": self.verdict.holds,
            "best_top1": number(best, "top1"),
            "best_rounds": best.get("rounds"),
            "unigram_top1": number(best, "unigram_top1"),
            "last_loss": number(last, "loss"),
            "clients_per_second": self.clients_per_second,
            "ledger_head": self.ledger.head,
        }


def read_run(
    directory: str | Path,
    *,
    verdict: Verdict | None = None,
    noise_of: NoiseOf | None = None,
    secrets: str | Path | None = None,
) -> Run:
    """The run in a directory; refuses one that is not there or whose ledger is damaged, naming the line.

    The run is verified, the noise of a finished one made again where `noise_of` can; or `verdict` is taken, where it is on
    this very ledger. `secrets` is the folder that the secrets directory is in.
    """
    path = Path(directory).absolute()
    if not (path / "ledger.jsonl").is_file():
        raise Refused(f"{directory} holds no run; give the directory of one.")
    ledger = read_ledger(path / "ledger.jsonl")
    arrays = _arrays(path)
    if verdict is None or verdict.head != ledger.head:
        ledger, verdict = _verified(path, ledger, arrays, noise_of, secrets)
    run_file = (path / "run.toml").read_text() if (path / "run.toml").is_file() else ""
    return Run(path, ledger, _records(path), run_file, _settings(run_file), arrays, verdict)


def _verified(
    path: Path, ledger: Ledger, arrays: Mapping[str, np.ndarray], noise_of: NoiseOf | None, secrets: str | Path | None
) -> tuple[Ledger, Verdict]:
    def guarantee(accounting: dict[str, Any], delta: float) -> dict[str, Any]:
        return guarantee_of(accounting, arrays).describe(delta)

    # A run that goes on while it is read is read again, so that the verdict is on what is reported.
    for _ in range(TRIES):
        verdict = verify(path, guarantee, noise_of if ledger.finished else None, secrets)
        now = read_ledger(path / "ledger.jsonl")
        if now.head == ledger.head:
            break
        ledger = now
    return ledger, verdict


def number(record: Mapping[str, Any], key: str) -> float | None:
    """A finite number of a record, or None."""
    value = record.get(key)
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None  # type: ignore[arg-type]


def _arrays(path: Path) -> Mapping[str, np.ndarray]:
    from reticent.mechanisms.storage import load

    return load(path / "mechanism.npz").arrays() if (path / "mechanism.npz").is_file() else {}


def _settings(run_file: str) -> dict[str, Any]:
    # A run file that is not the run's is found by `verify`; one that cannot be read tells no name.
    try:
        return tomllib.loads(run_file)
    except tomllib.TOMLDecodeError:
        return {}


def _records(path: Path) -> tuple[Record, ...]:
    """The lines of `metrics.jsonl`; what a crash, or a run that is writing, left after the last newline is no line."""
    if not (path / "metrics.jsonl").is_file():
        return ()
    *lines, _ = (path / "metrics.jsonl").read_bytes().split(b"\n")
    return tuple(_checked(lines, path / "metrics.jsonl"))


def _checked(lines: Iterable[bytes], path: Path) -> Iterable[Record]:
    for count, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or not isinstance(record.get("rounds"), int):
                raise ValueError("no metrics of a number of rounds")
        except ValueError as error:
            raise Refused(f"Line {count} of {path} is damaged ({error}); delete that line.") from None
        yield record
