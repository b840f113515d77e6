"""`train`: round after round through the release protocol, from the first or from where a crash left it."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from reticent.accounting.run import guarantee_of
from reticent.config import RunFile, differences, load, resolved
from reticent.config.checks import RANDOM_SIZES
from reticent.errors import Refused
from reticent.ledger import Recovery, RunDirectory, resume
from reticent.ledger.durable import Files
from reticent.ledger.lines import read_ledger
from reticent.ledger.verify import Verdict, verify
from reticent.models import Model
from reticent.models.kinds import HUGGINGFACE
from reticent.training import state as states
from reticent.training.cluster import Cluster
from reticent.training.distributed import DistributedRounds, agree_on, leading
from reticent.training.evaluation import evaluator
from reticent.training.events import Callback, listening
from reticent.training.rounds import Rounds
from reticent.training.setup import Progress, Setup, prepare
from reticent.training.state import State
from reticent.training.swamped import warning
from reticent.training.work import WorkOf, federated

Auditor = Callable[[Path, Verdict, str | Path | None], bool]
"""From a run's directory, the verdict on it and the folder of its secrets, whether its claim stands."""


@dataclass(frozen=True)
class Trained:
    """A finished run: where it is, the verdict on it, its last and its best evaluation (None: nobody to evaluate on)."""

    path: Path
    verdict: Verdict
    last: dict[str, Any] | None
    best: dict[str, Any] | None
    report: Path


def train(
    run_file: RunFile,
    out: str | Path,
    *,
    model: Model | None = None,
    work_of: WorkOf = federated,
    callbacks: Iterable[Callback] = (),
    going_on: bool = False,
    secrets: str | Path | None = None,
    files: Files | None = None,
    auditor: Auditor | None = None,
    progress: Progress = lambda stage, done: None,
    cluster: Cluster | None = None,
) -> Trained:
    """Trains what a run file asks for into the run directory `out`, verifies it and writes its report.

    `model` takes the place of the built-in ones; `work_of` is the algorithm, devices' rounds unless another is given
    (`reticent.finetune.work_of` for "els", "uls" and "dpsgd"); `going_on` resumes a run where it stopped, in whatever
    instant that was; `secrets` is the folder that its secrets directory is made in, and removed from when the run is
    finished and verified; an `auditor` (`reticent.audit.attack.at_the_end`) sees the run before that, and where it finds
    anything, the secrets stay. With a `cluster` this process leads it; the others `follow` (`training.distributed`).
    """
    out = Path(out).absolute()
    with (
        listening(callbacks) as told,
        leading(cluster),
        _begun(run_file, out, model, work_of, going_on, secrets, files, progress, cluster) as begun,
    ):
        job = _Job(begun, told)
        job.run_rounds()
        return job.finish(secrets, auditor)


@dataclass(frozen=True)
class _Begun:
    """A run that this process holds, and the state to go on from."""

    setup: Setup
    run: RunDirectory
    rounds: Rounds
    state: State
    warning: str | None


@contextmanager
def _begun(
    run_file: RunFile,
    out: Path,
    model: Model | None,
    work_of: WorkOf,
    going_on: bool,
    secrets: str | Path | None,
    files: Files | None,
    progress: Progress,
    cluster: Cluster | None,
) -> Iterator[_Begun]:
    if cluster is not None:
        agree_on(run_file, cluster, progress)
    stored, arrays = _stored(run_file, out) if going_on else (None, None)
    setup = prepare(run_file, model=model, work_of=work_of, stored=stored, arrays=arrays, progress=progress)
    progress("compiling", 0.0)
    params = first_params(setup)
    if cluster is None:
        rounds = Rounds(setup, params)
    else:
        cluster.tell({"do": "begin", "description": dict(setup.description)}, setup.mechanism.arrays())
        rounds = DistributedRounds(setup, params, cluster)
    try:
        first = rounds.first_state(params)
        if going_on:
            run, recovery = resume(out, dict(setup.description), resolved(run_file), secrets=secrets, files=files)
        else:
            run, recovery = _create(setup, out, secrets, files), None
        with run:
            state = rounds.placed(first) if recovery is None else _recovered(setup, run, rounds, first, recovery)
            if not run.finished:
                # From here on the sampler's key is durable: without it a resumed run would draw other cohorts.
                _checkpoint(setup, run, rounds.local(state), ())
                rounds.compile(rounds.at(state, run.next_round))
            yield _Begun(setup, run, rounds, state, warning(setup, params))
    finally:
        rounds.close()


def _stored(run_file: RunFile, out: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The description that a run began with, and the matrices of its mechanism; refuses another run file."""
    from reticent.mechanisms.storage import load as load_mechanism

    if not (out / "ledger.jsonl").is_file():
        raise Refused(f"{out} holds no run to resume; start it without --resume.")
    changed = differences(load(out / "run.toml"), run_file)
    if changed:
        raise Refused(
            f"{out} is a run of another run file ({'; '.join(changed)}); resume it with its own, {out / 'run.toml'}, or "
            "start a new run in another directory."
        )
    held = out / "mechanism.npz"
    return read_ledger(out / "ledger.jsonl").first["description"], (
        load_mechanism(held).arrays() if held.is_file() else {}
    )


def _create(setup: Setup, out: Path, secrets: str | Path | None, files: Files | None) -> RunDirectory:
    table = setup.run_file.run
    return RunDirectory.create(
        out,
        dict(setup.description),
        resolved(setup.run_file),
        mechanism_file=mechanism_file(setup),
        secrets=secrets,
        release_at=setup.release_at,
        keep_releases=table.keep_releases,
        simulated_row_seed=table.simulated_row_seed,
        files=files,
    )


def mechanism_file(setup: Setup) -> bytes | None:
    """The run's mechanism as a file, where its header in the ledger is not all of it."""
    import tempfile

    if not setup.mechanism.arrays():
        return None
    base = getattr(setup.mechanism, "base", setup.mechanism)
    with tempfile.TemporaryDirectory() as folder:
        base.save(Path(folder, "mechanism.npz"))
        return Path(folder, "mechanism.npz").read_bytes()


def first_params(setup: Setup) -> Any:
    """The parameters before round 0: of the checkpoint to start from, or initialised by the run's seed."""
    table = setup.run_file.model
    if table.checkpoint is None or table.kind == HUGGINGFACE:
        return setup.model.begin(jax.random.key(setup.run_file.run.seed))
    from reticent.training.finished import params_to_start_from

    return params_to_start_from(Path(table.checkpoint), setup.model, setup.data.train.tokenizer())


def _recovered(setup: Setup, run: RunDirectory, rounds: Rounds, first: State, recovery: Recovery) -> State:
    """The state after all rounds that were released, bit for bit that of a process that made them."""
    state, digest = first, setup.data.train.digest
    if recovery.checkpoint is not None:
        state = states.read(first, setup.sampler, digest, recovery.checkpoint.public, recovery.checkpoint.secret)
    elif recovery.replay:
        raise Refused(f"{run.path} has releases and no checkpoint; restore its checkpoints from a copy.")
    state = rounds.placed(state)
    for replay in recovery.replay:
        state = rounds.at(state, replay.round)
        cohort, sampler = setup.cohort(state.sampler, replay.round)
        if sorted(cohort.tolist()) != sorted(replay.intent.members):
            raise Refused(
                f"The intent of round {replay.round} names another cohort than the sampler draws; restore it."
            )
        state = state.replace(noise=rounds.skipped(state, replay.intent.row_key), sampler=sampler)
        if not replay.burnt:
            release = np.frombuffer(run.read_release(replay.round), "<i4").astype(np.int32)
            state = rounds.served(state, jnp.asarray(release))
    return state


def _checkpoint(setup: Setup, run: RunDirectory, state: State, keep: Iterable[int]) -> None:
    digest, tokenizer = setup.data.train.digest, setup.data.train.tokenizer()
    run.checkpoint(
        states.writer_of_shown(state.shown, tokenizer, state.norms),
        lambda folder: states.write_hidden(state, setup.sampler, digest, folder),
        keep=set(keep),
    )


class _Job:
    """A run at work."""

    def __init__(self, begun: _Begun, told: tuple[Callback, ...]) -> None:
        self.setup, self.run, self.rounds, self.state = begun.setup, begun.run, begun.rounds, begun.state
        self.warning = begun.warning
        self.told = told
        self.every = self.setup.run_file.evaluation.every
        people = self.setup.data.people
        self.evaluate = None if people is None else evaluator(self.setup.model, people)
        self.evaluations = [one for one in self.run.metrics.read() if one.get("kind") == "evaluation"]
        table = self.setup.run_file.population
        # Where the size of a cohort is random it is private, and so are the times of rounds, which are then not written.
        self.times_are_told = table is not None and table.sampler not in RANDOM_SIZES

    @property
    def best(self) -> dict[str, Any] | None:
        return max(self.evaluations, key=lambda one: one["top1"], default=None)

    def run_rounds(self) -> None:
        facts = {
            **self.setup.facts(),
            "warning": self.warning,
            "done": self.run.next_round,
            "directory": str(self.run.path),
        }
        self._tell("on_start", facts)
        if self.run.finished:
            return
        self._evaluate_if_due()
        while self.run.next_round < self.setup.rounds:
            self._one_round()
            done = self.run.next_round
            if (
                done % self.setup.run_file.run.checkpoint_every == 0
                or self._evaluation_is_due()
                or done == self.setup.rounds
            ):
                state = self.rounds.local(self.state)
                _checkpoint(self.setup, self.run, state, [] if self.best is None else [self.best["rounds"]])
            # After its checkpoint, so that a model too large to be released every round was released.
            self._evaluate_if_due()

    def _one_round(self) -> None:
        began = time.perf_counter()
        round = self.run.next_round
        cohort, sampler = self.setup.cohort(self.state.sampler, round)
        self.state = self.rounds.at(self.state, round)
        intent = self.run.begin(cohort.tolist(), len(cohort) * self.setup.work.each)
        sums = self.rounds.sum_of(self.state, cohort, round)
        release, noise = self.rounds.noised(sums, self.state.noise, intent.row_key)
        payload = np.asarray(release).astype("<i4", copy=False)
        terms = self.rounds.terms
        self.run.release(intent, payload.data, terms.clipping.norm, terms.grid.step)
        self.state = self.rounds.served(self.state.replace(noise=noise, sampler=sampler), release)
        seconds = time.perf_counter() - began
        record: dict[str, Any] = {"kind": "round", "round": round, **self.rounds.told(self.state, payload)}
        if self.times_are_told:
            record |= {"seconds": seconds, "clients_per_second": len(cohort) / seconds}
            record["epsilon"] = self._epsilon(round + 1)
        self.run.record(**record)
        self._tell("on_round", {**record, "rounds": round + 1})

    def _epsilon(self, rounds: int) -> float | None:
        guarantee = None if self.setup.estimate else self.setup.guarantee_after(rounds)
        return None if guarantee is None else guarantee.epsilon(self.setup.description["delta"])

    def _evaluation_is_due(self) -> bool:
        done = self.run.next_round
        return self.evaluate is not None and done > 0 and (done % self.every == 0 or done == self.setup.rounds)

    def _evaluate_if_due(self) -> None:
        done = self.run.next_round
        if (
            self.evaluate is None
            or not self._evaluation_is_due()
            or done in {one["rounds"] for one in self.evaluations}
        ):
            return
        record = {"kind": "evaluation", "round": done - 1, **self.evaluate(self.rounds.params(self.state))}
        self.run.record(**record)
        self.evaluations.append({**record, "rounds": done})
        self._tell("on_evaluation", self.evaluations[-1])

    def finish(self, secrets: str | Path | None, auditor: Auditor | None) -> Trained:
        """Ends the run: its last line, the verification, the audit, the report, and then the secrets go."""
        from reticent.privacy.again import noise_of
        from reticent.report import read_run, report

        run, last = self.run, self.evaluations[-1] if self.evaluations else None
        if not run.finished:
            end = {"kind": "end", "best_round": None if self.best is None else self.best["round"]}
            run.record(**end)
            run.finish()
        arrays = self.setup.mechanism.arrays()
        verdict = verify(
            run.path,
            lambda accounting, delta: guarantee_of(accounting, arrays).describe(delta),
            lambda description, rows, size: noise_of(description, rows, size, arrays),
            secrets,
        )
        sound = auditor is None or auditor(run.path, verdict, secrets)
        written = report(read_run(run.path, verdict=verdict, secrets=secrets), secrets).write()
        if verdict.holds and sound and not self.setup.run_file.run.keep_secrets:
            run.destroy_secrets(verdict)
        self._tell("on_end", {"rounds": run.next_round, "holds": verdict.holds, "best": self.best, "last": last})
        return Trained(run.path, verdict, last, self.best, written[0])

    def _tell(self, what: str, record: dict[str, Any]) -> None:
        for callback in self.told:
            getattr(callback, what)(record)
