"""Recurrent language models: an embedding, one recurrent layer, scores of all words.

With V words, width E and H units they have these numbers of parameters:

- `lstm` (StackOverflow's): the state projected to width E, separate embeddings, a bias everywhere:
  2 V E + V + 4 H (E + H + 1) + (H + 1) E;
- `lstm-tied` (dpfedavg, App. B): the same, but one embedding of unit norm for both input and output, and no bias of
  words: V E + 4 H (E + H + 1) + (H + 1) E;
- `cifg` (Gboard's): input and forget gate coupled, what recurs is the state projected to width E, separate embeddings:
  2 V E + V + 3 H (2 E + 1) + H E.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from reticent.models.layers import Layers
from reticent.models.model import Model, Params, language_model
from reticent.models.products import product

UNROLL = 5


def make(
    *,
    kind: str,
    vocabulary: int,
    embedding: int,
    hidden: int,
    coupled: bool,
    tied: bool,
    compute_dtype: str,
    unknown: int | None,
) -> Model:
    """A recurrent model; `coupled` for a CIFG with its recurrent projection, `tied` for one embedding of unit norm."""
    dtype = jnp.dtype(compute_dtype)
    gates, recurring = (3, embedding) if coupled else (4, hidden)

    def init(key: jax.Array) -> Params:
        keys = jax.random.split(key, 5)
        glorot, orthogonal = jax.nn.initializers.glorot_uniform(), jax.nn.initializers.orthogonal()
        params: Params = {
            "embedding": jax.random.uniform(keys[0], (vocabulary, embedding), jnp.float32, -0.05, 0.05),
            "cell": {
                "input": glorot(keys[1], (embedding, gates * hidden), jnp.float32),
                "recurrent": orthogonal(keys[2], (recurring, gates * hidden), jnp.float32),
                # A forget gate that starts open lets gradients reach back.
                "bias": jnp.zeros(gates * hidden).at[:hidden].set(1.0),
            },
            "projection": {"kernel": glorot(keys[3], (hidden, embedding), jnp.float32)},
        }
        if not coupled:
            params["projection"]["bias"] = jnp.zeros(embedding)
        if not tied:
            params["output"] = {
                "embedding": glorot(keys[4], (vocabulary, embedding), jnp.float32),
                "bias": jnp.zeros(vocabulary),
            }
        return params

    def apply(params: Params, tokens: jax.Array) -> jax.Array:
        table = unit_rows(params["embedding"]) if tied else params["embedding"]
        inputs = table[tokens.T]
        if coupled:
            outputs = cifg(params["cell"], params["projection"]["kernel"], inputs, dtype)
        else:
            states = lstm(params["cell"], inputs, dtype)
            outputs = product(states, params["projection"]["kernel"], dtype) + params["projection"]["bias"]
        outputs = jnp.swapaxes(outputs, 0, 1)
        if tied:
            return product(outputs, table.T, dtype)
        return product(outputs, params["output"]["embedding"].T, dtype) + params["output"]["bias"]

    def layered(named: Params, tokens: jax.Array, layers: Layers) -> jax.Array:
        inputs = layers.lookup(named["embedding"], tokens, jnp.dtype(jnp.float32))
        gates = layers.widened(named["input"], inputs, dtype)
        states = layers.recurrent(named["recurrent"], gates, lstm_states, dtype)
        outputs = layers.widened(named["projection"], states, dtype)
        return layers.scores(named["output"], outputs, dtype)

    plain = not coupled and not tied
    return language_model(
        init,
        apply,
        vocabulary=vocabulary,
        kind=kind,
        unknown=unknown,
        layered=layered if plain else None,
        by_layer=by_layer if plain else None,
        compute_dtype=compute_dtype,
    )


def by_layer(params: Params) -> Params:
    """The parameters of an LSTM under the names by which `reticent.models.layers` knows them."""
    cell, output = params["cell"], params["output"]
    return {
        "embedding": {"table": params["embedding"]},
        "input": {"kernel": cell["input"], "bias": cell["bias"]},
        "recurrent": {"kernel": cell["recurrent"]},
        "projection": params["projection"],
        "output": {"table": output["embedding"], "bias": output["bias"]},
    }


def unit_rows(table: jax.Array) -> jax.Array:
    """Each row at norm 1 (a row of zeros stays one)."""
    return table * jax.lax.rsqrt(jnp.maximum(jnp.sum(table * table, axis=-1, keepdims=True), 1e-30))


def lstm(cell: Params, inputs: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The states of one layer from zero: float32[length, batch, units] of float32[length, batch, width]."""
    gates = product(inputs, cell["input"], dtype) + cell["bias"]
    return _lstm(lambda state: product(state, cell["recurrent"], dtype), gates)


def lstm_states(times_kernel: Callable[[jax.Array], jax.Array], gates: jax.Array) -> jax.Array:
    """The states [batch, length, units] of one layer from zero, of what enters its gates [batch, length, 4 units]."""
    return jnp.swapaxes(_lstm(times_kernel, jnp.swapaxes(gates, 0, 1)), 0, 1)


def _lstm(times_kernel: Callable[[jax.Array], jax.Array], gates: jax.Array) -> jax.Array:
    zeros = jnp.zeros((gates.shape[1], gates.shape[2] // 4), jnp.float32)

    def step(carry: tuple[jax.Array, jax.Array], gate: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        memory, state = carry
        gate = gate + times_kernel(state)
        forget, enter, candidate, leave = jnp.split(gate, 4, axis=-1)
        memory = jax.nn.sigmoid(forget) * memory + jax.nn.sigmoid(enter) * jnp.tanh(candidate)
        state = jax.nn.sigmoid(leave) * jnp.tanh(memory)
        return (memory, state), state

    return jax.lax.scan(step, (zeros, zeros), gates, unroll=UNROLL)[1]


def cifg(cell: Params, projection: jax.Array, inputs: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The projected states of one layer from zero: float32[length, batch, width] of the same."""
    gates = product(inputs, cell["input"], dtype) + cell["bias"]
    units, width = projection.shape
    start = (jnp.zeros((inputs.shape[1], units)), jnp.zeros((inputs.shape[1], width)))

    def step(carry: tuple[jax.Array, jax.Array], gate: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        memory, state = carry
        forget, candidate, leave = jnp.split(gate + product(state, cell["recurrent"], dtype), 3, axis=-1)
        keep = jax.nn.sigmoid(forget)
        memory = keep * memory + (1 - keep) * jnp.tanh(candidate)
        state = product(jax.nn.sigmoid(leave) * jnp.tanh(memory), projection, dtype)
        return (memory, state), state

    return jax.lax.scan(step, start, gates, unroll=UNROLL)[1]
