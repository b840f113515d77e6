"""Mechanisms against jax_privacy's BLT optimiser and TensorFlow Privacy's tree accountant, in one run.

    python benchmarks/mechanisms.py [blt command tree banded zero-state table2] [--tree-privacy PATH]

PATH is TensorFlow Privacy's `tree_aggregation_accountant.py`, or its wheel; by default the wheel is downloaded (without
its dependencies). Each rival is timed in its own process, with its imports outside the clock; so is each banded mechanism,
whose memory is that process's peak. Seconds are wall-clock; on a machine that does other work beside, the processor seconds
printed with them say more.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

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


OWN_PROCESS = """
import resource, time
from reticent.mechanisms import Participation, make
participation = Participation{shape}
start, work = time.perf_counter(), time.process_time()
mechanism = make("{kind}", participation, "{objective}", size={bands})
seconds, work = time.perf_counter() - start, time.process_time() - work
sensitivity = mechanism.sensitivity(participation)
assert sensitivity.exact
errors = mechanism.errors(participation.rounds)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print((errors**2).mean() ** 0.5 * sensitivity.value, errors.max() * sensitivity.value, seconds, work, peak)
"""

# shape (n, b, k), kind, objective, bands, (RmsLoss, MaxLoss, seconds, GiB) at most; seconds are for two idle cores.
BANDED_CASES = [
    ((512, 64, 8), "banded", "rms", 64, (9.147, None, 3, None)),
    ((1024, 128, 8), "banded", "rms", 128, (9.748, None, None, None)),
    ((2052, 342, 6), "toeplitz", "rms", 342, (8.805, None, 3, None)),
    ((2052, 342, 6), "banded", "rms", 342, (8.597, None, 15, 1.5)),
    ((2052, 342, 6), "banded", "max", 342, (None, 10.3, 15, 1.5)),
    ((100_000, 64), "banded", "rms", 64, (None, None, 300, 4)),
]


def best_of(function, times=5):
    """The least seconds, the processor seconds of that time, and the result."""
    best = (float("inf"), float("inf"))
    for _ in range(times):
        start, work = time.perf_counter(), time.process_time()
        result = function()
        best = min(best, (time.perf_counter() - start, time.process_time() - work))
    return *best, result


def header(*columns):
    print("\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns), flush=True)


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def goal(value):
    return "-" if value is None else f"<= {value}"


def blt_rows(options):
    header(
        "BLT (n, b, k)", "objective", "buffers", "loss", "goal", "seconds (processor)", "jax_privacy: loss, s", "ratio"
    )
    for shape, objective, buffers, most in BLT_CASES:
        participation = Participation(*shape)
        seconds, work, mechanism = best_of(lambda p=participation, o=objective, b=buffers: make("blt", p, o, size=b))
        loss = mechanism.max_loss(participation) if objective == "max" else mechanism.rms_loss(participation)
        rival, ratio = "-", "-"
        if shape[0] <= 4000:
            error = "max" if objective == "max" else "mean"
            code = JAX_PRIVACY.format(shape=shape, error=error, buffers=buffers)
            run = subprocess.run([options.peers_python, "-c", code], capture_output=True, text=True)
            if run.returncode == 0:
                their_seconds, their_loss = map(float, run.stdout.split())
                rival, ratio = f"{their_loss:.4f}, {their_seconds:.2f}", f"{their_seconds / seconds:.0f}x"
            else:
                rival = "failed: " + run.stderr.strip().splitlines()[-1][:80]
        time_taken = f"{seconds:.3f} ({work:.3f})"
        row(shape, objective, len(mechanism.decays), f"{loss:.4f}", goal(most), time_taken, rival, ratio)


def command_rows(options):
    header("command", "goal: seconds", "seconds, best of 5", "processor", "imports that it does without")
    blt = "mechanism optimize blt --rounds 4000 --min-separation 400 --max-participations 5 --json"
    for arguments, most in (("--help", 0.4), (blt, 1.0)):
        best = (float("inf"), float("inf"))
        for _ in range(5):
            start, before = time.perf_counter(), os.times()
            subprocess.run([sys.executable, "-m", "reticent", *arguments.split()], capture_output=True, check=True)
            after = os.times()
            work = after.children_user + after.children_system - before.children_user - before.children_system
            best = min(best, (time.perf_counter() - start, work))
        heavy = ("jax", "matplotlib", "dp_accounting")
        code = f"import sys; from reticent.cli.main import main\ntry: main({arguments.split()!r})\nexcept SystemExit: pass\n"
        code += f"print([name for name in {heavy!r} if name not in sys.modules], file=sys.stderr)"
        without = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr.strip()
        row(f"reticent {arguments}", f"<= {most}", f"{best[0]:.2f}", f"{best[1]:.2f}", without)


def banded_rows(options):
    header(
        "(n, b, k)",
        "kind",
        "objective",
        "bands",
        "RmsLoss",
        "goal",
        "MaxLoss",
        "goal",
        "seconds (processor)",
        "goal",
        "GiB",
        "goal",
    )
    for shape, kind, objective, bands, goals in BANDED_CASES:
        code = OWN_PROCESS.format(shape=shape, kind=kind, objective=objective, bands=bands)
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        rms, largest, seconds, work, peak = map(float, run.stdout.split())
        rms_most, max_most, seconds_most, peak_most = map(goal, goals)
        time_taken = f"{seconds:.1f} ({work:.1f})"
        losses = (f"{rms:.4f}", rms_most, f"{largest:.4f}", max_most)
        row(shape, kind, objective, bands, *losses, time_taken, seconds_most, f"{peak:.2f}", peak_most)


def zero_state_rows(options):
    header("kind", "size", "MaxLoss", "RmsLoss", "memory, models", "Gaussian rows per round", "seconds (processor)")
    participation = Participation(2052, 342, 6)
    for kind, size in (
        ("blt", 2),
        ("blt", 3),
        ("blt", 4),
        ("banded-inverse", 5),
        ("banded-inverse", 9),
        ("banded-inverse", 17),
    ):
        seconds, work, made = best_of(lambda k=kind, s=size: make(k, participation, "max", size=s), 2)
        losses = (f"{made.max_loss(participation):.4f}", f"{made.rms_loss(participation):.4f}")
        row(kind, size, *losses, made.memory(2052), f"{made.draws_per_round(2052):.2f}", f"{seconds:.2f} ({work:.2f})")


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


def tree_rows(options):
    theirs = tree_accountant(options.tree_privacy)
    header("tree (rounds, MinS, MaxP)", "rho at sigma 7", "printed", "seconds", "TensorFlow Privacy: rho, s", "ratio")
    for index, (rounds, between, most, printed) in enumerate(GBOARD_ROWS):
        participation = Participation(rounds, between + 1, most)

        def ours(p=participation):
            _block.cache_clear()
            return Tree().sensitivity(p).value ** 2 / 98

        seconds, _, rho = best_of(ours)
        rival, ratio = "-", "-"
        if index in RIVAL_ROWS:
            start = time.perf_counter()
            squared = theirs._max_tree_sensitivity_square_sum(most, between, rounds)
            their_seconds = time.perf_counter() - start
            rival, ratio = f"{squared / 98:.4f}, {their_seconds:.1f}", f"{their_seconds / seconds:.0f}x"
        row((rounds, between, most), f"{rho:.4f}", printed, f"{seconds:.4f}", rival, ratio)


def table2_rows(options):
    subprocess.run(
        [sys.executable, "-m", "reticent", "reproduce", "bandmf-tab2", "--out", tempfile.mkdtemp()], check=True
    )


SECTIONS = {
    "blt": blt_rows,
    "command": command_rows,
    "tree": tree_rows,
    "banded": banded_rows,
    "zero-state": zero_state_rows,
    "table2": table2_rows,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "sections", nargs="*", default=list(SECTIONS), help=f"Of {', '.join(SECTIONS)}; all by default."
    )
    parser.add_argument("--peers-python", default=sys.executable, help="A Python that has jax_privacy.")
    parser.add_argument("--tree-privacy", default=None)
    options = parser.parse_args()
    for name in options.sections:
        SECTIONS[name](options)
