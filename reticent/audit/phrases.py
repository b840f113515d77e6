"""What the final model gives away of what simulated users wrote: exposure of their phrases, and whether they were there."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from reticent.data.tokenizers import Tokenizer
from reticent.models import Model
from reticent.models.losses import token_losses
from reticent.models.model import inputs_of, targets_of
from reticent.training.planted import KINDS, Planted

REFERENCES = 4096
ROWS = 256


@dataclass(frozen=True)
class Exposures:
    """Of each kind of phrase the exposures in bits of those whose writers took part, and how many were never drawn; the
    largest exposure that could be measured."""

    bits: dict[str, list[float]]
    never_drawn: int
    largest: float


@dataclass(frozen=True)
class Inference:
    """How well one tells the writers who took part from users who never were: the area under the ROC curve, with a 95%
    interval."""

    auc: float
    interval: tuple[float, float]
    members: int


@dataclass(frozen=True)
class Losses:
    """Of each text: its loss in nats, and that less what its words cost wherever they stand."""

    plain: np.ndarray
    beyond_words: np.ndarray


def exposure(of: np.ndarray, others: np.ndarray) -> np.ndarray:
    """log2 of how many there are less log2 of the rank (Carlini et al., 2019), by losses; of equal ones the worst rank."""
    ranks = 1 + np.searchsorted(np.sort(others), of, side="right")
    return np.log2(len(others) + 1) - np.log2(ranks)


def by_chance(exposures: list[float]) -> float:
    """The probability that exposures add up to so much although the model never saw the phrases: of uniform ranks they
    are exponential."""
    from scipy.stats import gamma

    return float(gamma.sf(sum(exposures) * math.log(2), len(exposures))) if exposures else 1.0


def losses_of(model: Model, params: Any, tokenizer: Tokenizer, words: np.ndarray) -> Losses:
    """The losses of phrases, int32[phrases, words], each a text of its own."""
    frame = np.ones((len(words), 1), np.int32)
    rows = np.concatenate([tokenizer.begin * frame, words, tokenizer.end * frame], 1).astype(np.int32)
    padded = np.full((-(-len(rows) // ROWS) * ROWS, rows.shape[1]), -1, np.int32)
    padded[: len(rows)] = rows

    @jax.jit
    def step(params: Any, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits, targets = model.apply(params, inputs_of(tokens)), targets_of(tokens)
        usual = jax.nn.log_softmax(logits) * (targets >= 0)[..., None]
        return token_losses(logits, targets), usual.sum((0, 1))

    parts, usual = [], np.zeros(model.vocabulary)
    for start in range(0, len(padded), ROWS):
        part, sums = step(params, jnp.asarray(padded[start : start + ROWS]))
        parts.append(np.asarray(part, np.float64))
        usual = usual + np.asarray(sums, np.float64)
    each = np.concatenate(parts)[: len(rows)]
    cost = -usual / each.size
    return Losses(each.sum(1), (each - cost[rows[:, 1:]]).sum(1))


def _all_words(planted: Planted, tokenizer: Tokenizer, length: int) -> tuple[np.ndarray, int]:
    """The planted phrases, and after them those that nobody wrote."""
    inserted = planted.phrase_words(tokenizer, length, len(KINDS) * planted.phrases)
    others = planted.phrase_words(tokenizer, length, REFERENCES, "phrases that nobody wrote")
    return np.concatenate([inserted, others]), len(inserted)


def exposures(
    model: Model, params: Any, tokenizer: Tokenizer, planted: Planted, came: list[list[int]], length: int
) -> Exposures:
    """The exposures of a run's phrases in a model; `came` are the rounds in which each writer took part. Phrases are
    ranked by what they cost beyond their words: how common a word is does not count."""
    words, count = _all_words(planted, tokenizer, length)
    losses = losses_of(model, params, tokenizer, words).beyond_words
    found = exposure(losses[:count], losses[count:])
    bits: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for phrase in range(count):
        if any(came[writer] for writer in planted.writers_of(phrase)):
            bits[KINDS[phrase // planted.phrases]].append(float(found[phrase]))
    drawn = sum(map(len, bits.values()))
    return Exposures(bits, count - drawn, math.log2(len(words) - count + 1))


def user_inference(
    model: Model,
    params: Any,
    first: Any,
    tokenizer: Tokenizer,
    planted: Planted,
    came: list[list[int]],
    length: int,
) -> Inference | None:
    """Kandpal et al.'s attack (uldp, App. A.3) on simulated users: by how much likelier a user's text is to the final
    model than to the first one. Of each phrase one writer counts, since they all wrote the same."""
    words, count = _all_words(planted, tokenizer, length)
    gained = losses_of(model, first, tokenizer, words).plain - losses_of(model, params, tokenizer, words).plain
    members = [phrase for phrase in range(count) if any(came[writer] for writer in planted.writers_of(phrase))]
    return inference(gained[members], gained[count:]) if members else None


def inference(members: np.ndarray, others: np.ndarray) -> Inference:
    """The area under the ROC curve of scores that are to be larger for members, and DeLong's interval for it."""
    both = np.sort(others)
    below = (np.searchsorted(both, members) + np.searchsorted(both, members, side="right")) / 2 / len(others)
    inside = np.sort(members)
    above = 1 - (np.searchsorted(inside, others) + np.searchsorted(inside, others, side="right")) / 2 / len(members)
    auc = float(below.mean())
    variance = below.var(ddof=1) / len(members) if len(members) > 1 else 0.25
    deviation = math.sqrt(variance + above.var(ddof=1) / len(others))
    return Inference(auc, (max(0.0, auc - 1.96 * deviation), min(1.0, auc + 1.96 * deviation)), len(members))
