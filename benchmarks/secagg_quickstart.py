"""What secure aggregation costs the quickstart: bits on the wire, inflation of the clip norm, accuracy.

    python benchmarks/secagg_quickstart.py --seeds 3

Runs of examples/quickstart.toml at its own epsilon, so that what the encoding lengthens is paid for in noise. Runs of one
seed share it: the same people in every round, the same Gaussians (scaled by the noise multiplier), the same
initial model. So differences within a seed are the encoding's, and their spread over the seeds says how large noise makes
them. "whole steps" sums the release's own integers: its releases are those without secure aggregation, digit for digit.
"""

import argparse
import math
import tempfile
from pathlib import Path

import numpy as np

from reticent.config import load
from reticent.ledger.lines import read_ledger
from reticent.training import train

ROOT = Path(__file__).parents[1]
SETTINGS = {
    "off": (),
    "whole steps": ("run.secure_aggregation=encoding", "run.encoding_inflation=0"),
    "0.1%": ("run.secure_aggregation=encoding", "run.encoding_inflation=0.001"),
    "1%": ("run.secure_aggregation=encoding", "run.encoding_inflation=0.01"),
    "10%": ("run.secure_aggregation=encoding", "run.encoding_inflation=0.1"),
}


def one_run(overrides, seed, rounds):
    """(accuracy on the held-out people after the last round, what the ledger says, the digests of the releases)."""
    # Shorter runs keep the quickstart's two participations.
    more = [f"run.seed={seed}", f"run.simulated_row_seed={seed}", f"evaluation.every={rounds}"]
    more += [f"run.rounds={rounds}", f"population.min_separation={rounds // 2}", f"run.checkpoint_every={rounds}"]
    with tempfile.TemporaryDirectory() as folder:
        settings = load(ROOT / "examples" / "quickstart.toml", [*overrides, *more])
        outcome = train(settings, Path(folder, "run"), secrets=Path(folder, "secrets"))
        assert outcome.verdict.holds
        ledger = read_ledger(outcome.path / "ledger.jsonl")
        digests = [line["release"] for line in ledger.of_kind("release")]
        return outcome.last["top1"], ledger.first["description"], digests


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--only", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    options = parser.parse_args()
    accuracy, digests, told = {}, {}, {}
    for seed in range(1, options.seeds + 1):
        for name in options.only:
            top1, described, made = one_run(SETTINGS[name], seed, options.rounds)
            accuracy.setdefault(name, []).append(top1)
            digests[name, seed], told[name] = made, described
            print(f"seed {seed}, {name}: top-1 {top1:.4f}", flush=True)
    print(f"\n{options.rounds} rounds, {options.seeds} seeds\n")
    print("| asked for | scale x C | inflation | bits, 400 clients | noise multiplier | top-1 | less off, paired |")
    print("|---|---|---|---|---|---|---|")
    for name in options.only:
        described = told[name]
        secure = described.get("secure_aggregation", {})
        inflation = described["accounting"].get("secure_aggregation", {"inflation": 1.0})["inflation"] - 1
        scale = f"{secure['scale'] * described['clip_norm']:,.0f}" if "scale" in secure else "-"
        less = np.subtract(accuracy[name], accuracy["off"])
        error = np.std(less, ddof=1) / math.sqrt(len(less)) if len(less) > 1 else math.nan
        spread = np.std(accuracy[name], ddof=1) / math.sqrt(len(less)) if len(less) > 1 else math.nan
        print(
            f"| {name} | {scale} | {inflation:.2%} | {secure.get('modulus_bits', '-')} | "
            f"{described['accounting']['noise_multiplier']:.4f} | {np.mean(accuracy[name]):.4f} ± {spread:.4f} | "
            f"{np.mean(less):+.4f} ± {error:.4f} |"
        )
    if "whole steps" in options.only:
        same = all(digests["whole steps", seed] == digests["off", seed] for seed in range(1, options.seeds + 1))
        print(f"\nreleases of 'whole steps' {'are' if same else 'are NOT'} those of 'off', digit for digit")


if __name__ == "__main__":
    main()
