"""`reticent plan` and `reticent calibrate bands`: what they print, what they draw, what they refuse."""

import json
import subprocess
import sys

import pytest

from reticent.cli.main import main

ES_ES = "plan --population 4210000 --rounds 1900 --delta 1e-10"


def run(capsys, line: str) -> dict:
    with pytest.raises(SystemExit) as stopped:
        main([*line.split(), "--json"])
    assert not stopped.value.code
    return json.loads(capsys.readouterr().out)


def test_the_papers_arithmetic(capsys) -> None:
    [plan] = run(capsys, f"{ES_ES} --report-goal 6500 --over-selection 1")["plans"]
    tree = next(row for row in plan["rows"] if row["mechanism"] == "tree")
    assert (tree["min_separation"], tree["max_participations"], tree["noise_multiplier"]) == (647, 3, 7)
    recommended = plan["recommended"]
    assert recommended.keys() >= {
        "rho", "epsilon", "delta", "noise_multiplier", "sensitivity", "unit", "adjacency", "assumptions", "why",
    }  # fmt: skip
    assert plan["run_file"]["population"]["report_goal"] == 6500
    assert [step["number"] for step in plan["steps"]] == list(range(1, 8))


def test_a_range_of_goals_and_a_target(capsys) -> None:
    [plan] = run(capsys, f"{ES_ES} --report-goal 500:6500 --epsilon 6 --ratio 0.54:500 --pretrained")["plans"]
    assert sorted({row["report_goal"] for row in plan["rows"]}) == [500, 1000, 2000, 4000, 6500]
    assert plan["recommended"]["epsilon"] <= 6
    assert [step["state"] for step in plan["steps"]] == ["done", "done", "done", "now", "later", "later", "open"]
    [usual] = run(capsys, "plan --population 30 --rounds 20")["plans"]
    assert {row["report_goal"] for row in usual["rows"]} == {2}


def test_several_populations_at_once(capsys) -> None:
    line = "plan --population 830000 --rounds 530 --population 4210000 --rounds 1900 --report-goal 3000"
    found = run(capsys, line)["plans"]
    assert [(plan["population"], plan["rounds"]) for plan in found] == [(830_000, 530), (4_210_000, 1900)]
    with pytest.raises(SystemExit):
        main(line.split())
    shown = capsys.readouterr().out
    assert "830k" in shown
    assert "4.21M" in shown


def test_people_read_it(capsys) -> None:
    with pytest.raises(SystemExit):
        main([*ES_ES.split(), "--report-goal", "500,6000000", "--epsilon", "2"])
    shown = " ".join(capsys.readouterr().out.split())
    for said in (
        "Recommended: blt-1000 at 500 reports", "times the noise, and will be less accurate", "[privacy] noise_multiplier",
        "cannot be: a round invites 6,600,000 devices", "[>] 2. find the most noise", "takes part in at most one round",
    ):  # fmt: skip
        assert said in shown


def test_the_timer_tells_the_separation(capsys) -> None:
    # gboard, Sec. 2.2: 24 hours gave 313 rounds in between.
    line = f"{ES_ES} --report-goal 6500 --over-selection 1 --timer-hours 24 --rounds-per-day 314"
    [plan] = run(capsys, line)["plans"]
    assert {row["min_separation"] for row in plan["rows"]} == {314}
    [longer] = run(capsys, line.replace("24", "72"))["plans"]
    assert {row["min_separation"] for row in longer["rows"]} == {647}


def test_timers_are_played(capsys) -> None:
    line = "plan --population 5000 --rounds 30 --report-goal 50 --simulate --timer-hours 2 --timer-hours 24"
    [plan] = run(capsys, line)["plans"]
    assert [one["timer_hours"] for one in plan["timers"]] == [2, 24]
    assert plan["best_timer_hours"] in (2, 24)
    with pytest.raises(SystemExit):
        main(line.split())
    shown = capsys.readouterr().out
    assert "Of these timers take" in shown
    assert "estimate" in shown


def test_curves_are_drawn(capsys, tmp_path) -> None:
    found = run(
        capsys,
        f"plan --population 20000 --rounds 60 --report-goal 100,400 --mechanisms tree,blt-100 --plots {tmp_path / 'p'}",
    )
    assert [file.rsplit("/", 1)[1] for file in found["plots"]] == ["report-goals.png", "mechanisms.png", "rounds.png"]
    for file in found["plots"]:
        with open(file, "rb") as image:
            assert image.read(8) == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("plan --population 1000 --rounds 90 --report-goal 2000", "lower the report goal to 909 or less"),
        ("plan --population 0 --rounds 90", "population must be"),
        ("plan --population 1000 --rounds 0", "rounds must be"),
        ("plan --population 1000 --rounds 90 --rounds 80 --rounds 70", "once for each"),
        ("plan --population 1000 --rounds 90 --delta 1", "delta must be above 0 and below 1"),
        ("plan --population 1000 --rounds 90 --delta 0", "delta must be above 0 and below 1"),
        ("plan --population 1000 --rounds 90 --ratio 0:100", "epsilon is infinite"),
        ("plan --population 1000 --rounds 90 --ratio 7", "7:6500:tree"),
        ("plan --population 1000 --rounds 90 --ratio 7:x", "7:6500:tree"),
        ("plan --population 1000 --rounds 90 --ratio 7:6500:nonsense", "no mechanism file or kind 'nonsense'"),
        ("plan --population 1000 --rounds 90 --report-goal x", "500:16000"),
        ("plan --population 1000 --rounds 90 --report-goal 9:3", "500:16000"),
        ("plan --population 1000 --rounds 90 --report-goal -5", "report goal must be"),
        ("plan --population 1000 --rounds 90 --mechanisms ,", "mechanisms is empty"),
        ("plan --population 1000 --rounds 90 --timer-hours 24", "add --rounds-per-day"),
        ("plan --population 1000 --rounds 90 --rounds-per-day 24", "one --timer-hours"),
        ("plan --population 1000 --rounds 90 --rounds-per-day 0 --timer-hours 24", "above 0"),
        ("plan --population 1000 --rounds 90 --rounds-per-day 20 --timer-hours -1", "above 0"),
        ("plan --population 1000 --rounds 90 --over-selection 0.5", "at least 1"),
        ("plan --population 1000 --rounds 90 --clip-norm 0", "above 0"),
        ("plan --population 1000 --rounds 90 --epsilon 1 --rho 1", "one target"),
        ("plan --population 1000 --rounds 90 --report-goal 100 --min-separation 50", "50 rounds apart needs 5,500 devices"),
        ("plan --population 1000 --rounds 90 --plots pyproject.toml", "is a file"),
        ("calibrate bands --rounds 9 --population 9 --batch-size 10 --epsilon 1 --delta 1e-6", "more than the population"),
        ("calibrate bands --rounds 9 --population 90 --batch-size 10 --epsilon 1 --delta 1e-6 --only x", "--only takes"),
    ],
)  # fmt: skip
def test_refusals_are_one_sentence(capsys, line: str, sentence: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(line.split())
    assert stopped.value.code == 2
    assert sentence in capsys.readouterr().err


def test_bands(capsys) -> None:
    line = "calibrate bands --rounds 48 --population 1000 --batch-size 100 --epsilon 4 --delta 1e-6 --kind toeplitz"
    found = run(capsys, line)
    assert [one["bands"] for one in found["tried"]] == [1, 2, 4, 8, 10]
    assert found["best"]["error"] == min(one["error"] for one in found["tried"])
    with pytest.raises(SystemExit):
        main(f"{line} --only 2,4".split())
    assert "reticent mechanism optimize toeplitz" in capsys.readouterr().out


def test_planning_is_light() -> None:
    code = (
        "import sys; from reticent.cli.main import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit: pass\n"
        "assert not any(name.startswith(('dp_accounting', 'jax', 'matplotlib')) for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, *ES_ES.split(), "--json"], check=True, capture_output=True)
