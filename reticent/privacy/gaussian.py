"""Gaussians from random bits: far into the tail, and without gaps.

Sixty-four bits make one. The first word, a sign and 31 bits, chooses a tail probability, which the second word refines where
it is small: down to 2^-64, the Gaussian to 9.2 standard deviations. Its quantile is computed in float32, where numbers have
gaps; in a release of integers finer than those, the integers that noise cannot be would show what it was added to. So the
second word also moves the quantile by a uniform offset, a whole number of units, over a width w of 1/16 to 1/8 of a
standard deviation (a power of two of units). What comes out,

    z = sqrt(1 - w^2 / 12) quantile + w offset,    offset uniform on (-1/2, 1/2),

is normal but for its fourth cumulant, -w^4 / 120 or 2e-6 at most, and smaller ones: its tails have their probability to one
part in 20,000 at five standard deviations and in 3,000 at eight. Its density is smooth: from one unit to the next it does
not jump by more than what float32 gets quantiles wrong by, over w, about 1e-6 of it.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

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


def of_words(first: jax.Array, second: jax.Array, deviation: jax.Array | float) -> jax.Array:
    """The normal of this standard deviation that two random words make, to the nearest integer; int32."""
    deviation = jnp.asarray(deviation, jnp.float32)
    exponent = (jax.lax.bitcast_convert_type(deviation, jnp.int32) >> 23) - 127
    bits = exponent - 3
    width = jnp.where(bits > 0, jnp.exp2(bits.astype(jnp.float32)), 0.0)
    share = jnp.where(bits > 0, width / deviation, 0.0)

    leading = (first & ~TOP_BIT).astype(jnp.int32).astype(jnp.float32)
    # Far out, where the second word decides, a product with its last bits in front is as good as independent of its first.
    following = ((second * SCATTER) >> 1).astype(jnp.int32).astype(jnp.float32) + 0.5
    magnitude = quantile(leading * 2.0**-32 + following * 2.0**-63)
    whole = jnp.rint(magnitude * (deviation * jnp.sqrt(1 - share * share / 12))).astype(jnp.int32)
    # Rounded so that the least and the greatest offset, which differ in sign only, come half as often as the others.
    offset = ((second >> (31 - jnp.maximum(bits, 0)).astype(jnp.uint32)) + 1) >> 1
    size = whole + jnp.where(bits > 0, (width / 2).astype(jnp.int32) - offset.astype(jnp.int32), 0)
    return jnp.where(first >= TOP_BIT, -size, size)


@partial(jax.jit, static_argnames="shape")
def rounded_normal(key: jax.Array, shape: tuple[int, ...], deviation: jax.Array | float) -> jax.Array:
    """Independent normals of this standard deviation, at most 2^27.7, each rounded to the nearest integer; int32."""
    return from_two_words(key, shape, lambda first, second: of_words(first, second, deviation))


@partial(jax.jit, static_argnames="shape")
def normal(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Independent standard normals, float32: `rounded_normal` of the same key, divided by its deviation."""

    def value(first: jax.Array, second: jax.Array) -> jax.Array:
        return of_words(first, second, FINEST).astype(jnp.float32) * (1 / FINEST)

    return from_two_words(key, shape, value)
