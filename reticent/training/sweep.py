"""Sweeps: the same run file with other values, run after run, to choose by.

Choosing looks at many runs, and what is chosen tells of all of them. On public or generated text that costs nothing. On
private text it is paid for (`accounted`): the number of runs is drawn in secret, each tries values at random, and of all of
them only the best is ever shown (`accounting.tuning`).
"""

import itertools
import json
import math
import os
import random
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reticent.accounting.guarantee import Guarantee
from reticent.accounting.run import guarantee_of
from reticent.accounting.statement import statement
from reticent.accounting.tuning import tuned
from reticent.config import RunFile, load, resolved
from reticent.config.reading import KEYS, parse
from reticent.errors import Refused
from reticent.files import write_atomically
from reticent.ledger.durable import Files
from reticent.ledger.lines import read_ledger
from reticent.ledger.metrics import Metrics
from reticent.report import read_run
from reticent.training.loop import train
from reticent.training.work import WorkOf, federated

# BandMF, App. I: log(rate) = -0.95 log(error) - 4.64, on a grid of powers of 1.7.
SLOPE, OFFSET, STEP = -0.95, -4.64, 1.7
AUTO = "auto"
GENERATED = ("crowd", "plays", "changelogs")
# A model this much worse than the best is as good, where noise for fewer reports is looked for (Gboard, Sec. 2.5).
AS_GOOD = 0.02

Row = dict[str, Any]


@dataclass(frozen=True)
class Axis:
    """A key of the run file and the values it takes."""

    key: str
    values: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> "Axis":
        """From what a user types: `clipping.norm=0.3,1,3`. Commas within brackets or quotes separate nothing."""
        key, equals, values = text.partition("=")
        key = key.strip()
        if not equals or not values.strip():
            raise Refused(f"A grid is written table.key=value,value, as in clipping.norm=0.3,1; got {text!r}.")
        if key not in KEYS:
            parse({}, (f"{key}=0",))  # says which key was meant
        return cls(key, tuple(_split(values)))


def _split(values: str) -> list[str]:
    parts, depth, quoted, start = [], 0, False, 0
    for place, sign in enumerate(values):
        quoted ^= sign == '"'
        depth += (sign in "[{") - (sign in "]}")
        if sign == "," and not quoted and depth == 0:
            parts.append(values[start:place].strip())
            start = place + 1
    return [*parts, values[start:].strip()]


def is_public(run_file: RunFile) -> bool:
    """Whether nobody's privacy is at stake in what a run trains on, as far as can be told: text that is generated or known
    to everybody."""
    return run_file.data.store in GENERATED


def starting_rate(run_file: RunFile, work_of: WorkOf = federated) -> float:
    """The server learning rate to begin a search with, from the noise in the model (BandMF, App. I): the regression is that
    of StackOverflow's model and SGD with momentum 0.95, and a start elsewhere."""
    from reticent.training.setup import prepare

    setup = prepare(run_file, work_of=work_of)
    rounds = run_file.run.rounds
    errors = setup.mechanism.errors(rounds)
    error = math.sqrt(float((errors**2).mean())) * setup.noise_multiplier / setup.work.denominator
    if not error:
        raise Refused("Without noise there is no error to take a learning rate from; give the rates themselves.")
    return STEP ** round((SLOPE * math.log(error) + OFFSET) / math.log(STEP))


def points(
    run_file: str | Path,
    axes: Sequence[Axis],
    overrides: Iterable[str] = (),
    work_of: Callable[[RunFile], WorkOf] = lambda run_file: federated,
) -> list[tuple[RunFile, Row]]:
    """The run files of a grid, each checked, with what sets it apart. The rate `auto` is three: the start, and a step of
    1.7 either way."""
    keys = [axis.key for axis in axes]
    if not axes:
        raise Refused("A sweep needs at least one --grid, as in --grid clipping.norm=0.3,1,3.")
    if not load(run_file, overrides).private:
        raise Refused(
            "A sweep is of runs with a ledger, which 'pretrain' has none of; train each with `reticent train`."
        )
    if len(set(keys)) < len(keys):
        raise Refused(f"A key has one --grid; {next(key for key in keys if keys.count(key) > 1)} has several.")
    found = []
    for values in itertools.product(*(axis.values for axis in axes)):
        chosen = dict(zip(keys, values, strict=True))
        fixed = [f"{key}={value}" for key, value in chosen.items() if value != AUTO]
        if AUTO not in values:
            found.append((load(run_file, [*overrides, *fixed]), chosen))
            continue
        if chosen.get("server.learning_rate") != AUTO or values.count(AUTO) > 1:
            raise Refused("Only server.learning_rate can be 'auto'; give the values of the other keys.")
        first = load(run_file, [*overrides, *fixed])
        rate = starting_rate(first, work_of(first))
        for near in (rate / STEP, rate, rate * STEP):
            named = {**chosen, "server.learning_rate": f"{near:.4g}"}
            given = [f"{key}={value}" for key, value in named.items()]
            found.append((load(run_file, [*overrides, *given]), named))
    return found


def sweep(
    found: Sequence[tuple[RunFile, Row]],
    out: str | Path,
    *,
    public: bool = False,
    work_of: Callable[[RunFile], WorkOf] = lambda run_file: federated,
    secrets: str | Path | None = None,
    callbacks: Callable[[Row], Iterable[Any]] = lambda chosen: (),
    progress: Callable[[str, float], None] = lambda stage, done: None,
) -> list[Row]:
    """Makes every run of a grid in a directory of its own under `out`, those that are there already no second time and
    those that were interrupted to their end; returns a row for each. For text that is generated, or that you say is
    `public`."""
    out = Path(out).absolute()
    for run_file, _ in found:
        if not public and not is_public(run_file):
            raise Refused(
                f"{run_file.data.store!r} may be private, and a choice among runs on it tells of all of them; sweep on "
                "generated text, say that it is --public, or pay for the choice with --accounted."
            )
    _keep_plan(out, found)
    rows = []
    for number, (run_file, chosen) in enumerate(found):
        place = out / f"{number:03d}"
        if not _finished(place):
            begun = (place / "ledger.jsonl").is_file()
            train(
                run_file,
                place,
                work_of=work_of(run_file),
                going_on=begun,
                secrets=secrets,
                callbacks=callbacks(chosen),
                progress=progress,
            )
        rows.append({"run": place.name, **chosen, **outcome(place)})
        write_atomically(out / "sweep.json", (json.dumps({"runs": rows}, indent=1) + "\n").encode())
    return rows


def _keep_plan(out: Path, found: Sequence[tuple[RunFile, Row]]) -> None:
    """A directory belongs to one sweep."""
    out.mkdir(parents=True, exist_ok=True)
    plan = json.dumps([[chosen, resolved(run_file)] for run_file, chosen in found], indent=1).encode()
    kept = out / "plan.json"
    if kept.is_file() and kept.read_bytes() != plan:
        raise Refused(f"{out} holds another sweep; give a new directory with --out, or the same run file and grids.")
    if not kept.is_file():
        if any(out.iterdir()):
            raise Refused(f"{out} holds other files; give a new or empty directory with --out.")
        write_atomically(kept, plan)


def _finished(place: Path) -> bool:
    return (place / "report.html").is_file() and read_ledger(place / "ledger.jsonl").finished is not None


def outcome(place: Path) -> Row:
    """What a finished run is chosen by."""
    facts = read_run(place).facts()
    records = Metrics(place / "metrics.jsonl", Files()).read()
    tracked = [one["tracked_norm"] for one in records if "tracked_norm" in one]
    row = {
        "top1": facts["best_top1"],
        "loss": facts["last_loss"],
        "epsilon": facts["epsilon"],
        "noise_multiplier": facts["noise_multiplier"],
        "report_goal": tomllib.loads((place / "run.toml").read_text()).get("population", {}).get("report_goal"),
    }
    return row | ({"clip_norm_found": tracked[-1]} if tracked else {})


def best_of(rows: Iterable[Row]) -> Row | None:
    """The row with the highest top-1."""
    return max((row for row in rows if row["top1"] is not None), key=lambda row: row["top1"], default=None)


def noise_for_plan(rows: Sequence[Row]) -> Row | None:
    """The most noise for each report that costs next to nothing: the largest noise_multiplier / report_goal with a top-1
    within 2% of the best. `reticent plan` scales both up together. None where noise was not varied."""
    known = [row for row in rows if row["top1"] is not None and row["report_goal"]]
    if len({row["noise_multiplier"] / row["report_goal"] for row in known}) < 2:
        return None
    best = max(row["top1"] for row in known)
    usable = [row for row in known if row["top1"] >= (1 - AS_GOOD) * best]
    return max(usable, key=lambda row: row["noise_multiplier"] / row["report_goal"])


def accounted(
    found: Sequence[tuple[RunFile, Row]],
    out: str | Path,
    mean_runs: float,
    *,
    work_of: Callable[[RunFile], WorkOf] = lambda run_file: federated,
    secrets: str | Path | None = None,
    progress: Callable[[str, float], None] = lambda stage, done: None,
) -> Row:
    """The best of a random number of runs at random points of a grid, and a guarantee for all of them and the choice.

    The number is drawn from a Poisson distribution with this mean and never shown; the other runs are made where secrets are
    and deleted. It can be zero: then nothing is published. Cannot be resumed: what is left of it is deleted.
    """
    out = Path(out).absolute()
    if out.exists():
        raise Refused(f"{out} exists; give a new directory with --out.")
    source = random.SystemRandom()
    each, delta = _common(found, work_of)
    promise = tuned(each, mean_runs)
    place = Path(secrets or os.environ.get("RETICENT_SECRETS") or tempfile.gettempdir())
    place.mkdir(parents=True, exist_ok=True)
    hidden = Path(tempfile.mkdtemp(dir=place))
    best: tuple[float, Path, Row] | None = None
    try:
        for number in range(_poisson(source, mean_runs)):
            run_file, chosen = source.choice(list(found))
            trained = train(run_file, hidden / str(number), work_of=work_of(run_file), secrets=hidden / "keys")
            score = trained.best["top1"] if trained.best else -math.inf
            if best is None or score > best[0]:
                best = (score, trained.path, chosen)
        if best is None:
            return {"chosen": None, **promise.describe(delta)}
        text = statement(promise, delta=delta, name=best[1].name).markdown()
        for written in ("report.html", "report.md"):
            # They state the guarantee of one run, which is not that of the best of several.
            (best[1] / written).unlink(missing_ok=True)
        (best[1] / "statement.md").write_text(text)
        shutil.copytree(best[1], out)
        return {"chosen": best[2], "directory": str(out), "top1": best[0], **promise.describe(delta)}
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _common(found: Sequence[tuple[RunFile, Row]], work_of: Callable[[RunFile], WorkOf]) -> tuple[Guarantee, float]:
    """The guarantee that each run of a grid has: the weakest. Refuses runs that promise different things."""
    from reticent.training.setup import prepare

    setups = [prepare(run_file, work_of=work_of(run_file)) for run_file, _ in found]
    deltas = {setup.description["delta"] for setup in setups}
    guarantees = [setup.guarantee for setup in setups]
    if None in guarantees or len({(one.adjacency, one.unit) for one in guarantees if one}) > 1 or len(deltas) > 1:
        raise Refused(
            "A choice that is paid for is among runs with noise, of one delta, adjacency and unit of privacy."
        )
    delta = deltas.pop()
    weakest = max(setups, key=lambda setup: setup.guarantee.epsilon(delta) if setup.guarantee else math.inf)
    return guarantee_of(weakest.description["accounting"], weakest.mechanism.arrays()), delta


def _poisson(source: random.Random, mean: float) -> int:
    """A Poisson number, by the times of a process of rate 1."""
    count, time = 0, source.expovariate(1.0)
    while time < mean:
        count, time = count + 1, time + source.expovariate(1.0)
    return count
