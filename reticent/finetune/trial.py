"""How many rows to compute at once, found by trying."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from reticent.finetune.sums import Single, Together, added

FIRST, MOST = 4, 4096
WORTH = 0.95
# On a CPU: what the arrays of one micro-batch may take, so that a trial does not fill the machine.
BYTES_ON_CPU = 2**30


def micro_batch(how: Together | Single, params: Any, height: int, length: int) -> int:
    """The rows of a micro-batch: doubled as long as a row then takes less time, and until memory runs out. Tried on units of
    `height` rows of random tokens: it is written down, and must tell nothing of the data."""
    vocabulary = how.model.vocabulary
    add = jax.jit(added, static_argnums=0)
    total = how.nothing(params)

    def seconds(rows: int) -> float:
        units = max(1, rows // height)
        draw = np.random.default_rng(0)
        tokens = draw.integers(0, vocabulary, (units, height, length + 1)).astype(np.int32)
        weights = np.ones(units, np.int32)
        jax.block_until_ready(add(how, total, params, how.model.frozen, tokens, weights))
        began = time.perf_counter()
        for _ in range(2):
            jax.block_until_ready(add(how, total, params, how.model.frozen, tokens, weights))
        return (time.perf_counter() - began) / (2 * units * height)

    return _grown(seconds, max(FIRST, height), most_rows(vocabulary, length, height))


def most_rows(vocabulary: int, length: int, height: int) -> int:
    """The most rows that are tried: on a CPU as many as leave memory to others."""
    if jax.default_backend() != "cpu":
        return max(MOST, height)
    return max(height, min(MOST, BYTES_ON_CPU // (4 * 4 * length * vocabulary)))


def _grown(seconds: Callable[[int], float], first: int, most: int) -> int:
    best, taken = first, float("inf")
    rows = first
    while rows <= most:
        try:
            found = seconds(rows)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error) or rows == first:
                raise
            break
        if found > WORTH * taken:
            break
        best, taken, rows = rows, found, 2 * rows
    return best
