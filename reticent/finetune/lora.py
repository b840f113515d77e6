"""LoRA (Hu et al. 2021): linear layers that stay as they are, each with a product of two thin ones trained beside it.

Only the thin ones are parameters of the model: what is clipped, noised and kept of the run is theirs alone.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from reticent.errors import Refused
from reticent.models.layers import Layers
from reticent.models.model import Model, Params, language_model
from reticent.models.transformer import Adapters, Shape, apply, linear_sizes


@dataclass(frozen=True)
class Lora:
    """Adapters of rank `rank` for the linear layers `targets` (as `reticent.models.transformer.linear_sizes` names them);
    what they add is multiplied by `gain`."""

    rank: int
    gain: float
    targets: tuple[str, ...]

    def check(self, shape: Shape) -> None:
        """Refuses a rank that no layer can have."""
        widths = {name: min(linear_sizes(shape)[name]) for name in self.targets}
        for name, width in widths.items():
            if self.rank > width:
                raise Refused(f"lora.rank {self.rank} is more than the {width} that layer {name!r} can have; lower it.")


def init(shape: Shape, lora: Lora, key: jax.Array) -> Params:
    """Adapters that add nothing yet: `inner` uniform within 1 / sqrt(in), as PEFT begins, `outer` zero."""
    params = {}
    for name, one in zip(lora.targets, jax.random.split(key, len(lora.targets)), strict=True):
        inputs, outputs = linear_sizes(shape)[name]
        bound = inputs**-0.5
        inner = jax.random.uniform(one, (shape.layers, inputs, lora.rank), jnp.float32, -bound, bound)
        outer = jnp.zeros((shape.layers, lora.rank, outputs), jnp.float32)
        params[name] = {"inner": {"kernel": inner}, "outer": {"kernel": outer}}
    return params


def adapted(
    shape: Shape, base: Params, lora: Lora, *, compute_dtype: str = "float32", unknown: int | None = 3, **facts: Any
) -> Model:
    """A transformer of parameters `base`, of which the adapters alone are trained. `facts` are further fields of `Model`."""
    lora.check(shape)
    dtype = jnp.dtype(compute_dtype)

    def holding(frozen: Params) -> Model:
        def through(params: Params, tokens: jax.Array, layers: Layers = Layers()) -> jax.Array:
            return apply(shape, frozen, tokens, dtype, layers, Adapters(params, lora.gain))

        from dataclasses import replace

        made = language_model(
            lambda key: init(shape, lora, key),
            through,
            vocabulary=shape.vocabulary,
            unknown=unknown,
            layered=through,
            compute_dtype=compute_dtype,
        )
        return replace(made, frozen=frozen, rebuild=holding, **facts)

    return holding(base)


def merged(params: Params, adapters: Params, lora: Lora) -> Params:
    """The parameters of a transformer that computes what `params` with these adapters does, float32."""
    layers = dict(params["layers"])
    for name in lora.targets:
        inner, outer = adapters[name]["inner"]["kernel"], adapters[name]["outer"]["kernel"]
        kernel = jnp.asarray(layers[name]["kernel"], jnp.float32)
        exact = jax.lax.Precision.HIGHEST
        layers[name] = {**layers[name], "kernel": kernel + lora.gain * jnp.matmul(inner, outer, precision=exact)}
    return {**params, "layers": layers}
