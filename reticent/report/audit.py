"""What an audit found, read from `audit.json` in the run directory: a table, and a plot of exposures."""

import json
from typing import Any

from reticent.errors import Refused
from reticent.report.plots import Curve, Panel, Plot
from reticent.report.reading import Run

AUDIT_FILE = "audit.json"
SCHEMA = 1


def read_audit(run: Run) -> dict[str, Any] | None:
    """The audit of this very ledger; None where there is none. A damaged one is refused."""
    path = run.path / AUDIT_FILE
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_bytes())
        if found["schema"] != SCHEMA or not all({"name", "verdict", "detail"} <= set(one) for one in found["findings"]):
            raise ValueError("of another version")
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(f"{path} is damaged ({error}); run `reticent audit {run.path}` again.") from None
    return found if found["ledger_head"] == run.ledger.head else None


def exposure_plot(run: Run, found: dict[str, Any]) -> list[Plot]:
    """Exposures, the largest first, of each kind of phrase; beside those of another run, where the audit was given one."""
    exposure = found.get("exposure")
    if not exposure or not any(exposure["bits"].values()):
        return []
    panels = [_panel(run.label, exposure["bits"], exposure)]
    other = found.get("beside")
    if other:
        panels.append(_panel(other["name"], other["bits"], exposure))
    says = (
        "How exposed phrases are that simulated users wrote, in bits: the largest first, against chance and the most."
    )
    return [Plot("exposure", says, tuple(panels))]


def _panel(name: str, bits: dict[str, list[float]], exposure: dict[str, Any]) -> Panel:
    curves = [
        Curve(kind, list(range(1, len(values) + 1)), sorted(values, reverse=True))
        for kind, values in bits.items()
        if values
    ]
    most = max(2, *(len(values) for values in bits.values()))
    for label, level in (("most", exposure["largest"]), ("chance", exposure["chance"])):
        curves.append(Curve(label, [1, most], [level, level], level=True))
    return Panel(f"Exposure of phrases: {name}", "phrase", "bits", curves=tuple(curves))
