"""A trained model as files for others to use: its parameters or its computation, its tokenizer, and what it promises."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from reticent.errors import Refused
from reticent.files import write_atomically
from reticent.report import read_run
from reticent.report.words import headline, privacy_statement
from reticent.training.finished import PRIVACY, Provenance, TrainedModel, load_trained, provenance

FORMATS = ("safetensors", "stablehlo")


def export(directory: str | Path, out: str | Path, format: str = "safetensors", *, last: bool = False) -> list[Path]:
    """Writes the model of a run into the new directory `out`: nothing that is secret is read.

    `safetensors` are its parameters by name; `stablehlo` is the computation from int32[batch, sequence length] ids (filled
    up at the end with whatever) to scores, parameters included, as `jax.export` and other runtimes read it. A README.md
    carries the privacy statement.
    """
    if format not in FORMATS:
        raise Refused(f"There is no format {format!r}; there are {', '.join(FORMATS)}.")
    out = Path(out)
    if out.exists():
        raise Refused(f"{out} exists; give a new directory.")
    trained = load_trained(directory, last=last)
    content = _safetensors(trained) if format == "safetensors" else _stablehlo(trained)
    out.mkdir(parents=True)
    files = {
        f"model.{format}": content,
        "tokenizer.json": trained.tokenizer.to_bytes(),
        "config.json": (json.dumps(_config(trained), indent=1) + "\n").encode(),
        **papers(Path(directory), trained),
    }
    for name, made in files.items():
        write_atomically(out / name, made)
    return [out / name for name in files]


def papers(directory: Path, trained: TrainedModel) -> dict[str, bytes]:
    """What goes with every exported model: its card, and what a run that starts from it has to account for."""
    private = trained.run_file.private
    try:
        before = provenance(directory)
    except Refused:
        # Nothing to compose with: a run that starts from it will be refused.
        before = Provenance((), None)
    said = {"schema_version": 1, "private": private, "owed": list(before.owed), "public_data": before.public_data}
    return {
        "README.md": card(directory, trained).encode(),
        PRIVACY: (json.dumps(said, indent=1) + "\n").encode(),
    }


def card(directory: Path, trained: TrainedModel) -> str:
    """What a model is and what it promises, in Markdown; of public text, that it promises nothing."""
    lines = [
        f"# {trained.run_file.run.name}",
        "",
        f"A language model of kind {trained.model.kind} with {trained.model.parameters:,} parameters over "
        f"{trained.model.vocabulary:,} ids, after {trained.rounds:,} rounds, trained with Reticent.",
        "",
    ]
    if not trained.run_file.private:
        return "\n".join([*lines, "It was trained on public text, without privacy.", ""])
    run = read_run(directory)
    told, stated = headline(run), privacy_statement(run, run.name)
    lines += [f"> **{told.warning}**", ""] if told.warning else []
    lines += [f"Privacy: {told.privacy}, {told.meaning}.", ""]
    return "\n".join(lines) + ("\n" + stated.markdown() if stated else "")


def named(params: Any) -> dict[str, np.ndarray]:
    """The arrays of a pytree by their names, joined by dots."""
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return {".".join(_name(key) for key in path): np.asarray(leaf) for path, leaf in leaves}


def _name(key: Any) -> str:
    """A step of a path into a pytree: the key of a dictionary, the name of a field, the place in a list."""
    return str(next((getattr(key, what) for what in ("key", "name", "idx") if hasattr(key, what)), key))


def _config(trained: TrainedModel) -> dict[str, Any]:
    table = trained.run_file.model.model_dump(exclude={"checkpoint"})
    return {"model": {**table, "vocabulary": trained.model.vocabulary}, "rounds": trained.rounds}


def _safetensors(trained: TrainedModel) -> bytes:
    from safetensors.numpy import save

    return save(named(trained.params), {"format": "reticent", "kind": trained.model.kind})


def _stablehlo(trained: TrainedModel) -> bytes:
    from jax import export as exporting

    params, apply = trained.params, trained.model.apply
    (batch,) = exporting.symbolic_shape("batch")
    ids = jax.ShapeDtypeStruct((batch, trained.run_file.data.sequence_length), np.int32)
    computation = jax.jit(lambda tokens: apply(params, tokens))
    return bytes(exporting.export(computation, platforms=("cpu", "cuda", "tpu"))(ids).serialize())
