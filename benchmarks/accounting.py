"""Accounting and planning: how long each takes, and how long dp_accounting takes for the same where it can.

    python benchmarks/accounting.py [--peer]

`--peer` adds dp_accounting's answers for example-level sampling (T = 2000, p = 0.01, 32 examples a user), which take
minutes. Commands are measured cold, as new processes. Seconds are the fastest of three by the clock, and, in brackets, of
processor time, which is what the clock would show on a machine with nothing else to do.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ROUNDS, PROBABILITY, GROUP, DELTA = 2000, 0.01, 32, 1e-6
POPULATIONS = {  # Gboard, Table 1: devices and rounds
    "de-DE": (3_240_000, 930), "en-GB": (2_380_000, 980), "fr-FR": (2_790_000, 1280), "it-IT": (3_320_000, 1620),
    "pt-PT": (830_000, 530), "es-ES": (4_210_000, 1900), "en-US": (13_000_000, 2800), "pt-BR": (16_600_000, 3600),
    "en-IN": (7_720_000, 1290), "es-MX": (9_960_000, 1980), "es-AR": (4_090_000, 640),
}  # fmt: skip
COMMANDS = {
    "account matrix tree": (
        "account matrix tree --rounds 2000 --min-separation 314 --max-participations 6 --delta 1e-10 --noise-multiplier 7",
        0.8,
    ),
    "account sampled": ("account sampled --sampling-probability 0.01 --rounds 2000 --delta 1e-6 --noise-multiplier 1", 2),
    "account els": (
        "account els --sampling-probability 0.01 --rounds 2000 --group-size 32 --delta 1e-6 --noise-multiplier 8", 2,
    ),
    "account amplified": (
        "account amplified banded --bands 9 --rounds 2052 --population 342477 --batch-size 1000 --delta 1e-6 "
        "--noise-multiplier 1.94", 2,
    ),
    "calibrate els": (
        "calibrate els --sampling-probability 0.01 --rounds 2000 --group-size 32 --delta 1e-6 --epsilon 4", 3,
    ),
    "plan, eleven populations": (
        "plan --delta 1e-10 --epsilon 6 --over-selection 1 "
        + " ".join(f"--population {devices} --rounds {rounds}" for devices, rounds in POPULATIONS.values()), 2,
    ),
}  # fmt: skip


Seconds = tuple[float, float]
"""By the clock, and of processor time."""


def cold(command: str) -> Seconds:
    """Of the command as a new process."""

    def run() -> Seconds:
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-m", "reticent", *command.split()], check=True, capture_output=True)
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return fastest([run() for _ in range(3)])


def warm(function: Callable[[], Any]) -> tuple[Any, Seconds]:
    """What it returns, and its seconds after one call for the imports."""
    found = function()
    taken = []
    for _ in range(3):
        start, processor = time.perf_counter(), time.process_time()
        function()
        taken.append((time.perf_counter() - start, time.process_time() - processor))
    return found, fastest(taken)


def fastest(taken: list[Seconds]) -> Seconds:
    return min(clock for clock, _ in taken), min(processor for _, processor in taken)


def show(what: str, seconds: Seconds, limit: float | None = None, told: str = "") -> None:
    allowed = "" if limit is None else f"at most {limit:g}"
    print(f"{what:40} {seconds[0]:8.3f} s ({seconds[1]:.3f})  {allowed:12} {told}", flush=True)


def ours() -> None:
    from reticent.accounting.amplified import els_guarantee
    from reticent.accounting.calibration import smallest_noise
    from reticent.accounting.launch import Launch, plan

    def guarantee(noise: float):
        return els_guarantee(PROBABILITY, ROUNDS, GROUP, noise)

    epsilon, seconds = warm(lambda: guarantee(8.0).epsilon(DELTA))
    show("els: epsilon at noise 8", seconds, 0.3, f"epsilon {epsilon:.5f}")
    noise, seconds = warm(lambda: smallest_noise(guarantee, DELTA, epsilon=4.0))
    show("els: noise for epsilon 4", seconds, 2, f"noise {noise:.5f}")
    goals = (500, 1000, 2000, 4000, 6500, 8000, 16_000)

    def plans():
        return [
            plan(Launch(devices, rounds, goals, epsilon=6.0, delta=1e-10)) for devices, rounds in POPULATIONS.values()
        ]

    found, seconds = warm(plans)
    show(f"plan: eleven populations, {sum(len(one.rows) for one in found)} rows", seconds, 2)


def peer() -> None:
    import dp_accounting
    from dp_accounting import pld

    from reticent.accounting.mixture import binomial

    weights = binomial(GROUP, PROBABILITY)

    def epsilon(noise: float) -> float:
        mixture = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
            noise, np.arange(GROUP + 1).tolist(), weights.tolist()
        )
        accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
        return accountant.compose(dp_accounting.SelfComposedDpEvent(mixture, ROUNDS)).get_epsilon(DELTA)

    def calibrated() -> float:
        low, high = 4.0, 64.0
        while high / low > 1 + 1e-4:
            middle = (low * high) ** 0.5
            low, high = (low, middle) if epsilon(middle) <= 4.0 else (middle, high)
        return high

    for what, function in (("epsilon at noise 8", lambda: epsilon(8.0)), ("noise for epsilon 4", calibrated)):
        start, processor = time.perf_counter(), time.process_time()
        found = function()
        seconds = time.perf_counter() - start, time.process_time() - processor
        show(f"dp_accounting, els: {what}", seconds, None, f"{what.split()[0]} {found:.5f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", action="store_true")
    with_peer = parser.parse_args().peer
    ours()
    for name, (command, limit) in COMMANDS.items():
        show(f"cold: {name}", cold(command), limit)
    if with_peer:
        peer()


if __name__ == "__main__":
    main()
