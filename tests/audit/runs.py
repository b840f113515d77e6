"""Small real runs with everything planted, and their audits."""

from pathlib import Path
from typing import Any

from reticent.audit import audit
from reticent.audit.attack import Audit, at_the_end
from reticent.training import Trained, train
from tests.training.runs import run_file

PLANTED = {"canaries": 24, "phrases": 2, "phrase_users": 2, "phrase_repeats": 3, "zero_coordinates": 200}


def settings(store: Path, **tables: dict[str, Any]) -> Any:
    given: dict[str, dict[str, Any]] = {
        "run": {"simulated_row_seed": None},
        "privacy": {"noise_multiplier": 0.7, "accept_vacuous": True},
        "audit": PLANTED,
    }
    for name, table in tables.items():
        given[name] = {**given.get(name, {}), **table}
    return run_file(store, **given)


def audited(store: Path, folder: Path, **tables: dict[str, Any]) -> tuple[Trained, Audit]:
    """A run, audited at its end with its secrets, and again with what is left."""
    outcome = train(settings(store, **tables), folder / "run", secrets=folder / "s", auditor=at_the_end)
    return outcome, audit(outcome.path, secrets=folder / "s")


def verdicts(made: Audit) -> dict[str, str]:
    return {one["name"]: one["verdict"] for one in made.content["findings"]}


def detail(made: Audit, name: str) -> str:
    return next(one["detail"] for one in made.content["findings"] if one["name"] == name)
