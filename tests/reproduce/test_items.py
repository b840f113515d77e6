"""Every table and figure: what differs from the paper and nothing explains is a failure."""

import csv

import pytest

from reticent.errors import Refused
from reticent.reproduce.items import ITEMS, item_named
from reticent.reproduce.writing import write

AT_ONCE = 2  # seconds


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] * (item.fast > AT_ONCE)) for name, item in ITEMS.items()]
)
def test_nothing_differs_unexplained(name, tmp_path):
    result = ITEMS[name].make(fast=True)
    assert not result.differing
    assert result.lines or result.panels
    files = write(name, result, tmp_path)
    assert [file.suffix for file in files] == [".csv", ".png", ".md"]
    rows = list(csv.DictReader(files[0].open()))
    assert rows
    assert files[1].read_bytes().startswith(b"\x89PNG")
    text = files[2].read_text()
    assert text.startswith(f"# {result.title}\n")
    for line in result.lines:
        assert f"| {line.what} |" in text


def test_a_name_that_is_none_is_refused():
    with pytest.raises(Refused, match="reproduce list"):
        item_named("blt-tab9")


def test_every_printed_row_is_made():
    """Nothing of the printed data is left out by the code that reads it."""
    from reticent.reproduce.printed import printed

    for paper, table, lines_each in (("gboard", "tab1", 1), ("gboard", "tab2", 2), ("blt", "tab2", 2)):
        lines = ITEMS[f"{paper}-{table}"].make(fast=True).lines
        assert len(lines) == lines_each * len(printed(paper)[table]["rows"])
