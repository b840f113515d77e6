"""Planning a launch: what epsilon a population, a number of rounds and a report goal allow, before touching a device.

The papers' scaling hypothesis: noise and report goal grow together and the utility stays. A small simulation finds the
largest ratio of the two that it tolerates; everything else follows (Gboard, Sec. 2.2 and 2.5; BLT, App. G.2).
Between mechanisms the utility stays where the noise in the model stays: sigma times the mechanism's error.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from reticent.accounting.calibration import smallest_noise
from reticent.accounting.gaussian import check_delta, check_epsilon
from reticent.accounting.guarantee import Guarantee
from reticent.accounting.learning_rate import effective_error, starting_rate
from reticent.accounting.losses import check_noise
from reticent.accounting.matrix import matrix_guarantee
from reticent.accounting.rounding import upper
from reticent.errors import Refused
from reticent.mechanisms import KINDS, Mechanism, Participation, load, make
from reticent.population.sampler import whole

MECHANISMS = ("tree", "blt-100", "blt-400", "blt-1000")
"""What is planned with unless asked otherwise: what Gboard trained with, and none that has to be optimised."""


@dataclass(frozen=True)
class Ratio:
    """Noise and report goal at which a small simulation on public data still did well, with this mechanism."""

    noise_multiplier: float
    report_goal: int
    mechanism: str = "tree"

    def __post_init__(self) -> None:
        check_noise(self.noise_multiplier)
        whole("The report goal of a ratio", self.report_goal)

    def at(self, report_goal: int) -> float:
        """The noise multiplier that goes with another report goal."""
        return self.noise_multiplier * report_goal / self.report_goal


GBOARD = Ratio(7.0, 6500)
"""What Gboard found on StackOverflow (Gboard, Sec. 3)."""


@dataclass(frozen=True)
class Launch:
    """What is known before a launch.

    `population` is a public estimate of the devices there are; `ratios` what small simulations found, the first of which
    serves for mechanisms that have none of their own. Without `min_separation` it is the largest that the population
    allows; `timer_rounds` is how many rounds the timer lasts, where that is known: the separation, up to the largest.
    With `devices_per_user` above 1 the guarantee is for a user of so many.
    """

    population: int
    rounds: int
    report_goals: tuple[int, ...]
    ratios: tuple[Ratio, ...] = (GBOARD,)
    mechanisms: tuple[str, ...] = MECHANISMS
    delta: float | None = None
    epsilon: float | None = None
    rho: float | None = None
    min_separation: int | None = None
    timer_rounds: int | None = None
    max_participations: int | None = None
    over_selection: float = 1.1
    devices_per_user: int = 1
    objective: Literal["max", "rms"] = "max"

    def __post_init__(self) -> None:
        whole("population", self.population)
        whole("rounds", self.rounds)
        whole("devices_per_user", self.devices_per_user)
        for name in ("min_separation", "timer_rounds", "max_participations"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name))
        for goal in self.report_goals:
            whole("A report goal", goal)
        for name in ("report_goals", "mechanisms", "ratios"):
            if not getattr(self, name):
                raise Refused(f"{name} is empty; give at least one.")
        if not 1 <= self.over_selection < math.inf:
            raise Refused(f"over_selection must be at least 1, got {self.over_selection!r}.")
        if self.epsilon is not None and self.rho is not None:
            raise Refused("Give one target, epsilon or rho, not both.")
        if self.epsilon is not None:
            check_epsilon(self.epsilon)
        if self.rho is not None and not 0 < self.rho < math.inf:
            raise Refused(f"rho must be above 0 and finite, got {self.rho!r}.")
        check_delta(self.stated_delta)

    @property
    def stated_delta(self) -> float:
        """The delta asked for, or the population to the power -1.1."""
        return self.population**-1.1 if self.delta is None else self.delta

    @property
    def has_target(self) -> bool:
        return self.epsilon is not None or self.rho is not None

    def invited(self, report_goal: int) -> int:
        """Devices invited per round."""
        return math.ceil(report_goal * self.over_selection - 1e-9)

    def largest_separation(self, report_goal: int) -> int:
        """The most rounds that a device can rest: the population over those invited per round."""
        return self.population // self.invited(report_goal)

    def keeps(self, guarantee: Guarantee) -> bool | None:
        """Whether a guarantee keeps to the target; None where there is none."""
        if self.rho is not None:
            return guarantee.rho is not None and guarantee.rho <= self.rho
        return guarantee.epsilon(self.stated_delta) <= self.epsilon if self.epsilon is not None else None

    @property
    def target(self) -> str:
        """The target in words."""
        if self.rho is not None:
            return f"rho {self.rho:g}"
        return f"epsilon {self.epsilon:g}" if self.epsilon is not None else "no target"


@dataclass(frozen=True)
class Row:
    """One mechanism at one report goal. `why_not` says why it cannot be, and then the numbers are None; `meets` whether it
    keeps to the target at full utility, None without a target."""

    mechanism: str
    report_goal: int
    invited: int
    why_not: str | None = None
    min_separation: int | None = None
    max_participations: int | None = None
    noise_multiplier: float | None = None
    sensitivity: float | None = None
    effective_error: float | None = None
    learning_rate: float | None = None
    memory: int | None = None
    rho: float | None = None
    epsilon: float | None = None
    meets: bool | None = None
    guarantee: Guarantee | None = field(default=None, repr=False, compare=False)
    made: Mechanism | None = field(default=None, repr=False, compare=False)

    def summary(self) -> dict[str, Any]:
        """Everything, as plain JSON."""
        return {name: value for name, value in vars(self).items() if name not in ("guarantee", "made")}


@dataclass(frozen=True)
class Recommendation:
    """The row to take and why. Where no row keeps to the target, `noise_multiplier` is what would, at that row, and
    `extra_noise` how many times the noise that the utility was found with."""

    row: Row
    noise_multiplier: float
    extra_noise: float
    guarantee: Guarantee = field(repr=False)
    why: str

    @property
    def learning_rate(self) -> float:
        """The server's, to start from, at the noise that is recommended."""
        return starting_rate((self.row.effective_error or 0.0) * self.extra_noise)

    def summary(self) -> dict[str, Any]:
        """Everything, as plain JSON."""
        return {
            "mechanism": self.row.mechanism,
            "report_goal": self.row.report_goal,
            "noise_multiplier": self.noise_multiplier,
            "extra_noise": self.extra_noise,
            "learning_rate": self.learning_rate,
            "why": self.why,
        }


@dataclass(frozen=True)
class Plan:
    """The table of a launch, and what to take from it."""

    launch: Launch
    rows: tuple[Row, ...]
    recommended: Recommendation


def plan(launch: Launch) -> Plan:
    """The table over mechanisms and report goals, and a recommendation.

    Refuses a launch of which no row is possible.
    """
    rows = tuple(_row(launch, name, goal) for goal in sorted(set(launch.report_goals)) for name in launch.mechanisms)
    possible = [row for row in rows if row.why_not is None]
    if not possible:
        raise Refused(f"Nothing of this can be launched: {rows[0].why_not}")
    return Plan(launch, rows, _recommended(launch, possible))


def participation_of(launch: Launch, report_goal: int) -> Participation:
    """What one device can do at this report goal; refuses what cannot be."""
    invited, largest = launch.invited(report_goal), launch.largest_separation(report_goal)
    if largest < 1:
        most = int(launch.population / launch.over_selection)
        raise Refused(
            f"a round invites {invited:,} devices and there are {launch.population:,}; lower the report goal to "
            f"{most:,} or less."
        )
    timed = largest if launch.timer_rounds is None else min(launch.timer_rounds, largest)
    wanted = launch.min_separation or timed
    if wanted > largest and largest < launch.rounds:
        raise Refused(
            f"{min(wanted, launch.rounds):,} rounds apart needs {min(wanted, launch.rounds) * invited:,} devices and "
            f"there are {launch.population:,}; lower the min separation to {largest:,} or the report goal."
        )
    return Participation(launch.rounds, min(wanted, launch.rounds), launch.max_participations)


def noise_for(launch: Launch, name: str, mechanism: Mechanism, report_goal: int) -> float:
    """The noise multiplier at which the utility is that of the simulation (`Launch.ratios`)."""
    for ratio in launch.ratios:
        if ratio.mechanism == name:
            return ratio.at(report_goal)
    base = launch.ratios[0]
    reference = mechanism_named(base.mechanism, Participation(launch.rounds), launch.objective)
    return base.at(report_goal) * _error(reference, launch) / _error(mechanism, launch)


@functools.lru_cache(maxsize=64)
def mechanism_named(name: str, participation: Participation, objective: Literal["max", "rms"]) -> Mechanism:
    """A kind, made for this participation, or a mechanism's file."""
    if name not in KINDS:
        if not Path(name).is_file():
            raise Refused(f"There is no mechanism file or kind {name!r}; the kinds are {', '.join(KINDS)}.")
        return load(name)
    return make(name, participation, objective)


def guarantee_for(launch: Launch, mechanism: Mechanism, participation: Participation, noise: float) -> Guarantee:
    """The guarantee of a launch, for a user of as many devices as one may have."""
    unit: Literal["user", "device"] = "user" if launch.devices_per_user == 1 else "device"
    found = matrix_guarantee(mechanism, participation, noise, unit=unit)
    return found if unit == "user" else found.for_group(launch.devices_per_user, "user")


def _row(launch: Launch, name: str, report_goal: int) -> Row:
    invited = launch.invited(report_goal)
    try:
        participation = participation_of(launch, report_goal)
        mechanism = mechanism_named(name, participation, launch.objective)
        noise = noise_for(launch, name, mechanism, report_goal)
        guarantee = guarantee_for(launch, mechanism, participation, noise)
    except Refused as refusal:
        return Row(name, report_goal, invited, why_not=str(refusal))
    error = effective_error(mechanism.rms_error(launch.rounds), noise, report_goal)
    return Row(
        mechanism=name,
        report_goal=report_goal,
        invited=invited,
        min_separation=participation.min_separation,
        max_participations=participation.most,
        noise_multiplier=noise,
        sensitivity=guarantee.sensitivity,
        effective_error=error,
        learning_rate=starting_rate(error),
        memory=mechanism.memory(launch.rounds),
        rho=guarantee.rho,
        epsilon=guarantee.epsilon(launch.stated_delta),
        meets=launch.keeps(guarantee),
        guarantee=guarantee,
        made=mechanism,
    )


def _recommended(launch: Launch, possible: Sequence[Row]) -> Recommendation:
    def weakest(row: Row) -> tuple[float, int]:
        assert row.rho is not None
        return row.rho, row.memory or 0

    if launch.has_target:
        kept = [row for row in possible if row.meets]
        if not kept:
            return _with_more_noise(launch, possible)
        goal = min(row.report_goal for row in kept)
        best = min((row for row in kept if row.report_goal == goal), key=weakest)
        why = f"the smallest report goal that keeps to {launch.target} at full utility; a larger one leaves more room"
    else:
        best = min(possible, key=weakest)
        why = "the smallest epsilon of the table"
    assert best.guarantee is not None
    assert best.noise_multiplier is not None
    return Recommendation(best, best.noise_multiplier, 1.0, best.guarantee, why)


def _with_more_noise(launch: Launch, possible: Sequence[Row]) -> Recommendation:
    """Gboard, Sec. 2.5, step 3: nothing keeps to the target, so the noise is raised alone, at the largest report goal."""
    goal = max(row.report_goal for row in possible)
    best = min((row for row in possible if row.report_goal == goal), key=lambda row: row.rho or 0.0)
    participation = participation_of(launch, goal)

    def guarantee(noise: float) -> Guarantee:
        assert best.made is not None
        return guarantee_for(launch, best.made, participation, noise)

    noise = smallest_noise(guarantee, launch.stated_delta, epsilon=launch.epsilon, rho=launch.rho)
    extra = noise / (best.noise_multiplier or noise)
    why = (
        f"no report goal of the table keeps to {launch.target} at full utility; this one does with {extra:.3g} times the "
        "noise, and will be less accurate"
    )
    return Recommendation(best, noise, extra, guarantee(noise), why)


def _error(mechanism: Mechanism, launch: Launch) -> float:
    return mechanism.max_error(launch.rounds) if launch.objective == "max" else mechanism.rms_error(launch.rounds)


def run_file(plan: Plan, clip_norm: float | None = None) -> Mapping[str, Mapping[str, Any]]:
    """The keys of a run file that the recommendation sets; the server's schedule is that of the regression, its learning
    rate for this clip norm, or for 1."""
    launch, best = plan.launch, plan.recommended
    kind = best.row.mechanism if best.row.mechanism in KINDS else None
    return {
        "run": {"rounds": launch.rounds},
        "population": {
            "size": launch.population,
            "sampler": "min-separated",
            "report_goal": best.row.report_goal,
            "min_separation": best.row.min_separation,
            "max_participations": best.row.max_participations,
        },
        "mechanism": {"kind": kind} if kind else {"file": best.row.mechanism},
        **({} if clip_norm is None else {"clipping": {"norm": clip_norm}}),
        "server": {
            "learning_rate": float(f"{best.learning_rate / (clip_norm or 1.0):.3g}"),
            "momentum": 0.95,
            "warm_up": 0.15,
            "cool_down": 0.25,
        },
        "privacy": {
            "noise_multiplier": float(upper(best.noise_multiplier, 8)),
            **({} if launch.delta is None else {"delta": launch.delta}),
        },
    }
