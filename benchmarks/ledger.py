"""What the ledger costs a round: `python benchmarks/ledger.py [--rounds 20]`.

Beside it the least that any durable write of the same bytes costs on this disk: one file, one fsync.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from reticent.ledger import RunDirectory, resume
from reticent.ledger.verify import verify

SIZES = {
    "quickstart, 365,072": (365_072, 400),
    "CIFG, 20,000 words": (4_312_250, 500),
    "CIFG, 6,500 users": (6_242_250, 6_500),
}
DESCRIPTION = {
    "accounting": {
        "rounds": 10**6,
        "noise_multiplier": 1.0,
        "mechanism": "independent",
        "participation": {"kind": "deterministic", "min_separation": 1},
    },
    "delta": 1e-6,
    "mechanism_digest": "0" * 64,
    "clip_norm": 1.0,
    "grid": 1.0,
}


def timed(action) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def plain_write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def measure(parameters: int, cohort: int, rounds: int, folder: Path) -> dict[str, float]:
    payload = os.urandom(4 * parameters)
    run = RunDirectory.create(folder / "run", DESCRIPTION, "", secrets=folder / "secrets")
    times: dict[str, list[float]] = {"plain": [], "begin": [], "release": []}
    intents: list = []
    for _ in range(rounds):
        times["plain"].append(timed(lambda: plain_write(folder / "plain", payload)))
        times["begin"].append(timed(lambda: intents.append(run.begin(range(cohort)))))
        times["release"].append(timed(lambda: run.release(intents[-1], payload, 1.0, 1.0)))
    run.close()
    found = {name: statistics.median(values) for name, values in times.items()}
    found["resume"] = timed(lambda: resume(folder / "run", secrets=folder / "secrets")[0].close())
    found["verify"] = timed(lambda: verify(folder / "run", secrets=folder / "secrets"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--folder", help="Where to write; the disk measured.")
    options = parser.parse_args()
    head = f"{'model':24}{'plain write':>12}{'intent':>10}{'release':>10}{'ratio':>8}{'resume':>10}{'verify':>10}"
    print(f"{head}   (ms; resume and verify of {options.rounds} rounds)")
    for name, (parameters, cohort) in SIZES.items():
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            found = measure(parameters, cohort, options.rounds, Path(folder))
        ratio = (found["begin"] + found["release"]) / found["plain"]
        cells = [1000 * found[key] for key in ("plain", "begin", "release")]
        print(
            f"{name:24}{cells[0]:12.1f}{cells[1]:10.1f}{cells[2]:10.1f}{ratio:8.2f}"
            f"{1000 * found['resume']:10.1f}{1000 * found['verify']:10.1f}"
        )


if __name__ == "__main__":
    main()
