"""What is told about a model: sums that add up over batches, and the figures made of them."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp


def sums(losses: jax.Array, logits: jax.Array, targets: jax.Array, unknown: int | None) -> dict[str, jax.Array]:
    """Sums over the targets that are not -1, float32: tokens, loss, correct, correct_top3, known, known_correct.

    A prediction is right when fewer than one (or three) words stand before the target in the order of logits, of
    equal ones the lower id first. An unknown target is always wrong, whatever is predicted (dpfedavg, App. B), so that
    models of different vocabularies compare; `known` counts the others. The unknown word is never what is predicted:
    nobody can use it.

    float32 counts exactly to 16 million: add the sums of batches on the host, in float64.
    """
    counted = targets >= 0
    known = counted if unknown is None else counted & (targets != unknown)
    target = jnp.maximum(targets, 0)[..., None]
    chosen = jnp.take_along_axis(logits, target, axis=-1)
    ids = jax.lax.broadcasted_iota(target.dtype, logits.shape, logits.ndim - 1)
    # Not "logits > chosen": where there is NaN, nothing is predicted right.
    before = (~(logits <= chosen)) | ((logits == chosen) & (ids < target))
    before = before if unknown is None else before & (ids != unknown)
    rank = before.sum(-1, dtype=jnp.int32)

    def total(values: jax.Array) -> jax.Array:
        return values.sum(dtype=jnp.float32)

    correct = total(known & (rank < 1))
    return {
        "tokens": total(counted),
        "loss": total(losses),
        "correct": correct,
        "correct_top3": total(known & (rank < 3)),
        "known": total(known),
        "known_correct": correct,
    }


def summary(sums: Mapping[str, Any]) -> dict[str, float]:
    """Accuracies as fractions, the mean loss in nats, and the perplexity exp(loss); NaN where nothing was counted."""
    tokens = float(sums["tokens"])
    loss = _ratio(sums["loss"], tokens)
    return {
        "tokens": tokens,
        "accuracy": _ratio(sums["correct"], tokens),
        "accuracy_in_vocabulary": _ratio(sums["known_correct"], sums["known"]),
        "accuracy_top3": _ratio(sums["correct_top3"], tokens),
        "loss": loss,
        "perplexity": math.exp(loss) if loss < 700 else (math.nan if math.isnan(loss) else math.inf),
    }


def _ratio(numerator: Any, denominator: Any) -> float:
    return float(numerator) / float(denominator) if float(denominator) else math.nan
