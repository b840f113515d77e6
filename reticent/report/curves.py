"""Epsilon after each round, from the ledger's accounting (BLT, Fig. 15)."""

import math

from reticent.ledger.description import zero_out
from reticent.report.reading import Run

POINTS = 60
POINTS_OF_SAMPLING = 8  # Random cohorts are accounted numerically, which takes seconds for each point.


def epsilon_curve(run: Run) -> dict[int, float]:
    """Epsilon by rounds made, had the run ended there: at its evaluations, and spread over the run; empty where the run
    has no guarantee to show."""
    if run.guarantee is None:
        return {}
    evaluated = [one["rounds"] for one in run.evaluations if 1 <= one["rounds"] <= run.rounds]
    if not zero_out(run.description):
        rounds = set(_thinned(evaluated or list(range(1, run.rounds + 1)), POINTS_OF_SAMPLING)) | {run.rounds}
    else:
        rounds = {*_thinned(list(range(1, run.rounds + 1)), POINTS), *_thinned(evaluated, POINTS)}
        # Where one more participation fits, epsilon jumps.
        separation = run.accounting["participation"].get("min_separation", 1)
        steps = range(separation, run.rounds, separation)
        rounds |= {made + after for made in _thinned(list(steps), POINTS) for after in (0, 1)}
    found = {made: run.epsilon_after(made) for made in sorted(rounds)}
    return {made: epsilon for made, epsilon in found.items() if math.isfinite(epsilon)}


def _thinned(values: list[int], most: int) -> list[int]:
    """At most so many of the values, evenly, the last among them."""
    if len(values) <= most:
        return values
    return [values[len(values) * part // most - 1] for part in range(1, most + 1)]
