"""Llama 1 to 3: rotary positions, RMS norms, gated SiLU, grouped queries."""

from collections.abc import Mapping

from reticent.finetune.huggingface.config import Config
from reticent.finetune.huggingface.family import Family, Path, Place
from reticent.finetune.huggingface.rotary import Rates, rotary
from reticent.models.transformer import Shape

ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu", "gelu_new": "gelu", "gelu": "gelu-exact"}
ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "attention_out": "o_proj"}
FEED_FORWARD = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
MODULES = {theirs: (ours,) for ours, theirs in (ATTENTION | FEED_FORWARD).items()}


def shape(config: Config) -> Shape:
    """The transformer of a `config.json` of model_type "llama"."""
    biased: tuple[str, ...] = tuple(ATTENTION) if config.take("attention_bias", False) else ()
    biased += tuple(FEED_FORWARD) if config.take("mlp_bias", False) else ()
    return gated_shape(config, biases=biased, tied=False)


def gated_shape(
    config: Config,
    *,
    biases: tuple[str, ...],
    tied: bool,
    head_width: int | None = None,
    rates: Rates | None = None,
) -> Shape:
    """What Llama and those that took after it have in common; what is given is used where the file says nothing, `rates` in
    any case."""
    heads, width = config.count("num_attention_heads"), config.count("hidden_size")
    head_width = config.count("head_dim", head_width or width // heads)
    rotary_rates, gain = rates or rotary(config, head_width, 10_000.0)
    return Shape(
        vocabulary=config.count("vocab_size"),
        width=width,
        layers=config.count("num_hidden_layers"),
        heads=heads,
        key_value_heads=config.count("num_key_value_heads", heads),
        head_width=head_width,
        feed_forward=config.count("intermediate_size"),
        longest=0,
        activation=config.choice("hidden_act", ACTIVATIONS, "silu"),
        biases=biases,
        tied=config.take("tie_word_embeddings", tied),
        norm_epsilon=config.take("rms_norm_eps", 1e-6),
        rotary_rates=rotary_rates,
        rotary_gain=gain,
    )


def places(shape: Shape, type_: str) -> Mapping[Path, Place]:
    """The names of a Llama's arrays."""
    return gated_places(
        shape, {"attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"}, less=0.0
    )


def gated_places(shape: Shape, norms: Mapping[str, str], less: float) -> dict[Path, Place]:
    """The names of the arrays of Llama and of all that took after it; scales are kept less `less`."""
    found: dict[Path, Place] = {
        ("embedding", "table"): Place("model.embed_tokens.weight"),
        ("final_norm", "scale"): Place("model.norm.weight", less=less),
    }
    if not shape.tied:
        found["output", "table"] = Place("lm_head.weight")
    for ours, theirs in norms.items():
        found["layers", ours, "scale"] = Place(f"model.layers.{{}}.{theirs}.weight", less=less)
    for part, names in (("self_attn", ATTENTION), ("mlp", FEED_FORWARD)):
        for ours, theirs in names.items():
            found["layers", ours, "kernel"] = Place(f"model.layers.{{}}.{part}.{theirs}.weight", transposed=True)
            if shape.has_bias(ours):
                found["layers", ours, "bias"] = Place(f"model.layers.{{}}.{part}.{theirs}.bias")
    if shape.head_norms:
        for ours, theirs in (("query_norm", "q_norm"), ("key_norm", "k_norm")):
            found["layers", ours, "scale"] = Place(f"model.layers.{{}}.self_attn.{theirs}.weight", less=less)
    return found


FAMILY = Family("Llama", ("llama",), ("LlamaForCausalLM",), "model.", shape, places, MODULES, ("q_proj", "v_proj"))
