"""ChaCha20 (RFC 8439) as a generator of random bits for JAX, with keys of 256 bits.

    key = row_key(os.urandom(32))
    jax.random.bits(key, (1000,))

A block is a function of the key and of its place in the array, so that every device can make the blocks of its own
shard, and the array is the same however it is cut. An array is covered by blocks along one of its axes (`Cover`): a block's
sixteen words go to sixteen neighbours along that axis, or pairs of them to eight. Devices do not communicate where each
one's part of that axis is a multiple of these sixteen or eight (of a vector, of eight times as much); where it is not, they
exchange what lies at the seams.

The words of a block's input that the RFC calls counter and nonce are here: the place of the block (two words), zero, and
what the block is for, so that bits and derived keys never come from the same block.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from reticent.errors import Refused
from reticent.privacy.turns import in_turns, on_one_processor

KEY_WORDS = 8
BLOCK_WORDS = 16
CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4")
FOR_BITS, FOR_FOLDING, FOR_SPLITTING = (np.uint32(purpose) for purpose in range(3))

# Entries side by side in a vector that come from as many blocks.
VECTOR_RUN = 8

Words = list[jax.Array]


def block(key: jax.Array, *place: ArrayLike) -> Words:
    """The sixteen words of the blocks with this key (uint32[8]) and these four last words of input (uint32, any shape)."""
    shape = jnp.broadcast_shapes(*(jnp.shape(word) for word in place))
    given = [*map(jnp.uint32, CONSTANTS), *key, *place]
    start = [jnp.broadcast_to(word, shape) for word in given]
    mixed = jax.lax.platform_dependent(start, cpu=_rolled_rounds, default=_unrolled_rounds)
    return [word + first for word, first in zip(mixed, start, strict=True)]


def _rolled_rounds(state: Words) -> Words:
    return jax.lax.fori_loop(0, 10, lambda _, state: _double_round(state), state)


def _unrolled_rounds(state: Words) -> Words:
    for _ in range(10):
        state = _double_round(state)
    return state


def _double_round(state: Words) -> Words:
    """RFC 8439, Sec. 2.3: four quarter rounds on the columns, four on the diagonals."""
    state = list(state)
    for turn in (0, 1):
        for column in range(4):
            _quarter_round(state, *(4 * row + (column + turn * row) % 4 for row in range(4)))
    return state


def _quarter_round(state: Words, a: int, b: int, c: int, d: int) -> None:
    """RFC 8439, Sec. 2.1, in place."""
    for first, second, left, right in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[first] = state[first] + state[second]
        turned = state[left] ^ state[first]
        state[left] = (turned << right) | (turned >> (32 - right))


@dataclass(frozen=True)
class Cover:
    """How blocks cover an array: `parts` entries of each lie side by side along `axis`.

    Without an axis the array is a vector, or as good as one; the entries of a block then lie `VECTOR_RUN` apart.
    """

    shape: tuple[int, ...]
    axis: int | None
    parts: int

    @classmethod
    def of(cls, shape: tuple[int, ...], parts: int) -> "Cover":
        """The cover of an array of this shape: along its first axis that wastes little."""
        axes = range(len(shape)) if len(shape) > 1 else ()
        fit = (axis for axis in axes if shape[axis] % parts == 0 or shape[axis] >= 16 * parts)
        return cls(shape, next(fit, None), parts)

    @property
    def blocks(self) -> tuple[int, ...]:
        """The shape of the array of blocks."""
        if self.axis is None:
            return (-(-math.prod(self.shape) // (self.parts * VECTOR_RUN)) * VECTOR_RUN,)
        along = -(-self.shape[self.axis] // self.parts)
        return (*self.shape[: self.axis], along, *self.shape[self.axis + 1 :])

    def place(self, first: jax.Array | int, rows: int) -> tuple[jax.Array, jax.Array]:
        """Two words that tell a block from all others, for `rows` of the array of blocks from `first` on."""
        return numbered((rows, *self.blocks[1:]), first)

    def joined(self, parts: Sequence[jax.Array]) -> jax.Array:
        """The entries in order, from the arrays of the first, the second, ... entry of each block; and some more."""
        if self.axis is None:
            return jnp.stack([part.reshape(-1, VECTOR_RUN) for part in parts], 1).ravel()
        stacked = jnp.stack(parts, self.axis + 1)
        before, after = stacked.shape[: self.axis], stacked.shape[self.axis + 2 :]
        return stacked.reshape(*before, -1, *after)

    def cut(self, joined: jax.Array) -> jax.Array:
        """The array without what the last blocks made too much."""
        if self.axis is None:
            return joined[: math.prod(self.shape)].reshape(self.shape)
        return jax.lax.slice(joined, (0,) * joined.ndim, self.shape)


def numbered(shape: tuple[int, ...], first: jax.Array | int = 0) -> tuple[jax.Array, jax.Array]:
    """Two uint32 that tell every entry of an array from all others: its place within its row, and its row, where rows are
    counted from `first`."""
    if len(shape) > 0 and max(shape[0], math.prod(shape[1:])) >= 2**32:
        raise Refused(f"An array of shape {shape} has more entries than one key numbers; split it into several.")
    within, stride = jnp.zeros(shape, jnp.uint32), 1
    for axis in reversed(range(1, len(shape))):
        within += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * np.uint32(stride)
        stride *= shape[axis]
    leading = jax.lax.broadcasted_iota(jnp.uint32, shape, 0) if shape else within
    return within, leading + jnp.uint32(first)


def from_words(
    key: jax.Array, shape: tuple[int, ...], words: int, function: Callable[..., Any], start: ArrayLike = 0
) -> Any:
    """`function` of `words` random uint32 for every entry of an array; the words are a power of two, at most sixteen.

    `key` is uint32[8]. `function` acts entry by entry, on many entries at a time, wherever they lie; it may give several
    arrays, as a pytree. A vector may be a piece of a longer one, from its entry `start` on: a multiple of what `VECTOR_RUN`
    blocks cover, 128 / `words`.
    """
    if math.prod(shape) == 0:
        entry = jax.eval_shape(function, *[jnp.uint32(0)] * words)
        return jax.tree.map(lambda part: jnp.zeros(shape, part.dtype), entry)
    cover = Cover.of(shape, BLOCK_WORDS // words)
    before = jnp.asarray(start, jnp.uint32) // np.uint32(cover.parts)

    def made(first: jax.Array | int, rows: int) -> Any:
        bits = block(key, *cover.place(first + before, rows), jnp.uint32(0), FOR_BITS)
        each = [bits[word::words] for word in range(words)]
        if on_one_processor():
            # It puts words in order faster than what is made of them.
            return function(*map(cover.joined, each))
        entries = [function(*entry) for entry in zip(*each, strict=True)]
        return jax.tree.map(lambda *parts: cover.joined(parts), *entries)

    rows, *within = cover.blocks
    unit = VECTOR_RUN if cover.axis is None else 1
    return jax.tree.map(cover.cut, in_turns(made, rows, BLOCK_WORDS * math.prod(within), unit))


def _refuse_seed(seed: Any) -> Any:
    raise Refused("A ChaCha20 key holds 256 bits, which no integer seed does; make it with row_key(os.urandom(32)).")


@partial(jax.jit, static_argnums=1)
def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    number = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    return jnp.stack(block(key, number, jnp.uint32(0), jnp.uint32(0), FOR_SPLITTING)[:KEY_WORDS], -1)


@jax.jit
def _fold_in(key: jax.Array, number: jax.Array) -> jax.Array:
    nothing = jnp.uint32(0)
    return jnp.stack(block(key, jnp.asarray(number, jnp.uint32), nothing, nothing, FOR_FOLDING)[:KEY_WORDS])


@partial(jax.jit, static_argnums=(1, 2))
def _random_bits(key: jax.Array, width: int, shape: tuple[int, ...]) -> jax.Array:
    if width == 64:
        return from_words(key, shape, 2, lambda high, low: (high.astype(jnp.uint64) << 32) | low)
    return from_words(key, shape, 1, lambda word: word.astype(f"uint{width}"))


CHACHA20 = jax.extend.random.define_prng_impl(
    key_shape=(KEY_WORDS,),
    seed=_refuse_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="chacha20",
    tag="chacha20",
)
"""The generator; keys of it are made by `reticent.privacy.keys.row_key`."""
