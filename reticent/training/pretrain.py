"""`algorithm = "pretrain"`: a model from public text, without privacy and without a ledger, to start a private run from."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from reticent.config import RunFile, differences, load, resolved
from reticent.data.batches import Rows as StoredRows
from reticent.data.batches import client_rows, fill
from reticent.data.store import Store
from reticent.errors import Refused
from reticent.ledger.checkpoints import read_manifest, rounds_of, write_half
from reticent.ledger.durable import Files
from reticent.ledger.lock import Lock
from reticent.ledger.metrics import Metrics
from reticent.models import Model
from reticent.training import state as states
from reticent.training.evaluation import evaluator
from reticent.training.events import Callback, listening
from reticent.training.server import server_optimizer
from reticent.training.setup import Progress, model_of, open_data


def pretrain(
    run_file: RunFile,
    out: str | Path,
    *,
    model: Model | None = None,
    callbacks: Iterable[Callback] = (),
    going_on: bool = False,
    progress: Progress = lambda stage, done: None,
) -> dict[str, Any]:
    """Trains on all text of a public store in `run.rounds` steps of `client.batch_size` rows, with the optimiser of
    [server]; returns the last evaluation. `going_on` resumes from the newest checkpoint."""
    out = Path(out).absolute()
    data = open_data(run_file, progress)
    tokenizer = data.train.tokenizer()
    model = model_of(run_file, tokenizer) if model is None else model
    optimizer = server_optimizer(run_file.server, run_file.run.rounds)
    params = model.begin(jax.random.key(run_file.run.seed))
    shown = {"params": params, "optimizer": optimizer.init(params)}
    files = Files()
    done = _begin(run_file, out, going_on, files)
    metrics = Metrics(out / "metrics.jsonl", files)
    evaluate = None if data.people is None else evaluator(model, data.people)
    lock = Lock(out)
    try:
        metrics.recover(out / ".unfinished")
        if done:
            half = out / "checkpoints" / f"{done:08d}"
            read_manifest(half)
            shown = states.read_shown(shown, half)

        @jax.jit
        def step(shown: dict[str, Any], rows: jax.Array, frozen: Any) -> tuple[dict[str, Any], jax.Array]:
            loss_of = model.holding(frozen).loss
            (loss, _), slope = jax.value_and_grad(loss_of, has_aux=True)(shown["params"], rows, None)
            change, state = optimizer.update(slope, shown["optimizer"], shown["params"])
            return {"params": optax.apply_updates(shown["params"], change), "optimizer": state}, loss

        with listening(callbacks) as told:
            facts = {
                "name": run_file.run.name,
                "algorithm": "pretrain",
                "rounds": run_file.run.rounds,
                "model": model.kind,
                "parameters": model.parameters,
                "done": done,
                "directory": str(out),
            }
            for callback in told:
                callback.on_start(facts)
            losses: list[Any] = []
            began, last = time.perf_counter(), {}
            for number, rows in enumerate(batches(data.train, run_file, done), start=done + 1):
                shown, loss = step(shown, rows, model.frozen)
                losses.append(loss)
                if number % run_file.run.checkpoint_every and number != run_file.run.rounds:
                    continue
                _write(out, number, states.writer_of_shown(shown, tokenizer), files)
                record = {
                    "kind": "step",
                    "round": number - 1,
                    "training_loss": float(np.mean(losses)),
                    "seconds": time.perf_counter() - began,
                }
                metrics.hold(number, record)
                losses, began = [], time.perf_counter()
                if evaluate is not None:
                    last = {"kind": "evaluation", "round": number - 1, **evaluate(shown["params"])}
                    metrics.hold(number, last)
                metrics.write(number)
                for callback in told:
                    callback.on_round({**record, "rounds": number})
                    if last:
                        callback.on_evaluation({**last, "rounds": number})
            for callback in told:
                callback.on_end({"rounds": run_file.run.rounds, "last": last})
        return last
    finally:
        lock.release()


def batches(store: Store, run_file: RunFile, done: int) -> Iterator[np.ndarray]:
    """The rows of each step from step `done` on: all rows of the store in a new order every time through."""
    length, size = run_file.data.sequence_length, run_file.client.batch_size
    rows = client_rows(store, np.arange(store.users), length, None, None, 0, run_file.data.packed)
    if len(rows.rank) < size:
        raise Refused(f"The store has {len(rows.rank)} rows and a step takes {size}; lower client.batch_size.")
    per_epoch = len(rows.rank) // size
    epoch, order = -1, np.empty(0, np.int64)
    for number in range(done, run_file.run.rounds):
        if number // per_epoch != epoch:
            epoch = number // per_epoch
            order = np.random.default_rng([run_file.run.seed, epoch]).permutation(len(rows.rank))
        chosen = order[number % per_epoch * size :][:size]
        part = StoredRows(rows.client[chosen], rows.rank[chosen], rows.start[chosen], rows.length[chosen])
        yield fill(store, part, np.arange(size), size, length)


def _begin(run_file: RunFile, out: Path, going_on: bool, files: Files) -> int:
    """Makes the directory, or checks that it is this run's; returns the steps that were done."""
    if not going_on:
        if out.is_dir() and any(out.iterdir()):
            raise Refused(
                f"{out} holds other files; give a new or empty directory with --out, or resume with --resume."
            )
        for folder in (out, out / "checkpoints", out / ".unfinished"):
            folder.mkdir(parents=True, exist_ok=True)
        files.write_file(out / "run.toml", resolved(run_file).encode(), by_way_of=out / ".unfinished")
        return 0
    if not (out / "run.toml").is_file():
        raise Refused(f"{out} holds no run to resume; start it without --resume.")
    changed = differences(load(out / "run.toml"), run_file)
    if changed:
        raise Refused(f"{out} is a run of another run file ({'; '.join(changed)}); resume it with its own.")
    files.empty_directory(out / ".unfinished")
    return max(rounds_of(out / "checkpoints"), default=0)


def _write(out: Path, number: int, writer: Any, files: Files) -> None:
    """A checkpoint, and the end of the one before."""
    older = [rounds for rounds in rounds_of(out / "checkpoints") if rounds < number]
    if not (out / "checkpoints" / f"{number:08d}").is_dir():
        write_half(out / "checkpoints", number, writer, out / ".unfinished", 0o755, [], files)
    for rounds in older:
        files.remove_tree(out / "checkpoints" / f"{rounds:08d}", out / ".unfinished")
