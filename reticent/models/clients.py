"""Many clients' local training, the way the platform does it fastest."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from reticent.models.model import Model, Params, targets_of


def map_clients(function: Callable[..., Any], *arrays: Any, total: bool = False, platform: str | None = None) -> Any:
    """`function` of each client's slice of `arrays` (pytrees whose leaves begin with the client), results stacked.

    One client after another on a CPU, where a client's matrix products fill the cores by themselves and its
    parameters stay in the cache; all at once elsewhere. Both give the same up to rounding. With `total` the results
    are added up over the clients, each in its own type; on a CPU only one is then in memory at a time. To be called
    inside `jit`; `platform` is that of the device it will run on, by default JAX's.
    """
    if (platform or jax.default_backend()) != "cpu":
        stacked = jax.vmap(function)(*arrays)
        return jax.tree.map(lambda leaf: leaf.sum(0, dtype=leaf.dtype), stacked) if total else stacked
    if not total:
        return jax.lax.map(lambda slices: function(*slices), arrays)
    result = jax.eval_shape(lambda slices: function(*slices), jax.tree.map(lambda leaf: leaf[0], arrays))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), result)

    def add(sums: Any, slices: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, sums, function(*slices)), None

    return jax.lax.scan(add, nothing, arrays)[0]


def local_updates(
    model: Model,
    params: Params,
    tokens: jax.Array,
    learning_rate: jax.Array | float,
    each: Callable[..., Any] = lambda update: update,
    *,
    beside: tuple[Any, ...] = (),
    total: bool = False,
    keys: jax.Array | None = None,
    platform: str | None = None,
) -> Any:
    """What local training changes: of every client its parameters after it minus `params`, float32.

    `tokens` is int32[clients, steps, batch, length + 1] padded with -1; each client starts from `params` and makes one
    step of SGD per batch, with the gradient of the batch's mean loss. A step without a target changes nothing, so the
    update of a client without any is exactly zero. More epochs are more steps.

    `each(update, *slices)` is what is returned of a client, `slices` being its parts of the arrays in `beside` (a
    weight, say). It runs with the local training: clip and round there. Results are stacked; with `total` they are
    added up over the clients, and on a CPU memory does not grow with their number (elsewhere every client's
    parameters are in memory at once). `keys` is a key per client, for models that draw at random. To be called inside
    `jit`; `platform` as in `map_clients`.
    """
    sequential = (platform or jax.default_backend()) == "cpu"
    gradient_of = jax.grad(model.loss, has_aux=True)

    def one_client(batches: jax.Array, key: jax.Array | None, slices: tuple[Any, ...]) -> Any:
        def step(local: Params, numbered: tuple[jax.Array, jax.Array]) -> tuple[Params, None]:
            number, batch = numbered
            counts = jnp.any(targets_of(batch) >= 0)

            def descend(local: Params) -> Params:
                gradient, _ = gradient_of(local, batch, None if key is None else jax.random.fold_in(key, number))
                return jax.tree.map(
                    lambda value, slope: jnp.where(counts, value - learning_rate * slope, value), local, gradient
                )

            # One after another, padding need not even be computed.
            return jax.lax.cond(counts, descend, lambda same: same, local) if sequential else descend(local), None

        local, _ = jax.lax.scan(step, params, (jnp.arange(batches.shape[0]), batches))
        return each(jax.tree.map(jnp.subtract, local, params), *slices)

    return map_clients(one_client, tokens, keys, beside, total=total, platform=platform)
