"""Comparisons: what is ranked, what is not, and why."""

import json
from pathlib import Path

import numpy as np
import pytest

from reticent.cli.main import main
from reticent.mechanisms import Participation
from reticent.report import read_run
from reticent.report.compare import compared, overlay
from tests.report.runs import ROUNDS, SEPARATION, make_run, mechanism_of
from tests.report.test_report import main_of, oracle, sampled


def rewrite_metrics(directory: Path, **changes) -> None:
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    changed = [line | changes if line["kind"] == "evaluation" else line for line in lines]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in changed))


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    blt = make_run(tmp_path / "blt", name="a-blt")
    tree = make_run(tmp_path / "tree", kind="tree", name="a-tree")
    rewrite_metrics(tree, top1=0.04)
    return [tree, blt]


def test_runs_of_one_kind_are_ranked(two: list[Path], capsys: pytest.CaptureFixture) -> None:
    main_of(["compare", *map(str, two), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["ranked"]
    assert told["notes"] == []
    assert [(one["rank"], one["name"]) for one in told["runs"]] == [(1, "a-blt"), (2, "a-tree")]
    for one, kind in zip(told["runs"], ("blt-400", "tree"), strict=True):
        assert one["epsilon"] == pytest.approx(oracle(kind, ROUNDS), rel=1e-6)
        assert one["mechanism"] == kind.split("-")[0]
        assert one["rounds"] == ROUNDS
        assert one["adjacency"] == "zero-out"
        assert one["clients_per_second"] == 8.0
    assert told["runs"][1]["best_top1"] == 0.04
    main_of(["compare", *map(str, two)])
    table = capsys.readouterr().out
    assert "2 runs at delta 1e-06 under zero-out adjacency, best accuracy first" in table
    assert table.index("a-blt") < table.index("a-tree")


def test_other_adjacencies_are_not_ranked(two: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    poisson = sampled(tmp_path / "poisson", name="sampled")
    main_of(["compare", *map(str, [poisson, *two]), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert not told["ranked"]
    assert any("different adjacencies" in note and "cannot be compared" in note for note in told["notes"])
    assert [one["name"] for one in told["runs"]] == ["sampled", "a-tree", "a-blt"]
    assert {one["rank"] for one in told["runs"]} == {None}
    # Rounds per second times clients per second is the size of a cohort, which is private here.
    assert told["runs"][0]["clients_per_second"] is None
    assert any("clients per second are not shown" in note for note in told["notes"])
    main_of(["compare", *map(str, [poisson, *two])])
    assert "different adjacencies" in capsys.readouterr().out


def test_other_deltas_are_not_ranked_until_stated_at_one(two: list[Path], tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", delta=1e-8)
    runs = [read_run(directory) for directory in (other, *two)]
    told = compared(runs)
    assert not told["ranked"]
    assert any("different deltas (1e-08, 1e-06)" in note and "--delta" in note for note in told["notes"])
    told = compared(runs, 1e-6)
    assert told["ranked"]
    epsilons = {one["name"]: one["epsilon"] for one in told["runs"]}
    assert epsilons["a run"] == epsilons["a-blt"]


def test_other_held_out_users_are_not_ranked(two: list[Path]) -> None:
    rewrite_metrics(two[0], users=41)
    told = compared([read_run(directory) for directory in two])
    assert not told["ranked"]
    assert any("different held-out users" in note for note in told["notes"])


def test_estimates_broken_and_unprotected_runs_have_no_epsilon(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    directories = [
        make_run(tmp_path / "simulated", name="dream", simulated_row_seed=1),
        make_run(tmp_path / "estimate", name="guess", estimate="4 stand for 40"),
        make_run(tmp_path / "bare", name="bare", noise_multiplier=0.0),
        make_run(tmp_path / "unfinished", name="half", until=9),
        make_run(tmp_path / "broken", name="cut"),
    ]
    (directories[-1] / "run.toml").write_text('[run]\nname = "cut"\n')
    main_of(["compare", *map(str, directories), "--json"])
    told = json.loads(capsys.readouterr().out)
    runs = {one["name"]: one for one in told["runs"]}
    for name in ("dream", "guess", "bare", "cut"):
        assert runs[name]["epsilon"] is None
    assert runs["dream"]["estimated_epsilon"] == pytest.approx(oracle("blt-400", ROUNDS), rel=1e-6)
    assert runs["half"]["epsilon"] == pytest.approx(oracle("blt-400", 9), rel=1e-6)
    for name, word in {
        "dream": "estimate",
        "guess": "estimate",
        "bare": "NO PRIVACY",
        "half": "9 of",
        "cut": "does not verify",
    }.items():
        assert any(note.startswith(name) and word in note for note in told["notes"])
    main_of(["compare", *map(str, directories)])
    table = capsys.readouterr().out
    assert all(word in table for word in ("NO PRIVACY", "BROKEN", "est. ", "estimate"))


def test_the_overlay(two: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    main_of(["compare", *map(str, two), "--png", str(tmp_path / "both.png")])
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    runs = [read_run(directory) for directory in two]
    rounds, trade_off = overlay(runs, True).panels
    assert [curve.name for curve in rounds.curves] == ["a-tree", "a-blt", "unigram baseline"]
    sensitivity = mechanism_of("blt-400").sensitivity(Participation(ROUNDS, SEPARATION)).value
    assert runs[1].guarantee.rho == pytest.approx((sensitivity / 3) ** 2 / 2)
    assert np.all(np.diff(trade_off.curves[1].x) > 0)
    assert len(overlay(runs, False).panels) == 1
    for directory in two:
        (directory / "metrics.jsonl").unlink()
    with pytest.raises(SystemExit) as end:
        main(["compare", *map(str, two), "--png", str(tmp_path / "none.png")])
    assert end.value.code == 2
    assert "nothing to draw" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["$x^$", "_hidden", "[/red] [bold]", "語", "a" * 200, "<b>"])
def test_odd_names(name: str, tmp_path: Path, capsys: pytest.CaptureFixture, recwarn: pytest.WarningsRecorder) -> None:
    directories = [make_run(tmp_path / place, name=name, until=4) for place in ("one", "two")]
    main_of(["compare", *map(str, directories), "--png", str(tmp_path / "odd.png")])
    assert "".join(name.split())[:3] in "".join(capsys.readouterr().out.split())
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]
