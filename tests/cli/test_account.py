"""`reticent account` and `reticent calibrate`: every noun, both ways, and what is refused."""

import json
import subprocess
import sys

import pytest

from reticent.accounting.amplified import els_guarantee, sampled_guarantee
from reticent.cli.main import main
from reticent.mechanisms import Participation, make

KEYS = {"rho", "epsilon", "delta", "noise_multiplier", "sensitivity", "unit", "adjacency", "assumptions"}
NOUNS = {
    "matrix": "tree --rounds 2000 --min-separation 314 --max-participations 6 --delta 1e-10",
    "restarts": "tree --at 128,1152 --rounds 2000 --min-separation 314 --delta 1e-10 --clip-count-noise 900",
    "sampled": "--sampling-probability 0.01 --rounds 100 --delta 1e-6",
    "els": "--sampling-probability 0.01 --rounds 100 --group-size 4 --delta 1e-6",
    "amplified": "banded --bands 9 --rounds 360 --population 342477 --batch-size 1000 --delta 1e-6",
}


def run(capsys, line: str) -> dict:
    with pytest.raises(SystemExit) as stopped:
        main([*line.split(), "--json"])
    assert not stopped.value.code
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("noun", NOUNS)
def test_account_and_calibrate_are_inverse(capsys, noun: str) -> None:
    found = run(capsys, f"account {noun} {NOUNS[noun]} --noise-multiplier 6")
    assert found.keys() >= KEYS
    again = run(capsys, f"calibrate {noun} {NOUNS[noun]} --epsilon {found['epsilon']}")
    assert again["noise_multiplier"] == pytest.approx(6, rel=3e-3)
    assert again["epsilon"] <= found["epsilon"]
    if found["rho"] is not None:
        exact = run(capsys, f"calibrate {noun} {NOUNS[noun]} --rho {found['rho']}")
        assert exact["noise_multiplier"] == pytest.approx(6, rel=1e-9)


def test_numbers(capsys, tmp_path) -> None:
    tree = run(capsys, f"account matrix {NOUNS['matrix']} --noise-multiplier 7")
    assert tree["rho"] == pytest.approx(79 / 98)
    devices = run(capsys, f"account matrix {NOUNS['matrix']} --noise-multiplier 7 --unit device --devices-per-user 2")
    assert (devices["rho"], devices["unit"]) == (pytest.approx(4 * 79 / 98), "user")
    els = run(capsys, f"account els {NOUNS['els']} --noise-multiplier 2")
    assert els["epsilon"] == pytest.approx(els_guarantee(0.01, 100, 4, 2.0).epsilon(1e-6))
    assert els["epsilon_by_group_privacy"] > els["epsilon"]
    sampled = run(capsys, f"account sampled {NOUNS['sampled']} --noise-multiplier 1")
    assert sampled["epsilon"] == pytest.approx(sampled_guarantee(0.01, 100, 1.0).epsilon(1e-6))
    rdp = run(capsys, f"account sampled {NOUNS['sampled']} --noise-multiplier 1 --accountant rdp")
    moments = run(capsys, f"account sampled {NOUNS['sampled']} --noise-multiplier 1 --accountant moments")
    assert sampled["epsilon"] < rdp["epsilon"] < moments["epsilon"] == sampled["epsilon_by_moments"]
    longer = run(
        capsys, f"account matrix {NOUNS['matrix']} --noise-multiplier 7 --secagg-scale 8000 --parameters 2400000"
    )
    assert 1 < longer["clip_norm_inflation"] < 1.1
    assert longer["rho"] == pytest.approx(longer["clip_norm_inflation"] ** 2 * 79 / 98)

    file = tmp_path / "fhu.json"
    make("banded-fhu", Participation(60, 6)).save(file)
    of_file = run(
        capsys,
        f"account amplified {file} --rounds 60 --population 6000 --batch-size 100 --noise-multiplier 2 --delta 1e-6",
    )
    assert of_file["groups"] == of_file["bands"] == 6
    for sampling, adjacency in (("fixed", "replace-one"), ("shuffle", "replace-one"), ("poisson", "add-or-remove")):
        found = run(capsys, f"account amplified {NOUNS['amplified']} --noise-multiplier 3 --sampling {sampling}")
        assert found["adjacency"] == adjacency


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (f"account matrix {NOUNS['matrix'][:-5]} 0 --noise-multiplier 7", "delta must be above 0"),
        (f"account matrix {NOUNS['matrix'][:-5]} 1 --noise-multiplier 7", "nothing is promised"),
        (f"account matrix {NOUNS['matrix']} --noise-multiplier 0", "epsilon is infinite"),
        ("account matrix blt --rounds 50 --delta 1e-6 --noise-multiplier 1", "optimised first"),
        ("account matrix nothing --rounds 50 --delta 1e-6 --noise-multiplier 1", "no mechanism kind"),
        ("account sampled --sampling-probability 1.5 --rounds 9 --delta 1e-6 --noise-multiplier 1", "at most 1"),
        ("account amplified tree --bands 3 --rounds 9 --population 99 --batch-size 9 --delta 1e-6 --noise-multiplier 1",
         "not banded"),
        ("account amplified banded --bands 3 --rounds 9 --population 99 --batch-size 50 --delta 1e-6 --noise-multiplier 1",
         "at most 1 bands"),
        ("account restarts tree --at 9 --rounds 9 --delta 1e-6 --noise-multiplier 1", "not before the end"),
        (f"account matrix {NOUNS['matrix']} --noise-multiplier 7 --best-of 0.5", "mean_runs"),
        (f"account els {NOUNS['els']} --noise-multiplier 7 --best-of 5", "no Renyi accountant"),
        ("account restarts tree --at x --rounds 9 --delta 1e-6 --noise-multiplier 1", "commas"),
        (f"calibrate matrix {NOUNS['matrix']}", "exactly one target"),
        (f"calibrate els {NOUNS['els']} --rho 1", "no rho"),
        (f"calibrate restarts {NOUNS['restarts'].replace('900', '1')} --epsilon 1", "no noise"),
    ],
)  # fmt: skip
def test_refusals_are_one_sentence(capsys, line: str, sentence: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(line.split())
    assert stopped.value.code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("noun", ["matrix", "sampled"])
def test_the_best_of_many_runs_is_paid_for(capsys, noun: str) -> None:
    one = run(capsys, f"account {noun} {NOUNS[noun]} --noise-multiplier 6")
    many = run(capsys, f"account {noun} {NOUNS[noun]} --noise-multiplier 6 --best-of 20")
    assert one["epsilon"] < many["epsilon"] < 20 * one["epsilon"]
    assert many["rho"] is None
    assert "best of a Poisson number of runs with mean 20" in many["assumptions"][-1]
    again = run(capsys, f"calibrate {noun} {NOUNS[noun]} --epsilon {many['epsilon']} --best-of 20")
    assert again["noise_multiplier"] == pytest.approx(6, rel=3e-3)


def test_the_statement_is_written(capsys, tmp_path) -> None:
    line = f"account matrix {NOUNS['matrix']} --noise-multiplier 7"
    for name, begins in (("told.md", "## Privacy statement"), ("told.html", "<section")):
        run(capsys, f"{line} --statement {tmp_path / name}")
        assert (tmp_path / name).read_text().startswith(begins)
    run(capsys, f"calibrate matrix {NOUNS['matrix']} --epsilon 8.5 --statement {tmp_path / 'again.md'}")
    assert "epsilon = 8.5," in (tmp_path / "again.md").read_text()
    for wrong, sentence in (("told.txt", ".md or .html"), ("nowhere/told.md", "does not exist")):
        with pytest.raises(SystemExit) as stopped:
            main([*line.split(), "--statement", str(tmp_path / wrong)])
        assert stopped.value.code == 2
        assert sentence in capsys.readouterr().err


def test_people_read_the_assumptions(capsys) -> None:
    with pytest.raises(SystemExit):
        main(f"account els {NOUNS['els']} --noise-multiplier 2".split())
    shown = capsys.readouterr().out
    assert "for one user under add-or-remove" in shown
    assert "a user has at most 4 examples" in shown
    assert "generic group bound" in shown


def test_account_matrix_is_light() -> None:
    code = (
        "import sys; from reticent.cli.main import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit: pass\n"
        "assert not any(name.startswith(('dp_accounting', 'jax', 'matplotlib')) for name in sys.modules)"
    )
    line = f"account matrix {NOUNS['matrix']} --noise-multiplier 7 --json"
    subprocess.run([sys.executable, "-c", code, *line.split()], check=True, capture_output=True)
