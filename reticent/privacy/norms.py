"""Norms in float32 that come with a bound on their own error."""

from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# At most so many numbers are added without rounding what came out: a compiler may add them in any order.
TERMS = 128
UNIT = 2.0**-24


def largest_entry(update: Any) -> jax.Array:
    """The largest absolute value in a pytree; not a number where an entry is none."""
    return reduce(jnp.maximum, (jnp.abs(leaf).max(initial=0) for leaf in jax.tree.leaves(update)))


def norm_of(update: Any) -> tuple[jax.Array, float]:
    """The Euclidean norm of a pytree of float32, and a bound on how much smaller than the true norm it can have come out,
    relative to it. Exact powers of two keep squares from over- and underflow; an infinite or undefined norm stays so.

    A sum of squares, added at most 128 at a time, is off by (1 + u)^128 for each such step, u = 2^-24, and by 2 u more for
    the rounding between the steps, which also keeps a compiler from making one long sum of them. The root halves that. Roots
    and quotients are taken to be within 4 u.
    """
    # With the exponent's bits alone, the inverse of a power of two is a subtraction.
    bits = jax.lax.bitcast_convert_type(largest_entry(update).astype(jnp.float32), jnp.int32) >> 23
    scale = jax.lax.bitcast_convert_type(jnp.clip(254 - bits, 1, 253) << 23, jnp.float32)
    sums, steps = zip(*(_summed(jnp.square(leaf * scale)) for leaf in jax.tree.leaves(update)), strict=True)
    total, more = _summed(jnp.stack(sums))
    return jnp.sqrt(total) / scale, ((TERMS + 2) * (max(steps) + more) / 2 + 16) * UNIT


def _summed(values: jax.Array) -> tuple[jax.Array, int]:
    """The sum of what is not negative, and how many steps of `TERMS` terms it took at most."""
    steps = 0
    while values.ndim:
        length = values.shape[-1]
        if length > TERMS:
            rest = -length % TERMS
            values = jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, rest)])
            values = values.reshape(*values.shape[:-1], TERMS, -1).sum(-2)
        else:
            values = values.sum(-1)
        values = jax.lax.reduce_precision(values, exponent_bits=8, mantissa_bits=22)
        steps += 1
    return values, steps


def rounded_down(value: float) -> np.float32:
    """The largest float32 not above this."""
    nearest = np.float32(value)
    return nearest if float(nearest) <= value else np.nextafter(nearest, np.float32(-np.inf))
