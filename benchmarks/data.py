"""The data part against its targets: `python benchmarks/data.py [--part import|batches] [--users N] [--folder DIR]`.

Prints a table: what, the figure, the target. Sizes can be lowered for a quick look; the targets are for the defaults.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from reticent.data.batches import assemble, assemble_in_shapes, shapes
from reticent.data.lanes import assemble_in_lanes
from reticent.data.store import Store, StoreWriter
from reticent.data.tokenizers import WordTokenizer

WORDS = 10_000


def made_up_words() -> list[str]:
    """As many different words as the vocabulary has, the most frequent ones short."""
    return [f"w{index:x}" for index in range(WORDS)]


def write_people(path: Path, people: int, examples_each: float = 5.0, seed: int = 0) -> None:
    """A store of made-up people: a lognormal number of short sentences each, written in blocks."""
    generator = np.random.default_rng(seed)
    tokenizer = WordTokenizer(made_up_words())
    with StoreWriter(path, tokenizer, about={"generated": True}) as writer:
        for start in range(0, people, 250_000):
            block = min(250_000, people - start)
            examples = np.clip(generator.lognormal(np.log(examples_each), 1.0, block), 1, 1000).astype(np.int64)
            lengths = 3 + generator.poisson(10, examples.sum())
            tokens = generator.integers(4, WORDS + 4, lengths.sum(), dtype=np.uint16)
            ends = np.cumsum(lengths)
            tokens[ends - 1], tokens[ends - lengths] = 2, 1
            writer.add_users([f"device-{start + index:08d}" for index in range(block)], examples, lengths, tokens)


def bench_batches(folder: Path, people: int) -> list[tuple[str, str, str]]:
    path = folder / f"people-{people}"
    if not path.exists():
        started = time.perf_counter()
        write_people(path, people)
        print(f"(made a store of {people:,} people in {time.perf_counter() - started:.0f} s)", flush=True)
    started = time.perf_counter()
    store = Store.open(path)
    opening = time.perf_counter() - started
    generator = np.random.default_rng(1)
    shape = {"batch_size": 16, "sequence_length": 20}
    started = time.perf_counter()
    allowed = shapes(store, **shape, max_examples=256)
    finding = time.perf_counter() - started
    rows = [
        (f"open {people:,} users, {store.header['tokens']:,} tokens", f"{1e3 * opening:.1f} ms", ""),
        ("4 good shapes over all users", f"{finding:.1f} s -> {allowed}", ""),
    ]
    times: dict[str, list[float]] = {"first use": [], "again": [], "in groups of 64": [], "in lanes": []}
    padding: dict[str, list[float]] = {"fixed shapes": [], "to each group's largest": [], "lanes": []}
    seen: set[tuple[int, ...]] = set()
    for round in range(15):
        cohort = generator.choice(store.users, 1000, replace=False)
        # First use reads and checks pages from the disk cache; `again` is warm in every sense.
        for name in ("first use", "again"):
            started = time.perf_counter()
            assemble(store, cohort, **shape, max_examples=256, seed=round)
            times[name].append(time.perf_counter() - started)
        cohort = generator.choice(store.users, 1000, replace=False)
        started = time.perf_counter()
        groups = list(assemble_in_shapes(store, cohort, allowed, clients=64, **shape, max_examples=256, seed=round))
        times["in groups of 64"].append(time.perf_counter() - started)
        seen |= {group.tokens.shape for group in groups}
        held = sum(int(group.steps.sum()) for group in groups)
        padding["fixed shapes"].append(
            1 - held / sum(group.tokens.shape[0] * group.tokens.shape[1] for group in groups)
        )
        padding["to each group's largest"].append(1 - held / sum(64 * int(group.steps.max()) for group in groups))
        del groups
        started = time.perf_counter()
        windows = list(assemble_in_lanes(store, cohort, lanes=64, steps=4, **shape, max_examples=256, seed=round))
        times["in lanes"].append(time.perf_counter() - started)
        padding["lanes"].append(1 - float(np.mean([(window.clients >= 0).mean() for window in windows])))
    for name, label in (
        ("first use", "assemble 1,000 clients, first use"),
        ("again", "assemble 1,000 clients, warm"),
        ("in groups of 64", "assemble 1,000 clients in groups of 64, 4 shapes"),
        ("in lanes", "assemble 1,000 clients in 64 lanes, 1 shape"),
    ):
        rows.append((label, f"{1e3 * float(np.median(times[name])):.1f} ms", "<= 50 ms warm"))
    for name, values in padding.items():
        rows.append((f"padded steps, {name}", f"{100 * float(np.mean(values)):.1f} %", "< 15 %"))
    rows.append(("shapes in 15 rounds", str(len(seen)), "<= 4"))
    return rows


def write_sentences(path: Path, sentences: int, people: int) -> None:
    """A CSV of short sentences in no order, each by one of these people."""
    generator = np.random.default_rng(0)
    words = np.array(made_up_words())
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "text"])
        for start in range(0, sentences, 100_000):
            count = min(100_000, sentences - start)
            users = generator.integers(people, size=count)
            lengths = 4 + generator.poisson(8, count)
            picked = words[(WORDS * generator.random(lengths.sum()) ** 3).astype(int)]
            pieces = np.split(picked, np.cumsum(lengths)[:-1])
            writer.writerows(
                (f"user-{user:06d}", " ".join(piece)) for user, piece in zip(users.tolist(), pieces, strict=True)
            )


def bench_import(folder: Path, sentences: int, people: int) -> list[tuple[str, str, str]]:
    source, vocabulary = folder / f"sentences-{sentences}.csv", folder / "words.txt"
    if not source.exists():
        write_sentences(source, sentences, people)
    parquet = source.with_suffix(".parquet")
    if not parquet.exists():
        import pyarrow.csv
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.csv.read_csv(source), parquet)
    vocabulary.write_text("\n".join(made_up_words()))
    rows = []
    for path in (source, parquet):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            command = [sys.executable, "-m", "reticent", "data", "import", str(path), "--user-column", "user"]
            command += ["--text-column", "text", "--vocabulary", str(vocabulary), "--out", f"{scratch}/store", "--json"]
            started = time.perf_counter()
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            wall = time.perf_counter() - started
            if status:
                raise SystemExit(f"import failed with status {status}")
            cpu, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20
            label = f"import {sentences:,} sentences by {people:,} users, {path.suffix[1:]}"
            rows.append((label, f"{wall:.1f} s (cpu {cpu:.1f} s), peak {peak:.2f} GiB", "<= 60 s, <= 1 GiB"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("import", "batches", "all"), default="all")
    parser.add_argument("--users", type=int, default=10_000_000, help="users of the store that batches come from")
    parser.add_argument("--sentences", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=None, help="keeps what was made, for the next time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(exist_ok=True, parents=True)
        rows = []
        if options.part in ("import", "all"):
            rows += bench_import(folder, options.sentences, max(1, options.sentences // 20))
        if options.part in ("batches", "all"):
            rows += bench_batches(folder, options.users)
    width = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join(cell.ljust(size) for cell, size in zip(row, width, strict=True)).rstrip())


if __name__ == "__main__":
    main()
