"""Gemma 1 to 3 (text): scaled embeddings, norms that keep their scale less one, gated GELU, caps, windows."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from reticent.errors import Refused
from reticent.finetune.huggingface.config import Config
from reticent.finetune.huggingface.family import Family, Path, Place
from reticent.finetune.huggingface.llama import ATTENTION, MODULES, gated_places, gated_shape
from reticent.finetune.huggingface.qwen import windows_of
from reticent.finetune.huggingface.rotary import Rates, rates
from reticent.models.transformer import Shape

# Early files say "gelu" and mean its tanh form.
TANH = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu"}
HEAD_WIDTH = 256


def shape(config: Config) -> Shape:
    """The transformer of a `config.json` of model_type "gemma", "gemma2" or "gemma3_text"."""
    type_ = config.content["model_type"]
    activation = config.choice("hidden_activation", TANH, "gelu_pytorch_tanh")
    config.choice("hidden_act", TANH, "gelu_pytorch_tanh")
    biased = tuple(ATTENTION) if config.take("attention_bias", False) else ()
    turning, windowed = _rotary_of_gemma3(config) if type_ == "gemma3_text" else (None, None)
    made = gated_shape(config, biases=biased, tied=True, head_width=HEAD_WIDTH, rates=turning)
    made = replace(
        made, activation=activation, embedding_gain=float(np.sqrt(np.float32(made.width))), windowed_rates=windowed
    )
    if type_ == "gemma":
        return made
    every = 2 if type_ == "gemma2" else config.take("sliding_window_pattern", config.take("_sliding_window_pattern", 6))
    types = config.take("layer_types") or [
        "sliding_attention" if (layer + 1) % every else "full_attention" for layer in range(made.layers)
    ]
    window = config.count("sliding_window", 4096)
    if config.take("sliding_window_size", window) != window:
        raise Refused(f"{config.path} has two windows, sliding_window and sliding_window_size; restore it.")
    caps = (50.0, 30.0) if type_ == "gemma2" else (None, None)
    return replace(
        made,
        outer_norms=True,
        head_norms=type_ == "gemma3_text",
        attention_scale=config.count("query_pre_attn_scalar", 256) ** -0.5,
        attention_cap=_cap(config, "attn_logit_softcapping", caps[0]),
        score_cap=_cap(config, "final_logit_softcapping", caps[1]),
        windows=windows_of(types, window, config),
    )


def _cap(config: Config, key: str, default: float | None) -> float | None:
    # Null is a value here: no cap.
    config.take(key)
    return config.content.get(key, default)


def _rotary_of_gemma3(config: Config) -> tuple[Rates, tuple[float, ...]]:
    """Rates of the layers that see everything, and of those with a window."""
    width, said = config.count("head_dim", HEAD_WIDTH), dict(config.take("rope_parameters", {}))
    if said.keys() & {"full_attention", "sliding_attention"}:
        whole, windowed = dict(said.pop("full_attention", None) or {}), dict(said.pop("sliding_attention", None) or {})
        whole |= said
    else:
        whole, windowed = said, {}
    whole = {"rope_theta": config.take("rope_theta", 1_000_000.0), **dict(config.take("rope_scaling", {})), **whole}
    windowed = {"rope_theta": config.take("rope_local_base_freq", 10_000.0), **windowed}
    of_whole = rates(whole, width, whole.pop("rope_theta"), config)
    of_windowed, gain = rates(windowed, width, windowed.pop("rope_theta"), config)
    if gain != of_whole[1]:
        raise Refused(
            f"{config.path} multiplies what it turns by another number in each kind of layer: not known here."
        )
    return of_whole, of_windowed


def places(shape: Shape, type_: str) -> Mapping[Path, Place]:
    """The names of a Gemma's arrays."""
    if not shape.outer_norms:
        norms = {"attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"}
    else:
        norms = {
            "attention_norm": "input_layernorm",
            "attention_outer_norm": "post_attention_layernorm",
            "feed_forward_norm": "pre_feedforward_layernorm",
            "feed_forward_outer_norm": "post_feedforward_layernorm",
        }
    return gated_places(shape, norms, less=1.0)


FAMILY = Family(
    "Gemma 1, 2 and 3",
    ("gemma", "gemma2", "gemma3_text"),
    ("GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"),
    "model.",
    shape,
    places,
    MODULES,
    ("q_proj", "v_proj"),
)
