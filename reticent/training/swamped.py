"""The catastrophic case of adaptive clipping: noise too large for the first norm (Gboard, Sec. 2.1)."""

import math
from typing import Any

import jax
import numpy as np

from reticent.training.setup import Setup

# Above this many times the model's own norm, noise is what the model consists of before its clip norm can change.
TOO_MUCH = 10.0


def noise_to_model(setup: Setup, params: Any) -> float:
    """The norm of all noise that the server has taken by the first restart, over that of the initial parameters."""
    table = setup.run_file.server
    restarts = setup.description["accounting"].get("restarts") or [setup.rounds]
    rounds = min(restarts[0], setup.rounds)
    error = float(setup.mechanism.errors(setup.run_file.run.rounds)[rounds - 1])
    each = setup.noise_multiplier * setup.clipping.norm / setup.work.denominator * error
    pushed = table.learning_rate / (1 - table.momentum) if table.optimizer == "sgd" else table.learning_rate
    size = math.sqrt(sum(float(np.square(np.asarray(leaf, np.float64)).sum()) for leaf in jax.tree.leaves(params)))
    return pushed * each * math.sqrt(setup.model.parameters) / size if size else math.inf


def warning(setup: Setup, params: Any) -> str | None:
    """What to say of a run with adaptive clipping before its first round, if it will hardly get anywhere."""
    if setup.run_file.clipping is None or setup.run_file.clipping.quantile is None:
        return None
    ratio = noise_to_model(setup, params)
    if ratio <= TOO_MUCH:
        return None
    return (
        f"WARNING: by the first restart, where the clip norm can first change, the model will have taken {ratio:.3g} times "
        f"its own norm of noise, and its updates will be those of a broken model: adaptive clipping does not recover from "
        f"that. Begin with clipping.norm {setup.clipping.norm * TOO_MUCH / ratio:.2g} or less, or restart earlier."
    )
