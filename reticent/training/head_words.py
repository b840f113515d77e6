"""How much a model leans on the commonest words (dpfedavg, Table 3)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from reticent.models import Model
from reticent.models.model import inputs_of
from reticent.training.evaluation import HeldOut

HEADS = (10, 50, 100)
LIKELIEST = 10


def head_words(model: Model, params: Any, people: HeldOut) -> dict[int, list[int]]:
    """For each n of 10, 50 and 100: how many of the model's predictions have 0, 1, ... 10 of their ten likeliest words
    among the n commonest of what these people wrote. The unknown word is neither predicted nor counted."""
    rank = np.empty(model.vocabulary, np.int32)
    tokenizer = people.store.tokenizer()
    special = [index for index in (tokenizer.pad, tokenizer.begin, tokenizer.unknown, tokenizer.end) if index >= 0]
    counts = np.zeros(model.vocabulary, np.int64)
    for rows in people.rows():
        targets = rows[:, 1:]
        counts += np.bincount(targets[targets >= 0], minlength=len(counts))
    counts[special] = -1
    order = np.argsort(-counts, kind="stable")
    rank[order] = np.arange(len(order))
    rank[special] = np.iinfo(rank.dtype).max
    never = [index for index in special if index != tokenizer.end]

    @jax.jit
    def histograms(rows: jax.Array) -> jax.Array:
        scores = model.apply(params, inputs_of(rows)).at[..., jnp.array(never)].set(-jnp.inf)
        ranks = jnp.asarray(rank)[jax.lax.top_k(scores, LIKELIEST)[1]]
        counted = rows[:, 1:] >= 0
        inside = jnp.stack([(ranks < head).sum(-1) for head in HEADS])
        return (jax.nn.one_hot(inside, LIKELIEST + 1, dtype=jnp.int32) * counted[None, ..., None]).sum((1, 2))

    total = np.zeros((len(HEADS), LIKELIEST + 1), np.int64)
    for rows in people.rows():
        total += np.asarray(histograms(rows))
    return dict(zip(HEADS, total.tolist(), strict=True))
