"""A run on devices, on the server: round after round through the release protocol, from the first or from where it stopped.

A round that was given up before its sum could be opened is attempted anew, with other devices: those that were in it rest.
From then on it is released, or its row of noise is burnt.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reticent.deploy.coordinator import Coordinator, Hooks, Tally
from reticent.deploy.post import Post
from reticent.deploy.preparing import setup_of
from reticent.deploy.terms import Terms
from reticent.errors import Refused
from reticent.ledger import Files, Intent, Recovery, RunDirectory, resume
from reticent.secagg import Fault, Registry
from reticent.secagg.round import MAX_ATTEMPTS
from reticent.training import state as states
from reticent.training.events import Callback, listening
from reticent.training.loop import Trained, first_params, mechanism_file
from reticent.training.rounds import Rounds
from reticent.training.setup import Progress, Setup
from reticent.training.state import State

log = logging.getLogger("reticent.server")

ASKED = "asked"


@dataclass
class Timers:
    """The server's own copy of every device's timer: the last round that each was in, and in how many. A secret."""

    terms: Terms
    last: dict[int, int] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)

    def record(self, round: int, devices: Iterable[int]) -> None:
        for device in devices:
            if self.last.get(device) != round:
                self.times[device] = self.times.get(device, 0) + 1
            self.last[device] = round

    def may_take_part(self, device: int, round: int) -> bool:
        rested = device not in self.last or round - self.last[device] >= self.terms.min_separation
        return rested and self.times.get(device, 0) < self.terms.max_participations


def deploy(
    terms: Terms,
    out: str | Path,
    registry: Registry,
    post: Post,
    *,
    callbacks: Iterable[Callback] = (),
    secrets: str | Path | None = None,
    files: Files | None = None,
    clock: Callable[[], float] = time.monotonic,
    progress: Progress = lambda stage, done: None,
) -> Trained:
    """Trains under `terms` into the run directory `out`, with the devices in `registry` that `post` reaches; verifies the
    run and writes its report. Goes on where it stopped if `out` holds this run already."""
    out = Path(out).absolute()
    setup = setup_of(terms, progress)
    _check_enough(terms, registry)
    params = first_params(setup)
    rounds = Rounds(setup, params)
    try:
        first = rounds.first_state(params)
        description = dict(terms.description)
        if (out / "ledger.jsonl").is_file():
            run, recovery = resume(out, description, terms.run_file, secrets=secrets, files=files)
        else:
            run = RunDirectory.create(
                out,
                description,
                terms.run_file,
                mechanism_file=mechanism_file(setup),
                secrets=secrets,
                release_at=setup.release_at,
                keep_releases=setup.run_file.run.keep_releases,
                exposed=True,
                files=files,
            )
            recovery = None
        with run, listening(callbacks) as told:
            for note in recovery.notes if recovery else ():
                log.info("%s", note)
            state = first if recovery is None else _recovered(setup, run, rounds, first, recovery)
            office = Coordinator(terms, registry, post, clock)
            job = _Job(setup, terms, run, rounds, state, office, told)
            if recovery is not None:
                job.settle(recovery)
            job.run_rounds()
            return job.finish(secrets)
    finally:
        rounds.close()


def _check_enough(terms: Terms, registry: Registry) -> None:
    needed = terms.invited * terms.min_separation
    if len(registry) < needed:
        raise Refused(
            f"{terms.invited} devices a round that rest for {terms.min_separation} rounds take {needed} devices, and "
            f"{len(registry)} are enrolled; enrol more, or lower population.report_goal, population.min_separation or "
            "deploy.over_selection."
        )


def _recovered(setup: Setup, run: RunDirectory, rounds: Rounds, first: State, recovery: Recovery) -> State:
    """The state after all rounds that were released."""
    import jax.numpy as jnp

    state = first
    if recovery.checkpoint is not None:
        found = recovery.checkpoint
        state = states.read(first, setup.sampler, setup.data.train.digest, found.public, found.secret)
    elif recovery.replay:
        raise Refused(f"{run.path} has releases and no checkpoint; restore its checkpoints from a copy.")
    for replay in recovery.replay:
        state = state.replace(noise=rounds.skipped(state, replay.intent.row_key))
        if not replay.burnt:
            release = np.frombuffer(run.read_release(replay.round), "<i4").astype(np.int32)
            state = rounds.served(state, jnp.asarray(release))
    return state


class _Job:
    """A run at work."""

    def __init__(
        self,
        setup: Setup,
        terms: Terms,
        run: RunDirectory,
        rounds: Rounds,
        state: State,
        office: Coordinator,
        told: tuple[Callback, ...],
    ) -> None:
        from reticent.training.evaluation import evaluator

        self.setup, self.terms, self.run, self.rounds = setup, terms, run, rounds
        self.state, self.office, self.told = state, office, told
        self.names = list(office.registry)
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.timers = Timers(terms)
        for intent in run.secrets.intents() if not run.finished else ():
            self.timers.record(intent.round, intent.members)
        people = setup.data.people
        self.evaluate = None if people is None else evaluator(setup.model, people)
        self.evaluations = [one for one in run.metrics.read() if one.get("kind") == "evaluation"]

    @property
    def best(self) -> dict[str, Any] | None:
        return max(self.evaluations, key=lambda one: one["top1"], default=None)

    def settle(self, recovery: Recovery) -> None:
        """After a crash: a round whose shares had been asked for is burnt, since its sum may have been opened."""
        for intent in recovery.abandoned:
            asked = self.run.secrets.directory / ASKED / f"{intent.round:08d}-{intent.attempt:04d}"
            if asked.exists() and intent.round == self.run.next_round:
                self._burn("the server stopped after the shares of its sum had been asked for")

    def run_rounds(self) -> None:
        facts = {**self.setup.facts(), "done": self.run.next_round, "directory": str(self.run.path)}
        self._tell("on_start", facts)
        if self.run.finished:
            return
        # From here on what a resumed run must know is durable.
        self._checkpoint()
        self._evaluate_if_due()
        while self.run.next_round < self.setup.rounds:
            self._one_round()
            done = self.run.next_round
            last = done == self.setup.rounds
            if done % self.setup.run_file.run.checkpoint_every == 0 or self._evaluation_is_due() or last:
                self._checkpoint()
            self._evaluate_if_due()

    def _one_round(self) -> None:
        """Attempts the round until it is released, or its row burnt."""
        round, began = self.run.next_round, time.perf_counter()
        self.office.tally = Tally()
        while self.run.next_round == round:
            rested = sum(self.timers.may_take_part(number, round) for number in range(len(self.names)))
            if rested < self.terms.report_goal:
                self._burn(f"only {rested} devices had rested")
            elif self.run.attempts.get(round, 0) >= MAX_ATTEMPTS:
                self._burn(f"{MAX_ATTEMPTS} attempts were given up")
            else:
                self._attempt(round)
        record: dict[str, Any] = {"kind": "round", "round": round, "seconds": time.perf_counter() - began}
        record |= {"devices": self.office.tally.facts(), "epsilon": self._epsilon(round + 1)}
        self.run.record(**record)
        self._tell("on_round", {**record, "rounds": round + 1})

    def _attempt(self, round: int) -> None:
        run = self.run
        opened: list[Intent] = []
        asked: list[bool] = []

        def begin(devices: list[str]) -> None:
            numbers = [self.numbers[name] for name in devices]
            opened.append(run.begin(numbers, contributions=self.terms.report_goal))
            self.timers.record(round, numbers)

        def ask(devices: list[str]) -> None:
            _write_asked(run, opened[0], [self.numbers[name] for name in devices])
            asked.append(True)

        attempt = self.terms.round(run.run_id, round, run.attempts.get(round, 0), os.urandom(16))
        try:
            total = self.office.attempt(attempt, run.run_id, self._eligible, self._model, Hooks(begin, ask))
        except Refused as reason:
            # Faults and aborts of the protocol; what a device is told to have done is not written down.
            log.warning("%s", f"Round {round} was given up." if isinstance(reason, Fault) else reason)
            if asked:
                self._spend(opened[0], "its sum could not be opened")
            elif opened:
                run.abandon(opened[0])
            return
        self._release(opened[0], total)

    def _release(self, intent: Intent, total: np.ndarray) -> None:
        import jax.numpy as jnp

        from reticent.privacy.clipping import Contribution

        nothing = jnp.zeros((), jnp.int32)
        sums = Contribution(jnp.asarray(total.astype(np.int32)), nothing, nothing)
        release, noise = self.rounds.noised(sums, self.state.noise, intent.row_key)
        payload = np.asarray(release).astype("<i4", copy=False)
        self.run.release(intent, payload.data, self.terms.description["clip_norm"], self.setup.grid.step)
        self.state = self.rounds.served(self.state.replace(noise=noise), release)

    def _burn(self, reason: str) -> None:
        """Spends the row of a round that nobody new is in."""
        self._spend(self.run.begin([], contributions=0), reason)

    def _spend(self, intent: Intent, reason: str) -> None:
        log.warning("Round %d is burnt: %s.", intent.round, reason)
        self.run.burn(intent, reason)
        self.state = self.state.replace(noise=self.rounds.skipped(self.state, intent.row_key))

    def _eligible(self, name: str) -> bool:
        number = self.numbers.get(name)
        return number is not None and self.timers.may_take_part(number, self.run.next_round)

    def _model(self) -> bytes:
        from jax.flatten_util import ravel_pytree

        return np.asarray(ravel_pytree(self.state.params)[0]).astype("<f4", copy=False).tobytes()

    def _epsilon(self, rounds: int) -> float | None:
        guarantee = None if self.setup.estimate else self.setup.guarantee_after(rounds)
        return None if guarantee is None else guarantee.epsilon(self.terms.description["delta"])

    def _checkpoint(self) -> None:
        digest, tokenizer = self.setup.data.train.digest, self.setup.data.train.tokenizer()
        self.run.checkpoint(
            states.writer_of_shown(self.state.shown, tokenizer),
            lambda folder: states.write_hidden(self.state, self.setup.sampler, digest, folder),
            keep=set() if self.best is None else {self.best["rounds"]},
        )

    def _evaluation_is_due(self) -> bool:
        done, every = self.run.next_round, self.setup.run_file.evaluation.every
        return self.evaluate is not None and done > 0 and (done % every == 0 or done == self.setup.rounds)

    def _evaluate_if_due(self) -> None:
        done = self.run.next_round
        if not self._evaluation_is_due() or done in {one["rounds"] for one in self.evaluations}:
            return
        assert self.evaluate
        record = {"kind": "evaluation", "round": done - 1, **self.evaluate(self.state.params)}
        self.run.record(**record)
        self.evaluations.append({**record, "rounds": done})
        self._tell("on_evaluation", self.evaluations[-1])

    def finish(self, secrets: str | Path | None) -> Trained:
        """Ends the run: its last line, the verification, the report, and then the secrets go."""
        from reticent.accounting.run import guarantee_of
        from reticent.ledger.verify import verify
        from reticent.privacy.again import noise_of
        from reticent.report import read_run, report

        run, last = self.run, self.evaluations[-1] if self.evaluations else None
        if not run.finished:
            run.record(kind="end", best_round=None if self.best is None else self.best["round"])
            run.finish()
        arrays = self.setup.mechanism.arrays()
        verdict = verify(
            run.path,
            lambda accounting, delta: guarantee_of(accounting, arrays).describe(delta),
            lambda description, rows, size: noise_of(description, rows, size, arrays),
            secrets,
        )
        written = report(read_run(run.path, verdict=verdict, secrets=secrets), secrets).write()
        if verdict.holds and not self.setup.run_file.run.keep_secrets:
            run.destroy_secrets(verdict)
        self._tell("on_end", {"rounds": run.next_round, "holds": verdict.holds, "best": self.best, "last": last})
        return Trained(run.path, verdict, last, self.best, written[0])

    def _tell(self, what: str, record: dict[str, Any]) -> None:
        for callback in self.told:
            getattr(callback, what)(record)


def _write_asked(run: RunDirectory, intent: Intent, devices: list[int]) -> None:
    """Durable before the shares of a round's sum are asked for: that they were, and whose sum it is. A secret of the run."""
    folder = run.secrets.directory / ASKED
    run.files.make_directory(folder, 0o700)
    content = json.dumps({"round": intent.round, "attempt": intent.attempt, "devices": devices}).encode()
    name = f"{intent.round:08d}-{intent.attempt:04d}"
    run.files.write_file(folder / name, content, by_way_of=run.secrets.unfinished, mode=0o600)


def summed(secrets: Path) -> dict[int, list[int]]:
    """Whose updates the sum of each round was of, by round: from a run's secrets directory."""
    found = {}
    for path in sorted((secrets / ASKED).glob("*")):
        content = json.loads(path.read_bytes())
        found[content["round"]] = content["devices"]
    return found
