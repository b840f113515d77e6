"""The datacenter's algorithms on checkpoints: clipped sums are those of gradients one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from reticent.finetune import work_of
from reticent.finetune.bookkeeping import clipped_sums
from reticent.finetune.lora import Lora, adapted
from reticent.finetune.sums import loss_of_unit
from reticent.models.transformer import Shape, init, transformer
from reticent.training import prepare, train
from tests.finetune.huggingface.test_lora import lively
from tests.finetune.huggingface.test_train import checkpoint, run_file, store  # noqa: F401

# What Qwen3 and Gemma have and Llama has not, all at once.
SHAPE = Shape(
    vocabulary=50, width=24, layers=3, heads=4, key_value_heads=2, head_width=8, feed_forward=20, longest=0,
    head_norms=True, outer_norms=True, score_cap=3.0, attention_cap=2.0, windows=(3, 0, 3), embedding_gain=4.0,
    biases=("query", "key", "value"), activation="gelu",
)  # fmt: skip


@pytest.mark.parametrize("trained", ["all", "adapters"])
def test_clipped_sums_are_those_of_gradients_one_by_one(trained):
    model = transformer(SHAPE)
    base = init(SHAPE, jax.random.key(0))
    base = jax.tree.map(lambda leaf, change: leaf + 0.5 * change, base, lively(base))
    params = base
    if trained == "adapters":
        model = adapted(SHAPE, base, Lora(2, 1.5, ("query", "down", "value")))
        params = lively(model.init(jax.random.key(1)))
    tokens = np.random.default_rng(0).integers(0, 50, (3, 2, 8)).astype(np.int32)
    tokens[0, 1, 4:], tokens[2, 0, 3:] = -1, -1
    found = jax.jit(lambda params: clipped_sums(model, params, tokens, 0.05))(params)
    slope_of = jax.jit(jax.grad(lambda params, rows: loss_of_unit(model, params, rows)))
    slopes = [slope_of(params, rows) for rows in tokens]
    norms = [float(jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(slope)))) for slope in slopes]
    np.testing.assert_allclose(found.norms, norms, rtol=1e-4)
    by_hand = jax.tree.map(
        lambda *leaves: sum(leaf * min(1, 0.05 / norm) for leaf, norm in zip(leaves, norms, strict=True)), *slopes
    )
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), found.total, by_hand)


@pytest.mark.full
@pytest.mark.parametrize("algorithm", ["els", "uls"])
def test_a_run_trains_adapters(algorithm, store, checkpoint, tmp_path):  # noqa: F811
    settings = run_file(
        store,
        checkpoint,
        run={"algorithm": algorithm},
        data={"max_examples_per_user": 2},
        population={"size": 40, "sampler": "poisson", "probability": 0.3, "report_goal": None, "min_separation": None},
        mechanism={"kind": "independent"},
        privacy={"accept_vacuous": True},
    )
    setup = prepare(settings, work_of=work_of)
    assert setup.size == 2 * 2 * ((24 + 24) + (40 + 24))
    trained = train(settings, tmp_path / "out", work_of=work_of)
    assert trained.verdict.holds
