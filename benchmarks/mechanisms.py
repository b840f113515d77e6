"""Mechanisms against jax_privacy's BLT optimiser and TensorFlow Privacy's tree accountant, in one run.

    python benchmarks/mechanisms.py [--tree-privacy PATH]

PATH is TensorFlow Privacy's `tree_aggregation_accountant.py`, or its wheel; by default the wheel is downloaded (without
its dependencies). Each rival is timed in its own process, with its imports outside the clock.
"""

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import scipy.optimize  # noqa: F401  (outside the clock)

from reticent.mechanisms import Participation, make
from reticent.mechanisms.tree import Tree
from reticent.mechanisms.tree_sensitivity import _block

BLT_CASES = [
    ((2052, 342, 6), "max", 2, 10.807),
    ((2052, 342, 6), "max", 3, 10.752),
    ((2052, 342, 6), "max", 4, 10.735),
    ((2052, 342, 6), "rms", 2, 9.184),
    ((2052, 342, 6), "rms", 3, 9.172),
    ((4000, 400, 5), "max", 4, 10.673),
    ((10**6, 1000, 1000), "max", 4, None),
]

# gboard, Tables 1 and 2: rounds, the printed MinS (rounds between participations), MaxP, and the printed zCDP.
GBOARD_ROWS = [
    (930, 212, 4, 0.48),
    (980, 226, 4, 0.48),
    (1280, 180, 5, 0.89),
    (1620, 303, 5, 0.71),
    (530, 54, 8, 1.86),
    (1900, 526, 3, 0.35),
    (1750, 349, 4, 0.52),
    (2800, 371, 7, 1.31),
    (1360, 622, 2, 0.25),
    (3600, 909, 3, 0.45),
    (1290, 170, 6, 1.14),
    (1980, 343, 5, 0.64),
    (640, 90, 5, 0.84),
    (1170, 206, 5, 0.89),
    (1220, 206, 5, 0.89),
    (1280, 197, 5, 0.89),
    (1300, 290, 4, 0.61),
    (1360, 188, 5, 0.89),
    (870, 327, 3, 0.32),
    (430, 54, 7, 0.99),
]
# The rows that the rival accounts too (45 to 250 seconds each).
RIVAL_ROWS = (0, 10, 19)

JAX_PRIVACY = """
import time, jax
jax.config.update("jax_enable_x64", True)
from jax_privacy.matrix_factorization import buffered_toeplitz as bt
n, b, k = {shape}
start = time.perf_counter()
loss = bt.LossFn.build_min_sep(n=n, error="{error}", min_sep=b, max_participations=k)
blt, value = bt.optimize_loss(loss, num_buffers={buffers})
value = float(value) ** 0.5  # theirs is squared
print(time.perf_counter() - start, value)
"""


def best_of(function, times=5):
    seconds, result = float("inf"), None
    for _ in range(times):
        start = time.perf_counter()
        result = function()
        seconds = min(seconds, time.perf_counter() - start)
    return seconds, result


def blt_rows(python):
    columns = [
        "BLT (n, b, k)",
        "objective",
        "buffers",
        "loss",
        "goal",
        "seconds",
        "jax_privacy: loss, seconds",
        "ratio",
    ]
    print("| " + " | ".join(columns) + " |")
    print("|---|---|---|---|---|---|---|---|")
    for shape, objective, buffers, goal in BLT_CASES:
        participation = Participation(*shape)
        seconds, mechanism = best_of(lambda p=participation, o=objective, b=buffers: make("blt", p, o, size=b))
        loss = mechanism.max_loss(participation) if objective == "max" else mechanism.rms_loss(participation)
        rival, ratio = "-", "-"
        if shape[0] <= 4000:
            error = "max" if objective == "max" else "mean"
            code = JAX_PRIVACY.format(shape=shape, error=error, buffers=buffers)
            run = subprocess.run([python, "-c", code], capture_output=True, text=True)
            if run.returncode == 0:
                their_seconds, their_loss = map(float, run.stdout.split())
                rival, ratio = f"{their_loss:.4f}, {their_seconds:.2f}", f"{their_seconds / seconds:.0f}x"
            else:
                rival = "failed: " + run.stderr.strip().splitlines()[-1][:80]
        print(
            f"| {shape} | {objective} | {len(mechanism.decays)} | {loss:.4f} | {goal} | {seconds:.3f} | {rival} | {ratio} |",
            flush=True,
        )


def tree_accountant(path):
    if path is None:
        folder = tempfile.mkdtemp()
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, "tensorflow-privacy==0.9.0"],
            check=True,
        )
        path = next(Path(folder).glob("*.whl"))
    if str(path).endswith(".whl"):
        with zipfile.ZipFile(path) as wheel:
            name = next(n for n in wheel.namelist() if n.endswith("tree_aggregation_accountant.py"))
            path = wheel.extract(name, tempfile.mkdtemp())
    spec = importlib.util.spec_from_file_location("tree_aggregation_accountant", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tree_rows(path):
    theirs = tree_accountant(path)
    print(
        "\n| tree (rounds, MinS, MaxP) | rho at sigma 7 | printed | seconds | TensorFlow Privacy: rho, seconds | ratio |"
    )
    print("|---|---|---|---|---|---|")
    for index, (rounds, between, most, printed) in enumerate(GBOARD_ROWS):
        participation = Participation(rounds, between + 1, most)

        def ours(p=participation):
            _block.cache_clear()
            return Tree().sensitivity(p).value ** 2 / 98

        seconds, rho = best_of(ours)
        rival, ratio = "-", "-"
        if index in RIVAL_ROWS:
            start = time.perf_counter()
            squared = theirs._max_tree_sensitivity_square_sum(most, between, rounds)
            their_seconds = time.perf_counter() - start
            rival, ratio = f"{squared / 98:.4f}, {their_seconds:.1f}", f"{their_seconds / seconds:.0f}x"
        row = f"| ({rounds}, {between}, {most}) | {rho:.4f} | {printed} | {seconds:.4f} | {rival} | {ratio} |"
        print(row, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-python", default=sys.executable, help="A Python that has jax_privacy.")
    parser.add_argument("--tree-privacy", default=None)
    options = parser.parse_args()
    blt_rows(options.peers_python)
    tree_rows(options.tree_privacy)
