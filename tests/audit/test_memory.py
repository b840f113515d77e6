"""Secret phrases of people who come back every few rounds: without DP and clipping the model repeats them, with DP not."""

import numpy as np
import pytest

from reticent.audit import audit
from reticent.training import train
from tests.training.runs import run_file


def model_after(store, folder, **tables):
    given = {
        "run": {"rounds": 80, "checkpoint_every": 80, "simulated_row_seed": None},
        "data": {"sequence_length": 9},
        "model": {"embedding": 16, "hidden": 32},
        "population": {"min_separation": 2},
        "mechanism": {"kind": "independent", "buffers": None},
        "client": {"learning_rate": 1.0},
        "evaluation": {"every": 80},
        "audit": {"phrases": 6, "phrase_users": 2, "phrase_repeats": 4},
    }
    for name, table in tables.items():
        given[name] = {**given.get(name, {}), **table}
    return train(run_file(store.path, **given), folder / "run", secrets=folder / "s").path


@pytest.mark.full
def test_what_a_model_remembers(people_store, tmp_path):
    free = model_after(people_store, tmp_path / "free", privacy={"noise_multiplier": 0.0}, clipping={"norm": 100.0})
    dp = model_after(
        people_store,
        tmp_path / "dp",
        privacy={"noise_multiplier": None, "epsilon": 8.0},
        server={"learning_rate": 0.05},
    )
    found = {}
    for name, path in (("free", free), ("dp", dp)):
        found[name] = audit(path, beside=None if name == "free" else free, secrets=tmp_path / name / "s").content
    without, with_dp = (found[name]["exposure"] for name in ("free", "dp"))
    assert np.mean(without["bits"]["once"]) > 6
    assert np.mean(without["bits"]["shared"]) > 0.9 * without["largest"]
    assert min(without["p_by_chance"].values()) < 1e-10
    assert all(chance > 1e-3 for chance in with_dp["p_by_chance"].values())
    assert found["free"]["user_inference"]["auc"] > 0.9
    assert found["dp"]["user_inference"]["interval"][0] < 0.6
    assert found["dp"]["beside"]["bits"] == without["bits"]
