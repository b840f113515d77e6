"""ULS against ELS on a generated crowd, for the same work and the same guarantee.

    python benchmarks/finetune_learning.py --out /tmp/learning

Half of Shakespeare's plays are kept from the crowd, and a small transformer is pretrained on them; then it is fine-tuned on
the crowd's people by ELS (at most the median number of examples of each) and by ULS, with the same expected number of
gradients per round. Loss is measured on people of the crowd who were not trained on. Learning rates are chosen on the first
seed, for each algorithm by itself, and that choice is not in the guarantee. A second table varies the number of users in the
accounting alone.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np

from reticent.config import parse
from reticent.data.crowd import make_crowd
from reticent.data.plays import make_plays
from reticent.data.store import Store
from reticent.finetune import work_of
from reticent.finetune.pool import make_pool
from reticent.finetune.studies import sigma
from reticent.training import train
from reticent.training.evaluation import evaluator, held_out
from reticent.training.finished import load_trained
from reticent.training.pretrain import pretrain

HALF = 18
LENGTH = 20
MODEL = {"kind": "transformer", "embedding": 32, "hidden": 64, "layers": 2, "heads": 2}
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--people", type=int, default=20_000)
    options.add_argument("--rounds", type=int, default=40)
    options.add_argument("--budget", type=int, default=1024)
    options.add_argument("--group", type=int, default=2)
    options.add_argument("--epsilon", type=float, default=1.0)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--pretraining", type=int, default=2000)
    options.add_argument("--rates", type=float, nargs="+", default=[0.03, 0.06, 0.12])
    options.add_argument("--only", choices=["els", "uls"], help="train this one and stop: to make both side by side")
    asked = options.parse_args()
    out = asked.out
    out.mkdir(parents=True, exist_ok=True)
    crowd, plays = out / "crowd", out / "plays"
    if not crowd.is_dir():
        make_crowd(crowd, people=asked.people, words=2000, seed=0, held_out=HALF)
    if not plays.is_dir():
        make_plays(plays, part="held-out", words=2000, seed=0, held_out=HALF)
    pretrained = out / "pretrained"
    if not pretrained.is_dir():
        content = {
            "run": {
                "name": "pretrained",
                "algorithm": "pretrain",
                "rounds": asked.pretraining,
                "checkpoint_every": asked.pretraining,
            },
            "data": {"store": str(plays), "sequence_length": LENGTH, "packed": True},
            "model": MODEL,
            "client": {"batch_size": 64},
            "server": {"optimizer": "adam", "learning_rate": 0.003, "warm_up": 0.05, "schedule": "cosine"},
        }
        pretrain(parse(content), pretrained)
    store = Store.open(crowd)
    counts = np.diff(make_pool(store, LENGTH, None, 0, True).starts)
    median, users = int(np.median(counts)), round(0.95 * asked.people)
    examples = round(float(np.minimum(counts, median).mean()) * users)
    print(f"crowd of {asked.people:,}, generated; {users:,} trained on; median examples {median}, pool {examples:,}")
    terms = {
        "els": {
            "data": {"max_examples_per_user": median},
            "population": {"probability": asked.budget / examples, "examples": examples},
        },
        "uls": {
            "data": {"max_examples_per_user": asked.group},
            "population": {"probability": asked.budget / asked.group / users},
        },
    }

    def run(algorithm: str, seed: int, rate: float) -> Path:
        where = out / f"{algorithm}-{seed}-{rate:g}"
        if (where / "report.md").is_file():
            return where
        content = {
            "run": {
                "name": algorithm,
                "algorithm": algorithm,
                "rounds": asked.rounds,
                "seed": seed,
                "checkpoint_every": asked.rounds,
            },
            "data": {
                "store": str(crowd),
                "sequence_length": LENGTH,
                "packed": True,
                "held_out_users": 0.05,
                **terms[algorithm]["data"],
            },
            "model": MODEL | {"checkpoint": str(pretrained)},
            "population": {"size": users, "sampler": "poisson"} | terms[algorithm]["population"],
            "mechanism": {"kind": "independent"},
            "clipping": {"norm": 0.5, "normalised": True},
            "client": {"micro_batch": 128},
            "server": {"optimizer": "sgd", "momentum": 0.9, "learning_rate": rate, "warm_up": 0.05, "cool_down": 0.3},
            "privacy": {"epsilon": asked.epsilon},
            "evaluation": {"every": asked.rounds, "users": 500},
        }
        train(parse(content), where, work_of=work_of, secrets=out / "secrets")
        return where

    def loss(where: Path) -> float:
        lines = (where / "metrics.jsonl").read_text().splitlines()
        return [one["loss"] for one in map(json.loads, lines) if one["kind"] == "evaluation"][-1]

    before: dict[int, float] = {}
    trained = load_trained(pretrained, last=True)
    for seed in range(asked.seeds):
        people = store.split(held_out_users=0.05, seed=seed).held_out_users
        before[seed] = evaluator(trained.model, held_out(people, 500, LENGTH))(trained.params)["loss"]
    rates = {}
    for algorithm in [asked.only] if asked.only else terms:
        tried = {rate: loss(run(algorithm, 0, rate)) for rate in asked.rates}
        rates[algorithm] = min(tried, key=lambda rate: tried[rate])
        print(f"{algorithm}: loss by learning rate, seed 0: {tried}", flush=True)
    if asked.only:
        for seed in range(asked.seeds):
            run(asked.only, seed, rates[asked.only])
        return
    after = {name: np.array([loss(run(name, seed, rates[name])) for seed in range(asked.seeds)]) for name in terms}
    start = np.array([before[seed] for seed in range(asked.seeds)])
    print(f"{asked.rounds} rounds, {asked.budget} gradients each, G = {asked.group} for uls, {median} for els")
    print(f"epsilon {asked.epsilon:g}, delta {users**-1.1:.3g}")
    print(f"{'seed':>4} {'pretrained':>11} {'els':>8} {'uls':>8}")
    for seed in range(asked.seeds):
        print(f"{seed:>4} {start[seed]:>11.4f} {after['els'][seed]:>8.4f} {after['uls'][seed]:>8.4f}")
    for one, other, values in (
        ("uls", "els", after["uls"] - after["els"]),
        ("els", "pretrained", after["els"] - start),
        ("uls", "pretrained", after["uls"] - start),
    ):
        half = T_95.get(asked.seeds, 2.0) * values.std(ddof=1) / math.sqrt(asked.seeds)
        print(f"{one} - {other}: {values.mean():+.4f} +- {half:.4f} (95%, paired over {asked.seeds} seeds)")
    print("\nThe number of users, varied in the accounting alone (ULDP, Fig. 5); noise is predicted for norm 1")
    print(f"{'users':>10} {'els sigma':>10} {'uls sigma':>10} {'els noise':>10} {'uls noise':>10}")
    cohort = asked.budget / asked.group
    for times in (1, 10, 100):
        own = sigma(asked.rounds, asked.budget / (examples * times), median, asked.epsilon, users**-1.1)
        theirs = sigma(asked.rounds, cohort / (users * times), 1, asked.epsilon, users**-1.1)
        print(f"{users * times:>10,} {own:>10.4f} {theirs:>10.4f} {own / asked.budget:>10.5f} {theirs / cohort:>10.5f}")


if __name__ == "__main__":
    main()
