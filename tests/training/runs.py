"""Small real runs: a store of sixty people, an LSTM of two thousand parameters, BLT noise, the whole protocol."""

from pathlib import Path
from typing import Any

import numpy as np

from reticent.config import RunFile, parse
from reticent.data.store import Store
from reticent.training.finished import load_trained

ROUNDS = 6
SEPARATION = 3
GOAL = 12


def run_file(store: Path, overrides: tuple[str, ...] = (), **tables: dict[str, Any]) -> RunFile:
    """A run file on this store; tables are merged into it, overrides applied last."""
    content: dict[str, dict[str, Any]] = {
        "run": {"name": "small", "rounds": ROUNDS, "checkpoint_every": 2, "simulated_row_seed": 7},
        "data": {"store": str(store), "sequence_length": 6, "held_out_users": 0.2},
        "model": {"kind": "lstm", "embedding": 8, "hidden": 12},
        "population": {"size": 40, "report_goal": GOAL, "min_separation": SEPARATION},
        "mechanism": {"kind": "blt", "buffers": 2},
        "clipping": {"norm": 0.5},
        "client": {"batch_size": 3},
        "privacy": {"noise_multiplier": 2.0, "delta": 1e-3},
        "evaluation": {"every": 2},
    }
    for name, table in tables.items():
        content[name] = {**content.get(name, {}), **table}
    return parse(content, overrides)


def parameters(directory: Path) -> np.ndarray:
    """All parameters after the last round, end to end."""
    import jax

    trained = load_trained(directory, last=True)
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(trained.params)])


def users_of(store: Path) -> int:
    return Store.open(store).users
