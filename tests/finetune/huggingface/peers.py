"""Tiny random models of every family with the options that its common checkpoints use, made by `transformers`."""

from pathlib import Path
from typing import Any

SMALL = {
    "vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 16}

# name: (configuration class, its options)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {"vocab_size": 61, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 32}),
    "gpt2-untied": (
        "GPT2Config",
        {
            "vocab_size": 61, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 32, "n_inner": 30,
            "tie_word_embeddings": False, "activation_function": "gelu",
        },
    ),
    "llama2": ("LlamaConfig", {**SMALL, "num_key_value_heads": 4}),
    "llama3.1": ("LlamaConfig", {**SMALL, "rope_parameters": LLAMA3_ROPE, "rms_norm_eps": 1e-5}),
    "llama3.2": (
        "LlamaConfig", {**SMALL, "rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True, "head_dim": 10}
    ),
    "llama-biased-linear-rope": (
        "LlamaConfig",
        {
            **SMALL, "attention_bias": True, "mlp_bias": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0},
        },
    ),
    "qwen2.5": ("Qwen2Config", {**SMALL, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    "qwen2.5-tied-yarn": ("Qwen2Config", {**SMALL, "tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen2-windows": (
        "Qwen2Config", {**SMALL, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    ),
    "qwen3": ("Qwen3Config", {**SMALL, "head_dim": 10, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen3-tied": ("Qwen3Config", {**SMALL, "head_dim": 8, "tie_word_embeddings": True, "attention_bias": True}),
    "gemma": ("GemmaConfig", {**SMALL, "head_dim": 16, "num_key_value_heads": 1}),
    "gemma2": (
        "Gemma2Config",
        {
            **SMALL, "head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 9, "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 1.5,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {
            **SMALL, "head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 10, "num_hidden_layers": 7,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
    ),
}  # fmt: skip


def made(name: str, folder: Path, **saving: Any) -> Any:
    """The random model of this name, saved into `folder`; its parameters are far enough from their start to matter."""
    import torch
    import transformers

    torch.manual_seed(0)
    kind, options = MODELS[name]
    config = getattr(transformers, kind)(**options)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    model.save_pretrained(folder, **saving)
    return model
