"""The layers through which every parameter of a transformer or an LSTM enters, each known by its inputs.

A gradient of such a parameter is made of the layer's inputs and of the cotangents of its outputs, so that norms of
gradients per example can be had without the gradients: pass a model other `Layers` with the same meaning.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from reticent.models.model import Params
from reticent.models.products import product


def linear(params: Params, inputs: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """inputs @ kernel[in, out] + bias[out] (where there is one), in `dtype` and returned in it."""
    outputs = inputs.astype(dtype) @ params["kernel"].astype(dtype)
    return outputs + params["bias"].astype(dtype) if "bias" in params else outputs


def lookup(params: Params, ids: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The rows of table[ids, width]."""
    return params["table"][ids].astype(dtype)


def widened(params: Params, inputs: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The same as `linear`, of float32 inputs, accumulated and returned in float32."""
    outputs = product(inputs, params["kernel"], dtype)
    return outputs + params["bias"] if "bias" in params else outputs


def scores(params: Params, inputs: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """inputs @ table[ids, width]^T + bias[ids] (where there is one) in `dtype`, accumulated and returned in float32."""
    outputs = product(inputs.astype(jnp.float32), params["table"].T, dtype)
    return outputs + params["bias"] if "bias" in params else outputs


def recurrent(
    params: Params,
    inputs: jax.Array,
    run: Callable[[Callable[[jax.Array], jax.Array], jax.Array], jax.Array],
    dtype: jnp.dtype,
) -> jax.Array:
    """`run(times_kernel, inputs)`: the states [batch, length, units] of a recurrent layer, from the state 0, which enters
    each step only as `inputs` + times_kernel(state before it)."""
    return run(lambda state: product(state, params["kernel"], dtype), inputs)


def layer_norm(params: Params, inputs: jax.Array, epsilon: float) -> jax.Array:
    """Mean 0 and variance 1 over the last axis, times scale, plus bias; in float32, returned in the inputs' type."""
    wide = inputs.astype(jnp.float32)
    wide = wide - wide.mean(-1, keepdims=True)
    wide = wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + epsilon)
    return (wide * params["scale"] + params["bias"]).astype(inputs.dtype)


def rms_norm(params: Params, inputs: jax.Array, epsilon: float) -> jax.Array:
    """Mean square 1 over the last axis, times scale; in float32, returned in the inputs' type."""
    wide = inputs.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + epsilon)
    return (wide * params["scale"]).astype(inputs.dtype)


@dataclass(frozen=True)
class Layers:
    """What a model is built of."""

    linear: Callable[[Params, jax.Array, jnp.dtype], jax.Array] = linear
    lookup: Callable[[Params, jax.Array, jnp.dtype], jax.Array] = lookup
    widened: Callable[[Params, jax.Array, jnp.dtype], jax.Array] = widened
    scores: Callable[[Params, jax.Array, jnp.dtype], jax.Array] = scores
    recurrent: Callable[..., jax.Array] = recurrent
    layer_norm: Callable[[Params, jax.Array, float], jax.Array] = layer_norm
    rms_norm: Callable[[Params, jax.Array, float], jax.Array] = rms_norm
