"""Gaussians from random bits: far into the tail, and without gaps.

Sixty-four bits make one. The first word, a sign and 31 bits, chooses a tail probability, which the second word refines where
it is small: down to 2^-64, the Gaussian to 9.2 standard deviations. Its quantile is computed in float32, where numbers have
gaps; in a release of integers finer than those, the integers that noise cannot be would show what it was added to. So the
second word also moves the quantile by a uniform offset, a whole number of 256ths of a unit, over a width w of 1/16 to 1/8 of
a standard deviation (a power of two of units). What comes out,

    z = sqrt(1 - w^2 / 12) quantile + w offset,    offset uniform on (-1/2, 1/2),

is normal but for its fourth cumulant, -w^4 / 120 or 2e-6 at most, and smaller ones: its tails have their probability to one
part in 20,000 at five standard deviations and in 3,000 at eight. Its density is smooth down to 1/256 of a unit: from one
unit to the next it does not jump by more than what float32 gets quantiles wrong by, over w, about 1e-6 of it.

A number of up to 31 bits before its point and 8 after fits no float32, so it comes in two parts, `Parted`. Of noise that is
added to earlier noise before it is rounded, both parts count: noise made of the rounded one alone would be another.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from reticent.privacy.keys import from_two_words

TOP_BIT = np.uint32(2**31)
FINEST = 2.0**27
SCATTER = np.uint32(0x9E3779B1)  # the golden section of 2^32, a prime

# Minimax fits, 2.3e-7 relative, of quantile(q) / (1 - 2 q) in w = -log(4 q (1 - q)), down to q = 2^-65: up to w = 5.5 in
# w - 2.75; beyond, divided by sqrt(w), in 1 / sqrt(w) - 0.285.
SPLIT = 5.5
CENTRE = (
    2.21011851, 0.345536242, -0.00712309439, -0.00147077218, 0.000296559369, -1.24245217e-05, -3.88304416e-06,
    4.99901585e-07, 1.84396077e-08,
)  # fmt: skip
TAIL = (
    1.34793227, -0.269431542, 0.196473, 0.845564243, 1.75572117, 16.1347828, 3.22243305, -193.505478, -313.360264,
)  # fmt: skip


def quantile(tail: jax.Array) -> jax.Array:
    """The value that a standard normal exceeds with this probability, from 2^-65 to 1/2; float32, within 1e-6 of it."""
    w = -jnp.log(4 * tail * (1 - tail))
    inverse_root = jax.lax.rsqrt(jnp.maximum(w, SPLIT))
    central = w < SPLIT
    place = jnp.where(central, w - 2.75, inverse_root - 0.285)
    value = jnp.zeros_like(w)
    for centre, far in zip(reversed(CENTRE), reversed(TAIL), strict=True):
        value = value * place + jnp.where(central, jnp.float32(centre), jnp.float32(far))
    return (1 - 2 * tail) * value * jnp.where(central, 1, w * inverse_root)


class Parted(NamedTuple):
    """Real numbers in two parts: the nearest integer, int32, and what is left, int8: (`rest` + 1/2) / 256."""

    whole: jax.Array
    rest: jax.Array

    @property
    def below(self) -> jax.Array:
        """What is left, above -1/2 and below 1/2, as float32."""
        return (self.rest.astype(jnp.float32) + 0.5) * 2.0**-8


def of_words(first: jax.Array, second: jax.Array, deviation: jax.Array | float) -> Parted:
    """The normal of this standard deviation, at most 2^27.7, that two random words make."""
    deviation = jnp.asarray(deviation, jnp.float32)
    exponent = (jax.lax.bitcast_convert_type(deviation, jnp.int32) >> 23) - 127
    bits = exponent - 3
    offset = bits > 0
    width = jnp.where(offset, jnp.exp2(bits.astype(jnp.float32)), 0.0)
    share = jnp.where(offset, width / deviation, 0.0)

    leading = (first & ~TOP_BIT).astype(jnp.int32).astype(jnp.float32)
    # Far out, where the second word decides, a product with its last bits in front is as good as independent of its first.
    following = ((second * SCATTER) >> 1).astype(jnp.int32).astype(jnp.float32) + 0.5
    magnitude = quantile(leading * 2.0**-32 + following * 2.0**-63)
    real = magnitude * (deviation * jnp.sqrt(1 - share * share / 12))
    whole = jnp.rint(real)
    # The second word again, its first bits before the point: in (0, width), never an end of it.
    shift = jnp.clip(bits, 1, 24).astype(jnp.uint32)
    back = jnp.where(offset, (second >> (32 - shift)).astype(jnp.int32) - (width / 2).astype(jnp.int32), 0)
    back_rest = jnp.where(offset, ((second << shift) >> 24).astype(jnp.int32) + 1, 0)
    rest = jnp.floor((real - whole) * 256 + jnp.where(offset, 0.5, 0.0)).astype(jnp.int32) - back_rest
    carried = (rest + 128) >> 8
    size, rest = whole.astype(jnp.int32) - back + carried, rest - (carried << 8)
    negative = first >= TOP_BIT
    return Parted(jnp.where(negative, -size, size), jnp.where(negative, ~rest, rest).astype(jnp.int8))


@partial(jax.jit, static_argnames="shape")
def parted_normal(key: jax.Array, shape: tuple[int, ...], deviation: jax.Array | float, start: ArrayLike = 0) -> Parted:
    """Independent normals of this standard deviation, at most 2^27.7; of a vector from its entry `start` on."""
    return from_two_words(key, shape, lambda first, second: of_words(first, second, deviation), start)  # type: ignore[return-value]


@partial(jax.jit, static_argnames="shape")
def rounded_normal(key: jax.Array, shape: tuple[int, ...], deviation: jax.Array | float) -> jax.Array:
    """`parted_normal` of the same key, each rounded to the nearest integer; int32."""
    return from_two_words(key, shape, lambda first, second: of_words(first, second, deviation).whole)


@partial(jax.jit, static_argnames="shape")
def normal(key: jax.Array, shape: tuple[int, ...], start: ArrayLike = 0) -> jax.Array:
    """Independent standard normals, float32: `rounded_normal` of the same key, divided by its deviation."""

    def value(first: jax.Array, second: jax.Array) -> jax.Array:
        return of_words(first, second, FINEST).whole.astype(jnp.float32) * (1 / FINEST)

    return from_two_words(key, shape, value, start)
