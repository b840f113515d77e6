"""Choosing the best of many runs on the same people, paid for."""

import dataclasses
import math

from reticent.accounting.guarantee import Guarantee
from reticent.accounting.renyi import Renyi
from reticent.errors import Refused

SHAPES = {math.inf: "Poisson", 1.0: "geometric", 0.0: "logarithmic"}


def tuned(guarantee: Guarantee, mean_runs: float, shape: float = math.inf) -> Guarantee:
    """The guarantee of publishing only the best of a random number of runs, each of which has `guarantee`.

    The number of runs is drawn in secret before the first, from a Poisson distribution (shape infinity), a geometric one
    (1), a logarithmic one (0) or a truncated negative binomial between, with this mean; each run draws its
    hyper-parameters at random from a fixed list, and nothing of the others is looked at but their score (Papernot and
    Steinke 2022, by dp_accounting). It has no rho, and composes through Renyi divergences.
    """
    if not (mean_runs >= 1 and math.isfinite(mean_runs)):
        raise Refused(f"mean_runs is the average number of runs, at least 1 and finite, got {mean_runs!r}.")
    if not shape >= 0:
        raise Refused(f"shape is 0 (logarithmic), 1 (geometric), infinity (Poisson) or between, got {shape!r}.")
    if guarantee.extra_delta or guarantee.group > 1:
        raise Refused(
            "The choice among runs is accounted for guarantees without a delta of their own or a group bound: choose "
            "among the trainings, then compose with the rest."
        )
    kind = SHAPES.get(shape, f"truncated negative binomial (shape {shape:g})")
    runs = f"a {kind} number of runs with mean {mean_runs:g}"
    return dataclasses.replace(
        guarantee,
        parts=(Renyi(guarantee.parts, (mean_runs, shape)),),
        accounting=f"{guarantee.accounting}; best of {runs}, by Renyi divergences",
        assumptions=(
            *guarantee.assumptions,
            f"the best of {runs} is published and nothing of the others; the number is drawn before the first run and kept "
            "secret, and each run draws its hyper-parameters at random",
        ),
        details={**guarantee.details, "runs_to_choose_from": runs},
    )
