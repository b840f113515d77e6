"""GPT-2: learned positions, layer norms, biases, one embedding; queries, keys and values in one array."""

import re
from collections.abc import Mapping

from reticent.finetune.huggingface.config import Config
from reticent.finetune.huggingface.family import Family, Path, Place
from reticent.models.transformer import Shape

ACTIVATIONS = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "gelu": "gelu-exact"}


def shape(config: Config) -> Shape:
    """The transformer of a `config.json` of model_type "gpt2"."""
    width, heads = config.count("n_embd"), config.count("n_head")
    return Shape(
        vocabulary=config.count("vocab_size"),
        width=width,
        layers=config.count("n_layer"),
        heads=heads,
        key_value_heads=heads,
        head_width=width // heads,
        feed_forward=config.count("n_inner", 4 * width),
        longest=config.count("n_positions", 1024),
        positions="learned",
        norm="layer",
        activation=config.choice("activation_function", ACTIVATIONS, "gelu_new"),
        gated=False,
        biases=True,
        tied=config.take("tie_word_embeddings", True),
        norm_epsilon=config.take("layer_norm_epsilon", 1e-5),
    )


def places(shape: Shape, type_: str) -> Mapping[Path, Place]:
    """The names of a GPT-2's arrays, which are [in, out]."""
    found: dict[Path, Place] = {
        ("embedding", "table"): Place("transformer.wte.weight"),
        ("positions", "table"): Place("transformer.wpe.weight"),
    }
    if not shape.tied:
        found["output", "table"] = Place("lm_head.weight")
    for ours, theirs in (("scale", "weight"), ("bias", "bias")):
        found["final_norm", ours] = Place(f"transformer.ln_f.{theirs}")
        found["layers", "attention_norm", ours] = Place(f"transformer.h.{{}}.ln_1.{theirs}")
        found["layers", "feed_forward_norm", ours] = Place(f"transformer.h.{{}}.ln_2.{theirs}")
    for ours, theirs in (("kernel", "weight"), ("bias", "bias")):
        for number, name in enumerate(("query", "key", "value")):
            columns = (number * shape.width, (number + 1) * shape.width)
            found["layers", name, ours] = Place(f"transformer.h.{{}}.attn.c_attn.{theirs}", columns=columns)
        for name, place in (("attention_out", "attn.c_proj"), ("up", "mlp.c_fc"), ("down", "mlp.c_proj")):
            found["layers", name, ours] = Place(f"transformer.h.{{}}.{place}.{theirs}")
    return found


FAMILY = Family(
    "GPT-2",
    ("gpt2",),
    ("GPT2LMHeadModel",),
    "transformer.",
    shape,
    places,
    {
        "c_attn": ("query", "key", "value"),
        "attn.c_proj": ("attention_out",),
        "mlp.c_proj": ("down",),
        "c_proj": ("attention_out", "down"),
        "c_fc": ("up",),
    },
    ("c_attn",),
    # Masks that early files keep beside the parameters.
    unused=re.compile(r"attn\.(bias|masked_bias)$"),
)
