"""The transformer against the same thing written in NumPy, one token and one head at a time."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from reticent.errors import Refused
from reticent.models import make
from reticent.models.transformer import Shape, transformer

LLAMA = Shape(
    vocabulary=50, width=24, layers=3, heads=4, key_value_heads=2, head_width=8, feed_forward=20, longest=0, tied=False
)
GPT2 = Shape(
    vocabulary=50,
    width=24,
    layers=2,
    heads=3,
    key_value_heads=3,
    head_width=8,
    feed_forward=40,
    longest=16,
    positions="learned",
    norm="layer",
    activation="gelu",
    gated=False,
    biases=True,
)
SHAPES = {"llama": LLAMA, "gpt2": GPT2, "built-in": replace(LLAMA, key_value_heads=4, tied=True)}


def plain_logits(shape, params, tokens):
    """float64[length, vocabulary] of one row of tokens."""

    def linear(part, vector):
        return part["kernel"].T @ vector + part.get("bias", 0.0)

    def norm(part, vector):
        if shape.norm == "rms":
            return part["scale"] * vector / np.sqrt(np.mean(vector**2) + shape.norm_epsilon)
        return part["scale"] * (vector - vector.mean()) / np.sqrt(vector.var() + shape.norm_epsilon) + part["bias"]

    def bend(x):
        if shape.activation == "silu":
            return x / (1 + np.exp(-x))
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    def turned(head, position):
        if shape.positions == "learned":
            return head
        half, result = shape.head_width // 2, np.empty_like(head)
        for pair in range(half):
            angle = position / shape.rotary_base ** (2 * pair / shape.head_width)
            point = complex(head[pair], head[half + pair]) * complex(np.cos(angle), np.sin(angle))
            result[pair], result[half + pair] = point.real, point.imag
        return result

    stream = [params["embedding"]["table"][token].copy() for token in tokens]
    if shape.positions == "learned":
        stream = [vector + params["positions"]["table"][place] for place, vector in enumerate(stream)]
    for depth in range(shape.layers):
        block = jax.tree.map(lambda leaf: leaf[depth], params["layers"])  # noqa: B023
        inputs = [norm(block["attention_norm"], vector) for vector in stream]
        queries, keys, values = (
            [linear(block[name], vector).reshape(-1, shape.head_width) for vector in inputs]
            for name in ("query", "key", "value")
        )
        for place in range(len(tokens)):
            heads = []
            for head in range(shape.heads):
                shared = head // (shape.heads // shape.key_value_heads)
                query = turned(queries[place][head], place)
                weights = np.array([query @ turned(keys[seen][shared], seen) for seen in range(place + 1)])
                weights = np.exp(weights / np.sqrt(shape.head_width))
                weights /= weights.sum()
                heads.append(sum(weight * values[seen][shared] for seen, weight in enumerate(weights)))
            stream[place] = stream[place] + linear(block["attention_out"], np.concatenate(heads))
        for place, vector in enumerate(stream):
            entering = norm(block["feed_forward_norm"], vector)
            middle = linear(block["up"], entering)
            middle = bend(linear(block["gate"], entering)) * middle if shape.gated else bend(middle)
            stream[place] = vector + linear(block["down"], middle)
    table = params["embedding" if shape.tied else "output"]["table"]
    return np.stack([table @ norm(params["final_norm"], vector) for vector in stream])


def plain_loss(shape, params, tokens):
    total, count = 0.0, 0
    for row in tokens:
        logits = plain_logits(shape, params, np.maximum(row[:-1], 0))
        for scores, target in zip(logits, row[1:], strict=True):
            if target >= 0:
                total, count = total + np.log(np.exp(scores).sum()) - scores[target], count + 1
    return total / max(count, 1)


def some_tokens(rows=3, length=7):
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, 50, (rows, length + 1)).astype(np.int32)
    for row, end in zip(tokens, (length + 1, 4, 1), strict=True):
        row[end:] = -1
    return tokens


def lively(model):
    """Parameters far enough from their start for every part to matter."""
    leaves, tree = jax.tree.flatten(model.init(jax.random.key(1)))
    keys = jax.random.split(jax.random.key(2), len(leaves))
    return jax.tree.unflatten(
        tree, [leaf + 0.2 * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    )


@pytest.mark.parametrize("name", SHAPES)
def test_logits_loss_and_gradient_equal_the_plain_ones(name):
    shape = SHAPES[name]
    model, tokens = transformer(shape), some_tokens()
    params = lively(model)
    exactly = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    inputs = np.maximum(tokens[:, :-1], 0)
    expected = np.stack([plain_logits(shape, exactly, row) for row in inputs])
    np.testing.assert_allclose(jax.jit(model.apply)(params, inputs), expected, rtol=1e-5, atol=1e-5)
    step = jax.jit(jax.value_and_grad(model.loss, has_aux=True))
    (loss, _), gradient = step(params, tokens, None)
    np.testing.assert_allclose(loss, plain_loss(shape, exactly, tokens), rtol=1e-5)
    nothing = step(params, np.full_like(tokens, -1), None)[1]
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(nothing)), "no target, no gradient"
    # Each leaf's gradient along a random direction, against the plain loss at both sides.
    generator = np.random.default_rng(1)
    leaves, tree = jax.tree.flatten(exactly)
    for number, (leaf, slope) in enumerate(zip(leaves, jax.tree.leaves(gradient), strict=True)):
        direction = generator.normal(size=leaf.shape)
        sides = [
            plain_loss(shape, jax.tree.unflatten(tree, [*leaves[:number], moved, *leaves[number + 1 :]]), tokens)
            for moved in (leaf + 1e-5 * direction, leaf - 1e-5 * direction)
        ]
        expected = (sides[0] - sides[1]) / 2e-5
        np.testing.assert_allclose((np.asarray(slope) * direction).sum(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "sizes", "parameters"),
    [
        ("transformer", {}, 5_725_440),
        ("transformer", {"vocabulary": 500, "embedding": 32, "hidden": 64, "layers": 2, "heads": 2}, 36_640),
        ("transformer-350m", {}, 341_099_520),
    ],
)
def test_parameter_counts(kind, sizes, parameters):
    model = make(kind, **sizes)
    assert model.parameters == parameters
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype("float32")}


@pytest.mark.parametrize("name", SHAPES)
def test_the_documented_formula_counts_the_parameters(name):
    shape = SHAPES[name]
    queries, shared = shape.heads * shape.head_width, shape.key_value_heads * shape.head_width
    matrices = 3 if shape.gated else 2
    count = shape.vocabulary * shape.width * (1 if shape.tied else 2)
    count += shape.layers * (2 * shape.width * (queries + shared) + matrices * shape.width * shape.feed_forward)
    count += (2 * shape.layers + 1) * shape.width * (2 if shape.norm == "layer" else 1)
    count += shape.longest * shape.width if shape.positions == "learned" else 0
    if shape.biases:
        count += shape.layers * (queries + 2 * shared + 2 * shape.width + (matrices - 1) * shape.feed_forward)
    assert transformer(shape).parameters == count


def test_gpt2_has_the_parameters_it_is_known_for():
    shape = Shape(
        vocabulary=50_257,
        width=768,
        layers=12,
        heads=12,
        key_value_heads=12,
        head_width=64,
        feed_forward=3072,
        longest=1024,
        positions="learned",
        norm="layer",
        activation="gelu",
        gated=False,
        biases=True,
    )
    assert transformer(shape).parameters == 124_439_808


@pytest.mark.parametrize("name", SHAPES)
def test_later_tokens_and_padding_change_nothing_before_them(name):
    model = transformer(SHAPES[name])
    params, tokens = lively(model), np.maximum(some_tokens(), 0)
    apply, changed = jax.jit(model.apply), tokens.copy()
    changed[:, 4:] = 0
    np.testing.assert_array_equal(apply(params, tokens)[:, :4], apply(params, changed)[:, :4])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_bfloat16_is_near_and_keeps_parameters_float32(name):
    exact, coarse = transformer(SHAPES[name]), transformer(SHAPES[name], compute_dtype="bfloat16")
    params, tokens = exact.init(jax.random.key(0)), some_tokens()
    (loss, _), gradient = jax.jit(jax.value_and_grad(coarse.loss, has_aux=True))(params, tokens, None)
    assert float(loss) == pytest.approx(float(jax.jit(exact.loss)(params, tokens, None)[0]), rel=1e-3)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}


def test_a_new_model_knows_nothing_yet():
    model = make("transformer", vocabulary=50, embedding=32, hidden=64, layers=2, heads=2)
    loss, _ = jax.jit(model.loss)(model.init(jax.random.key(0)), some_tokens(), None)
    assert float(loss) == pytest.approx(np.log(50), rel=0.05)


def test_what_cannot_be_made_is_refused():
    with pytest.raises(Refused, match="multiple of model.heads"):
        make("transformer", embedding=30, heads=4)
    with pytest.raises(Refused, match="cannot share 3"):
        replace(LLAMA, key_value_heads=3)
    with pytest.raises(Refused, match="even width"):
        replace(LLAMA, head_width=7)
    model = transformer(GPT2)
    with pytest.raises(Refused, match="positions for 16 tokens"):
        model.apply(lively(model), np.zeros((1, 17), np.int32))
