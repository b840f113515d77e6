"""Sums of clipped gradients against gradients made one by one."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from reticent.finetune.bookkeeping import clipped_sums, supports
from reticent.finetune.sums import loss_of_unit
from reticent.models import make
from reticent.models.transformer import transformer
from tests.models.test_transformer import GPT2, LLAMA, SHAPES, lively

MODELS = {
    **{name: transformer(shape) for name, shape in SHAPES.items()},
    "deep and narrow": transformer(replace(LLAMA, layers=4, tied=True, biases=True)),
    "checkpointed": transformer(replace(LLAMA, checkpointing=True)),
    "lstm": make("lstm", vocabulary=50, embedding=12, hidden=20),
}


def some_units(units=5, rows=3, length=7, seed=0):
    """Units with texts of all lengths, one of them empty, and a word that comes again and again."""
    draw = np.random.default_rng(seed)
    tokens = draw.integers(0, 50, (max(units, 4), rows, length + 1)).astype(np.int32)
    tokens[0] = np.where(draw.random(tokens[0].shape) < 0.5, 7, tokens[0])
    tokens[1, 0, 3:] = -1
    tokens[2, 1:] = -1
    tokens[3] = -1
    return tokens[:units]


def one_by_one(model, params, tokens, norm=np.inf, shares=None):
    """The clipped gradients' sum and the norms, in float64 from single float32 gradients."""
    slope = jax.jit(jax.grad(lambda params, rows: loss_of_unit(model, params, rows)))
    total, norms = 0.0, []
    for number, rows in enumerate(tokens):
        found = np.asarray(ravel_pytree(slope(params, rows))[0], np.float64)
        norms.append(np.linalg.norm(found))
        share = 1.0 if shares is None else shares[number]
        total = total + share * found * min(1.0, norm / norms[-1] if norms[-1] else 1.0)
    return total, np.array(norms)


FAST = {("built-in", 3), ("lstm", 3)}
CASES = [
    pytest.param(name, rows, marks=() if (name, rows) in FAST else pytest.mark.full)
    for name in MODELS
    for rows in (1, 3)
]


@pytest.mark.parametrize(("name", "rows"), CASES)
def test_sums_and_norms_equal_those_of_single_gradients(name, rows):
    model, tokens = MODELS[name], some_units(rows=rows)
    assert supports(model)
    params = lively(model)
    shares = np.array([1.0, 0.5, 1.0, 1.0, 0.25], np.float32)
    sums = jax.jit(lambda params, tokens, norm, shares: clipped_sums(model, params, tokens, norm, shares))
    for norm in (1e4, 0.5):
        expected, norms = one_by_one(model, params, tokens, norm, shares)
        found = sums(params, tokens, norm, shares)
        total = np.asarray(ravel_pytree(found.total)[0], np.float64)
        assert np.abs(total - expected).max() <= 1e-5 * max(1.0, np.abs(expected).max())
        # Never below the true one, and hardly above.
        measured = np.asarray(found.norms, np.float64)
        assert (measured >= norms * (1 - 1e-7)).all()
        np.testing.assert_allclose(measured, norms, rtol=1e-4)
        assert measured[3] == 0


@pytest.mark.full
def test_nobodys_gradient_is_longer_than_the_norm():
    model, params = MODELS["built-in"], lively(MODELS["built-in"])
    sums = jax.jit(lambda tokens: clipped_sums(model, params, tokens, 0.5).total)
    for seed in range(8):
        tokens = some_units(units=1, rows=4, seed=seed)
        length = np.linalg.norm(np.asarray(ravel_pytree(sums(tokens))[0], np.float64))
        assert 0.499 < length <= 0.5 * (1 + 1e-6)


@pytest.mark.full
def test_long_units_take_the_other_way_to_the_norm():
    # 60 tokens of width 24: gradients layer by layer are less work than all pairs.
    model, tokens = MODELS["gpt2"], some_units(units=3, rows=6, length=10)
    params = lively(model)
    expected, norms = one_by_one(model, params, tokens, 0.5)
    found = jax.jit(lambda: clipped_sums(model, params, tokens, 0.5))()
    np.testing.assert_allclose(np.asarray(found.norms), norms, rtol=1e-4)
    assert np.abs(np.asarray(ravel_pytree(found.total)[0]) - expected).max() < 1e-5


@pytest.mark.full
def test_bfloat16_is_clipped_as_it_is_computed():
    model = transformer(GPT2, compute_dtype="bfloat16")
    params = lively(model)
    tokens = some_units(units=1, rows=3)
    total = jax.jit(lambda: clipped_sums(model, params, tokens, 0.5).total)()
    # Clipped with a factor rounded to 8 bits, it could be 0.4% longer.
    assert np.linalg.norm(np.asarray(ravel_pytree(total)[0], np.float64)) <= 0.5 * (1 + 1e-4)


def test_a_bad_unit_counts_as_zero_and_spoils_nobody():
    model = MODELS["built-in"]
    params = lively(model)
    # A word that only the second unit has, with an embedding that overflows.
    tokens = np.where(some_units() == 9, 10, some_units())
    spoilt = tokens.copy()
    spoilt[1, 0, 1] = 9
    params["embedding"]["table"] = params["embedding"]["table"].at[9].set(jnp.inf)
    untied = transformer(replace(LLAMA, key_value_heads=4, tied=False))
    params["output"] = {"table": jnp.where(jnp.isinf(params["embedding"]["table"]), 0.1, params["embedding"]["table"])}
    sums = jax.jit(lambda tokens: clipped_sums(untied, params, tokens, 0.5))
    found, without = sums(spoilt), sums(np.delete(tokens, 1, axis=0))
    assert np.asarray(found.bad).tolist() == [0, 1, 0, 0, 0]
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), found.total, without.total)


def test_models_whose_parameters_enter_otherwise_are_not_supported():
    assert not supports(make("cifg", vocabulary=50, embedding=12, hidden=20))
    assert not supports(make("lstm-tied", vocabulary=50, embedding=12, hidden=20))
