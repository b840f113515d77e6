"""Image classifiers, as models whose rows are an image's values and its label (`reticent.data.images`).

A convolutional network of 3 by 3 kernels with tanh units, which suit clipped gradients (Papernot et al. 2020): pairs of
layers, each followed by pooling, then a dense layer and scores of the classes.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from reticent.errors import Refused
from reticent.models import metrics
from reticent.models.losses import token_losses
from reticent.models.model import Model, Params

FIRST = 4
CLASSES = 10


def make(
    *,
    kind: str,
    vocabulary: int,
    hidden: int,
    side: int,
    channels: int,
    widths: tuple[int, ...],
    largest: int,
    compute_dtype: str,
    unknown: int | None,
) -> Model:
    """A classifier of images of `side` by `side` values in `channels`, each from 0 to `largest`, channel after channel."""
    if compute_dtype != "float32":
        raise Refused(f"A model of kind {kind!r} computes in float32; leave model.compute_dtype out.")
    values = side * side * channels
    inner = (side // 2 ** len(widths)) ** 2 * widths[-1]

    def init(key: jax.Array) -> Params:
        glorot, keys = jax.nn.initializers.glorot_uniform(), iter(jax.random.split(key, 2 * len(widths) + 2))
        params: Params = {"convolutions": [], "dense": {}, "scores": {}}
        entering = channels
        for width in widths:
            for _ in range(2):
                kernel = glorot(next(keys), (3 * 3 * entering, width), jnp.float32).reshape(3, 3, entering, width)
                params["convolutions"].append({"kernel": kernel, "bias": jnp.zeros(width)})
                entering = width
        params["dense"] = {"kernel": glorot(next(keys), (inner, hidden), jnp.float32), "bias": jnp.zeros(hidden)}
        params["scores"] = {"kernel": glorot(next(keys), (hidden, CLASSES), jnp.float32), "bias": jnp.zeros(CLASSES)}
        return params

    def apply(params: Params, tokens: jax.Array) -> jax.Array:
        if tokens.shape[-1] != values:
            raise Refused(
                f"A model of kind {kind!r} reads images of {values:,} values, not of {tokens.shape[-1]:,}; set "
                f"data.sequence_length = {values}, and give a store of such images."
            )
        flat = (jnp.maximum(tokens, FIRST) - FIRST).astype(jnp.float32) / (largest / 2) - 1
        image = flat.reshape(-1, channels, side, side).transpose(0, 2, 3, 1)
        for number, layer in enumerate(params["convolutions"]):
            image = jax.lax.conv_general_dilated(
                image, layer["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            image = jnp.tanh(image + layer["bias"])
            if number % 2:
                image = jax.lax.reduce_window(image, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        flat = image.reshape(image.shape[0], -1)
        flat = jnp.tanh(flat @ params["dense"]["kernel"] + params["dense"]["bias"])
        return flat @ params["scores"]["kernel"] + params["scores"]["bias"]

    def loss(params: Params, tokens: Any, key: Any = None) -> tuple[jax.Array, dict[str, jax.Array]]:
        labels = jnp.where(tokens[:, -1] >= FIRST, tokens[:, -1] - FIRST, -1)
        scores = apply(params, tokens[:, :-1])
        losses = token_losses(scores, labels)
        found = metrics.sums(jax.lax.stop_gradient(losses), scores, labels, None)
        return losses.sum() / jnp.maximum(found["tokens"], 1.0), found

    shapes = jax.eval_shape(init, jax.random.key(0))
    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    return Model(kind, vocabulary, parameters, init, loss, apply, of_tokens=False)
