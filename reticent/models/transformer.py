"""A decoder-only transformer: blocks of causal attention and of a feed-forward part, each behind a norm.

With V words, width W, L layers, Q the width of all query heads together, K that of all key heads, feed-forward width F
and M matrices in it (3 when gated, else 2), the number of parameters is

    V W (2 V W unless tied) + L (2 W Q + 2 W K + M W F) + (2 L + 1) W

with rotary positions, RMS norms and no biases. Learned positions for T tokens add T W, layer norms another (2 L + 1) W,
biases L (Q + 2 K + 2 W + (M - 1) F).
"""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from reticent.errors import Refused
from reticent.models.layers import Layers
from reticent.models.model import Model, Params, language_model


@dataclass(frozen=True)
class Shape:
    """What there is in a transformer. GPT-2's and Llama's are the two ends; rows of tokens go up to `longest`.

    Learned positions need `longest`; rotary ones reach as far as they are asked to and ignore it.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    key_value_heads: int
    head_width: int
    feed_forward: int
    longest: int
    positions: Literal["learned", "rotary"] = "rotary"
    norm: Literal["layer", "rms"] = "rms"
    activation: Literal["gelu", "silu"] = "silu"
    gated: bool = True
    biases: bool = False
    tied: bool = True
    norm_epsilon: float = 1e-5
    rotary_base: float = 10_000.0

    def __post_init__(self) -> None:
        if self.heads % self.key_value_heads:
            raise Refused(f"{self.heads} heads cannot share {self.key_value_heads} key and value heads equally.")
        if self.positions == "rotary" and self.head_width % 2:
            raise Refused(f"Rotary positions need heads of an even width, got {self.head_width}.")


def make(
    *,
    kind: str,
    compute_dtype: str,
    unknown: int | None,
    vocabulary: int,
    embedding: int,
    hidden: int,
    layers: int,
    heads: int,
) -> Model:
    """The built-in transformer: rotary positions, RMS norms, gated SiLU, tied embeddings, no biases."""
    if embedding % heads:
        raise Refused(f"model.embedding must be a multiple of model.heads, got {embedding} and {heads}.")
    shape = Shape(
        vocabulary=vocabulary,
        width=embedding,
        layers=layers,
        heads=heads,
        key_value_heads=heads,
        head_width=embedding // heads,
        feed_forward=hidden,
        longest=0,
    )
    return transformer(shape, compute_dtype=compute_dtype, unknown=unknown, kind=kind)


def transformer(
    shape: Shape, *, compute_dtype: str = "float32", unknown: int | None = 3, kind: str = "transformer"
) -> Model:
    """A model of this shape. Parameters, norms, softmax and scores are float32, the rest is in `compute_dtype`."""
    dtype = jnp.dtype(compute_dtype)
    return language_model(
        lambda key: init(shape, key),
        lambda params, tokens: apply(shape, params, tokens, dtype),
        vocabulary=shape.vocabulary,
        kind=kind,
        unknown=unknown,
        layered=lambda params, tokens, layers: apply(shape, params, tokens, dtype, layers),
        compute_dtype=compute_dtype,
    )


def init(shape: Shape, key: jax.Array) -> Params:
    """Normal of 0.02, what adds to the stream less the deeper the model (GPT-2's rule); of `layers` stacked leaves."""
    keys = iter(jax.random.split(key, 16))

    def normal(*sizes: int, scale: float = 0.02) -> jax.Array:
        return scale * jax.random.normal(next(keys), sizes, jnp.float32)

    def linear(inputs: int, outputs: int, scale: float = 0.02) -> Params:
        kernel = {"kernel": normal(shape.layers, inputs, outputs, scale=scale)}
        return {**kernel, "bias": jnp.zeros((shape.layers, outputs))} if shape.biases else kernel

    def norm(*stacked: int) -> Params:
        scale = {"scale": jnp.ones((*stacked, shape.width))}
        return {**scale, "bias": jnp.zeros((*stacked, shape.width))} if shape.norm == "layer" else scale

    inner = 0.02 / (2 * shape.layers) ** 0.5
    queries, keys_wide = shape.heads * shape.head_width, shape.key_value_heads * shape.head_width
    params: Params = {
        "embedding": {"table": normal(shape.vocabulary, shape.width)},
        "layers": {
            "attention_norm": norm(shape.layers),
            "query": linear(shape.width, queries),
            "key": linear(shape.width, keys_wide),
            "value": linear(shape.width, keys_wide),
            "attention_out": linear(queries, shape.width, scale=inner),
            "feed_forward_norm": norm(shape.layers),
            "up": linear(shape.width, shape.feed_forward),
            "down": linear(shape.feed_forward, shape.width, scale=inner),
        },
        "final_norm": norm(),
    }
    if shape.gated:
        params["layers"]["gate"] = linear(shape.width, shape.feed_forward)
    if shape.positions == "learned":
        params["positions"] = {"table": normal(shape.longest, shape.width)}
    if not shape.tied:
        params["output"] = {"table": normal(shape.vocabulary, shape.width)}
    return params


def apply(shape: Shape, params: Params, tokens: jax.Array, dtype: jnp.dtype, layers: Layers = Layers()) -> jax.Array:
    """Logits, float32[batch, length, vocabulary].

    Padding stands at the end of a row, where no token that counts attends to it.
    """
    norm = layers.layer_norm if shape.norm == "layer" else layers.rms_norm
    batch, length = tokens.shape
    stream = layers.lookup(params["embedding"], tokens, dtype)
    turn = None
    if shape.positions == "learned":
        if length > shape.longest:
            raise Refused(f"The model has positions for {shape.longest} tokens; rows of {length} are too long for it.")
        # A row of places for each row of tokens, so that each row's gradient is its own.
        places = jnp.broadcast_to(jnp.arange(length), tokens.shape)
        stream = stream + layers.lookup(params["positions"], places, dtype)
    else:
        turn = rotation(length, shape.head_width, shape.rotary_base)

    def attention(block: Params, inputs: jax.Array) -> jax.Array:
        def heads(name: str, count: int) -> jax.Array:
            return layers.linear(block[name], inputs, dtype).reshape(batch, length, count, shape.head_width)

        query, key = heads("query", shape.heads), heads("key", shape.key_value_heads)
        value = heads("value", shape.key_value_heads)
        if turn is not None:
            query, key = rotate(query, turn), rotate(key, turn)
        attended = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        return layers.linear(block["attention_out"], attended.reshape(batch, length, -1), dtype)

    def feed_forward(block: Params, inputs: jax.Array) -> jax.Array:
        activation = jax.nn.silu if shape.activation == "silu" else jax.nn.gelu
        up = layers.linear(block["up"], inputs, dtype)
        up = activation(layers.linear(block["gate"], inputs, dtype)) * up if shape.gated else activation(up)
        return layers.linear(block["down"], up, dtype)

    def one(stream: jax.Array, block: Params) -> tuple[jax.Array, None]:
        stream = stream + attention(block, norm(block["attention_norm"], stream, shape.norm_epsilon))
        stream = stream + feed_forward(block, norm(block["feed_forward_norm"], stream, shape.norm_epsilon))
        return stream, None

    stream, _ = jax.lax.scan(one, stream, params["layers"])
    stream = norm(params["final_norm"], stream, shape.norm_epsilon)
    return layers.scores(params["embedding" if shape.tied else "output"], stream, dtype)


def rotation(length: int, width: int, base: float) -> jax.Array:
    """Angles of rotary positions, float32[length, width / 2]: position / base^(2 i / width)."""
    rates = base ** -(jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    return jnp.arange(length, dtype=jnp.float32)[:, None] * rates


def rotate(heads: jax.Array, angles: jax.Array) -> jax.Array:
    """Entry i and entry width / 2 + i of each head turned by their angle: [batch, length, heads, width] of the same."""
    cosine, sine = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return turned.astype(heads.dtype)
