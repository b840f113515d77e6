"""Directories that are whole are read exactly; all others are refused with the reason."""

import json
import subprocess
import sys

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from reticent.errors import Refused
from reticent.finetune.huggingface import open_checkpoint
from reticent.finetune.huggingface.checkpoint import Checkpoint
from tests.finetune.huggingface.handmade import LLAMA, llama_tensors, shard, write_llama


def test_arrays_land_where_they_belong(tmp_path):
    tensors = write_llama(tmp_path / "hf")
    params = open_checkpoint(tmp_path / "hf").params()
    for layer in range(2):
        for ours, theirs in (("query", "self_attn.q_proj"), ("down", "mlp.down_proj"), ("gate", "mlp.gate_proj")):
            np.testing.assert_array_equal(
                params["layers"][ours]["kernel"][layer], tensors[f"model.layers.{layer}.{theirs}.weight"].T
            )
    np.testing.assert_array_equal(params["output"]["table"], tensors["lm_head.weight"])


def test_shards_are_read_as_one_and_written_as_asked_for(tmp_path):
    tensors = write_llama(tmp_path / "whole")
    write_llama(tmp_path / "parts")
    shard(tmp_path / "parts")
    whole, parts = open_checkpoint(tmp_path / "whole").params(), open_checkpoint(tmp_path / "parts").params()
    jax.tree.map(np.testing.assert_array_equal, whole, parts)
    (tmp_path / "out").mkdir()
    open_checkpoint(tmp_path / "parts").write(parts, tmp_path / "out", shard_bytes=10_000)
    files = sorted((tmp_path / "out").glob("model-*.safetensors"))
    assert len(files) > 2
    back = {name: array for file in files for name, array in load_file(file).items()}
    assert back.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(back[name], array)
    jax.tree.map(np.testing.assert_array_equal, open_checkpoint(tmp_path / "out").params(), whole)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_types_are_widened_exactly(dtype, tmp_path):
    tensors = {name: array.astype(dtype) for name, array in llama_tensors(LLAMA).items()}
    if dtype == np.float16:
        save_narrow = tensors
    else:
        # safetensors for NumPy writes no bfloat16: its bits as F16, and the header says what they are.
        save_narrow = {name: array.view(np.float16) for name, array in tensors.items()}
    write_llama(tmp_path / "hf", save_narrow)
    if dtype != np.float16:
        path = tmp_path / "hf" / "model.safetensors"
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = content[8 : 8 + length].replace(b'"F16"', b'"BF16"')
        path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
    params = open_checkpoint(tmp_path / "hf").params()
    np.testing.assert_array_equal(params["embedding"]["table"], tensors["model.embed_tokens.weight"].astype(np.float32))
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype("float32")}


def test_loading_takes_hardly_more_memory_than_the_weights(tmp_path):
    config = {**LLAMA, "vocab_size": 20_000, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12}
    write_llama(tmp_path / "hf", llama_tensors(config), **{key: config[key] for key in config.keys() - {"model_type"}})
    write_llama(tmp_path / "small")
    code = (
        "import sys, jax; from reticent.finetune.huggingface import open_checkpoint\n"
        "open_checkpoint(sys.argv[2]).params()\n"  # what the first of all costs is not the weights'
        # A page of the file that is read is not counted as the process's: only what it holds itself is.
        "def held(key):\n"
        "    return next(int(l.split()[1]) * 1024 for l in open('/proc/self/status') if l.startswith(key))\n"
        "checkpoint = open_checkpoint(sys.argv[1])\n"
        "open('/proc/self/clear_refs', 'w').write('5')\n"  # the peak begins here
        "before = held('RssAnon')\n"
        "params = jax.block_until_ready(checkpoint.params())\n"
        "size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))\n"
        "print(size, held('VmHWM') - before - held('RssFile'))\n"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "hf"), str(tmp_path / "small")]
    run = subprocess.run(arguments, capture_output=True, text=True, check=True)
    size, peak = map(int, run.stdout.split())
    assert size > 100 * 2**20
    assert peak < 1.1 * size, f"{peak / size:.3f} of the weights"


def refused(folder, match):
    with pytest.raises(Refused, match=match):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba'; there are GPT-2 .*Llama.*Qwen2 and Qwen3.*Gemma"),
        ({"model_type": None}, "model_type None"),
        ({"attention_temperature": 2.0}, "has attention_temperature, which may change what the model computes"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5, which changes"),
        ({"hidden_act": "relu2"}, "hidden_act = 'relu2', which is not known"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "positions of type 'dynamic'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "type 'linear' without 'factor'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "warp": 1}}, "warp in its rotary positions"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "not a language model of its family"),
        ({"hidden_size": None}, "no 'hidden_size'"),
        ({"num_key_value_heads": 3}, "cannot share 3"),
        ({"vocab_size": 60}, r"model.embed_tokens.weight of shape \[61, 24\], and config.json says \[60, 24\]"),
        ({"num_hidden_layers": 3}, r"has no model\.layers\.2"),
        ({"num_hidden_layers": 1}, r"has arrays that a Llama does not: model\.layers\.1"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers = 'two', which is no whole number"),
    ],
)
def test_what_cannot_be_loaded_exactly_is_refused(changes, match, tmp_path):
    write_llama(tmp_path / "hf", llama_tensors(LLAMA), **changes)
    refused(tmp_path / "hf", match)


def test_what_is_not_whole_is_refused(tmp_path):
    refused(tmp_path / "nowhere", "no directory")
    write_llama(tmp_path / "hf")
    files = shard(tmp_path / "hf")
    content = (tmp_path / "hf" / files[1]).read_bytes()
    (tmp_path / "hf" / files[1]).unlink()
    refused(tmp_path / "hf", f"lacks {files[1]} of its 3 shards")
    (tmp_path / "hf" / files[1]).write_bytes(content[:-100])
    refused(tmp_path / "hf", f"{files[1]} has .* bytes instead of")
    (tmp_path / "hf" / files[1]).write_bytes(b"\x00" * 50)
    refused(tmp_path / "hf", f"{files[1]} is no safetensors file")
    save_file({"other": np.zeros(3, np.float32)}, tmp_path / "hf" / files[1])
    refused(tmp_path / "hf", f"{files[1]} lacks")
    (tmp_path / "hf" / "config.json").write_text("{")
    refused(tmp_path / "hf", "config.json is damaged")
    (tmp_path / "hf" / "config.json").unlink()
    refused(tmp_path / "hf", "no config.json")


def test_what_common_files_say_besides_is_no_hindrance(tmp_path):
    tensors = write_llama(tmp_path / "hf")
    besides = {
        "is_llama_config": True, "rope_interleaved": False, "use_mrope": False, "pretraining_tp": 1, "_num_labels": 2,
        "attention_bias": False, "mlp_bias": False, "rope_scaling": None, "attention_dropout": 0.1, "use_cache": True,
        "_attn_implementation": "sdpa", "transformers.js_config": {}, "head_dim": 6, "partial_rotary_factor": 1.0,
    }  # fmt: skip
    write_llama(tmp_path / "more", tensors, **besides)
    assert open_checkpoint(tmp_path / "more").shape == open_checkpoint(tmp_path / "hf").shape
    write_llama(tmp_path / "more", tensors, **besides | {"use_mrope": True})
    refused(tmp_path / "more", "use_mrope = True, which changes")


def test_pickles_are_not_read(tmp_path):
    write_llama(tmp_path / "hf")
    (tmp_path / "hf" / "model.safetensors").rename(tmp_path / "hf" / "pytorch_model.bin")
    refused(tmp_path / "hf", "pytorch_model.bin, a format that runs code")


def test_whole_numbers_are_no_weights(tmp_path):
    tensors = llama_tensors(LLAMA)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.int8)
    write_llama(tmp_path / "hf", tensors)
    refused(tmp_path / "hf", "model.norm.weight as I8")


def test_the_digest_is_that_of_weights_and_configuration(tmp_path):
    tensors = write_llama(tmp_path / "one")
    write_llama(tmp_path / "two")
    digest = open_checkpoint(tmp_path / "one").digest()
    assert open_checkpoint(tmp_path / "two").digest() == digest
    tensors["model.norm.weight"][3] += 1e-6
    write_llama(tmp_path / "two", tensors)
    assert open_checkpoint(tmp_path / "two").digest() != digest


def test_a_checkpoint_without_its_head_or_with_a_tied_one(tmp_path):
    tensors = llama_tensors({**LLAMA, "tie_word_embeddings": True})
    write_llama(
        tmp_path / "tied", {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}, tie_word_embeddings=True
    )
    bare = {name.removeprefix("model."): array for name, array in tensors.items()}
    write_llama(tmp_path / "bare", bare, tie_word_embeddings=True, architectures=["LlamaModel"])
    one, other = open_checkpoint(tmp_path / "tied"), open_checkpoint(tmp_path / "bare")
    assert isinstance(one, Checkpoint)
    jax.tree.map(np.testing.assert_array_equal, one.params(), other.params())
    assert json.loads((tmp_path / "bare" / "config.json").read_text())["tie_word_embeddings"] is True
