"""Learning at equal privacy: tables of accuracy on `crowd`, paired over seeds. Goes on where it was interrupted.

    python benchmarks/learning.py [mechanisms] [clipping] [pretraining] [--out DIR] [--seeds N] [--rounds N] [--goal N]

`mechanisms`: BLT, BandMF, tree and independent noise at epsilon 4 and equal rounds, cohorts and learning rates, no
amplification. `clipping`: adaptive clipping from a norm ten times too small against the fixed norm that is best of a few.
`pretraining`: half of the plays first, and the rounds that it saves. A difference is told with its 95% interval (Student's t
on pairs of the same seed: the same people, initialisation and evaluation). Every run is a whole private run with its ledger,
in DIR/runs. The server's learning rate is chosen for each mechanism beforehand, on other seeds, from a few.
"""

import argparse
import json
import math
import statistics
from pathlib import Path

from scipy.stats import t as student

from reticent.config import parse
from reticent.ledger.lines import read_ledger
from reticent.report import read_run

KINDS = {"blt": {"buffers": 3}, "banded": {}, "tree": {}, "independent": {}}
RATES = (0.3, 0.6, 1.2)
TUNING_SEED = 1000


def settings(asked, seed, kind="blt", rate=1.2, epsilon=4.0, **tables):
    """The run file of one run; `tables` are merged into it."""
    people = asked.goal * asked.separation
    content = {
        "run": {"name": f"{kind}, seed {seed}", "rounds": asked.rounds, "checkpoint_every": asked.rounds, "seed": seed},
        "data": {
            "store": "crowd", "people": people, "generation_seed": 0, "sequence_length": 20, "packed": True,
            "max_tokens_per_user": asked.tokens,
        },
        "model": {"kind": "lstm", "vocabulary": 2004, "embedding": 32, "hidden": 64},
        "population": {"size": people, "report_goal": asked.goal, "min_separation": asked.separation},
        "mechanism": {"kind": kind, **KINDS[kind]},
        "clipping": {"norm": 1.0},
        "client": {"batch_size": 16, "learning_rate": 6.0},
        "server": {"learning_rate": rate, "momentum": 0.9},
        "privacy": {"epsilon": epsilon},
        "evaluation": {"every": asked.every, "store": "plays", "users": 150},
    }  # fmt: skip
    for name, table in tables.items():
        content[name] = {key: value for key, value in {**content[name], **table}.items() if value is not None}
    return parse(content)


def made(asked, name, run_file):
    """The evaluations of a run, by rounds; made if it is not there yet."""
    from reticent.training import train

    place = asked.out / "runs" / name
    begun = (place / "ledger.jsonl").is_file()
    if not begun or read_ledger(place / "ledger.jsonl").finished is None:
        print(f"  {name} ...", flush=True)
        train(run_file, place, going_on=begun, secrets=asked.out / "secrets")
    run = read_run(place)
    assert run.verdict.holds
    return {one["rounds"]: one["top1"] for one in run.evaluations}


def last(evaluations):
    return evaluations[max(evaluations)]


def interval(pairs):
    """The mean of the differences, and half the width of its 95% interval."""
    differences = [left - right for left, right in pairs]
    if len(differences) < 2:
        return differences[0], math.inf
    spread = statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.mean(differences), float(student.ppf(0.975, len(differences) - 1)) * spread


def verdict(pairs):
    mean, half = interval(pairs)
    told = "above" if mean > half else "below" if mean < -half else "not told apart"
    return f"{100 * mean:+.2f} points, 95% interval +-{100 * half:.2f}: {told}"


def rate_for(asked, kind):
    """The server learning rate that is best on another seed."""
    if len(asked.rates) == 1:
        return asked.rates[0]
    scores = {
        rate: last(made(asked, f"rate-{kind}-{rate}", settings(asked, TUNING_SEED, kind, rate))) for rate in asked.rates
    }
    return max(scores, key=scores.get)


def mechanisms(asked):
    accuracy, rates = {}, {kind: rate_for(asked, kind) for kind in KINDS}
    for seed in range(asked.seeds):
        for kind, rate in rates.items():
            found = made(asked, f"{kind}-seed-{seed}", settings(asked, seed, kind, rate))
            accuracy.setdefault(kind, []).append(last(found))
    print(f"\nTop-1 after {asked.rounds} rounds of {asked.goal} people at epsilon 4, {asked.seeds} seeds")
    for kind, values in accuracy.items():
        each = ", ".join(f"{value:.2%}" for value in values)
        print(f"  {kind:<12} {statistics.mean(values):.2%}  server rate {rates[kind]:g}  ({each})")
    for better, worse in (("blt", "tree"), ("tree", "independent"), ("blt", "independent"), ("blt", "banded")):
        print(f"  {better} less {worse}: {verdict(list(zip(accuracy[better], accuracy[worse], strict=True)))}")
    ratio = statistics.mean(accuracy["blt"]) / statistics.mean(accuracy["banded"])
    print(f"  blt over banded: {ratio:.3f}")
    return {"rates": rates, "top1": accuracy}


def clipping(asked):
    rate = rate_for(asked, "blt")
    norms = {
        norm: last(made(asked, f"norm-{norm}", settings(asked, TUNING_SEED, rate=rate, clipping={"norm": norm})))
        for norm in (0.3, 1.0, 3.0)
    }
    best = max(norms, key=norms.get)
    restarts = [asked.rounds * part // 8 for part in (1, 2, 3, 4)]
    fixed, adaptive = [], []
    for seed in range(asked.seeds):
        fixed.append(
            last(made(asked, f"fixed-{best}-seed-{seed}", settings(asked, seed, rate=rate, clipping={"norm": best})))
        )
        tables = {
            "mechanism": {"restarts": restarts},
            "clipping": {"norm": best / 10, "quantile": 0.5, "quantile_learning_rate": asked.norm_rate},
        }
        adaptive.append(last(made(asked, f"adaptive-seed-{seed}", settings(asked, seed, rate=rate, **tables))))
    print(f"\nAdaptive clipping from {best / 10:g} with restarts at {restarts}, the fixed norm being {best:g}")
    print(f"  fixed {statistics.mean(fixed):.2%}, adaptive {statistics.mean(adaptive):.2%}")
    print(f"  adaptive over fixed: {statistics.mean(adaptive) / statistics.mean(fixed):.3f}")
    print(f"  adaptive less fixed: {verdict(list(zip(adaptive, fixed, strict=True)))}")
    return {"norm": best, "fixed": fixed, "adaptive": adaptive}


def pretraining(asked):
    from reticent.training.pretrain import pretrain

    rate, saved = rate_for(asked, "blt"), []
    begin = asked.out / "pretrained"
    if not (begin / "metrics.jsonl").is_file() or '"kind":"evaluation"' not in (begin / "metrics.jsonl").read_text():
        steps = asked.pretraining
        table = {"name": "plays", "algorithm": "pretrain", "rounds": steps, "checkpoint_every": steps}
        pretrain(
            parse(
                {
                    "run": table,
                    "data": {"store": "plays", "sequence_length": 20, "packed": True},
                    "model": {"kind": "lstm", "vocabulary": 2004, "embedding": 32, "hidden": 64},
                    "client": {"batch_size": 64},
                    "server": {"optimizer": "adam", "learning_rate": 0.003},
                    "evaluation": {"every": steps, "store": "plays", "users": 150},
                }
            ),
            begin,
        )
    for seed in range(asked.seeds):
        plain = made(asked, f"blt-seed-{seed}", settings(asked, seed, rate=rate))
        begun = made(
            asked, f"pretrained-seed-{seed}", settings(asked, seed, rate=rate, model={"checkpoint": str(begin)})
        )
        goal = last(plain)
        reached = min((rounds for rounds, top1 in begun.items() if top1 >= goal), default=None)
        saved.append({"top1": goal, "rounds": max(plain), "pretrained": reached, "pretrained_top1": last(begun)})
    print("\nRounds to the accuracy that a run without pretraining ends with")
    for seed, one in enumerate(saved):
        print(f"  seed {seed}: {one['top1']:.2%} after {one['rounds']} rounds; pretrained after {one['pretrained']}")
    return saved


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = {"mechanisms": mechanisms, "clipping": clipping, "pretraining": pretraining}
    parser.add_argument("tables", nargs="*", choices=[*tables, []], default=list(tables))
    parser.add_argument("--out", type=Path, default=Path("learning"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--goal", type=int, default=400)
    parser.add_argument("--separation", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=1_600, help="of one person in a round")
    parser.add_argument("--every", type=int, default=10, help="rounds between evaluations")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--norm-rate", type=float, default=0.5, help="of adaptive clipping's geometric update")
    parser.add_argument("--pretraining", type=int, default=1_000, help="steps on the plays")
    asked = parser.parse_args()
    asked.out = asked.out.absolute()
    asked.out.mkdir(parents=True, exist_ok=True)
    found = {name: tables[name](asked) for name in asked.tables}
    (asked.out / "learning.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
