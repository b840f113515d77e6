"""Workloads are the linear map from updates to models."""

import numpy as np
import pytest

from reticent.errors import Refused
from reticent.mechanisms import Workload


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("rates", [None, (1.0, 0.5, 0.25, 0.0, 2.0, 1.0, 1.0)])
def test_apply_is_sgd_with_momentum_and_a_schedule(momentum, rates):
    updates = np.random.default_rng(1).normal(size=(7, 3))
    workload = Workload(momentum, rates)
    model, velocity, models = np.zeros(3), np.zeros(3), []
    for round, update in enumerate(updates):
        velocity = momentum * velocity + update
        model = model + (1.0 if rates is None else rates[round]) * velocity
        models.append(model)
    np.testing.assert_allclose(workload.apply(updates), models, atol=1e-12)
    np.testing.assert_allclose(workload.matrix(7) @ updates, models, atol=1e-12)
    if rates is None:
        np.testing.assert_allclose(workload.coefficients(7), workload.matrix(7)[:, 0], atol=1e-12)


def test_bad_workloads_are_refused():
    for bad in ({"momentum": 1.0}, {"momentum": float("nan")}, {"learning_rates": (1.0, float("inf"))}):
        with pytest.raises(Refused):
            Workload(**bad)
    with pytest.raises(Refused, match="3 entries for 4 rounds"):
        Workload(learning_rates=(1.0, 1.0, 1.0)).apply(np.eye(4))
