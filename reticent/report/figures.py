"""Which plots a run's report has."""

from reticent.accounting.run import mechanism_of
from reticent.report.plots import Curve, Panel, Plot, coefficients, noise_in_model
from reticent.report.reading import Run, number

MOST_COEFFICIENTS = 500


def figures(run: Run, epsilons: dict[int, float], participations: dict[int, int] | None) -> list[Plot]:
    """The plots of a run: accuracy and epsilon by rounds, one against the other, participations, the mechanism."""
    found = [*accuracy([run]), *epsilon(run, epsilons), *trade_off([(run, epsilons)])]
    if participations:
        title = f"How often each {run.unit} took part"
        panel = Panel(title, "rounds taken part in", f"{run.unit}s", bars=participations)
        found.append(Plot("participations", f"The number of {run.unit}s by the number of their rounds.", (panel,)))
    return [*found, *mechanism(run)]


def accuracy(runs: list[Run]) -> list[Plot]:
    """Top-1 accuracy on held-out users by rounds, with the unigram baseline where one is recorded."""
    curves = [
        Curve(run.label, [one["rounds"] for one in run.evaluations], [one["top1"] for one in run.evaluations])
        for run in runs
        if run.evaluations
    ]
    if not curves:
        return []
    baselines = {number(run.best, "unigram_top1") for run in runs if run.best}
    baseline = baselines.pop() if len(baselines) == 1 else None
    if baseline is not None:
        ends = [min(min(curve.x) for curve in curves), max(max(curve.x) for curve in curves)]
        curves.append(Curve("unigram baseline", ends, [baseline, baseline], level=True))
    panel = Panel(f"Top-1 accuracy on held-out users{_estimate(*runs)}", "rounds", curves=tuple(curves), percent=True)
    return [Plot("accuracy", "The accuracy on held-out users after the rounds so far.", (panel,))]


def epsilon(run: Run, epsilons: dict[int, float]) -> list[Plot]:
    """Epsilon by rounds; nothing where there is none."""
    if not epsilons:
        return []
    curve = Curve(run.label, list(epsilons), list(epsilons.values()))
    panel = Panel(f"Epsilon at delta {run.delta:.3g}{_estimate(run)}", "rounds", curves=(curve,))
    return [Plot("epsilon", "The epsilon the run would have, had it ended after so many rounds.", (panel,))]


def trade_off(runs: list[tuple[Run, dict[int, float]]]) -> list[Plot]:
    """Accuracy against epsilon, each after the same rounds (BLT, Fig. 15)."""
    curves = []
    for run, epsilons in runs:
        points = [(epsilons[one["rounds"]], one["top1"]) for one in run.evaluations if one["rounds"] in epsilons]
        if points:
            curves.append(Curve(run.label, [point[0] for point in points], [point[1] for point in points]))
    if not curves:
        return []
    estimate = _estimate(*(run for run, _ in runs))
    panel = Panel(f"Accuracy against epsilon{estimate}", "epsilon", curves=tuple(curves), percent=True, whole=False)
    return [Plot("trade-off", "The accuracy on held-out users against the epsilon after the same rounds.", (panel,))]


def mechanism(run: Run) -> list[Plot]:
    """The mechanism's coefficients, one plot for C and one for its inverse; a tree has no square C, and shows its
    error."""
    base = mechanism_of({**run.accounting, "restarts": ()}, run.arrays)
    rounds = min(run.planned_rounds, base.max_rounds or MOST_COEFFICIENTS, MOST_COEFFICIENTS)
    if len(base.draws(rounds)) != rounds:
        return [noise_in_model(base, rounds)]
    both = coefficients({base.kind: base}, rounds)
    names = ("coefficients", "inverse-coefficients")
    return [Plot(name, both.says, (panel,)) for name, panel in zip(names, both.panels, strict=True)]


def _estimate(*runs: Run) -> str:
    return " (estimate)" if all(run.simulated for run in runs) else ""
