"""Which timer: a launch played for several, device by device, before any device is touched."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from reticent.accounting.launch import Plan, guarantee_for
from reticent.errors import Refused
from reticent.population.availability import Devices, Observed, Rounds, simulate


@dataclass(frozen=True)
class Played:
    """One timer: what was observed, and the epsilon and rho that a run with just this participation could have stated.
    An estimate: real devices differ from those that were played."""

    timer_hours: float
    observed: Observed = field(repr=False)
    epsilon: float
    rho: float

    def summary(self) -> dict[str, Any]:
        """Everything, as plain JSON."""
        return {**self.observed.summary(), "epsilon_if_so": self.epsilon, "rho_if_so": self.rho}


def play(
    plan: Plan, devices: Devices, hours: Iterable[float], *, max_days: float = 730.0, seed: int = 0
) -> list[Played]:
    """The recommended row of a plan, played with each timer."""
    launch, best = plan.launch, plan.recommended
    found = []
    for timer in sorted(set(hours)):
        rounds = Rounds(launch.rounds, best.row.report_goal, timer, launch.over_selection, max_days=max_days)
        observed = simulate(devices, rounds, seed)
        participation = observed.participation
        assert best.row.made is not None
        guarantee = guarantee_for(launch, best.row.made, participation, best.noise_multiplier)
        assert guarantee.rho is not None
        found.append(Played(timer, observed, guarantee.epsilon(launch.stated_delta), guarantee.rho))
    return found


def best_timer(played: Iterable[Played]) -> Played:
    """The finished one with the smallest epsilon; of those within a hundredth of it the shortest, which disturbs least."""
    finished = [one for one in played if one.observed.finished]
    if not finished:
        raise Refused("No timer finished its rounds in the days allowed; take shorter ones, or raise --max-days.")
    least = min(one.rho for one in finished)
    return min((one for one in finished if one.rho <= 1.02 * least), key=lambda one: one.timer_hours)
