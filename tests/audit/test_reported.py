"""An audit in a report: what was found, what was not tested, and a refuted claim on top."""

import json

import pytest

from reticent.errors import Refused
from reticent.ledger.lines import read_ledger
from reticent.report import read_run, report
from reticent.report.audit import exposure_plot, read_audit
from tests.report.runs import make_run


def written(path, **changes):
    content = {
        "schema": 1,
        "ledger_head": read_ledger(path / "ledger.jsonl").head,
        "findings": [
            {"name": "epsilon", "verdict": "holds", "detail": "at least 1 <b>&| claimed: 8"},
            {"name": "clipping", "verdict": "not tested", "detail": "no canaries were planted"},
        ],
        **changes,
    }
    (path / "audit.json").write_text(json.dumps(content))
    return {name: text.decode() for name, text in report(read_run(path)).files.items() if not name.endswith("png")}


def test_findings_are_shown_and_escaped(tmp_path):
    path = make_run(tmp_path)
    told = written(path)
    assert "at least 1 &lt;b&gt;&amp;| claimed: 8" in told["report.html"]
    assert "at least 1 \\<b\\>\\&\\| claimed: 8" in told["report.md"]
    for text in told.values():
        assert "no canaries were planted" in text
        assert "DOES NOT STAND" not in text


def test_a_refuted_claim_stands_on_top(tmp_path):
    findings = [{"name": "clipping", "verdict": "BROKEN", "detail": "ten clip norms"}]
    told = written(make_run(tmp_path), findings=findings)
    for text in told.values():
        assert text.index("CLAIM DOES NOT STAND") < text.index("clip norm at the start")


def test_a_run_without_an_audit_says_so(tmp_path):
    path = make_run(tmp_path)
    assert "Not audited" in report(read_run(path)).files["report.md"].decode()
    assert "Not audited" in written(path, ledger_head="0" * 64)["report.md"]  # of another ledger


@pytest.mark.parametrize("content", ["{", "[]", '{"schema": 2, "findings": []}', '{"schema": 1, "findings": [{}]}'])
def test_a_damaged_audit_is_refused(tmp_path, content):
    path = make_run(tmp_path)
    (path / "audit.json").write_text(content)
    with pytest.raises(Refused, match="audit.json is damaged"):
        read_audit(read_run(path))


def test_exposures_are_plotted_with_those_beside(tmp_path):
    run = read_run(make_run(tmp_path))
    exposure = {"bits": {"once": [1.0, 2.0], "repeated": [], "shared": [12.0]}, "largest": 12.0, "chance": 1.44}
    (plot,) = exposure_plot(run, {"exposure": exposure, "beside": {"name": "free", "bits": {"once": [9.0]}}})
    assert [panel.title for panel in plot.panels] == ["Exposure of phrases: a run", "Exposure of phrases: free"]
    assert list(plot.panels[0].curves[0].y) == [2.0, 1.0]
    assert exposure_plot(run, {}) == []
