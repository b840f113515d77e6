import math

import jax.numpy as jnp
import numpy as np
import pytest

from reticent.models.losses import next_token_loss
from reticent.models.metrics import summary


def said_plainly(logits, targets, unknown):
    """The metrics, one target after another."""
    count = {"tokens": 0, "loss": 0.0, "correct": 0, "correct_top3": 0, "known": 0, "known_correct": 0}
    for row, target in zip(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), strict=True):
        if target == -1:
            continue
        # The unknown word is never what is predicted.
        order = [word for word in np.argsort(-row, kind="stable").tolist() if word != unknown]
        count["tokens"] += 1
        count["loss"] += math.log(np.exp(row - row.max()).sum()) + row.max() - row[target]
        if target == unknown:
            continue
        count["known"] += 1
        count["correct"] += order[0] == target
        count["known_correct"] += order[0] == target
        count["correct_top3"] += target in order[:3]
    return count


@pytest.mark.parametrize("unknown", [3, None])
def test_sums_and_loss_are_what_counting_by_hand_gives(unknown):
    generator = np.random.default_rng(0)
    # Whole numbers, so that many are equal.
    logits = generator.integers(-3, 4, (6, 9, 8)).astype(np.float64)
    targets = generator.integers(-1, 8, (6, 9))
    loss, sums = next_token_loss(jnp.asarray(logits, jnp.float32), jnp.asarray(targets), unknown)
    expected = said_plainly(logits, targets, unknown)
    for name, value in expected.items():
        assert float(sums[name]) == pytest.approx(value, rel=1e-5), name
    assert float(loss) == pytest.approx(expected["loss"] / expected["tokens"], rel=1e-5)


def test_the_unknown_word_is_wrong_even_when_predicted():
    logits = jnp.zeros((1, 1, 5)).at[0, 0, 3].set(9.0)
    sums = next_token_loss(logits, jnp.full((1, 1), 3), 3)[1]
    assert (sums["correct"], sums["correct_top3"], sums["known"], sums["tokens"]) == (0, 0, 0, 1)


def test_a_broken_model_is_never_right():
    sums = next_token_loss(jnp.full((2, 3, 5), jnp.nan), jnp.ones((2, 3), jnp.int32), 3)[1]
    assert sums["correct_top3"] == 0


def test_equal_scores_are_right_once_not_everywhere():
    targets = jnp.arange(8)[None]
    sums = next_token_loss(jnp.zeros((1, 8, 8)), targets, None)[1]
    assert (sums["correct"], sums["correct_top3"]) == (1, 3)


def test_padding_only_gives_nothing():
    loss, sums = next_token_loss(jnp.ones((2, 3, 5)), jnp.full((2, 3), -1), 3)
    assert loss == 0
    assert all(value == 0 for value in sums.values())
    told = summary(sums)
    assert told["tokens"] == 0
    assert math.isnan(told["accuracy"])
    assert math.isnan(told["perplexity"])


def test_summary_of_added_sums_is_that_of_everything_together():
    generator = np.random.default_rng(1)
    logits = jnp.asarray(generator.normal(size=(8, 5, 7)), jnp.float32)
    targets = jnp.asarray(generator.integers(-1, 7, (8, 5)))
    whole = summary(next_token_loss(logits, targets, 3)[1])
    halves = [next_token_loss(logits[part], targets[part], 3)[1] for part in (slice(0, 3), slice(3, 8))]
    parts = summary({name: float(halves[0][name]) + float(halves[1][name]) for name in halves[0]})
    assert parts == pytest.approx(whole, rel=1e-6)
    assert whole["perplexity"] == pytest.approx(math.exp(whole["loss"]))
