"""The state of a run between two rounds, in the two halves in which it is kept.

What may be shown: the parameters and the server's optimiser, both made of releases only. What may not: the mechanism's
buffers, from two of which noise can be read off, the sampler, which tells who comes when, and the digest of the data,
by which somebody who knows all but one person's text could test a guess at the rest.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from reticent.data.tokenizers import Tokenizer
from reticent.errors import Refused
from reticent.ledger.checkpoints import Writer
from reticent.ledger.clip_norms import Norms
from reticent.population import Sampler, SamplerState

SHOWN, HIDDEN, SAMPLER, DATA = "model", "noise", "sampler", "data.json"
NORMS = "clipping.json"
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class State:
    """After some rounds: `params`, `optimizer` and the clip `norms` may be shown, `noise` and `sampler` may not."""

    params: Any
    optimizer: Any
    noise: Any
    sampler: SamplerState
    norms: Norms

    def replace(self, **changed: Any) -> "State":
        return dataclasses.replace(self, **changed)

    @property
    def shown(self) -> dict[str, Any]:
        return {"params": self.params, "optimizer": self.optimizer}


def writer_of_shown(shown: dict[str, Any], tokenizer: Tokenizer, norms: Norms | None = None) -> Writer:
    """Writes the half that may be shown into an empty directory: with the tokenizer it is a model that can be used."""

    def write(folder: Path) -> None:
        _save(folder / SHOWN, shown)
        (folder / TOKENIZER).write_bytes(tokenizer.to_bytes())
        if norms is not None:
            (folder / NORMS).write_text(json.dumps(dataclasses.asdict(norms)))

    return write


def write_hidden(state: State, sampler: Sampler, data_digest: str, folder: Path) -> None:
    """The half that may not."""
    _save(folder / HIDDEN, _numbered(state.noise))
    (folder / SAMPLER).write_bytes(sampler.to_bytes(state.sampler))
    (folder / DATA).write_text(json.dumps({"digest": data_digest}))


def read(like: State, sampler: Sampler, data_digest: str, shown: Path, hidden: Path) -> State:
    """The state in the two halves of a checkpoint, of the shapes of `like`. Refuses data other than the run began with."""
    if json.loads((hidden / DATA).read_text())["digest"] != data_digest:
        raise Refused(
            "The text is not what this run began with; restore the store from a copy, or start a new run in another "
            "directory."
        )
    leaves, structure = jax.tree.flatten(like.noise)
    kept = _restore(hidden / HIDDEN, _numbered(like.noise))
    noise = jax.tree.unflatten(structure, [kept.get(str(number), leaf) for number, leaf in enumerate(leaves)])
    state = sampler.from_bytes((hidden / SAMPLER).read_bytes())
    norms = Norms(**json.loads((shown / NORMS).read_text())) if (shown / NORMS).is_file() else like.norms
    return State(**read_shown(like.shown, shown), noise=noise, sampler=state, norms=norms)


def read_shown(like: dict[str, Any], shown: Path) -> dict[str, Any]:
    """Parameters and optimiser of a checkpoint's public half, of the shapes of `like`."""
    return _restore(shown / SHOWN, like)


def read_params(like: Any, shown: Path) -> Any:
    """The parameters alone, whatever optimiser they were trained with."""
    import orbax.checkpoint as ocp

    item = {"params": jax.tree.map(_described, like)}
    how = ocp.checkpoint_utils.construct_restore_args(item)
    with ocp.PyTreeCheckpointer(**_alone()) as checkpointer:
        wanted = ocp.args.PyTreeRestore(item=item, restore_args=how, partial_restore=True)
        return checkpointer.restore(shown / SHOWN, args=wanted)["params"]


def _numbered(tree: Any) -> dict[str, Any]:
    """The arrays of a pytree by their numbers, but for empty ones, which orbax does not keep."""
    return {str(number): leaf for number, leaf in enumerate(jax.tree.leaves(tree)) if leaf.size}


def _save(path: Path, tree: Any) -> None:
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer(**_alone()) as checkpointer:
        checkpointer.save(path, jax.tree.map(np.asarray, tree) if jax.process_count() > 1 else tree)


def _restore(path: Path, like: Any) -> Any:
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer(**_alone()) as checkpointer:
        return checkpointer.restore(path, jax.tree.map(_described, like))


def _alone() -> dict[str, Any]:
    """Options by which one process of many reads and writes by itself: orbax would wait for the others."""
    import orbax.checkpoint as ocp

    if jax.process_count() == 1:
        return {}
    own = jax.process_index()
    options = ocp.options.MultiprocessingOptions(
        primary_host=own, active_processes={own}, barrier_sync_key_prefix=f"process-{own}"
    )
    return {"multiprocessing_options": options}


def _described(leaf: Any) -> Any:
    if jax.process_count() > 1:
        return np.empty(leaf.shape, leaf.dtype)
    here = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here)
