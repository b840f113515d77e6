"""The noise of spent rows, made again from their keys: for `reticent verify` and for audits."""

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from reticent.accounting.run import mechanism_of
from reticent.ledger.verify import Row
from reticent.privacy.grid import Grid
from reticent.privacy.keys import row_key, simulation_threefry_key
from reticent.privacy.measures import NAMES, measures_of
from reticent.privacy.noise import add_noise


def noise_of(
    description: dict[str, Any], rows: Iterable[Row], size: int, arrays: dict[str, np.ndarray] | None = None
) -> Iterator[np.ndarray]:
    """The noise of each row as int32, in order from round 0, for a run whose release is one vector of `size`.

    `description` is the run's (`reticent.ledger.description`); `arrays` the matrices of its mechanism, if it holds any.
    """
    accounting = description["accounting"]
    mechanism = mechanism_of(accounting, arrays)
    wrapped = simulation_threefry_key if description.get("random_bits") == "threefry" else row_key
    measures = measures_of(description)
    entries = 0 if measures is None else len(NAMES)
    zeros, nothing = jnp.zeros(size - entries, jnp.int32), jnp.zeros(entries, jnp.int32)
    terms, update, state = None, None, None
    for row in rows:
        if (row.clip_norm, row.grid) != terms:
            # A new norm comes with a restart, where the buffers begin anew by themselves.
            terms = (row.clip_norm, row.grid)
            grid = Grid.of_step(row.grid)
            noise = add_noise(mechanism, accounting["rounds"], accounting["noise_multiplier"], row.clip_norm, grid)
            update = jax.jit(lambda state, key, noise=noise: noise.update(zeros, state, key=key))
            state = noise.init(zeros) if state is None else state
        key = wrapped(row.row_key)
        made, state = update(state, key)  # type: ignore[misc]
        beside = [] if measures is None else [np.asarray(measures.noised(nothing, key))]
        yield np.concatenate([np.asarray(made), *beside])
