"""The privacy statement says everything that the number rests on."""

import dataclasses
import html
from html.parser import HTMLParser

import pytest

from reticent.accounting.matrix import matrix_guarantee
from reticent.accounting.statement import SELECTION, TUNING, statement
from reticent.errors import Refused
from reticent.mechanisms import Participation, make

PARTICIPATION = Participation(2000, 314, 6)
HEADINGS = (
    "DP setting", "Data accesses covered", "Final mechanism output", "Unit of privacy", "Adjacency", "Accounting",
    "Assumptions", "Formal statement", "Not covered",
)  # fmt: skip


@pytest.fixture
def guarantee():
    return matrix_guarantee(make("tree", PARTICIPATION), PARTICIPATION, 7.0, unit="device")


class Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.text.append(data)


def test_markdown_and_html_say_the_same(guarantee) -> None:
    told = statement(guarantee, delta=1e-10, name="es-ES <nwp>", ledger="abc123", public_data="multilingual C4")
    markdown = told.markdown()
    parser = Balanced()
    parser.feed(told.html())
    assert parser.open == []
    assert "<nwp>" not in told.html()
    shown = " ".join(" ".join(parser.text).split())
    for section in told.sections:
        for text in (section.heading, section.text, *section.items):
            assert text in markdown
            assert " ".join(text.split()) in shown
    assert [section.heading for section in told.sections] == [*HEADINGS, "To check it"]
    assert "abc123" in markdown
    assert html.escape("es-ES <nwp>") in told.html()


def test_numbers_are_rounded_up_and_nothing_is_hidden(guarantee) -> None:
    told = statement(guarantee, delta=1e-10)
    # rho is 79 / 98 = 0.806122..., epsilon 8.4901...
    assert "0.8062-zCDP" in told.headline
    assert float(told.headline.split("epsilon = ")[1].split(",")[0]) >= guarantee.epsilon(1e-10)
    assert "device under zero-out" in told.headline
    text = told.markdown()
    for said in (*guarantee.assumptions, TUNING, SELECTION):
        assert said[1:] in text
    assert told.warning is None


def test_warnings(guarantee) -> None:
    simulated = dataclasses.replace(guarantee, simulated=True)
    assert "protects nobody" in statement(simulated, delta=1e-10).markdown()
    none = dataclasses.replace(guarantee, extra_delta=1e-6)
    assert "Nothing is promised" in statement(none, delta=1e-10).html()
    assert "no epsilon" in statement(none, delta=1e-10).headline
    weak = matrix_guarantee(make("tree", PARTICIPATION), PARTICIPATION, 0.5)
    assert "promises little" in (statement(weak, delta=1e-10).warning or "")


def test_refusals(guarantee) -> None:
    with pytest.raises(Refused, match="secure_aggregation"):
        statement(guarantee, delta=1e-10, secure_aggregation="maybe")  # type: ignore[arg-type]
    with pytest.raises(Refused, match="delta"):
        statement(guarantee, delta=0.0)
