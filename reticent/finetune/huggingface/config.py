"""The `config.json` of a checkpoint: every key of it is accounted for, or the checkpoint is refused."""

import json
from pathlib import Path
from typing import Any

from reticent.errors import Refused

# What says nothing about how scores are computed from tokens. Dropout is not used: noise protects, and it would only add.
HARMLESS = {
    "_num_labels", "is_llama_config", "num_labels", "transformers.js_config", "unsloth_fixed", "unsloth_version",
    "_name_or_path", "_attn_implementation", "architectures", "attention_dropout",
    "attention_probs_dropout_prob", "attn_pdrop", "bad_words_ids", "begin_suppress_tokens", "bos_token_id",
    "cache_implementation", "chunk_size_feed_forward", "dtype", "embd_pdrop", "eos_token_id", "finetuning_task",
    "forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing", "id2label", "initializer_range",
    "label2id", "license", "max_length", "max_position_embeddings", "model_type", "n_ctx", "n_positions",
    "output_attentions", "output_hidden_states", "output_scores", "pad_token_id", "prefix", "pretraining_tp",
    "problem_type", "reorder_and_upcast_attn", "resid_pdrop", "return_dict", "return_dict_in_generate",
    "sep_token_id", "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj", "task_specific_params", "tokenizer_class", "torch_dtype", "torchscript",
    "transformers_version", "use_cache",
}  # fmt: skip
# What has one value in every checkpoint that computes as usual.
USUAL: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "is_decoder": (False, True),
    "is_encoder_decoder": (False,),
    "partial_rotary_factor": (1, 1.0),
    "pruned_heads": ({},),
    "rope_interleaved": (False,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "scale_attn_weights": (True,),
    "use_bidirectional_attention": (False,),
    "tie_encoder_decoder": (False,),
    "use_mrope": (False,),
}


class Config:
    """The keys of a `config.json`. A family takes those it computes with; `finish` refuses what nobody took."""

    def __init__(self, content: dict[str, Any], path: Path) -> None:
        self.content = content
        self.path = path
        self._taken: set[str] = set()

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key, the default where it is missing or null."""
        self._taken.add(key)
        value = self.content.get(key)
        return default if value is None else value

    def need(self, key: str) -> Any:
        """The value of a key without which there is no model."""
        value = self.take(key)
        if value is None:
            raise Refused(f"{self.path} has no {key!r}, without which the model cannot be made; restore the file.")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """The value of a key that is a whole number of at least 1."""
        value = self.need(key) if default is None else self.take(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise Refused(
                f"{self.path} has {key} = {value!r}, which is no whole number of at least 1; restore the file."
            )
        return value

    def choice(self, key: str, choices: dict[Any, Any], default: Any) -> Any:
        """What the value of a key means; refuses a value without meaning here."""
        value = self.take(key, default)
        if value not in choices:
            known = ", ".join(map(repr, choices))
            raise Refused(f"{self.path} has {key} = {value!r}, which is not known here; known are {known}.")
        return choices[value]

    def finish(self) -> None:
        """Refuses a key that was not taken and could change what is computed."""
        for key, usual in USUAL.items():
            if key in self.content and key not in self._taken:
                value = self.content[key]
                if value is not None and value not in usual:
                    raise Refused(
                        f"{self.path} has {key} = {value!r}, which changes what the model computes and is not known here; "
                        f"only {usual[0]!r} is."
                    )
        unknown = sorted(self.content.keys() - self._taken - HARMLESS - USUAL.keys())
        if unknown:
            raise Refused(
                f"{self.path} has {', '.join(unknown)}, which may change what the model computes and is not known here; "
                "the checkpoint is not loaded rather than loaded approximately."
            )


def read_config(directory: Path) -> Config:
    """The `config.json` of a directory; refuses what is none."""
    path = directory / "config.json"
    if not path.is_file():
        raise Refused(f"{directory} has no config.json; give the directory of a Hugging Face checkpoint.")
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise Refused(f"{path} is damaged ({error}); restore it.") from None
    if not isinstance(content, dict):
        raise Refused(f"{path} is not the config.json of a checkpoint.")
    return Config(content, path)
