"""Making a large array a piece at a time, where that is faster."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# Words of state that a processor's cache holds.
WORDS_AT_ONCE = 2**16


def on_one_processor() -> bool:
    """Whether arrays are made in turns: what is made then stays in the cache, which is three to five times as fast. Several
    devices could not share the turns."""
    return jax.default_backend() == "cpu" and jax.device_count() == 1


def in_turns(make: Callable[[jax.Array | int, int], Any], rows: int, words: int, unit: int = 1) -> Any:
    """`make(first, rows)`: this many rows of an array (or a pytree of them) from `first` on, at least. The array, and
    perhaps some rows too many.

    Making a row takes `words` words of memory. All at once; or on one processor in turns of a multiple of `unit` rows.
    """
    turns = math.ceil(rows * words / WORDS_AT_ONCE)
    each = -(-rows // (turns * unit)) * unit if turns else rows
    if each >= rows or not on_one_processor():
        return make(0, rows)
    made = jax.lax.map(lambda first: make(first, each), jnp.arange(0, rows, each, dtype=jnp.uint32))
    return jax.tree.map(lambda array: array.reshape(-1, *array.shape[2:]), made)
