"""A real small run on devices in this process: a store of people, an LSTM, the whole protocol, JAX on every device."""

from pathlib import Path
from typing import Any

from reticent.config import RunFile, parse
from reticent.data.store import Store
from reticent.deploy.budget import Budget
from reticent.deploy.keys import make_keys
from reticent.deploy.provisioning import provision
from reticent.deploy.settings import read_registry
from reticent.deploy.terms import Terms


def run_file(store: Path, overrides: tuple[str, ...] = (), **tables: dict[str, Any]) -> RunFile:
    content: dict[str, dict[str, Any]] = {
        "run": {"name": "devices", "rounds": 4, "checkpoint_every": 2, "secure_aggregation": "protocol"},
        "data": {"store": str(store), "sequence_length": 6},
        "model": {"kind": "lstm", "embedding": 8, "hidden": 12},
        "population": {"size": 1000, "report_goal": 3, "min_separation": 2},
        "mechanism": {"kind": "toeplitz", "bands": 2},
        "clipping": {"norm": 0.5},
        "client": {"batch_size": 3},
        "privacy": {"noise_multiplier": 2.0, "delta": 1e-3},
        "evaluation": {"every": 2},
        "deploy": {"over_selection": 1.3, "deadline": 30.0},
    }
    for name, table in tables.items():
        content[name] = {**content.get(name, {}), **table}
    return parse(content, overrides)


def devices_of(folder: Path, store: Store, users: list[int], terms: Terms, compiled: Path) -> dict[str, Path]:
    """A device directory for each of these users of a store, with a store that has that user only."""
    names = [f"device-{place:04d}" for place in range(len(users))]
    make_keys(folder, names, ["127.0.0.1"])
    made = {}
    for name, user in zip(names, users, strict=True):
        directory = folder / "devices" / name
        budget = Budget(50.0, 1e-3, accept_no_noise=True)
        provision(directory, budget=budget, store=store, user=user, terms=terms, compiled=compiled)
        made[name] = directory
    return made


def registry_of(devices: dict[str, Path]) -> dict[str, bytes]:
    return read_registry(next(iter(devices.values())) / "registry.json")
