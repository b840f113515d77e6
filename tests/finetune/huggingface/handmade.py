"""Hugging Face directories written by hand, for what needs no `transformers`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 61, "hidden_size": 24,
    "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float32",
    "max_position_embeddings": 64, "hidden_act": "silu",
}  # fmt: skip


def llama_tensors(config: dict[str, Any], seed: int = 0, scale: float = 0.2) -> dict[str, np.ndarray]:
    """Random weights of a Llama, under the names and in the shapes of its files."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    head = width // config["num_attention_heads"]
    shared = head * config["num_key_value_heads"]
    sizes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], width)}
    for layer in range(config["num_hidden_layers"]):
        for name, shape in {
            "self_attn.q_proj": (width, width), "self_attn.k_proj": (shared, width), "self_attn.v_proj": (shared, width),
            "self_attn.o_proj": (width, width), "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner), "input_layernorm": (width,), "post_attention_layernorm": (width,),
        }.items():  # fmt: skip
            sizes[f"model.layers.{layer}.{name}.weight"] = shape
    sizes["model.norm.weight"] = (width,)
    if not config["tie_word_embeddings"]:
        sizes["lm_head.weight"] = (config["vocab_size"], width)
    generator = np.random.default_rng(seed)
    return {
        name: (scale * generator.normal(size=shape) + ("norm" in name)).astype(np.float32)
        for name, shape in sizes.items()
    }


def write_llama(folder: Path, tensors: dict[str, np.ndarray] | None = None, **changes: Any) -> dict[str, np.ndarray]:
    """A whole directory; returns its tensors."""
    config = {**LLAMA, **changes}
    folder.mkdir(parents=True, exist_ok=True)
    tensors = llama_tensors(config) if tensors is None else tensors
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return tensors


def shard(folder: Path) -> list[str]:
    """Cuts a directory's one file into three shards; returns their names."""
    from safetensors.numpy import load_file

    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
    weight_map = {name: files[place % 3] for place, name in enumerate(sorted(tensors))}
    for file in files:
        save_file({name: tensors[name] for name in tensors if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return files
