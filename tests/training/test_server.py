import jax.numpy as jnp
import numpy as np
import optax
import pytest

from reticent.config.schema import Server
from reticent.errors import Refused
from reticent.training.server import OPTIMIZERS, schedule, server_optimizer


def test_the_rate_rises_holds_and_falls():
    rates = schedule(Server(learning_rate=2.0, warm_up=0.15, cool_down=0.25), 100)
    values = np.array([float(rates(round)) for round in range(100)])
    assert values[0] == pytest.approx(0.1)
    assert (np.diff(values[:16]) > 0).all()
    assert values[15:76] == pytest.approx(2.0)
    assert (np.diff(values[75:]) < 0).all()
    assert values[99] == pytest.approx(2.0 - 24 / 25 * 1.9)
    # Linear, both ways: the mean of a ramp is the mean of its ends.
    assert values[:16].mean() == pytest.approx((values[0] + values[15]) / 2)


def test_without_ramps_the_rate_is_constant():
    rates = schedule(Server(learning_rate=0.7), 10)
    assert [float(rates(round)) for round in range(10)] == pytest.approx([0.7] * 10)


def test_sgd_is_heavy_ball():
    optimizer = server_optimizer(Server(learning_rate=0.5, momentum=0.9), 10)
    params, velocity = jnp.ones(3), np.zeros(3)
    state, expected = optimizer.init(params), np.ones(3)
    for round in range(5):
        gradient = np.arange(3.0) + round
        step, state = optimizer.update(jnp.asarray(gradient), state, params)
        params = optax.apply_updates(params, step)
        velocity = 0.9 * velocity + gradient
        expected = expected - 0.5 * velocity
    np.testing.assert_allclose(params, expected, rtol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_named_optimiser_descends(name):
    optimizer = server_optimizer(Server(optimizer=name, learning_rate=0.05), 100)
    params = {"a": jnp.full((4, 4), 3.0), "b": jnp.full(4, -3.0)}
    state = optimizer.init(params)

    def loss(params):
        return sum(float((leaf**2).sum()) for leaf in params.values())

    first = loss(params)
    for _ in range(100):
        step, state = optimizer.update({name: 2 * leaf for name, leaf in params.items()}, state, params)
        params = optax.apply_updates(params, step)
    assert loss(params) < first


def test_an_unknown_optimiser_is_refused_with_the_known_ones():
    with pytest.raises(Refused, match=r"sdg.*sgd, adam"):
        server_optimizer(Server(optimizer="sdg"), 10)
