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
    measured: bool = False,
    total: bool = False,
    keys: jax.Array | None = None,
    platform: str | None = None,
) -> Any:
    """What local training changes: of every client its parameters after it minus `params`, float32.

    `tokens` is int32[clients, steps, batch, length + 1] padded with -1; each client starts from `params` and makes one
    step of SGD per batch, with the gradient of the batch's mean loss. A step without a target changes nothing, so the
    update of a client without any is exactly zero. More epochs are more steps.

    `each(update, *slices)` is what is returned of a client, `slices` being its parts of the arrays in `beside` (a
    weight, say); with `measured` the first is what the model's loss told of all its steps, added up
    (`reticent.models.metrics`). It runs with the local training: clip and round there. Results are stacked; with `total`
    they are added up over the clients, and on a CPU memory does not grow with their number (elsewhere every client's
    parameters are in memory at once). `keys` is a key per client, for models that draw at random. To be called inside
    `jit`; `platform` as in `map_clients`.
    """
    sequential = (platform or jax.default_backend()) == "cpu"
    gradient_of = jax.grad(model.loss, has_aux=True)

    nothing: Any = ()
    if measured:
        told = jax.eval_shape(model.loss, params, tokens[0, 0], None)[1]
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), told)

    def one_client(batches: jax.Array, key: jax.Array | None, slices: tuple[Any, ...]) -> Any:
        def step(state: Any, numbered: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
            number, batch = numbered
            counts = jnp.any(targets_of(batch) >= 0)

            def descend(state: Any) -> Any:
                local, told = state
                gradient, sums = gradient_of(local, batch, None if key is None else jax.random.fold_in(key, number))
                local = jax.tree.map(
                    lambda value, slope: jnp.where(counts, value - learning_rate * slope, value), local, gradient
                )
                return local, jax.tree.map(jnp.add, told, sums) if measured else told

            # One after another, padding need not even be computed.
            return jax.lax.cond(counts, descend, lambda same: same, state) if sequential else descend(state), None

        (local, told), _ = jax.lax.scan(step, (params, nothing), (jnp.arange(batches.shape[0]), batches))
        update = jax.tree.map(jnp.subtract, local, params)
        return each(update, told, *slices) if measured else each(update, *slices)

    return map_clients(one_client, tokens, keys, beside, total=total, platform=platform)
