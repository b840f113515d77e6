"""The studies of ULDP: their conclusions, and their parts against plain ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from reticent.finetune.studies import MeanSetting, _els_step, _uls_step, mean_study, variance_study


def test_variances_say_what_the_paper_says():
    found = variance_study((1.0, 16.0), (32,), users=256, examples=8, rounds=100)
    by = {(one.epsilon, one.group): one for one in found}
    # Alike: ELS at most ULS wherever all examples are used (Conjecture 1). Diverse: ULS below ELS at small epsilon.
    for epsilon in (1.0, 16.0):
        assert by[epsilon, 8].els <= by[epsilon, 8].uls_alike * (1 + 1e-3)
    assert by[1.0, 8].uls_diverse < by[1.0, 8].els
    assert all(one.uls_diverse == pytest.approx(one.uls_alike / one.group) for one in found)
    # The advantage of ULS grows as epsilon falls.
    assert by[1.0, 8].uls_diverse / by[1.0, 8].els < by[16.0, 8].uls_diverse / by[16.0, 8].els


@pytest.mark.parametrize("step", [_els_step, _uls_step])
def test_steps_are_unbiased_sums_of_clipped_gradients(step):
    data = jax.random.normal(jax.random.key(0), (20, 8, 3))
    theta = jnp.ones(3)
    group = 8
    drawn = 40.0 if step is _els_step else 5.0
    total = jax.vmap(lambda key: step(key, theta, data, 0.5, drawn, group))(jax.random.split(jax.random.key(1), 1000))
    rows = np.asarray(theta - (data.reshape(-1, 3) if step is _els_step else data.mean(1)), np.float64)
    clipped = rows * np.minimum(1, 0.5 / np.linalg.norm(rows, axis=1, keepdims=True))
    np.testing.assert_allclose(total.mean(0), 0.25 * clipped.sum(0), atol=0.4)


@pytest.mark.full
def test_mean_estimation_says_what_the_paper_says():
    diverse = MeanSetting(within=4.0, users=64, examples=8, dimension=8, rounds=64)
    found = mean_study([diverse], groups=(1, 8), trials=8, rates=(0.1, 0.3), norms=(1.0, 3.0))
    by = {(one.algorithm, one.group): one for one in found}
    assert by["uls", 8].loss < by["els", 8].loss
    assert by["uls", 8].loss < by["uls", 1].loss
