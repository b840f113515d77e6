"""Small finished and unfinished runs with real mechanisms and the real ledger; their sums are random integers."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from reticent.config.toml import to_toml
from reticent.ledger import RunDirectory
from reticent.mechanisms import Mechanism, Participation, make
from reticent.mechanisms.storage import save, to_header

ROUNDS = 24
SEPARATION = 6
COHORT = 4
POPULATION = 32
SIZE = 8


@functools.cache
def mechanism_of(kind: str) -> Mechanism:
    return make(kind, Participation(ROUNDS, SEPARATION))


def make_run(
    path: Path,
    *,
    kind: str = "blt-400",
    name: str = "a run",
    until: int = ROUNDS,
    finish: bool = True,
    noise_multiplier: float = 3.0,
    participation: dict[str, Any] | None = None,
    evaluate_every: int = 4,
    simulated_row_seed: int | None = None,
    accounting: dict[str, Any] | None = None,
    **described: Any,
) -> Path:
    """A run of `kind` in `path`/run, its secrets in `path`/secrets."""
    mechanism = mechanism_of(kind)
    description = {
        "accounting": {
            "rounds": ROUNDS,
            "noise_multiplier": noise_multiplier,
            "mechanism": to_header(mechanism),
            "participation": participation or {"kind": "deterministic", "min_separation": SEPARATION},
            **(accounting or {}),
        },
        "mechanism_digest": mechanism.digest,
        "delta": 1e-6,
        "clip_norm": 0.5,
        "grid": 2.0**-10,
        **described,
    }
    held = path / "mechanism.npz"
    path.mkdir(parents=True, exist_ok=True)
    if mechanism.arrays():
        save(mechanism, held)
    run_file = to_toml({"run": {"name": name, "rounds": ROUNDS}, "data": {"store": "crowd"}})
    with RunDirectory.create(
        path / "run",
        json.loads(json.dumps(description)),
        run_file,
        mechanism_file=held.read_bytes() if held.exists() else None,
        secrets=path / "secrets",
        simulated_row_seed=simulated_row_seed,
    ) as run:
        rng = np.random.default_rng(3)
        for round in range(until):
            # Everybody eight rounds apart: three times in all.
            intent = run.begin([(round * COHORT + member) % POPULATION for member in range(COHORT)])
            run.release(intent, rng.integers(-1000, 1000, SIZE).astype("<i4").tobytes(), 0.5, 2.0**-10)
            rounds = round + 1
            run.record(kind="round", round=round, rounds=rounds, seconds=0.5, clients_per_second=8.0, epsilon=None)
            if rounds % evaluate_every == 0:
                run.record(**evaluation(rounds))
        if until == ROUNDS and finish:
            run.record(kind="end", best_round=ROUNDS - 1, rounds=ROUNDS)
            run.finish()
    return path / "run"


def evaluation(rounds: int) -> dict[str, Any]:
    top1 = 0.06 * (1 - 2.0 ** (-rounds / 6))
    return {
        "kind": "evaluation",
        "round": rounds - 1,
        "rounds": rounds,
        "loss": 6 - 20 * top1,
        "perplexity": float(np.exp(6 - 20 * top1)),
        "top1": top1,
        "top1_in_vocabulary": 1.1 * top1,
        "top3": 2 * top1,
        "targets": 5000,
        "users": 40,
        "unigram_top1": 0.032,
    }
