"""`reticent config`: the schema, and a file with its defaults, as people and programs read them."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

from reticent.config import load

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.toml"


def config(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "reticent", "config", *arguments], capture_output=True, text=True)


def test_show_fills_in_defaults() -> None:
    shown = config("show", str(QUICKSTART), "--set", "run.rounds=60")
    assert tomllib.loads(shown.stdout)["run"]["rounds"] == 60
    assert (
        json.loads(config("show", str(QUICKSTART), "--json").stdout)["server"] == load(QUICKSTART).server.model_dump()
    )


def test_a_wrong_key_is_one_sentence_and_exit_code_2() -> None:
    refused = config("show", str(QUICKSTART), "--set", "run.round=60")
    assert refused.returncode == 2
    assert refused.stderr == "reticent: There is no key run.round in a run file; the nearest is run.rounds.\n"


def test_fields_lists_every_key() -> None:
    described = json.loads(config("fields", "--json").stdout)
    assert described["run"]["rounds"]["required"]
    assert described["server"]["momentum"]["default"] == 0.9
    text = config("fields").stdout
    assert all(f"  {key} (" in text for keys in described.values() for key in keys)
