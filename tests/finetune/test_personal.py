"""Personalisation: what is trained on is not what is measured on, and it helps people with habits."""

import jax
import numpy as np
import pytest

from reticent.data.batches import assemble, client_rows
from reticent.errors import Refused
from reticent.finetune.personal import personalise
from reticent.models import make

MODEL = make("lstm", vocabulary=40, embedding=8, hidden=12)
PARAMS = MODEL.init(jax.random.key(0))


def test_it_is_plain_local_training_on_one_half_measured_on_the_other(people_store):
    found = personalise(
        MODEL, PARAMS, people_store, sequence_length=6, users=1, epochs=2, batch_size=64, learning_rate=0.5, most=8
    )
    rows = client_rows(people_store, np.arange(1), 6, 8, None, 0)
    tokens = assemble(people_store, np.arange(1), batch_size=64, sequence_length=6, max_examples=8, seed=0).tokens[0, 0]
    count = len(rows.rank)
    train, kept = tokens[: count // 2], tokens[count // 2 : count]
    slope = jax.jit(jax.grad(MODEL.loss, has_aux=True))
    local = PARAMS
    for _ in range(2):
        local = jax.tree.map(lambda value, one: value - 0.5 * one, local, slope(local, train, None)[0])
    assert found.loss == pytest.approx(float(MODEL.loss(PARAMS, kept, None)[0]), rel=1e-5)
    assert found.personalised_loss == pytest.approx(float(MODEL.loss(local, kept, None)[0]), rel=1e-4)
    assert (found.people, found.better) == (1, int(found.gain > 0))


def test_people_with_habits_gain(people_store):
    found = personalise(MODEL, PARAMS, people_store, sequence_length=6, learning_rate=1.0)
    assert found.gain > 0.1
    assert found.people + found.left_out == people_store.users
    assert found.better > 0.8 * found.people


def test_nobody_with_two_examples_is_refused(people_store):
    with pytest.raises(Refused, match="Nobody has two examples"):
        personalise(MODEL, PARAMS, people_store, sequence_length=6, most=1)
