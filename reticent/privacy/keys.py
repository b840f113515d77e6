"""Row keys as JAX keys: 32 secret bytes from which all random bits of one round's noise are made."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from reticent.errors import Refused
from reticent.privacy.chacha import CHACHA20, VECTOR_RUN, from_words, numbered
from reticent.privacy.turns import in_turns

ROW_KEY_BYTES = 32
PIECE = 64


def row_key(secret: bytes) -> jax.Array:
    """The ChaCha20 key of 32 bytes from the operating system. All 256 bits count."""
    return jax.random.wrap_key_data(_words(secret), impl=CHACHA20)


def simulation_threefry_key(secret: bytes) -> jax.Array:
    """A threefry key, faster to draw from and only for simulation: 64 bits of the row key are all it holds."""
    return jax.random.wrap_key_data(_words(secret)[:2], impl="threefry2x32")


def _words(secret: bytes) -> jax.Array:
    if len(secret) != ROW_KEY_BYTES:
        raise Refused(f"A row key is {ROW_KEY_BYTES} bytes, got {len(secret)}.")
    return jnp.asarray(np.frombuffer(secret, "<u4"))


def from_two_words(
    key: jax.Array, shape: tuple[int, ...], function: Callable[..., Any], start: ArrayLike = 0
) -> jax.Array:
    """`function` of two random uint32 for every entry of an array, entry by entry; of a vector, perhaps, that is a piece of
    a longer one, from its entry `start` on, a multiple of `PIECE`."""
    words = jax.random.key_data(key)
    if jax.random.key_impl(key) == CHACHA20:
        return from_words(words, shape, 2, function, start)
    if words.shape != (2,):
        raise Refused(f"Noise is made from ChaCha20 or, in simulation, threefry keys, not from {key.dtype}.")
    if not shape:
        return jax.tree.map(lambda array: array[0], from_two_words(key, (1,), function))

    def made(first: jax.Array | int, rows: int) -> Any:
        # A block of threefry is two words.
        within, row = numbered((rows, *shape[1:]), first + jnp.asarray(start, jnp.uint32))
        return function(*jax.extend.random.threefry2x32_p.bind(words[0], words[1], row, within))

    entries = in_turns(made, shape[0], 2 * math.prod(shape[1:]), VECTOR_RUN)
    return jax.tree.map(lambda array: array[: shape[0]], entries)
