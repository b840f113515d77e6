"""What a model is here: three functions and a few facts."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Params = Any


@dataclass(frozen=True)
class Model:
    """A language model as pure functions on a plain pytree of float32 arrays.

    `init(key) -> params`. `apply(params, tokens) -> logits`: int32[batch, length] to [batch, length, vocabulary].
    `loss(params, tokens, key) -> (loss, sums)`: `tokens` is int32[batch, length + 1] padded with -1; inputs are
    `maximum(tokens[:, :-1], 0)`, targets `tokens[:, 1:]`, of which those that are not -1 count. The loss is the mean
    cross-entropy over the targets that count (0 where none does); `sums` are those of `reticent.models.metrics`.
    `key` is for models that draw at random in training; the built-in ones do not. `parameters` counts the entries.

    `layered(params, tokens, layers)` is `apply` through other `reticent.models.layers.Layers`, for models whose every
    parameter enters through them and whose rows do not see each other; None for the rest. Its `params` are those that
    `by_layer` makes of the model's (None: the same), which may rename and regroup the arrays and nothing else.
    `compute_dtype` is what its matrix products run in. `of_tokens` is false of a model whose loss is no mean over tokens,
    such as one of images: a row then has one target, its last entry.

    A model that begins with parameters from elsewhere has `start`, which reads them, and `source`, a digest of where they
    come from. One that trains beside parameters that stay as they are has those as `frozen`: what is compiled should
    take them as an argument and call `holding`, since arrays in a closure are in memory twice.
    """

    kind: str
    vocabulary: int
    parameters: int
    init: Callable[[Any], Params]
    loss: Callable[[Params, Any, Any], tuple[Any, dict[str, Any]]]
    apply: Callable[[Params, Any], Any]
    layered: Callable[[Params, Any, Any], Any] | None = None
    compute_dtype: str = "float32"
    by_layer: Callable[[Params], Params] | None = None
    of_tokens: bool = True
    start: Callable[[], Params] | None = None
    source: str | None = None
    frozen: Params = None
    rebuild: "Callable[[Params], Model] | None" = None

    def holding(self, frozen: Params) -> "Model":
        """The same model with other arrays for those that stay as they are, in a compiled function its argument's."""
        return self if self.rebuild is None else self.rebuild(frozen)

    def begin(self, key: Any) -> Params:
        """The parameters to train from: those it comes with, otherwise initialised by `key`."""
        return self.init(key) if self.start is None else self.start()


def language_model(
    init: Callable[[Any], Params],
    apply: Callable[[Params, Any], Any],
    *,
    vocabulary: int,
    kind: str = "custom",
    unknown: int | None = 3,
    layered: Callable[[Params, Any, Any], Any] | None = None,
    compute_dtype: str = "float32",
    by_layer: Callable[[Params], Params] | None = None,
) -> Model:
    """A model of any two JAX functions: `init(key) -> params` and `apply(params, tokens) -> logits`.

    `unknown` is the id of the unknown word (None: there is none); `layered`, `compute_dtype` and `by_layer` are as in
    `Model`.
    """
    import jax

    from reticent.models.losses import next_token_loss

    def loss(params: Params, tokens: Any, key: Any = None) -> tuple[Any, dict[str, Any]]:
        return next_token_loss(apply(params, inputs_of(tokens)), targets_of(tokens), unknown)

    shapes = jax.eval_shape(init, jax.random.key(0))
    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    return Model(kind, vocabulary, parameters, init, loss, apply, layered, compute_dtype, by_layer)


def inputs_of(tokens: Any) -> Any:
    """What a model reads of padded rows: all but the last token, padding as id 0."""
    import jax.numpy as jnp

    return jnp.maximum(tokens[..., :-1], 0)


def targets_of(tokens: Any) -> Any:
    """What a model is to predict: all but the first token, padding as -1."""
    return tokens[..., 1:]
