"""Runs side by side: ranked where that is fair, and where it is not, said why."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from reticent.errors import Refused
from reticent.report.curves import epsilon_curve
from reticent.report.figures import accuracy, trade_off
from reticent.report.numbers import upper
from reticent.report.plots import Plot, save
from reticent.report.reading import Run, number


def compared(runs: list[Run], delta: float | None = None) -> dict[str, Any]:
    """The runs' facts, ranked by their best top-1, and notes on what must not be compared.

    Epsilon is that at each run's own delta, or at `delta`. Where guarantees mean different things, or accuracies come from
    different held-out users, nothing is ranked: the runs stay in the order they were given in.
    """
    facts = [run.facts(delta) for run in runs]
    notes = why_not_ranked(runs, facts)
    if not notes:
        facts.sort(key=lambda one: -1 if one["best_top1"] is None else one["best_top1"], reverse=True)
    for place, one in enumerate(facts, start=1):
        one["rank"] = place if not notes and one["best_top1"] is not None else None
    return {"ranked": not notes, "notes": [*notes, *_notes(runs)], "runs": facts}


def why_not_ranked(runs: list[Run], facts: list[dict[str, Any]]) -> list[str]:
    """What makes the runs no fair comparison, each in one sentence."""
    reasons = []
    differ: list[tuple[str, str, Callable[[dict[str, Any]], str]]] = [
        ("adjacency", "adjacencies", lambda one: one["adjacency"] or "unknown"),
        ("unit", "units of privacy", lambda one: one["unit"]),
        ("delta", "deltas", lambda one: upper(one["delta"])),
    ]
    for key, plural, shown in differ:
        values = list(dict.fromkeys(shown(one) for one in facts))
        if len({one[key] for one in facts}) > 1:
            remedy = "; state all at one with --delta" if key == "delta" else ""
            reasons.append(
                f"Not ranked: the runs have different {plural} ({', '.join(values)}), so that their epsilons cannot be "
                f"compared{remedy}."
            )
    held_out = {tuple(number(run.best, key) for key in ("users", "targets")) for run in runs if run.best}
    if len(held_out) > 1:
        reasons.append("Not ranked: the runs were evaluated on different held-out users.")
    return reasons


def _notes(runs: list[Run]) -> list[str]:
    notes = []
    for run in runs:
        if run.standing == "broken":
            notes.append(f"{run.name} does not verify: no guarantee is stated; see `reticent verify {run.path}`.")
        if run.standing == "no privacy":
            notes.append(f"{run.name} has NO PRIVACY: epsilon is infinite.")
        if run.simulated:
            notes.append(f"{run.name} is an estimate: it protects nobody.")
        if not run.finished:
            notes.append(f"{run.name} is not finished: {run.rounds} of at most {run.planned_rounds} rounds so far.")
        if not run.shows_cohort_sizes and any("clients_per_second" in record for record in run.records):
            notes.append(
                f"{run.name}: clients per second are not shown, they tell the size of cohorts, which is private where "
                "sampling is random."
            )
    return notes


def overlay(runs: list[Run], comparable: bool) -> Plot:
    """Accuracy by rounds of all runs, and, where epsilons can be compared, accuracy against epsilon."""
    found = accuracy(runs)
    if comparable:
        found += trade_off([(run, epsilon_curve(run)) for run in runs])
    return Plot(
        "comparison", " ".join(plot.says for plot in found), tuple(panel for plot in found for panel in plot.panels)
    )


def save_overlay(runs: list[Run], comparable: bool, path: Path) -> None:
    """Draws `overlay` to a file."""
    plot = overlay(runs, comparable)
    if not plot.panels:
        raise Refused("None of these runs has recorded an evaluation, so there is nothing to draw; leave --png out.")
    save(plot, path)
