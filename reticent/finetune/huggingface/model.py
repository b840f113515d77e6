"""The model of a run file whose `model.kind` is "huggingface": all of a checkpoint trained, or adapters beside it."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from reticent.errors import Refused
from reticent.finetune.huggingface.adapters import read_adapters
from reticent.finetune.huggingface.checkpoint import Checkpoint, open_checkpoint
from reticent.finetune.huggingface.family import Family
from reticent.finetune.lora import Lora, adapted
from reticent.models.model import Model
from reticent.models.transformer import transformer

ALL_LINEAR = "all-linear"


def make(
    *,
    kind: str,
    compute_dtype: str,
    unknown: int | None,
    directory: str,
    tokenizer: Any = None,
    rank: int | None = None,
    alpha: float | None = None,
    targets: Iterable[str] = (),
    adapters: str | None = None,
    checkpointing: bool = False,
) -> Model:
    """The model of a checkpoint; with a `rank` adapters of it, and with `adapters`, a PEFT directory, those to begin with.

    `tokenizer` is that of the text, which has to be the checkpoint's own and to fit its embedding.
    """
    checkpoint = open_checkpoint(directory)
    shape = replace(checkpoint.shape, checkpointing=checkpointing)
    if tokenizer is not None:
        check_tokenizer(checkpoint, tokenizer)
    digest = checkpoint.digest()
    type_ = str(checkpoint.config["model_type"])
    if rank is None and adapters is None:
        plain = transformer(shape, compute_dtype=compute_dtype, unknown=unknown, kind=type_)
        return replace(plain, start=checkpoint.params, source=digest)
    start = None
    if adapters is not None:
        lora, held = read_adapters(Path(adapters), checkpoint)
        if rank is not None and rank != lora.rank:
            raise Refused(
                f"The adapters in {adapters} are of rank {lora.rank}; leave lora.rank out, or give {lora.rank}."
            )
        start = lambda: jax.tree.map(jnp.asarray, held)  # noqa: E731
    else:
        assert rank is not None
        lora = Lora(rank, (rank if alpha is None else alpha) / rank, targets_of(checkpoint.family, checkpoint, targets))
    return adapted(
        shape,
        frozen_params(checkpoint, compute_dtype),
        lora,
        compute_dtype=compute_dtype,
        unknown=unknown,
        kind=f"{type_}, adapters of rank {lora.rank}",
        start=start,
        source=digest,
    )


def frozen_params(checkpoint: Checkpoint, compute_dtype: str) -> Any:
    """A checkpoint's parameters to compute with and not to train: matrices in the type they are multiplied in."""
    narrow = jnp.dtype(compute_dtype)
    return checkpoint.params(lambda where: narrow if where[-1] in ("kernel", "table") else np.float32)


def targets_of(family: Family, checkpoint: Checkpoint, targets: Iterable[str]) -> tuple[str, ...]:
    """Our names of the linear layers that are meant by a family's ("q_proj", "c_attn"), or by "all-linear"."""
    given = tuple(targets) or family.default_targets
    there = [where[1] for where in checkpoint.places if where[0] == "layers" and where[-1] == "kernel"]
    if ALL_LINEAR in given:
        return tuple(there)
    unknown = sorted(set(given) - family.modules.keys())
    if unknown:
        raise Refused(
            f"A {family.name} has no layer {', '.join(unknown)} to adapt; it has {', '.join(family.modules)}, and "
            f"{ALL_LINEAR!r} means all of them."
        )
    meant = {ours for name in given for ours in family.modules[name]}
    return tuple(name for name in there if name in meant)


def check_tokenizer(checkpoint: Checkpoint, tokenizer: Any) -> None:
    """Refuses a tokenizer that is not the checkpoint's, or that has more ids than the embedding has rows."""
    from reticent.data.tokenizers import load_tokenizer

    rows, directory = checkpoint.shape.vocabulary, checkpoint.directory
    if tokenizer.size > rows:
        raise Refused(
            f"The tokenizer has {tokenizer.size:,} ids and the embedding of {directory} {rows:,} rows; they do not belong "
            "together."
        )
    if not (directory / "tokenizer.json").is_file():
        raise Refused(
            f"{directory} has no tokenizer.json, so it cannot be known what its ids mean; save its fast tokenizer into it "
            "(transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...))."
        )
    if load_tokenizer(directory).digest != tokenizer.digest:
        raise Refused(
            f"The text was encoded with another tokenizer than that of {directory}; import it with --tokenizer {directory}."
        )
