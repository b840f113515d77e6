"""User-level DP, Appendix E: ELS and ULS estimate a mean, where everything can be tried.

The loss of a point x at theta is |x - theta|^2 / 2. All trials, learning rates and clip norms run at once: a step's
samples and noise are shared by the settings that are compared, so that they differ in the settings alone.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from reticent.report.plots import Curve, Panel
from reticent.reproduce.printed import printed
from reticent.reproduce.result import Result, claim
from reticent.reproduce.uldp import els_noise, uls_noise


@dataclass(frozen=True)
class Study:
    """One setting of the study. `within` is the spread of a user's points, `budget` the gradients of a step."""

    dimension: int
    users: int
    examples: int
    rounds: int
    delta: float
    spread: float
    epsilon: float
    budget: int
    within: float
    trials: int

    @property
    def grid(self) -> np.ndarray:
        """Learning rates and clip norms that are tried, as two rows."""
        many = self.trials > 32
        rates = 10 ** np.linspace(-2.5, 0, 6 if many else 4)
        norms = math.sqrt(self.dimension) * 2 ** np.linspace(-3, 1, 5 if many else 3)
        return np.array([(rate, norm) for rate in rates for norm in norms]).T


def figure7(fast: bool) -> Result:
    """ELS and ULS estimating a mean."""
    usual = Study(**printed("uldp")["fig7"])
    if fast:
        usual = dataclasses.replace(usual, trials=16)
    sweeps = {
        "epsilon": (0.25, 1.0, 4.0) if fast else (0.25, 0.5, 1.0, 2.0, 4.0),
        "budget": (16, 64, 256) if fast else (16, 32, 64, 128, 256),
        "within": (0.25, 1.0, 4.0) if fast else (0.25, 0.5, 1.0, 2.0, 4.0),
    }
    named = {"epsilon": "epsilon", "budget": "gradients a step", "within": "spread within a user"}
    panels, behind = [], []
    gain: dict[str, float] = {}
    for name, values in sweeps.items():
        curves: dict[str, list[float]] = {}
        for value in values:
            study = dataclasses.replace(usual, **{name: value})  # type: ignore[arg-type]
            curves.setdefault("ELS", []).append(_best(study, None))
            for group in (1, 4, 16):
                curves.setdefault(f"ULS, {group} of a user", []).append(_best(study, group))
            behind.append(curves["ULS, 1 of a user"][-1] / curves["ELS"][-1])
        several = [min(pair) for pair in zip(curves["ULS, 4 of a user"], curves["ULS, 16 of a user"], strict=True)]
        place = 0 if name == "epsilon" else -1
        gain[name] = several[place] / curves["ELS"][place]
        drawn = tuple(Curve(curve, values, found) for curve, found in curves.items())
        panels.append(Panel(f"by {named[name]}", named[name], "mean squared error", drawn, log_x=True, log_y=True))
    worst = max(behind)
    return Result(
        "User-level DP, Figure 7: estimating a mean",
        f"{usual.trials} trials, the best of {usual.grid.shape[1]} learning rates and clip norms for each point. Unless "
        f"varied: epsilon {usual.epsilon:g}, {usual.budget} gradients a step, spread {usual.within:g} within a user.",
        (
            claim("ULS with 1 example comparable or better than ELS everywhere (within 25%)", worst < 1.25, worst),
            claim("ULS with several ahead of ELS where a user's spread is large", gain["within"] < 1, gain["within"]),
            claim("and where compute is large", gain["budget"] < 1, gain["budget"]),
        ),
        tuple(panels),
    )  # fmt: skip


def _best(study: Study, group: int | None) -> float:
    """The mean squared error of ELS (no group) or ULS (so many examples of each user), with its best setting."""
    random = np.random.default_rng(0)
    shape = (study.trials, study.dimension)
    truth = random.normal(size=shape)
    centres = truth[:, None] + study.spread * random.normal(size=(study.trials, study.users, study.dimension))
    points = centres[:, :, None] + study.within * random.normal(
        size=(study.trials, study.users, study.examples, study.dimension)
    )
    rates, norms = study.grid
    units = study.users if group else study.users * study.examples
    expected = study.budget / (group or 1)
    probability = expected / units
    if group:
        sigma = uls_noise(probability, study.rounds, study.epsilon, study.delta)
    else:
        sigma = els_noise(probability, study.rounds, study.examples, study.epsilon, study.delta)
    theta = np.zeros((len(rates), *shape))
    for _ in range(study.rounds):
        taken, there = _sample(random, study.trials, units, probability)
        centre = _seen(random, points, taken, group)
        moves = centre - theta[:, :, None]  # (settings, trials, taken, dimension)
        lengths = np.sqrt(np.einsum("stnd,stnd->stn", moves, moves))
        scales = np.minimum(1, norms[:, None, None] / np.maximum(lengths, 1e-12)) * there
        total = np.einsum("stn,stnd->std", scales, moves)
        noise = sigma * norms[:, None, None] * random.normal(size=shape)
        theta += rates[:, None, None] * (total + noise) / expected
    errors = ((theta - truth) ** 2).sum(axis=2).mean(axis=1)
    return float(np.nanmin(errors))


def _sample(random: np.random.Generator, trials: int, units: int, probability: float) -> tuple[np.ndarray, np.ndarray]:
    """A Poisson sample for each trial: who, padded to the largest, and who of these is there."""
    counts = random.binomial(units, probability, size=trials)
    most = max(1, int(counts.max()))
    if most == units:
        taken = np.tile(np.arange(units), (trials, 1))
        random.permuted(taken, axis=1, out=taken)
    else:
        taken = np.argpartition(random.random((trials, units), dtype=np.float32), most - 1, axis=1)[:, :most]
        random.permuted(taken, axis=1, out=taken)
    return taken, np.arange(most) < counts[:, None]


def _seen(random: np.random.Generator, points: np.ndarray, taken: np.ndarray, group: int | None) -> np.ndarray:
    """What each of the sample sees: its point, or the mean of `group` of a user's."""
    trials, _, examples, _ = points.shape
    trial = np.arange(trials)[:, None]
    if group is None:
        return points[trial, taken // examples, taken % examples]
    if group == examples:
        return points[trial, taken].mean(axis=2)
    chosen = np.argsort(random.random((*taken.shape, examples), dtype=np.float32), axis=2)[:, :, :group]
    return points[trial[:, :, None], taken[:, :, None], chosen].mean(axis=2)
