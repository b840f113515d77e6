"""BandMF against DP-SGD on example-level training of a digit classifier, at several epsilons (BandMF, Sec. 5 and App. I).

    python benchmarks/finetune_digits.py --out /tmp/digits

Both draw the same expected number of images per step, with the same model, momentum and cool-down. BandMF draws from
cyclic groups, and its number of bands is chosen by the error that is predicted for it, among which 1 is DP-SGD itself.
Learning rates are chosen on the first seed for each by itself, which the guarantee does not cover. Accuracy is on
images that were not trained on.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from reticent.accounting.run import calibrated
from reticent.config import parse
from reticent.data.images import make_digits
from reticent.data.store import Store
from reticent.finetune import work_of
from reticent.mechanisms import Participation, make
from reticent.mechanisms.storage import to_header
from reticent.training import train

IMAGES = 1_440
DELTA = 1e-4


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--source", type=Path, help="digits.csv.gz, where scikit-learn is not installed")
    options.add_argument("--steps", type=int, default=120)
    options.add_argument("--batch", type=int, default=144)
    options.add_argument("--epsilons", type=float, nargs="+", default=[2.0, 4.0, 8.0])
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.25])
    asked = options.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if not (asked.out / "store").is_dir():
        make_digits(asked.out / "store", source=asked.source)
    images = Store.open(asked.out / "store").users
    print(f"{images:,} images, 4/5 of them trained on; {asked.steps} steps of {asked.batch} expected")
    print(f"{'epsilon':>7} {'bands':>6} {'DP-SGD':>16} {'BandMF':>16} {'difference':>11}")
    for epsilon in asked.epsilons:
        errors = {bands: predicted(bands, epsilon, asked) for bands in (1, 2, 3, 4, 6, 8, 10)}
        best = min(errors, key=lambda bands: errors[bands])
        found = {bands: accuracies(bands, epsilon, asked) for bands in dict.fromkeys((1, best))}
        plain, banded = found[1], found[best]
        told = [f"{100 * one.mean():.2f} +- {100 * one.std(ddof=1):.2f}" for one in (plain, banded)]
        print(
            f"{epsilon:>7g} {best:>6} {told[0]:>16} {told[1]:>16} {100 * (banded - plain).mean():>+11.2f}", flush=True
        )


def mechanism_of(bands: int, steps: int):
    kind = "banded" if bands > 1 else "independent"
    return kind, make(kind, Participation(steps, bands), "rms", size=bands if bands > 1 else None)


def sampling(bands: int, batch: int) -> dict:
    probability = batch * bands / IMAGES
    return {"kind": "cyclic", "sampling": "poisson", "groups": bands, "probability": probability}


def predicted(bands: int, epsilon: float, asked) -> float:
    """The root mean square error of the noised sums at this epsilon; infinite where a group is too small for a batch."""
    if asked.batch * bands > IMAGES:
        return float("inf")
    _, mechanism = mechanism_of(bands, asked.steps)
    accounting = {
        "rounds": asked.steps,
        "mechanism": to_header(mechanism),
        "participation": sampling(bands, asked.batch),
        "unit": "example",
    }
    noise = calibrated(accounting, DELTA, epsilon=epsilon, arrays=mechanism.arrays())
    return noise * mechanism.rms_error(asked.steps)


def accuracies(bands: int, epsilon: float, asked) -> np.ndarray:
    tried = {rate: accuracy(bands, epsilon, rate, 0, asked) for rate in asked.rates}
    rate = max(tried, key=lambda rate: tried[rate])
    return np.array([accuracy(bands, epsilon, rate, seed, asked) for seed in range(asked.seeds)])


def accuracy(bands: int, epsilon: float, rate: float, seed: int, asked) -> float:
    where = asked.out / f"{bands}-{epsilon:g}-{rate:g}-{seed}"
    if not (where / "report.md").is_file():
        kind, _ = mechanism_of(bands, asked.steps)
        event = sampling(bands, asked.batch)
        drawn = {"sampler": "poisson"} if bands == 1 else {"sampler": "cyclic-poisson", "groups": bands}
        content = {
            "run": {
                "name": f"digits, {bands} bands",
                "algorithm": "dpsgd",
                "rounds": asked.steps,
                "seed": seed,
                "checkpoint_every": asked.steps,
                "keep_releases": False,
            },
            "data": {"store": str(asked.out / "store"), "sequence_length": 64, "held_out_users": 0.2},
            "model": {"kind": "image-digits"},
            "population": {"size": IMAGES, "probability": event["probability"], **drawn},
            "mechanism": {"kind": kind, "objective": "rms"} | ({"bands": bands} if bands > 1 else {}),
            "clipping": {"norm": 1.0},
            "client": {"micro_batch": 48},
            "server": {"optimizer": "sgd", "momentum": 0.9, "learning_rate": rate, "cool_down": 0.25},
            "privacy": {"epsilon": epsilon, "delta": DELTA},
            "evaluation": {"every": asked.steps},
        }
        train(parse(content), where, work_of=work_of, secrets=asked.out / "secrets")
    lines = (where / "metrics.jsonl").read_text().splitlines()
    return [one["top1"] for one in map(json.loads, lines) if one["kind"] == "evaluation"][-1]


if __name__ == "__main__":
    main()
