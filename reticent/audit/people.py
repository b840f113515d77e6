"""User inference on the people themselves: for the run's owner alone.

How well the final model tells those it was trained on from those held out is a statistic of their raw text, which no noise
covers. It is never written into the run directory.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from reticent.audit.phrases import ROWS, Inference, inference
from reticent.config import RunFile
from reticent.data.batches import client_rows, fill
from reticent.data.store import Store
from reticent.errors import Refused
from reticent.models import Model
from reticent.models.losses import token_losses
from reticent.models.model import inputs_of, targets_of
from reticent.training.setup import open_data

USERS = 400


def people_inference(run_file: RunFile, model: Model, params: Any, first: Any) -> Inference:
    """The attack on people of the run, against as many held out from the same store. Not private."""
    data = open_data(run_file)
    if not run_file.data.held_out_users or run_file.evaluation.store is not None or data.people is None:
        raise Refused(
            "People can be told from people only where some of the same store were held out; this run has no "
            "data.held_out_users, or is evaluated on another store."
        )
    length = run_file.data.sequence_length
    stores = (data.train, data.people.store)
    count = min(USERS, *(store.users for store in stores))
    scores = [_gained(store, count, length, model, params, first) for store in stores]
    return inference(*scores)


def _gained(store: Store, count: int, length: int, model: Model, params: Any, first: Any) -> np.ndarray:
    """Of so many users, spread over the store, by how much likelier a word of theirs is to the final model."""
    users = np.linspace(0, store.users - 1, count).astype(np.int64)
    rows = client_rows(store, users, length, None, None, 0)
    padded = -(-len(rows.rank) // ROWS) * ROWS
    tokens = fill(store, rows, np.arange(len(rows.rank)), padded, length).reshape(-1, ROWS, length + 1)

    @jax.jit
    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        return token_losses(model.apply(params, inputs_of(tokens)), targets_of(tokens)).sum(-1)

    each = np.concatenate(
        [np.asarray(loss(first, jnp.asarray(part)) - loss(params, jnp.asarray(part))) for part in tokens]
    )
    gained = np.bincount(rows.client, each[: len(rows.rank)], count)
    return gained / np.maximum(np.bincount(rows.client, rows.length - 1, count), 1)
