"""A trained model as the directory that a serving stack loads: whole, or its adapters alone."""

import os
import shutil
from pathlib import Path

import jax
import numpy as np

from reticent.errors import Refused
from reticent.files import sync_directory, write_atomically
from reticent.finetune.huggingface.adapters import read_adapters, write_adapters
from reticent.finetune.huggingface.checkpoint import SHARD_BYTES, Checkpoint, open_checkpoint
from reticent.finetune.huggingface.model import targets_of
from reticent.finetune.lora import Lora, merged
from reticent.models.kinds import HUGGINGFACE
from reticent.models.model import Params
from reticent.training.export import papers
from reticent.training.finished import TrainedModel, load_trained

FORMATS = ("huggingface", "peft")


def export(
    directory: str | Path,
    out: str | Path,
    format: str = "huggingface",
    *,
    last: bool = False,
    shard_bytes: int = SHARD_BYTES,
) -> list[Path]:
    """Writes the model of a run into the new directory `out`: "huggingface" as `transformers` loads it, adapters added to
    the weights, or "peft", the adapters alone. Nothing that is secret is read; a README.md carries the privacy statement.
    """
    if format not in FORMATS:
        raise Refused(f"There is no format {format!r}; there are {', '.join(FORMATS)}.")
    out = Path(out)
    if out.exists():
        raise Refused(f"{out} exists; give a new directory.")
    trained = load_trained(directory, last=last)
    checkpoint, lora = began_with(trained)
    if format == "peft" and lora is None:
        raise Refused(
            f"The run in {directory} trained the whole model and has no adapters; export it as 'huggingface'."
        )
    unfinished = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    if format == "peft":
        assert lora is not None
        write_adapters(unfinished, checkpoint, lora, trained.params)
        checkpoint.copy_beside(unfinished)
    else:
        checkpoint.write(whole_params(trained, checkpoint, lora), unfinished, shard_bytes)
    for name, content in papers(Path(directory), trained).items():
        write_atomically(unfinished / name, content)
    os.rename(unfinished, out)
    sync_directory(out.parent)
    return sorted(out.iterdir())


def began_with(trained: TrainedModel) -> tuple[Checkpoint, Lora | None]:
    """The checkpoint that a run began with, and its adapters' description, where it trained adapters."""
    run_file = trained.run_file
    if run_file.model.kind != HUGGINGFACE or run_file.model.checkpoint is None:
        raise Refused(
            f"The run trained a {trained.model.kind}, which is no Hugging Face model; export it as safetensors or stablehlo."
        )
    checkpoint, table = open_checkpoint(run_file.model.checkpoint), run_file.lora
    if table is None:
        return checkpoint, None
    if table.adapters is not None:
        return checkpoint, read_adapters(Path(table.adapters), checkpoint)[0]
    assert table.rank is not None
    gain = (table.alpha or table.rank) / table.rank
    return checkpoint, Lora(table.rank, gain, targets_of(checkpoint.family, checkpoint, table.targets))


def whole_params(trained: TrainedModel, checkpoint: Checkpoint, lora: Lora | None) -> Params:
    """All parameters of a trained model, adapters added."""
    if lora is None:
        return trained.params
    return jax.tree.map(np.asarray, merged(checkpoint.params(), trained.params, lora))
