"""Sums of cohorts: the same integers whatever the chunks, threads and devices, and those of plain local training."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from reticent.data.batches import assemble
from reticent.models import make
from reticent.privacy.clipping import Clipping
from reticent.privacy.grid import Grid
from reticent.privacy.weighting import WHOLE
from reticent.training.updates import CohortSums, LocalWork

MODEL = make("lstm", vocabulary=40, embedding=8, hidden=12)
each = Clipping(norm=100.0, grid=Grid(-16))


def sums_of(store, work, cohort, clients=None, round=3):
    params = MODEL.init(jax.random.key(0))
    sums = CohortSums(MODEL, store, work, each, seed=5)
    if clients is not None:
        sums.clients = clients
    try:
        return np.asarray(ravel_pytree(sums(params, cohort, round).units)[0])
    finally:
        sums.close()


WORK = LocalWork(batch_size=3, sequence_length=6, learning_rate=0.5)


@pytest.mark.parametrize("clients", [1, 5, 16])
def test_chunks_do_not_matter(people_store, clients):
    cohort = np.arange(23)
    np.testing.assert_array_equal(sums_of(people_store, WORK, cohort, clients), sums_of(people_store, WORK, cohort))


def test_the_order_of_a_cohort_does_not_matter(people_store):
    cohort = np.arange(23)
    np.testing.assert_array_equal(sums_of(people_store, WORK, cohort[::-1]), sums_of(people_store, WORK, cohort))


@pytest.mark.parametrize("packed", [False, True])
def test_it_is_plain_local_training(people_store, packed):
    work = LocalWork(batch_size=3, sequence_length=6, learning_rate=0.5, epochs=2, packed=packed, weight_cap=4.0)
    cohort, params = np.arange(7), MODEL.init(jax.random.key(0))
    batches = assemble(people_store, cohort, seed=(5 << 32) + 3, **work.rows)
    gradient = jax.jit(jax.grad(MODEL.loss, has_aux=True))
    expected = 0
    for client in cohort:
        local = params
        for _ in range(2):
            for step in batches.tokens[client, : batches.steps[client]]:
                slope, _ = gradient(local, step, None)
                local = jax.tree.map(lambda value, one: value - 0.5 * one, local, slope)
        weight = int(WHOLE * min(batches.examples[client] / 4.0, 1.0))
        units = each(jax.tree.map(jnp.subtract, local, params), weight).units
        expected = expected + np.asarray(ravel_pytree(units)[0])
    # Fused or not, a last digit may fall on the other side of an integer.
    np.testing.assert_allclose(sums_of(people_store, work, cohort), expected, atol=7 * 2)


def test_fedsgd_makes_one_step_of_one_batch(people_store):
    work = LocalWork(batch_size=3, sequence_length=6, learning_rate=0.5, one_step=True)
    batches = assemble(people_store, np.arange(30), seed=0, **work.rows)
    assert batches.tokens.shape[1:3] == (1, 3)


def test_nobody_adds_nothing(people_store):
    assert not sums_of(people_store, WORK, np.array([], int)).any()


DEVICES = """
import sys
import jax, numpy as np
sys.path.insert(0, {root!r})
assert len(jax.devices()) == {count}
from tests.training.test_updates import WORK, sums_of
from reticent.data.store import Store
np.save({out!r}, sums_of(Store.open({store!r}), WORK, np.arange(23)))
"""


@pytest.mark.parametrize("count", [2, 4])
def test_devices_do_not_matter(people_store, tmp_path, count):
    root, out = str(Path(__file__).parents[2]), str(tmp_path / "sums.npy")
    code = DEVICES.format(root=root, count=count, out=out, store=str(people_store.path))
    environment = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}", "JAX_PLATFORMS": "cpu", "PATH": ""}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=root)
    np.testing.assert_array_equal(np.load(out), sums_of(people_store, WORK, np.arange(23)))
