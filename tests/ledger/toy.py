"""A toy run with the real protocol: its model is the sum of its releases, its noise a stream with a memory."""

import hashlib
import json
from pathlib import Path

import numpy as np

from reticent.ledger import Files, RunDirectory, resume

SIZE = 5
CLIP_NORM = 1.0
GRID = 2**-10
POPULATION = 12
SEPARATION = 3
COHORT = 3


def description(rounds: int = 6, **changes) -> dict:
    accounting = {
        "rounds": rounds,
        "noise_multiplier": 2.0,
        "mechanism": "independent",
        "participation": {"kind": "deterministic", "min_separation": SEPARATION},
    }
    return {
        "accounting": accounting,
        "mechanism_digest": "0" * 64,
        "delta": 1e-6,
        "clip_norm": CLIP_NORM,
        "grid": GRID,
    } | changes


def cohort_of(round: int) -> list[int]:
    """Three of twelve people in turn: each takes part every fourth round."""
    return [(round * COHORT + member) % POPULATION for member in range(COHORT)]


def sum_of(round: int) -> np.ndarray:
    """What the cohort's clipped updates add up to, on the grid: within its norm."""
    rng = np.random.default_rng([7, round])
    updates = rng.normal(size=(COHORT, SIZE))
    updates *= CLIP_NORM / np.linalg.norm(updates, axis=1, keepdims=True)
    return np.trunc(updates / GRID).astype(np.int64).sum(axis=0)


def fresh_noise(row_key: bytes) -> np.ndarray:
    rng = np.random.default_rng(np.frombuffer(hashlib.sha256(row_key).digest(), np.uint32))
    return np.rint(rng.normal(scale=2.0 * CLIP_NORM / GRID, size=SIZE)).astype(np.int64)


class Toy:
    """Model and noise state: the noise of a round depends on all earlier rows, as a BLT's does."""

    def __init__(self) -> None:
        self.model = np.zeros(SIZE, np.int64)
        self.buffer = np.zeros(SIZE, np.int64)
        self.taken: list[int] = []

    def noise(self, row_key: bytes) -> np.ndarray:
        row = fresh_noise(row_key) - self.buffer // 3
        self.buffer = self.buffer // 2 + row
        return row

    def take(self, round: int, release: bytes) -> None:
        self.model += np.frombuffer(release, "<i4")
        self.taken.append(round)

    def save(self, run: RunDirectory) -> None:
        run.checkpoint(
            public=lambda folder: (folder / "model.json").write_text(json.dumps([self.model.tolist(), self.taken])),
            secret=lambda folder: (folder / "buffer.json").write_text(json.dumps(self.buffer.tolist())),
        )

    def load(self, public: Path, secret: Path) -> None:
        model, self.taken = json.loads((public / "model.json").read_text())
        self.model = np.array(model, np.int64)
        self.buffer = np.array(json.loads((secret / "buffer.json").read_text()), np.int64)


def noise_of(description: dict, rows, size: int):
    """Makes the noise again, for `verify`."""
    toy = Toy()
    for row in rows:
        yield toy.noise(row.row_key)


def train(run: RunDirectory, toy: Toy, checkpoint_every: int = 2, until: int | None = None) -> Toy:
    """Rounds as training makes them, to the end of the run or to a round."""
    rounds = run.description["accounting"]["rounds"]
    for round in range(run.next_round, rounds if until is None else until):
        intent = run.begin(cohort_of(round))
        release = (sum_of(round) + toy.noise(intent.row_key)).astype("<i4").tobytes()
        run.release(intent, release, CLIP_NORM, GRID)
        toy.take(round, release)
        run.record(model=toy.model.tolist())
        if (round + 1) % checkpoint_every == 0 or round + 1 == rounds:
            toy.save(run)
    if until is None:
        run.finish()
    return toy


def start(path: Path, secrets: Path, *, rounds: int = 6, files: Files | None = None, **options) -> RunDirectory:
    options.setdefault("simulated_row_seed", 5)
    return RunDirectory.create(path, description(rounds), "seed = 1\n", secrets=secrets, files=files, **options)


def take_up(path: Path, secrets: Path, files: Files | None = None) -> tuple[RunDirectory, Toy]:
    """Resumes as training does: load, replay, go on."""
    run, recovery = resume(path, secrets=secrets, files=files)
    toy = Toy()
    try:
        if recovery.checkpoint:
            toy.load(recovery.checkpoint.public, recovery.checkpoint.secret)
        for replay in recovery.replay:
            toy.noise(replay.intent.row_key)
            if not replay.burnt:
                toy.take(replay.round, run.read_release(replay.round))
    except BaseException:
        run.close()
        raise
    return run, toy


def begin_or_take_up(path: Path, secrets: Path, files: Files | None = None, **options) -> tuple[RunDirectory, Toy]:
    if (path / "ledger.jsonl").exists():
        return take_up(path, secrets, files)
    return start(path, secrets, files=files, **options), Toy()
