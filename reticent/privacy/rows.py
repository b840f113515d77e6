"""One row of a mechanism's noise after the other, under `jit`: `Mechanism.stream` in JAX, its round a traced integer.

A row is a real number of units of the grid, and released as the one integer nearest to it; what is kept between rounds
(float32, in standard deviations of Z) is made of the row before it was rounded. So a release is

    x + round(w) = round(x + w),    w a row of C^-1 Z,

of integers x: a post-processing of the exact mechanism, in which all rows of Z are what they would be without a grid. (Were
the rounded row kept, a later row would take back the rounding too, which differs between two neighbouring x; over many
rounds that adds up.) Numbers of float32 are within 2^-24 of what they stand for, so w is off by about that part of what is
taken back of earlier rows.

The first draw of a round enters a row with digits of its own below float32's (`gaussian.Parted`), and covers the gaps of the
rest.

Nothing has to be cleared at a restart: no formula looks at what was before round 0.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from reticent.mechanisms import Mechanism
from reticent.mechanisms.base import ToeplitzMechanism
from reticent.mechanisms.blt import BLT
from reticent.mechanisms.inverse_toeplitz import InverseToeplitz
from reticent.mechanisms.tree import Tree, own_weights
from reticent.privacy.gaussian import Parted

Buffers = tuple[jax.Array, ...]


@dataclass(frozen=True)
class Draws:
    """The Gaussians of one round, for one array. `units` is the standard deviation of Z in units of the grid.

    `first(weight)` is the first draw times `weight`, in units; `other(number)` another draw, a standard normal;
    `before(key, weight)` the first draw of the round with that earlier row key, which had that weight, a standard normal.
    """

    units: float
    first: Callable[[jax.Array | float], Parted]
    other: Callable[[jax.Array], jax.Array]
    before: Callable[[jax.Array, float], jax.Array]

    def row(self, first: Parted, past: jax.Array | float) -> tuple[jax.Array, jax.Array]:
        """The row `first - past`, `past` being float32 in standard deviations: rounded once, as int32 in units; and as it
        is, in standard deviations."""
        past = past * self.units
        nearest = jnp.rint(past)
        whole, below = first.whole - nearest.astype(jnp.int32), first.below - (past - nearest)
        return whole + jnp.rint(below).astype(jnp.int32), self._deviations(whole, below)

    def deviations(self, first: Parted) -> jax.Array:
        """A first draw in standard deviations."""
        return self._deviations(first.whole, first.below)

    def _deviations(self, whole: jax.Array, below: jax.Array) -> jax.Array:
        return (whole.astype(jnp.float32) + below) * (1 / self.units if self.units else 0.0)


class Rows(abc.ABC):
    """A family's rows. `earlier_keys` is how many row keys of the rounds before it needs."""

    earlier_keys = 0

    def init(self, like: jax.Array) -> Buffers:
        """What is kept between rounds, before round 0, for rows like this array."""
        return ()

    @abc.abstractmethod
    def step(self, buffers: Buffers, round: jax.Array, draws: Draws, keys: jax.Array) -> tuple[jax.Array, Buffers]:
        """The row of this round since the last restart, in units, and what is kept after it. `keys` are the latest
        `earlier_keys` row keys, the newest first; those of rounds before a restart do not count."""


def rows_of(mechanism: Mechanism, rounds: int) -> Rows:
    """The rows of a mechanism that is not restarted, over at most this many rounds."""
    mechanism.check(rounds)
    if isinstance(mechanism, BLT):
        return BltRows(mechanism.decays, mechanism.scales)
    if isinstance(mechanism, Tree):
        return TreeRows(mechanism.memory(rounds))
    if isinstance(mechanism, InverseToeplitz):
        return RegeneratedRows(mechanism.band[:rounds])
    memory = mechanism.memory(rounds)
    if isinstance(mechanism, ToeplitzMechanism):
        return BandRows(mechanism.coefficients(rounds)[None, : memory + 1])
    matrix = mechanism.matrix(rounds)
    lag = np.arange(min(memory, rounds - 1) + 1)
    row = np.arange(rounds)[:, None]
    return BandRows(np.where(lag <= row, matrix[row, row - lag], 0.0))


class BltRows(Rows):
    """BLT, Alg. 3. One pass over each buffer: read once, written once."""

    def __init__(self, decays: tuple[float, ...], scales: tuple[float, ...]) -> None:
        self._parameters = tuple(zip(decays, scales, strict=True))

    def init(self, like: jax.Array) -> Buffers:
        return tuple(jnp.zeros_like(like, jnp.float32) for _ in self._parameters)

    def step(self, buffers: Buffers, round: jax.Array, draws: Draws, keys: jax.Array) -> tuple[jax.Array, Buffers]:
        begun = jnp.where(round > 0, 1.0, 0.0)
        past = sum(begun * scale * buffer for (_, scale), buffer in zip(self._parameters, buffers, strict=True))
        row, new = draws.row(draws.first(1.0), past)
        kept = zip(self._parameters, buffers, strict=True)
        return row, tuple(begun * decay * buffer + new for (decay, _), buffer in kept)


class BandRows(Rows):
    """A lower-triangular C (BandMF, App. J, Alg. 9): the last rows are kept, in a ring.

    `bands[i, l]` is C's entry (i, i - l); with a single row it is every round's.
    """

    def __init__(self, bands: np.ndarray) -> None:
        self._bands = bands.astype(np.float32)
        self._memory = bands.shape[1] - 1

    def init(self, like: jax.Array) -> Buffers:
        return (jnp.zeros((self._memory, *like.shape), jnp.float32),) if self._memory else ()

    def step(self, buffers: Buffers, round: jax.Array, draws: Draws, keys: jax.Array) -> tuple[jax.Array, Buffers]:
        band = jnp.asarray(self._bands)[jnp.minimum(round, len(self._bands) - 1)]
        first = draws.first(1 / band[0])
        if not self._memory:
            return first.whole, ()
        (ring,) = buffers
        lags = (round - 1 - jnp.arange(self._memory)) % self._memory + 1
        weights = jnp.where(lags <= round, band[lags] / band[0], 0.0)
        row, kept = draws.row(first, jnp.tensordot(weights, ring, 1, precision=jax.lax.Precision.HIGHEST))
        return row, (jax.lax.dynamic_update_index_in_dim(ring, kept, round % self._memory, 0),)


class TreeRows(Rows):
    """Online Honaker: the stack of estimates of the blocks that tile the rounds so far, as in binary counting."""

    def __init__(self, levels: int) -> None:
        self._levels = levels
        self._own = own_weights(levels + 1).astype(np.float32)

    def init(self, like: jax.Array) -> Buffers:
        return (jnp.zeros((self._levels, *like.shape), jnp.float32),) if self._levels else ()

    def step(self, buffers: Buffers, round: jax.Array, draws: Draws, keys: jax.Array) -> tuple[jax.Array, Buffers]:
        if not self._levels:
            return draws.first(1.0).whole, ()
        (stack,) = buffers
        nothing = jnp.zeros_like(stack[0])
        own = jnp.asarray(self._own)
        # A round completes its leaf, and one more block for every trailing one in its binary form.
        top = jax.lax.population_count((~round & (round + 1)) - 1)

        def merge(level: jax.Array, so_far: tuple) -> tuple:
            leaf_weight, rest, merged = so_far
            left, weight = stack[level - 1], own[level]
            rest = weight * draws.other(level) + (1 - weight) * (left + rest)
            return (1 - weight) * leaf_weight, rest, merged + left

        leaf_weight, rest, merged = jax.lax.fori_loop(1, top + 1, merge, (jnp.float32(1), nothing, nothing))
        # The noise of a round is the prefix sum's after it less that before it.
        first = draws.first(leaf_weight)
        row, _ = draws.row(first, merged - rest)
        estimate = draws.deviations(first) + rest
        # The last round of a tree of 2^levels rounds completes a block that nothing is made of.
        slot = jnp.minimum(top, self._levels - 1)
        return row, (jax.lax.dynamic_update_index_in_dim(stack, estimate, slot, 0),)


class RegeneratedRows(Rows):
    """C^-1 has few bands: a row is a sum of the last rows of Z, which are drawn again, one after the other."""

    def __init__(self, band: tuple[float, ...]) -> None:
        self._band = np.array(band, np.float32)
        self.earlier_keys = len(band) - 1

    def step(self, buffers: Buffers, round: jax.Array, draws: Draws, keys: jax.Array) -> tuple[jax.Array, Buffers]:
        first = draws.first(self._band[0])
        if not self.earlier_keys:
            return first.whole, ()
        back = jnp.arange(1, self.earlier_keys + 1)
        weights = jnp.where(back <= round, jnp.asarray(self._band[1:]), 0.0)

        def add(past: jax.Array, earlier: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            weight, key = earlier
            return past + weight * draws.before(key, self._band[0]), None

        past, _ = jax.lax.scan(add, jnp.zeros_like(first.whole, jnp.float32), (weights, keys))
        return draws.row(first, -past)[0], ()
