from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from reticent.models import make
from reticent.models.clients import local_updates, map_clients


@pytest.mark.parametrize("platform", ["cpu", "gpu", None])
def test_every_client_gets_its_own_result_whatever_the_platform(platform):
    values = {"a": jnp.arange(12.0).reshape(4, 3), "b": jnp.arange(4)}

    def function(one, two):
        return one["a"].sum() * two, one["b"]

    mapped = jax.jit(lambda one, two: map_clients(function, one, two, platform=platform))
    first, second = mapped(values, jnp.arange(4.0))
    np.testing.assert_array_equal(first, values["a"].sum(1) * np.arange(4))
    np.testing.assert_array_equal(second, values["b"])


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_total_is_the_sum_in_the_type_of_what_is_summed(platform):
    values = jnp.asarray([2**30, -5, 7], jnp.int32)
    mapped = jax.jit(lambda values: map_clients(lambda value: (value, value.astype(jnp.float32)), values, total=True))
    whole, rough = mapped(values)
    assert (whole, whole.dtype) == (2**30 + 2, jnp.int32)
    assert (rough, rough.dtype) == (2.0**30, jnp.float32)


MODEL = make("cifg", vocabulary=30, embedding=8, hidden=12)
RATE = 0.7


def some_clients(clients=4, steps=3, batch=2, length=5):
    """The first client has all its steps, the last none; batches are ragged."""
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, 30, (clients, steps, batch, length + 1)).astype(np.int32)
    for client in range(clients):
        tokens[client, steps - client :] = -1
        tokens[client, :, 1, 3:] = -1
    return tokens


GRADIENT = jax.jit(jax.grad(MODEL.loss, has_aux=True))


def one_after_another(params, batches):
    local = params
    for batch in batches:
        if (batch[:, 1:] >= 0).any():
            gradient, _ = GRADIENT(local, batch, None)
            local = jax.tree.map(lambda value, slope: value - RATE * slope, local, gradient)
    return jax.tree.map(jnp.subtract, local, params)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_updates_are_those_of_plain_local_training(platform):
    params, tokens = MODEL.init(jax.random.key(0)), some_clients()
    expected = [one_after_another(params, batches) for batches in tokens]
    updates = jax.jit(lambda *arguments: local_updates(MODEL, *arguments, platform=platform))(params, tokens, RATE)
    for client, update in enumerate(expected):
        jax.tree.map(
            lambda own, plain: np.testing.assert_allclose(own, plain, rtol=1e-5, atol=1e-6),
            jax.tree.map(lambda leaf: leaf[client], updates),  # noqa: B023
            update,
        )
    assert all((leaf[-1] == 0).all() for leaf in jax.tree.leaves(updates)), "a client without a target"

    def each(update, weight):
        return jax.tree.map(lambda leaf: jnp.trunc(1e3 * weight * leaf).astype(jnp.int32), update)

    weights = jnp.arange(1.0, 5.0)
    summed = jax.jit(
        lambda *arguments: local_updates(MODEL, *arguments, each, beside=(weights,), total=True, platform=platform)
    )(params, tokens, RATE)
    by_hand = jax.tree.map(lambda *leaves: sum(leaves), *map(each, unstacked(updates), weights))
    # A last bit may fall on the other side of an integer.
    jax.tree.map(lambda own, plain: np.testing.assert_allclose(own, plain, atol=4), summed, by_hand)
    assert {leaf.dtype for leaf in jax.tree.leaves(summed)} == {jnp.dtype("int32")}


def unstacked(updates):
    return [jax.tree.map(lambda leaf: leaf[client], updates) for client in range(4)]  # noqa: B023


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_step_of_padding_changes_nothing_even_where_its_gradient_is_not_zero(platform):
    def decaying(params, tokens, key):
        loss, sums = MODEL.loss(params, tokens, key)
        return loss + sum((leaf**2).sum() for leaf in jax.tree.leaves(params)), sums

    model = replace(MODEL, loss=decaying)
    params, tokens = MODEL.init(jax.random.key(0)), np.full((2, 3, 2, 6), -1, np.int32)
    updates = jax.jit(lambda params: local_updates(model, params, tokens, RATE, platform=platform))(params)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(updates))


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_every_client_and_step_draws_with_a_key_of_its_own(platform):
    def drawn(params, tokens, key):
        return params["drawn"] @ jax.random.normal(key, (3,)), {}

    model = replace(MODEL, loss=drawn)
    params, keys = {"drawn": jnp.zeros(3)}, jax.random.split(jax.random.key(5), 4)
    tokens = np.ones((4, 2, 1, 3), np.int32)
    updates = jax.jit(lambda keys: local_updates(model, params, tokens, RATE, keys=keys, platform=platform))(keys)
    expected = [
        -RATE * sum(jax.random.normal(jax.random.fold_in(key, step), (3,)) for step in range(2)) for key in keys
    ]
    np.testing.assert_allclose(updates["drawn"], np.stack(expected), rtol=1e-5)
