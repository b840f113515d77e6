"""When a value of ours is the paper's, when an erratum explains it, and when it is neither."""

import json
import math

import pytest

from reticent.cli.main import main
from reticent.reproduce import items
from reticent.reproduce.result import AGREES, DIFFERS, EXPLAINED, SHOWN, Line, Result, last_digit
from reticent.reproduce.writing import markdown


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        (Line("", "4.63", 4.634), AGREES),
        (Line("", "4.63", 4.636), DIFFERS),
        (Line("", "1.40e-2", 0.01404), AGREES),
        (Line("", "1.40e-2", 0.01394), DIFFERS),
        (Line("", "1.40e-2", 0.01394, "1.394e-2", "rounded up"), EXPLAINED),
        (Line("", "1.40e-2", 0.01392, "1.394e-2", "rounded up"), DIFFERS),
        (Line("", "390", 400, within=15), AGREES),
        (Line("", "390", 410, within=15), DIFFERS),
        (Line("", "inf", math.inf), AGREES),
        (Line("", "inf", 12.0), DIFFERS),
        (Line("", "0.02", 7.0, shown=True), SHOWN),
        (Line("", None, 7.0), SHOWN),
        (Line("", "1", math.nan), DIFFERS),
    ],
)
def test_verdicts(line, verdict):
    assert line.verdict == verdict


def test_the_last_digit():
    assert [last_digit(text) for text in ("4.63", "10", "1.40e-2", "3.8e-5")] == pytest.approx([0.01, 1, 1e-4, 1e-6])


def test_a_difference_that_nothing_explains_is_exit_code_1(monkeypatch, capsys, tmp_path):
    wrong = Result("A table", "Wrong.", (Line("one", "1.00", 1.0), Line("two", "2.00", 2.02, beside={"pld": 1.5})))
    monkeypatch.setattr(items.Item, "make", lambda self, fast: wrong)
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "blt-tab1", "--out", str(tmp_path), "--json"])
    assert stop.value.code == 1
    found = json.loads(capsys.readouterr().out)
    assert found["differing"] == 1
    assert [line["verdict"] for line in found["items"][0]["lines"]] == [AGREES, DIFFERS]
    assert "| two | 2.00 | 2.02 | +0.02 | 1.5 | differs |" in markdown("blt-tab1", wrong)
    assert (tmp_path / "blt-tab1.csv").read_text().splitlines()[2] == "two,2.00,2.02,0.020000000000000018,differs,,1.5"


def test_the_command_lists_and_refuses(capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "list"])
    assert "gboard-tab1" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "blt-tab9"])
    assert stop.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
