"""A mechanism's noise as an optax transformation of sums of clipped updates.

deviation = noise_deviation(mechanism, rounds, noise_multiplier, clip_norm)
grid = Grid.finest(cohort, clip_norm, deviation)
noise = add_noise(mechanism, rounds, noise_multiplier, clip_norm, grid)
state = noise.init(sums)                                             # secret: from it the noise can be read off
releases, state = noise.update(sums, state, key=row_key(secret))     # once per round, with a fresh secret each
"""

import itertools
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from reticent.errors import Refused
from reticent.mechanisms import Mechanism
from reticent.mechanisms.restarted import Restarted
from reticent.privacy.gaussian import Parted, normal, parted_normal
from reticent.privacy.grid import NOISE_DEVIATIONS, Grid
from reticent.privacy.keys import ROW_KEY_BYTES
from reticent.privacy.rows import Draws, rows_of

KEY_WORDS = ROW_KEY_BYTES // 4


class NoiseState(NamedTuple):
    """What noise keeps between rounds; all of it is secret. Plain arrays, to be stored as they are.

    `round`: rounds so far; `buffers`: for each array of the sums a tuple of float32 arrays; `earlier_keys`: the latest row
    keys as uint32[keys, 8], the newest first, where rows are drawn again.
    """

    round: jax.Array
    buffers: Any
    earlier_keys: jax.Array


def noise_deviation(mechanism: Mechanism, rounds: int, noise_multiplier: float, clip_norm: float) -> float:
    """The standard deviation of one entry of a round's noise, in the round where it is largest."""
    return noise_multiplier * clip_norm * float(mechanism.noise_deviations(rounds).max())


def add_noise(
    mechanism: Mechanism, rounds: int, noise_multiplier: float, clip_norm: float, grid: Grid
) -> optax.GradientTransformationExtraArgs:
    """Adds to each round's sums, int32 arrays on the grid, the mechanism's row of noise, rounded to the grid.

    `update(sums, state, key=key)` is for the next round, one of at most `rounds`, with a key of its own (`row_key`; two
    rounds with one key are not private). It is pure, to be called inside `jit`; sums and state may be donated. Every
    device makes the noise of its own shard, and the result does not depend on how many there are. At a restart the clip norm
    and grid may change: make the transformation anew and go on with the state. With `start=` the sums are a piece of one
    long vector, from that entry on, a multiple of 64, and the state is the same piece of its state: so that the noise of a
    vector can be made piece by piece.

    The privacy is that of integers round(x + N) modulo 2^32, a post-processing of x + N where N is the exact correlated
    Gaussian, up to what `gaussian` says of its density and to float32 rounding of what is taken back of earlier rows,
    2^-24 of it. (Over 2,000 rounds of 4 million parameters that adds some 1e-5 to the square of sensitivity / sigma.)

    Refuses a grid on which ten standard deviations of the noise do not fit 32 bits.
    """
    deviation = noise_deviation(mechanism, rounds, noise_multiplier, clip_norm)
    if not grid.holds(NOISE_DEVIATIONS * deviation):
        raise Refused(
            f"A grid of {grid.step:g} is too fine for noise of standard deviation {deviation:.4g}; "
            "take Grid.finest(cohort, clip_norm, deviation)."
        )
    starts = mechanism.starts if isinstance(mechanism, Restarted) else (0,)
    base = mechanism.base if isinstance(mechanism, Restarted) else mechanism
    longest = max(length for _, length in mechanism.blocks(rounds)) if isinstance(mechanism, Restarted) else rounds
    rows = rows_of(base, longest)
    units = noise_multiplier * clip_norm / grid.step

    def init(sums: optax.Params) -> NoiseState:
        _check_sums(sums)
        return NoiseState(
            round=jnp.zeros((), jnp.int32),
            buffers=jax.tree.map(rows.init, sums),
            earlier_keys=jnp.zeros((rows.earlier_keys, KEY_WORDS), jnp.uint32),
        )

    def update(
        sums: optax.Updates,
        state: NoiseState,
        params: optax.Params | None = None,
        *,
        key: jax.Array,
        start: ArrayLike = 0,
        **_: Any,
    ) -> tuple[optax.Updates, NoiseState]:
        del params
        _check_sums(sums)
        begun = jnp.asarray(starts, jnp.int32)
        since = state.round - begun[jnp.searchsorted(begun, state.round, side="right") - 1]
        arrays = itertools.count()

        def row_of(leaf: jax.Array, buffers: Any) -> tuple[jax.Array, Any]:
            row, after = rows.step(
                buffers, since, _draws(key, next(arrays), leaf.shape, units, start), state.earlier_keys
            )
            return leaf + row, after

        made = jax.tree.map(row_of, sums, state.buffers)
        releases, buffers = (jax.tree.map(lambda _, both, half=half: both[half], sums, made) for half in (0, 1))
        earlier = jnp.concatenate([_stored(key)[None], state.earlier_keys])[: rows.earlier_keys]
        return releases, NoiseState(state.round + 1, buffers, earlier)

    return optax.GradientTransformationExtraArgs(init, update)  # type: ignore[arg-type]


def add_float_noise(
    mechanism: Mechanism, rounds: int, noise_multiplier: float, clip_norm: float
) -> optax.GradientTransformationExtraArgs:
    """The same noise for float sums of vectors of norm `clip_norm` at most, such as clipped gradients.

    Only where you cannot work on a grid: float addition rounds, in a way that depends on what is added to what, so that the
    sensitivity is not exact and the last digits of a release may tell of the sum. `add_noise` has neither fault.
    """
    deviation = noise_deviation(mechanism, rounds, noise_multiplier, clip_norm)
    grid = Grid.finest(1, clip_norm, deviation)
    whole = add_noise(mechanism, rounds, noise_multiplier, clip_norm, grid)

    def nothing(updates: optax.Updates) -> optax.Updates:
        return jax.tree.map(lambda leaf: jnp.zeros_like(leaf, jnp.int32), updates)

    def update(
        updates: optax.Updates, state: NoiseState, params: optax.Params | None = None, *, key: jax.Array, **_: Any
    ) -> tuple[optax.Updates, NoiseState]:
        noise, state = whole.update(nothing(updates), state, params, key=key)
        return jax.tree.map(lambda leaf, row: leaf + row.astype(leaf.dtype), updates, grid.value_of(noise)), state

    return optax.GradientTransformationExtraArgs(lambda updates: whole.init(nothing(updates)), update)  # type: ignore[arg-type]


def _check_sums(sums: Any) -> None:
    for leaf in jax.tree.leaves(sums):
        if leaf.dtype != jnp.int32:
            raise Refused(f"Noise is added to sums of int32 on the grid, not of {leaf.dtype}; see round_towards_zero.")


def _draws(key: jax.Array, array: int, shape: tuple[int, ...], units: float, start: ArrayLike) -> Draws:
    """The Gaussians of the array with this number. Every array and every draw has a key of its own."""

    def key_of(row_key: jax.Array, draw: jax.Array | int) -> jax.Array:
        return jax.random.fold_in(jax.random.fold_in(row_key, draw), array)

    def first(row_key: jax.Array, weight: jax.Array | float) -> Parted:
        return parted_normal(key_of(row_key, 0), shape, weight * units, start)

    def before(stored: jax.Array, weight: float) -> jax.Array:
        row_key = jax.random.wrap_key_data(stored[: _words(key)], impl=jax.random.key_impl(key))
        drawn = first(row_key, weight)
        return (drawn.whole.astype(jnp.float32) + drawn.below) * (1 / (weight * units) if units else 0.0)

    return Draws(units, partial(first, key), lambda draw: normal(key_of(key, draw), shape, start), before)


def _words(key: jax.Array) -> int:
    return jax.random.key_data(key).shape[-1]


def _stored(key: jax.Array) -> jax.Array:
    return jnp.pad(jax.random.key_data(key), (0, KEY_WORDS - _words(key)))
