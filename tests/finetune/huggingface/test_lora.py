"""Adapters: what is trained, what it computes, and the same in PEFT."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from reticent.errors import Refused
from reticent.finetune.huggingface import open_checkpoint
from reticent.finetune.huggingface.adapters import read_adapters, write_adapters
from reticent.finetune.huggingface.model import make, targets_of
from reticent.finetune.lora import Lora, init, merged
from reticent.models.transformer import transformer
from tests.finetune.huggingface.handmade import write_llama
from tests.finetune.huggingface.peers import made

TOKENS = np.random.default_rng(1).integers(0, 61, (2, 9)).astype(np.int32)


def lively(params, seed=3):
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return jax.tree.unflatten(
        tree, [0.3 * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    )


@pytest.fixture
def checkpoint(tmp_path):
    write_llama(tmp_path / "hf")
    return open_checkpoint(tmp_path / "hf")


def model_of(checkpoint, **options):
    return make(kind="huggingface", compute_dtype="float32", unknown=None, directory=checkpoint.directory, **options)


def test_only_adapters_are_parameters_and_they_begin_by_adding_nothing(checkpoint):
    model = model_of(checkpoint, rank=3, alpha=6.0, targets=("q_proj", "down_proj"))
    assert model.parameters == 2 * 3 * ((24 + 24) + (40 + 24))
    params = model.begin(jax.random.key(0))
    assert {leaf.shape for leaf in jax.tree.leaves(params)} == {(2, 24, 3), (2, 3, 24), (2, 40, 3)}
    plain = transformer(checkpoint.shape).apply(checkpoint.params(), TOKENS)
    np.testing.assert_allclose(model.apply(params, TOKENS), plain, atol=1e-6)


def test_adapters_compute_what_they_do_when_they_are_merged(checkpoint):
    model = model_of(checkpoint, rank=3, alpha=6.0, targets=("all-linear",))
    params = lively(model.init(jax.random.key(0)))
    lora = Lora(3, 2.0, targets_of(checkpoint.family, checkpoint, ("all-linear",)))
    whole = merged(checkpoint.params(), params, lora)
    expected = transformer(checkpoint.shape).apply(whole, TOKENS)
    assert np.abs(expected - transformer(checkpoint.shape).apply(checkpoint.params(), TOKENS)).max() > 1
    np.testing.assert_allclose(model.apply(params, TOKENS), expected, rtol=1e-4, atol=1e-4)
    # What stays as it is can be given as an argument, and is what counts then.
    frozen = jax.tree.map(jnp.zeros_like, model.frozen)
    silent = jax.jit(lambda params, frozen: model.holding(frozen).apply(params, TOKENS))(params, frozen)
    assert (np.asarray(silent) == 0).all()


def test_in_bfloat16_what_stays_as_it_is_takes_half_the_memory(checkpoint):
    narrow = make(kind="huggingface", compute_dtype="bfloat16", unknown=None, directory=checkpoint.directory, rank=2)
    types = {path[-1].key: leaf.dtype for path, leaf in jax.tree_util.tree_flatten_with_path(narrow.frozen)[0]}
    assert types == {"kernel": jnp.bfloat16, "table": jnp.bfloat16, "scale": jnp.float32}
    params = lively(narrow.init(jax.random.key(0)))
    wide = model_of(checkpoint, rank=2)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    apart = np.abs(narrow.apply(params, TOKENS) - wide.apply(params, TOKENS)).max()
    assert 0 < apart < 0.2 * np.abs(wide.apply(params, TOKENS)).max()


def test_gradients_of_the_adapters_alone(checkpoint):
    model = model_of(checkpoint, rank=2)
    params = lively(model.init(jax.random.key(0)))
    slope = jax.grad(lambda params: model.loss(params, TOKENS, None)[0])(params)
    assert jax.tree.structure(slope) == jax.tree.structure(params)
    direction = lively(params, seed=9)
    sides = [
        float(model.loss(jax.tree.map(lambda at, along: at + step * along, params, direction), TOKENS, None)[0])  # noqa: B023
        for step in (1e-2, -1e-2)
    ]
    along = sum(
        float((one * other).sum())
        for one, other in zip(jax.tree.leaves(slope), jax.tree.leaves(direction), strict=True)
    )
    assert (sides[0] - sides[1]) / 2e-2 == pytest.approx(along, rel=0.05, abs=1e-3)


def test_what_cannot_be_adapted_is_refused(checkpoint):
    with pytest.raises(Refused, match="no layer c_attn to adapt; it has q_proj"):
        model_of(checkpoint, rank=2, targets=("c_attn",))
    with pytest.raises(Refused, match=r"lora.rank 25 is more than the 24"):
        model_of(checkpoint, rank=25)


def test_adapters_come_back_as_they_were(checkpoint, tmp_path):
    lora = Lora(3, 2.0, ("query", "down"))
    params = lively(init(checkpoint.shape, lora, jax.random.key(0)))
    (tmp_path / "peft").mkdir()
    write_adapters(tmp_path / "peft", checkpoint, lora, params)
    again, back = read_adapters(tmp_path / "peft", checkpoint)
    assert again == lora
    jax.tree.map(np.testing.assert_array_equal, params, back)
    model = model_of(checkpoint, adapters=str(tmp_path / "peft"))
    jax.tree.map(np.testing.assert_array_equal, model.begin(jax.random.key(5)), params)
    with pytest.raises(Refused, match="of rank 3; leave lora.rank out"):
        model_of(checkpoint, adapters=str(tmp_path / "peft"), rank=4)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"use_dora": True}, "has use_dora, which may change"),
        ({"modules_to_save": ["lm_head"]}, "has modules_to_save"),
        ({"rank_pattern": {"q_proj": 8}}, "has rank_pattern"),
        ({"bias": "all"}, "with biases 'all'"),
        ({"peft_type": "IA3"}, "of IA3 adapters"),
        ({"r": None}, "is damaged"),
    ],
)
def test_other_adapters_are_refused(changes, match, checkpoint, tmp_path):
    (tmp_path / "peft").mkdir()
    lora = Lora(2, 1.0, ("query",))
    write_adapters(tmp_path / "peft", checkpoint, lora, init(checkpoint.shape, lora, jax.random.key(0)))
    path = tmp_path / "peft" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(Refused, match=match):
        read_adapters(tmp_path / "peft", checkpoint)


@pytest.mark.peers
@pytest.mark.parametrize(
    ("name", "targets", "rslora"),
    [
        ("llama3.2", ["q_proj", "v_proj"], False),
        ("qwen2.5", "all-linear", True),
        ("gemma2", ["o_proj", "gate_proj", "down_proj"], False),
        ("gpt2", ["c_attn"], False),
        ("gpt2", ["c_attn", "c_fc", "c_proj"], False),
    ],
)
def test_the_same_outputs_as_peft_both_ways(name, targets, rslora, tmp_path):
    import peft
    import torch
    from safetensors.numpy import load_file

    base = made(name, tmp_path / "hf")
    config = peft.LoraConfig(r=4, lora_alpha=10, target_modules=targets, use_rslora=rslora, task_type="CAUSAL_LM")
    theirs = peft.get_peft_model(base, config).eval()
    with torch.no_grad():
        for key, parameter in theirs.named_parameters():
            if "lora_" in key:
                parameter.copy_(0.3 * torch.randn_like(parameter))
    theirs.save_pretrained(tmp_path / "peft")
    tokens = torch.tensor(TOKENS.astype(np.int64))
    with torch.no_grad():
        expected = theirs(tokens).logits.numpy()
    checkpoint = open_checkpoint(tmp_path / "hf")
    model = model_of(checkpoint, adapters=str(tmp_path / "peft"))
    params = model.begin(None)
    np.testing.assert_allclose(jax.jit(model.apply)(params, TOKENS), expected, atol=1e-4, rtol=1e-4)
    lora, _ = read_adapters(tmp_path / "peft", checkpoint)
    (tmp_path / "back").mkdir()
    write_adapters(tmp_path / "back", checkpoint, lora, params)
    assert load_file(tmp_path / "back" / "adapter_model.safetensors")
    again = peft.PeftModel.from_pretrained(made(name, tmp_path / "again"), tmp_path / "back").eval()
    with torch.no_grad():
        np.testing.assert_allclose(again(tokens).logits.numpy(), expected, atol=1e-4, rtol=1e-4)
