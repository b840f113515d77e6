"""Recurrent models against the same thing written word by word."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from reticent.errors import Refused
from reticent.models import make

SMALL = {"vocabulary": 50, "embedding": 12, "hidden": 20}


def sigmoid(x):
    return 1 / (1 + jnp.exp(-x))


def textbook_lstm(params, tokens):
    """Logits, one word after another, each product on its own."""
    cell, logits = params["cell"], []
    state = memory = jnp.zeros((tokens.shape[0], cell["recurrent"].shape[0]))
    for time in range(tokens.shape[1]):
        word = params["embedding"][tokens[:, time]]
        gates = word @ cell["input"] + state @ cell["recurrent"] + cell["bias"]
        forget, enter, candidate, leave = jnp.split(gates, 4, axis=1)
        memory = sigmoid(forget) * memory + sigmoid(enter) * jnp.tanh(candidate)
        state = sigmoid(leave) * jnp.tanh(memory)
        output = state @ params["projection"]["kernel"] + params["projection"]["bias"]
        logits.append(output @ params["output"]["embedding"].T + params["output"]["bias"])
    return jnp.stack(logits, axis=1)


def textbook_tied(params, tokens):
    table = params["embedding"] / jnp.sqrt((params["embedding"] ** 2).sum(1, keepdims=True))
    output = {"embedding": table, "bias": jnp.zeros(len(table))}
    return textbook_lstm({**params, "embedding": table, "output": output}, tokens)


def textbook_cifg(params, tokens):
    cell, logits = params["cell"], []
    memory = jnp.zeros((tokens.shape[0], cell["bias"].shape[0] // 3))
    state = jnp.zeros((tokens.shape[0], cell["recurrent"].shape[0]))
    for time in range(tokens.shape[1]):
        word = params["embedding"][tokens[:, time]]
        gates = word @ cell["input"] + state @ cell["recurrent"] + cell["bias"]
        forget, candidate, leave = jnp.split(gates, 3, axis=1)
        memory = sigmoid(forget) * memory + (1 - sigmoid(forget)) * jnp.tanh(candidate)
        state = (sigmoid(leave) * jnp.tanh(memory)) @ params["projection"]["kernel"]
        logits.append(state @ params["output"]["embedding"].T + params["output"]["bias"])
    return jnp.stack(logits, axis=1)


TEXTBOOK = {"lstm": textbook_lstm, "lstm-tied": textbook_tied, "cifg": textbook_cifg}


def textbook_loss(kind, params, tokens):
    logits = TEXTBOOK[kind](params, jnp.maximum(tokens[:, :-1], 0))
    targets = tokens[:, 1:]
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.maximum(targets, 0)[..., None], axis=-1)[..., 0]
    return jnp.where(targets >= 0, losses, 0).sum() / jnp.maximum((targets >= 0).sum(), 1)


def some_tokens(model, rows=4, length=7, seed=0):
    generator = np.random.default_rng(seed)
    tokens = generator.integers(0, model.vocabulary, (rows, length + 1)).astype(np.int32)
    for row, end in zip(tokens, generator.integers(0, length + 2, rows), strict=True):
        row[end:] = -1
    return tokens


def lively(model, seed=1):
    """Parameters far enough from zero for every part to matter."""
    params = model.init(jax.random.key(seed))
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    return jax.tree.unflatten(
        tree, [leaf + 0.3 * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    )


@pytest.mark.parametrize("kind", TEXTBOOK)
def test_logits_loss_and_gradient_equal_the_textbook(kind):
    model = make(kind, **SMALL)
    params, tokens = lively(model), some_tokens(model)
    with jax.enable_x64(True):
        exactly = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
        logits = jax.jit(TEXTBOOK[kind])(exactly, np.maximum(tokens[:, :-1], 0))
        loss, gradient = jax.jit(jax.value_and_grad(lambda params: textbook_loss(kind, params, tokens)))(exactly)
        assert logits.dtype == np.float64
    own_logits = jax.jit(model.apply)(params, np.maximum(tokens[:, :-1], 0))
    np.testing.assert_allclose(own_logits, logits, atol=1e-5, rtol=1e-5)
    (own_loss, _), own = jax.jit(jax.value_and_grad(model.loss, has_aux=True))(params, tokens, None)
    np.testing.assert_allclose(own_loss, loss, rtol=1e-5)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-5), own, gradient)


@pytest.mark.parametrize(
    ("kind", "sizes", "parameters"),
    [
        ("lstm", {}, 4_050_748),
        ("lstm", {"vocabulary": 2_000, "embedding": 64, "hidden": 128}, 365_072),
        ("lstm-tied", {}, 1_346_144),  # printed: 1.35M
        # Printed: 2.4M, 4.4M and 6.4M for vocabularies of about 10,000, 20,000 and 30,000.
        ("cifg", {}, 2_382_250),
        ("cifg", {"vocabulary": 20_000}, 4_312_250),
        ("cifg", {"vocabulary": 30_000}, 6_242_250),
    ],
)
def test_parameter_counts(kind, sizes, parameters):
    model = make(kind, **sizes)
    assert model.parameters == parameters
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype("float32")}


@pytest.mark.parametrize("kind", TEXTBOOK)
def test_a_new_model_knows_nothing_yet(kind):
    model = make(kind, **SMALL)
    tokens = some_tokens(model)
    loss, sums = jax.jit(model.loss)(model.init(jax.random.key(0)), tokens, None)
    assert float(loss) == pytest.approx(np.log(SMALL["vocabulary"]), rel=0.1)
    assert float(sums["tokens"]) == (tokens[:, 1:] >= 0).sum()


@pytest.mark.parametrize("kind", TEXTBOOK)
def test_no_target_no_gradient(kind):
    model = make(kind, **SMALL)
    gradient, _ = jax.jit(jax.grad(model.loss, has_aux=True))(lively(model), jnp.full((3, 7), -1, jnp.int32), None)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("kind", TEXTBOOK)
def test_later_words_do_not_change_earlier_predictions(kind):
    model = make(kind, **SMALL)
    params, tokens = lively(model), jnp.maximum(some_tokens(model), 0)
    apply = jax.jit(model.apply)
    changed = tokens.at[:, 4:].set(1)
    np.testing.assert_array_equal(apply(params, tokens)[:, :4], apply(params, changed)[:, :4])


@pytest.mark.parametrize("kind", TEXTBOOK)
def test_bfloat16_is_near_and_keeps_parameters_float32(kind):
    exact, coarse = make(kind, **SMALL), make(kind, **SMALL, compute_dtype="bfloat16")
    params, tokens = exact.init(jax.random.key(0)), some_tokens(exact)
    (loss, _), gradient = jax.jit(jax.value_and_grad(coarse.loss, has_aux=True))(params, tokens, None)
    assert float(loss) == pytest.approx(float(jax.jit(exact.loss)(params, tokens, None)[0]), rel=1e-3)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}


def test_what_cannot_be_made_is_refused():
    with pytest.raises(Refused, match="no model 'lstn'; there are lstm, "):
        make("lstn")
    with pytest.raises(Refused, match="has no 'layers'"):
        make("lstm", layers=2)
    with pytest.raises(Refused, match="model.hidden must be at least 1"):
        make("lstm", hidden=0)
    with pytest.raises(Refused, match="float32 or bfloat16"):
        make("lstm", compute_dtype="float16")
