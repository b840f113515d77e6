"""Runs that were made, as something to start from, to use and to export: the public half of a checkpoint."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from reticent.accounting.composition import record
from reticent.config import RunFile, load
from reticent.data.tokenizers import Tokenizer, load_tokenizer
from reticent.errors import Refused
from reticent.ledger.checkpoints import read_manifest, rounds_of
from reticent.ledger.durable import Files
from reticent.ledger.lines import read_ledger
from reticent.ledger.metrics import Metrics
from reticent.models import Model
from reticent.training.setup import model_of
from reticent.training.state import read_params

PRIVACY = "privacy.json"
"""Of an exported model: what it owes, for the next run that starts from it."""


@dataclass(frozen=True)
class TrainedModel:
    """A model as a run left it after `rounds` rounds, with what turns text into its ids."""

    run_file: RunFile
    model: Model
    params: Any
    tokenizer: Tokenizer
    rounds: int


@dataclass(frozen=True)
class Provenance:
    """What a checkpoint owes to whom: guarantees, as `composition.record` keeps them, and the public text that it was
    trained on."""

    owed: tuple[dict[str, Any], ...]
    public_data: str | None


def load_trained(path: str | Path, *, last: bool = False, model: Model | None = None) -> TrainedModel:
    """The model of the run in a directory: after its best evaluation, or (`last`, or without one) after its last round.

    `model` is the one it was trained with, where that is none of the built-in ones. Refuses a damaged checkpoint.
    """
    path = Path(path).absolute()
    run_file = run_file_of(path)
    rounds = _chosen_checkpoint(path, last)
    half = path / "checkpoints" / f"{rounds:08d}"
    read_manifest(half)
    tokenizer = load_tokenizer(half)
    model = model_of(run_file, tokenizer) if model is None else model
    _check_source(path, model)
    try:
        params = read_params(jax.eval_shape(model.init, jax.random.key(0)), half)
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(f"The checkpoint {half} is of another model than {model.kind!r} ({error}).") from None
    return TrainedModel(run_file, model, params, tokenizer, rounds)


def _check_source(path: Path, model: Model) -> None:
    """Refuses a base that is not the one that a run's adapters were trained on."""
    if model.source is None or not (path / "ledger.jsonl").is_file():
        return
    began_with = read_ledger(path / "ledger.jsonl").first["description"]["model"].get("checkpoint")
    if began_with != model.source:
        raise Refused(f"The checkpoint that the run in {path} began with has changed since; restore it.")


def run_file_of(path: Path) -> RunFile:
    """The run file of a run's directory; refuses a directory that holds no run."""
    if not (path / "run.toml").is_file() or not (path / "checkpoints").is_dir():
        raise Refused(f"{path} holds no run; give the directory of one.")
    return load(path / "run.toml")


def params_to_start_from(path: Path, model: Model, tokenizer: Tokenizer) -> Any:
    """The parameters of a run to start another one from; refuses another model's, or another vocabulary's."""
    trained = load_trained(path, model=model)
    if trained.tokenizer.digest != tokenizer.digest:
        raise Refused(
            f"The checkpoint in {path} has another vocabulary than data.store; use a store with its tokenizer."
        )
    return trained.params


def provenance(path: Path) -> Provenance:
    """What a checkpoint to start from was trained on: a run's, an exported one, or one from elsewhere. Refuses private
    training without a guarantee."""
    if not (path / "run.toml").is_file():
        exported = path / PRIVACY
        if not exported.is_file():
            return Provenance((), f"{path.name!r}, a checkpoint from elsewhere, taken to be made of public text")
        try:
            said = json.loads(exported.read_bytes())
            found = Provenance(tuple(map(dict, said["owed"])), said["public_data"])
            without = bool(said["private"]) and not found.owed
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(f"{exported} is damaged ({error!r}); export the run again.") from None
        if without:
            raise Refused(f"{path} was trained on private text without a guarantee; start from one that has one.")
        return found
    run_file = run_file_of(path)
    before = Provenance((), None)
    if run_file.model.checkpoint is not None and not run_file.private:
        before = provenance(Path(run_file.model.checkpoint))
    if not run_file.private:
        public = f"pretraining on the store {Path(run_file.data.store).name!r}"
        return Provenance(before.owed, public if before.public_data is None else f"{before.public_data}; {public}")
    from reticent.report import read_run

    guarantee = read_run(path).guarantee
    if guarantee is None:
        raise Refused(
            f"The run in {path} has no guarantee to compose with; start from one that has, or from one on public text."
        )
    return Provenance((record(guarantee),), None)


def _chosen_checkpoint(path: Path, last: bool) -> int:
    there = rounds_of(path / "checkpoints")
    if not there:
        raise Refused(f"{path} has no checkpoint; train it first.")
    ends = [one for one in Metrics(path / "metrics.jsonl", Files()).read() if one.get("kind") == "end"]
    best = ends[-1].get("best_round") if ends else None
    if last or best is None:
        return there[-1]
    if best + 1 not in there:
        raise Refused(f"The best checkpoint, after {best + 1} rounds, is not in {path}; take the last one.")
    return best + 1
