"""Checkpoints as Hugging Face keeps them: GPT-2, Llama, Qwen and Gemma, to train privately and to give back."""

from pathlib import Path
from typing import Any

from reticent.finetune.huggingface.checkpoint import Checkpoint, open_checkpoint

__all__ = ["Checkpoint", "load", "open_checkpoint"]


def load(directory: str | Path, compute_dtype: str = "float32") -> tuple[Any, Any, Any, tuple[int, ...]]:
    """A checkpoint to use: model, parameters, tokenizer, and the ids that end a text. Refuses one without tokenizer.json."""
    from reticent.data.tokenizers import load_tokenizer
    from reticent.finetune.huggingface.model import check_tokenizer
    from reticent.models.transformer import transformer

    checkpoint, tokenizer = open_checkpoint(directory), load_tokenizer(directory)
    check_tokenizer(checkpoint, tokenizer)
    unknown = tokenizer.unknown if tokenizer.unknown >= 0 else None
    model = transformer(
        checkpoint.shape, compute_dtype=compute_dtype, unknown=unknown, kind=str(checkpoint.config["model_type"])
    )
    said = checkpoint.config.get("eos_token_id")
    ends = said if isinstance(said, list) else [] if said is None else [said]
    return model, checkpoint.params(), tokenizer, tuple(map(int, ends))
