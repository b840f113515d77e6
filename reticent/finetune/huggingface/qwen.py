"""Qwen2, 2.5 and 3: Llama with biases of queries, keys and values, or with norms of queries and keys instead."""

from dataclasses import replace

from reticent.errors import Refused
from reticent.finetune.huggingface.config import Config
from reticent.finetune.huggingface.family import Family
from reticent.finetune.huggingface.llama import ATTENTION, MODULES, gated_shape, places
from reticent.models.transformer import Shape


def shape(config: Config) -> Shape:
    """The transformer of a `config.json` of model_type "qwen2" or "qwen3"."""
    if config.content["model_type"] == "qwen2":
        made = gated_shape(config, biases=("query", "key", "value"), tied=False)
    else:
        biased = tuple(ATTENTION) if config.take("attention_bias", False) else ()
        made = replace(gated_shape(config, biases=biased, tied=False, head_width=128), head_norms=True)
    window = config.count("sliding_window", 4096)
    window = window if config.take("use_sliding_window", False) else 0
    first = config.take("max_window_layers", 28)
    given = config.take("layer_types")
    if not window:
        if given and set(given) != {"full_attention"}:
            raise Refused(f"{config.path} has layer_types with windows and use_sliding_window off; restore it.")
        return made
    types = given or ["sliding_attention" if layer >= first else "full_attention" for layer in range(made.layers)]
    return replace(made, windows=windows_of(types, window, config))


def windows_of(types: list[str], window: int, config: Config) -> tuple[int, ...]:
    """The window of each layer, 0 for those that see everything before."""
    known = {"sliding_attention": window, "full_attention": 0}
    if not set(types) <= known.keys():
        raise Refused(f"{config.path} has layer_types other than {' and '.join(known)}, which are not known here.")
    return tuple(known[one] for one in types)


FAMILY = Family(
    "Qwen2 and Qwen3",
    ("qwen2", "qwen3"),
    ("Qwen2ForCausalLM", "Qwen3ForCausalLM"),
    "model.",
    shape,
    places,
    MODULES,
    ("q_proj", "v_proj"),
)
