"""The command: one JSON object on request, one sentence and exit code 2 for what a user can mend."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from reticent.cli.doctor import PACKAGES
from reticent.cli.main import VERBS, load_verb, main


def run(capsys, *arguments):
    code = 0
    try:
        main(list(arguments))
    except SystemExit as stop:
        code = stop.code or 0
    out = capsys.readouterr()
    return code, out.out, out.err


def test_optimize_prints_one_json_object_and_saves(capsys, tmp_path):
    file = tmp_path / "blt.json"
    arguments = ["--rounds", "200", "--min-separation", "50", "--buffers", "2", "--out", str(file), "--json"]
    code, out, _ = run(capsys, "mechanism", "optimize", "blt", *arguments)
    result = json.loads(out)
    assert code == 0
    assert {"kind", "max_loss", "rms_loss", "sensitivity", "seconds", "memory_overhead", "parameters"} <= set(result)
    assert result["memory_overhead"] == 2
    png = tmp_path / "blt.png"
    code, out, _ = run(capsys, "mechanism", "show", str(file), "--rounds", "50", "--png", str(png), "--json")
    shown = json.loads(out)
    assert shown["parameters"] == result["parameters"]
    assert png.read_bytes().startswith(b"\x89PNG")


def test_compare_covers_files_and_kinds_and_says_what_cannot_be(capsys, tmp_path):
    run(capsys, "mechanism", "optimize", "tree-full", "--rounds", "8", "--out", str(tmp_path / "short.json"))
    kinds = f"blt,tree,{tmp_path / 'short.json'}"
    code, out, _ = run(
        capsys, "mechanism", "compare", "--rounds", "40", "--min-separation", "8", "--kinds", kinds, "--json"
    )
    blt, tree, short = json.loads(out)["mechanisms"]
    assert code == 0
    assert blt["max_loss"] < tree["max_loss"]
    assert "made for 8 rounds" in short["refused"]
    code, out, _ = run(capsys, "mechanism", "compare", "--rounds", "40", "--kinds", "independent,tree")
    assert code == 0
    assert "tree" in out


def test_compare_takes_sizes(capsys):
    kinds = "blt:1,blt:2,banded-inverse:5,banded-inverse:9"
    where = ["--rounds", "300", "--min-separation", "60", "--kinds", kinds, "--json"]
    code, out, _ = run(capsys, "mechanism", "compare", *where)
    one, two, five, nine = json.loads(out)["mechanisms"]
    assert code == 0
    assert [one["memory_overhead"], two["memory_overhead"], five["memory_overhead"], nine["memory_overhead"]] == [
        1,
        2,
        0,
        0,
    ]
    assert two["max_loss"] < one["max_loss"]
    assert nine["max_loss"] < five["max_loss"]
    assert 4.9 < five["draws_per_round"] < 5 < 8.8 < nine["draws_per_round"] < 9


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["optimize", "blt", "--rounds", "0"], "rounds must be at least 1"),
        (["optimize", "blt", "--rounds", "-5"], "rounds must be at least 1"),
        (["optimize", "blt", "--rounds", "10", "--min-separation", "11"], "larger than the 10 rounds"),
        (["optimize", "blt", "--rounds", "10", "--buffers", "0"], "at least 1"),
        (["optimize", "blt", "--rounds", "10", "--bands", "2"], "kind blt has no bands; give --buffers instead"),
        (["optimize", "banded", "--rounds", "10", "--buffers", "2"], "has no buffers; give --bands instead"),
        (["optimize", "tree", "--rounds", "10", "--bands", "2"], "leave the option out"),
        (["optimize", "banded", "--rounds", "10", "--bands", "11"], "11 bands are more than the 10 rounds"),
        (["optimize", "dense", "--rounds", "20000"], "needs 89 GiB"),
        (["compare", "--rounds", "10", "--kinds", "blt,cake"], "no mechanism kind 'cake'"),
        (["compare", "--rounds", "10", "--kinds", "missing.json"], "no mechanism file"),
        (["compare", "--rounds", "10", "--kinds", "blt:two"], "such as blt:4"),
        (["compare", "--rounds", "10", "--kinds", "tree:2"], "neither buffers nor bands"),
        (["optimize", "cake", "--rounds", "10"], "no mechanism kind 'cake'"),
        (["optimize", "tree", "--rounds", "10", "--momentum", "nan"], "momentum"),
        (["optimize", "blt", "--rounds", "10", "--out", "/nowhere/at/all.json"], "does not exist"),
        (["show", "missing.json"], "no mechanism file"),
    ],
)
def test_what_a_user_can_mend_is_one_sentence_and_exit_code_2(capsys, arguments, sentence):
    code, _, err = run(capsys, "mechanism", *arguments)
    assert code == 2
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_every_verb_loads_and_has_help():
    for verb in VERBS:
        assert load_verb(verb).help or load_verb(verb).callback.__doc__


def test_doctor_reports_what_is_installed(capsys):
    code, out, _ = run(capsys, "doctor", "--json")
    assert code == 0
    assert json.loads(out)["packages"]["numpy"]
    assert run(capsys, "doctor")[0] == 0


def test_doctor_knows_every_package_that_an_extra_brings():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    brought = {"": project["dependencies"]} | {
        extra: project["optional-dependencies"][extra] for extra in ("train", "data", "devices")
    }
    for extra, requirements in brought.items():
        for requirement in requirements:
            package = re.match(r"[A-Za-z0-9-]+", requirement)[0]
            assert PACKAGES[package][0] == extra


def test_planning_starts_without_heavy_imports():
    code = (
        "import sys, reticent.mechanisms, reticent.cli.main;"
        "print([m for m in ('jax', 'matplotlib', 'dp_accounting', 'scipy.optimize') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
