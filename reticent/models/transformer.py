"""A decoder-only transformer: blocks of causal attention and of a feed-forward part, each behind a norm.

With V words, width W, L layers, Q the width of all query heads together, K that of all key heads, feed-forward width F
and M matrices in it (3 when gated, else 2), the number of parameters is

    V W (2 V W unless tied) + L (2 W Q + 2 W K + M W F) + (2 L + 1) W

with rotary positions, RMS norms and no biases. Learned positions for T tokens add T W, layer norms another (2 L + 1) W,
biases L (Q + 2 K + 2 W + (M - 1) F), norms of queries and keys 2 L times the width of a head, norms after each part 2 L W.

Adapters (LoRA, Hu et al. 2021) add to a linear layer a product of two thin ones: `apply` takes them beside the parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from reticent.errors import Refused
from reticent.models.layers import Layers
from reticent.models.model import Model, Params, language_model


@dataclass(frozen=True)
class Shape:
    """What there is in a transformer. GPT-2's and Llama's are the two ends; rows of tokens go up to `longest`.

    Learned positions need `longest`; rotary ones reach as far as they are asked to and ignore it. With `checkpointing` the
    backward pass makes a block's inner values anew rather than keep them: less memory, a third more work.

    `biases` is True (all linear layers), False (none), or the names of those that have one. `rotary_rates` are the angles
    per position of each pair of entries where they are not powers of `rotary_base`, `rotary_gain` multiplies what is
    turned. `windows` says of each layer how many tokens, itself included, a token sees at most (0: all before it);
    `windowed_rates` are the rates of layers with a window, where those have others. `head_norms` are RMS norms of each
    query and key, `outer_norms` those of what attention and feed-forward part add to the stream. `attention_scale` takes
    the place of head_width^-1/2; caps bound attention's scores, and the scores of words, by cap * tanh(score / cap).
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
    activation: Literal["gelu", "gelu-exact", "silu"] = "silu"
    gated: bool = True
    biases: bool | tuple[str, ...] = False
    tied: bool = True
    norm_epsilon: float = 1e-5
    rotary_base: float = 10_000.0
    rotary_rates: tuple[float, ...] | None = None
    rotary_gain: float = 1.0
    windows: tuple[int, ...] = ()
    windowed_rates: tuple[float, ...] | None = None
    head_norms: bool = False
    outer_norms: bool = False
    embedding_gain: float = 1.0
    attention_scale: float | None = None
    attention_cap: float | None = None
    score_cap: float | None = None
    checkpointing: bool = False

    def __post_init__(self) -> None:
        if self.heads % self.key_value_heads:
            raise Refused(f"{self.heads} heads cannot share {self.key_value_heads} key and value heads equally.")
        if self.positions == "rotary" and self.head_width % 2:
            raise Refused(f"Rotary positions need heads of an even width, got {self.head_width}.")
        if len(self.windows) not in (0, self.layers):
            raise Refused(f"There are windows for {len(self.windows)} of {self.layers} layers; give each layer one.")

    def has_bias(self, linear: str) -> bool:
        """Whether the linear layer of this name has a bias."""
        return self.biases if isinstance(self.biases, bool) else linear in self.biases


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
    checkpointing: bool = False,
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
        checkpointing=checkpointing,
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

    def norm(*stacked: int) -> Params:
        scale = {"scale": jnp.ones((*stacked, shape.width))}
        return {**scale, "bias": jnp.zeros((*stacked, shape.width))} if shape.norm == "layer" else scale

    inner = 0.02 / (2 * shape.layers) ** 0.5
    blocks: Params = {"attention_norm": norm(shape.layers), "feed_forward_norm": norm(shape.layers)}
    for name, (inputs, outputs) in linear_sizes(shape).items():
        # What adds to the stream less, the deeper the model.
        scale = inner if name in ("attention_out", "down") else 0.02
        blocks[name] = {"kernel": normal(shape.layers, inputs, outputs, scale=scale)}
        if shape.has_bias(name):
            blocks[name]["bias"] = jnp.zeros((shape.layers, outputs))
    if shape.head_norms:
        for name in ("query_norm", "key_norm"):
            blocks[name] = {"scale": jnp.ones((shape.layers, shape.head_width))}
    if shape.outer_norms:
        blocks |= {"attention_outer_norm": norm(shape.layers), "feed_forward_outer_norm": norm(shape.layers)}
    params: Params = {
        "embedding": {"table": normal(shape.vocabulary, shape.width)},
        "layers": blocks,
        "final_norm": norm(),
    }
    if shape.positions == "learned":
        params["positions"] = {"table": normal(shape.longest, shape.width)}
    if not shape.tied:
        params["output"] = {"table": normal(shape.vocabulary, shape.width)}
    return params


def linear_sizes(shape: Shape) -> dict[str, tuple[int, int]]:
    """The linear layers of a block by name, with the widths of what goes in and what comes out."""
    queries, shared = shape.heads * shape.head_width, shape.key_value_heads * shape.head_width
    sizes = {
        "query": (shape.width, queries),
        "key": (shape.width, shared),
        "value": (shape.width, shared),
        "attention_out": (queries, shape.width),
        "up": (shape.width, shape.feed_forward),
        "down": (shape.feed_forward, shape.width),
    }
    return {**sizes, "gate": (shape.width, shape.feed_forward)} if shape.gated else sizes


@dataclass(frozen=True)
class Adapters:
    """What is trained in place of a model's parameters: for some linear layers `inner` [layers, in, rank] and `outer`
    [layers, rank, out], by name; the layer's outputs grow by `gain` times what the two make of its inputs."""

    params: Params
    gain: float


def apply(
    shape: Shape,
    params: Params,
    tokens: jax.Array,
    dtype: jnp.dtype,
    layers: Layers = Layers(),
    adapters: Adapters | None = None,
) -> jax.Array:
    """Logits, float32[batch, length, vocabulary].

    Padding stands at the end of a row, where no token that counts attends to it. `layers` are those of what is trained:
    with `adapters` these alone go through them.
    """
    trained, adapted = layers, {}
    if adapters is not None:
        layers, adapted = Layers(), adapters.params
    norm = layers.layer_norm if shape.norm == "layer" else layers.rms_norm
    batch, length = tokens.shape
    stream = layers.lookup(params["embedding"], tokens, dtype)
    if shape.embedding_gain != 1:
        stream = stream * jnp.asarray(shape.embedding_gain, dtype)
    if shape.positions == "learned":
        if length > shape.longest:
            raise Refused(f"The model has positions for {shape.longest} tokens; rows of {length} are too long for it.")
        # A row of places for each row of tokens, so that each row's gradient is its own.
        places = jnp.broadcast_to(jnp.arange(length), tokens.shape)
        stream = stream + layers.lookup(params["positions"], places, dtype)
    turn, turn_windowed = angles(shape, length)

    def linear(block: Params, name: str, inputs: jax.Array) -> jax.Array:
        outputs = layers.linear(block[name], inputs, dtype)
        if name not in adapted:
            return outputs
        assert adapters is not None
        thin = block["adapters"][name]
        return outputs + adapters.gain * trained.linear(
            thin["outer"], trained.linear(thin["inner"], inputs, dtype), dtype
        )

    def attention(block: Params, inputs: jax.Array, window: jax.Array | None) -> jax.Array:
        def heads(name: str, count: int) -> jax.Array:
            projected = linear(block, name, inputs)
            if shape.head_norms and name != "value":
                # Each head is one more row to its norm, as if it were a token.
                rows = projected.reshape(batch, length * count, shape.head_width)
                projected = layers.rms_norm(block[f"{name}_norm"], rows, shape.norm_epsilon)
            return projected.reshape(batch, length, count, shape.head_width)

        query, key = heads("query", shape.heads), heads("key", shape.key_value_heads)
        value = heads("value", shape.key_value_heads)
        if turn is not None:
            own = turn if window is None or turn_windowed is None else jnp.where(window > 0, turn_windowed, turn)
            query, key = (rotate(heads, own, shape.rotary_gain) for heads in (query, key))
        attended = attend(shape, query, key, value, None if window is None else within(window, length))
        return linear(block, "attention_out", attended.reshape(batch, length, -1))

    def feed_forward(block: Params, inputs: jax.Array) -> jax.Array:
        activation = ACTIVATIONS[shape.activation]
        up = linear(block, "up", inputs)
        up = activation(linear(block, "gate", inputs)) * up if shape.gated else activation(up)
        return linear(block, "down", up)

    def one(stream: jax.Array, block_and_window: tuple[Params, jax.Array | None]) -> tuple[jax.Array, None]:
        block, window = block_and_window
        for name in ("attention", "feed_forward"):
            inputs = norm(block[f"{name}_norm"], stream, shape.norm_epsilon)
            added = attention(block, inputs, window) if name == "attention" else feed_forward(block, inputs)
            if shape.outer_norms:
                added = norm(block[f"{name}_outer_norm"], added, shape.norm_epsilon)
            stream = stream + added
        return stream, None

    # Where no window is narrower than the row, and all layers turn alike, each layer sees everything before it.
    narrow = any(0 < window < length for window in shape.windows) or shape.windowed_rates is not None
    windows = jnp.asarray(shape.windows, jnp.int32) if shape.windows and narrow else None
    blocks = {**params["layers"], "adapters": adapted} if adapted else params["layers"]
    block_by_block = jax.checkpoint(one) if shape.checkpointing else one
    stream, _ = jax.lax.scan(block_by_block, stream, (blocks, windows))
    stream = norm(params["final_norm"], stream, shape.norm_epsilon)
    scores = layers.scores(params["embedding" if shape.tied else "output"], stream, dtype)
    return scores if shape.score_cap is None else capped(scores, shape.score_cap)


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": partial(jax.nn.gelu, approximate=True),
    "gelu-exact": partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
}


def attend(shape: Shape, query: jax.Array, key: jax.Array, value: jax.Array, seen: jax.Array | None) -> jax.Array:
    """Attention to what is `seen` [length, length] (None: everything before), [batch, length, heads, width] of the same."""
    if shape.attention_cap is None:
        mask = None if seen is None else seen[None, None]
        return jax.nn.dot_product_attention(
            query, key, value, mask=mask, scale=shape.attention_scale, is_causal=seen is None
        )
    batch, length = query.shape[:2]
    scale = shape.head_width**-0.5 if shape.attention_scale is None else shape.attention_scale
    grouped = query.reshape(batch, length, shape.key_value_heads, -1, shape.head_width)
    weights = jnp.einsum("bqkgw,bskw->bkgqs", grouped, key, preferred_element_type=jnp.float32) * scale
    weights = capped(weights, shape.attention_cap)
    seen = jnp.tril(jnp.ones((length, length), bool)) if seen is None else seen
    weights = jax.nn.softmax(jnp.where(seen, weights, jnp.finfo(jnp.float32).min), axis=-1)
    attended = jnp.einsum("bkgqs,bskw->bqkgw", weights.astype(value.dtype), value)
    return attended.reshape(batch, length, shape.heads, shape.head_width)


def capped(scores: jax.Array, cap: float) -> jax.Array:
    """Scores bent into (-cap, cap)."""
    return cap * jnp.tanh(scores / cap)


def within(window: jax.Array, length: int) -> jax.Array:
    """bool[length, length]: whether a token sees another, which is it or before it, and by less than `window` (0: any)."""
    back = jnp.arange(length)[:, None] - jnp.arange(length)[None]
    return (back >= 0) & ((back < window) | (window == 0))


def angles(shape: Shape, length: int) -> tuple[jax.Array | None, jax.Array | None]:
    """The angles of rotary positions, of layers that see everything and of those with a window, where they have others."""

    def at(rates: tuple[float, ...]) -> jax.Array:
        return jnp.arange(length, dtype=jnp.float32)[:, None] * jnp.asarray(rates, jnp.float32)

    if shape.positions == "learned":
        return None, None
    plain = (
        rotation(length, shape.head_width, shape.rotary_base) if shape.rotary_rates is None else at(shape.rotary_rates)
    )
    return plain, None if shape.windowed_rates is None else at(shape.windowed_rates)


def rotation(length: int, width: int, base: float) -> jax.Array:
    """Angles of rotary positions, float32[length, width / 2]: position / base^(2 i / width)."""
    rates = base ** -(jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    return jnp.arange(length, dtype=jnp.float32)[:, None] * rates


def rotate(heads: jax.Array, angles: jax.Array, gain: float = 1.0) -> jax.Array:
    """Entry i and entry width / 2 + i of each head turned by their angle, times `gain`: [batch, length, heads, width] of
    the same."""
    cosine, sine = gain * jnp.cos(angles)[:, None], gain * jnp.sin(angles)[:, None]
    first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return turned.astype(heads.dtype)
