"""Devices as they are: awake by day and charging by night, with a timer, dropping out, invited in surplus.

What a timer in hours gives in rounds depends on how fast rounds go and on who is there when (Gboard, Sec. 2.2), so it
is played here before a launch, for every single device. The model:

- A device that rests no more checks in at random times. Its rate is its own share of `check_ins_per_day` (log-normal
  with `activity_spread`) times the time of day where it is: a cosine between night and day, `night_to_day` apart.
- A round invites the first report_goal * over_selection devices that check in after it opens; each starts its timer
  when invited, and counts as having taken part (its update may leave it, used or not).
- A device drops out with `dropout`, or reports after a log-normal time. The round is over with its report_goal-th
  report; where too many drop out it is given up after `timeout_minutes` and done anew under the same number.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reticent.errors import Refused
from reticent.mechanisms.participation import Participation
from reticent.population.sampler import index_type, whole
from reticent.population.table import NEVER

BUSIEST = 8.0
"""No device checks in more than this many times as often as the average: the bound that thinning needs."""
STEP_HOURS = 0.25
"""Resting devices come back at the latest this long after their timer, while a round waits."""


@dataclass(frozen=True)
class Devices:
    """A population of devices; the defaults are those of one country's phones."""

    population: int
    check_ins_per_day: float = 4.0
    activity_spread: float = 1.0
    night_to_day: float = 4.0
    peak_hour: float = 2.0
    zone_spread_hours: float = 1.5
    dropout: float = 0.06
    report_minutes: float = 2.0
    report_spread: float = 0.5

    def __post_init__(self) -> None:
        whole("population", self.population)
        for name in ("check_ins_per_day", "report_minutes"):
            if not 0 < getattr(self, name) < math.inf:
                raise Refused(f"{name} must be above 0, got {getattr(self, name)!r}.")
        for name in ("activity_spread", "zone_spread_hours", "report_spread"):
            if not 0 <= getattr(self, name) < math.inf:
                raise Refused(f"{name} must be at least 0, got {getattr(self, name)!r}.")
        if not 1 <= self.night_to_day < math.inf:
            raise Refused(f"night_to_day must be at least 1, got {self.night_to_day!r}.")
        if not 0 <= self.dropout < 1:
            raise Refused(f"dropout must be at least 0 and below 1, got {self.dropout!r}.")


@dataclass(frozen=True)
class Rounds:
    """How the server runs its rounds, and for how many hours a device rests."""

    rounds: int
    report_goal: int
    timer_hours: float
    over_selection: float = 1.1
    timeout_minutes: float = 10.0
    max_days: float = 730.0

    def __post_init__(self) -> None:
        whole("rounds", self.rounds)
        whole("report_goal", self.report_goal)
        if not 0 <= self.timer_hours < math.inf:
            raise Refused(f"timer_hours must be at least 0, got {self.timer_hours!r}.")
        if not 1 <= self.over_selection < math.inf:
            raise Refused(f"over_selection must be at least 1, got {self.over_selection!r}.")
        for name in ("timeout_minutes", "max_days"):
            if not 0 < getattr(self, name) < math.inf:
                raise Refused(f"{name} must be above 0, got {getattr(self, name)!r}.")

    @property
    def invited(self) -> int:
        return math.ceil(self.report_goal * self.over_selection)


@dataclass(frozen=True)
class Observed:
    """What happened. Percentiles are over devices that took part at least once (for the separation: twice)."""

    devices: Devices
    plan: Rounds
    rounds: int
    days: float
    attempts: int
    min_separation: int | None
    separation_percentiles: dict[str, float]
    max_participations: int
    participation_percentiles: dict[str, float]
    participants: int
    rounds_per_day: dict[str, float]
    waiting_minutes: dict[str, float]
    by_day: list[int] = field(repr=False)

    @property
    def finished(self) -> bool:
        return self.rounds == self.plan.rounds

    @property
    def participation(self) -> Participation:
        """The largest participation that occurred, which a guarantee would have been computed from."""
        separation = self.rounds if self.min_separation is None else max(self.min_separation, 1)
        return Participation(self.rounds, separation, max(self.max_participations, 1))

    @property
    def largest_separation(self) -> int:
        """What no timer can exceed: the population over the devices invited per round."""
        return self.devices.population // self.plan.invited

    def summary(self) -> dict[str, Any]:
        """Everything that was observed, as plain JSON."""
        return {
            "timer_hours": self.plan.timer_hours,
            "finished": self.finished,
            "rounds": self.rounds,
            "days": self.days,
            "attempts": self.attempts,
            "min_separation": self.min_separation,
            "largest_separation": self.largest_separation,
            "separation_percentiles": self.separation_percentiles,
            "max_participations": self.max_participations,
            "participation_percentiles": self.participation_percentiles,
            "participants": self.participants,
            "rounds_per_day": self.rounds_per_day,
            "waiting_minutes": self.waiting_minutes,
            "by_day": self.by_day,
        }


def simulate(devices: Devices, plan: Rounds, seed: int = 0) -> Observed:
    """Plays the rounds, every device by itself. Time grows with the check-ins looked at, not with the population;
    memory is some 25 bytes per device. Refuses what could never finish a round; stops at `max_days` and says so."""
    goal, invited = plan.report_goal, plan.invited
    if invited > devices.population:
        raise Refused(
            f"A round invites {invited:,} devices and there are {devices.population:,}; "
            f"lower report_goal to {int(devices.population / plan.over_selection):,} or less."
        )
    if invited * (1 - devices.dropout) < goal:
        raise Refused(
            f"Inviting {invited:,} devices of which {devices.dropout:.0%} drop out leaves fewer than the report goal "
            f"of {goal:,} in most rounds; raise over_selection to at least {1 / (1 - devices.dropout):.2f}."
        )
    random = np.random.default_rng(seed)
    crowd = _Crowd(devices, random)
    starts, waits = np.zeros(plan.rounds), np.zeros(plan.rounds)
    hour, attempts, done, end_hour = 0.0, 0, 0, plan.max_days * 24
    while done < plan.rounds:
        chosen, full = crowd.invite(hour, invited, end_hour, plan.timer_hours)
        if chosen is None:
            break
        attempts += 1
        crowd.take_part(chosen, done)
        stay = random.random(invited) >= devices.dropout
        reports = devices.report_minutes * np.exp(devices.report_spread * random.standard_normal(int(stay.sum())))
        last = float(np.partition(reports, goal - 1)[goal - 1]) if len(reports) >= goal else math.inf
        if last <= plan.timeout_minutes:
            starts[done], waits[done] = hour, full - hour
            done += 1
        hour = full + min(last, plan.timeout_minutes) / 60
    if done == 0:
        raise Refused(
            f"Not one round was finished in {plan.max_days:g} days; raise timeout_minutes, over_selection or "
            f"check_ins_per_day, or lower report_goal."
        )
    return _observed(devices, plan, crowd, done, attempts, hour, starts[:done], waits[:done])


class _Crowd:
    """Every device: how often and when it checks in, whether it rests, and what it took part in.

    The first `awake` of `pool` may be invited; the others rest, and are in `resting` with the hour they come back.
    `activity` is in the order of the pool, everything else in that of the devices.
    """

    def __init__(self, devices: Devices, random: np.random.Generator) -> None:
        population = devices.population
        self.random, self.devices = random, devices
        spread = devices.activity_spread
        activity = np.exp(spread * random.standard_normal(population, np.float32) - spread**2 / 2)
        self.activity = np.minimum(activity, BUSIEST, out=activity)
        self.activity /= self.activity.mean() * BUSIEST
        np.minimum(self.activity, 1, out=self.activity)
        self.zone = devices.zone_spread_hours * random.standard_normal(population, np.float32)
        self.pool = np.arange(population, dtype=index_type(population))
        self.awake = population
        self.share = 1 / (2 * BUSIEST)  # of the candidates, those who check in, as last seen
        self.resting: deque[tuple[float, np.ndarray, np.ndarray]] = deque()
        self.last = np.full(population, NEVER, np.int32)
        self.closest = np.full(population, np.iinfo(np.int32).max, np.int32)
        self.count = np.zeros(population, np.int32)

    def by_day(self, hour: np.ndarray) -> np.ndarray:
        """The share of its largest rate at which a device checks in at this local hour."""
        least = 1 / self.devices.night_to_day
        return least + (1 - least) * (1 + np.cos((hour - self.devices.peak_hour) * (math.pi / 12))) / 2

    def invite(self, hour: float, wanted: int, end_hour: float, timer: float) -> tuple[np.ndarray | None, float]:
        """The first devices to check in from `hour` on, and the hour at which there are enough of them; None if there
        are not before the end.

        Check-ins are thinned out of a stream in which every device could be any (Lewis and Shedler): a candidate stays
        with its own rate at that hour, and not if it was invited already.
        """
        # Averaged over a day the curve is midway between night and day, so that check_ins_per_day is what it says.
        fastest = self.devices.check_ins_per_day / 24 * BUSIEST / ((1 + 1 / self.devices.night_to_day) / 2)
        chosen: list[tuple[np.ndarray, np.ndarray]] = []
        missing = wanted
        while hour < end_hour:
            self.wake(hour)
            # Never many more candidates at once than are likely to be needed; the rest of the step is looked at anew.
            rate, most = self.awake * fastest, 1.1 * missing / self.share + 64
            until = min(hour + STEP_HOURS, end_hour, hour + most / rate if rate else math.inf)
            count = int(self.random.poisson(rate * (until - hour)))
            places = self.random.integers(0, max(self.awake, 1), count, dtype=self.pool.dtype)
            # Thinned by the device first and by the hour after, so that only those who pass the one cost the other.
            places = places[self.random.random(count, np.float32) < self.activity[places]]
            times = hour + (until - hour) * np.sort(self.random.random(len(places)))
            likely = self.by_day(times + self.zone[self.pool[places]])
            kept = np.flatnonzero(self.random.random(len(places)) < likely)
            if count > 1000:
                self.share = max(len(kept) / count, 1e-3)
            _, first = np.unique(places[kept], return_index=True)
            kept = kept[np.sort(first)][:missing]
            chosen.append(self.rest(places[kept]))
            missing -= len(kept)
            if not missing:
                full = float(times[kept[-1]])
                users, activity = (np.concatenate(parts) for parts in zip(*chosen, strict=True))
                self.resting.append((full + timer, users, activity))
                return users, full
            hour = until
        return None, hour

    def rest(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Takes the devices at these places of the pool out of it: the devices and their activity."""
        boundary = self.awake - len(places)
        tail = np.ones(len(places), bool)
        tail[places[places >= boundary] - boundary] = False
        taken = (self.pool[places], self.activity[places])
        for array in (self.pool, self.activity):
            array[places[places < boundary]] = array[boundary : self.awake][tail]
        self.awake = boundary
        return taken

    def wake(self, hour: float) -> None:
        """Puts devices whose timer is over back into the pool."""
        while self.resting and self.resting[0][0] <= hour:
            _, users, activity = self.resting.popleft()
            after = self.awake + len(users)
            self.pool[self.awake : after], self.activity[self.awake : after] = users, activity
            self.awake = after

    def take_part(self, users: np.ndarray, round: int) -> None:
        last = self.last[users]
        again = last != NEVER
        # Twice in one round, after an attempt that was given up, is once: a row of noise protects one sum.
        gap = np.where(again & (last != round), round - last, np.iinfo(np.int32).max)
        self.closest[users] = np.minimum(self.closest[users], gap)
        self.count[users] += last != round
        self.last[users] = round


def _observed(
    devices: Devices,
    plan: Rounds,
    crowd: _Crowd,
    done: int,
    attempts: int,
    hours: float,
    starts: np.ndarray,
    waits: np.ndarray,
) -> Observed:
    count = crowd.count[crowd.count > 0]
    closest = crowd.closest[crowd.closest < np.iinfo(np.int32).max]
    whole_days = max(int(hours // 24), 1)
    by_day = np.bincount((starts // 24).astype(int), minlength=whole_days)[:whole_days]
    return Observed(
        devices=devices,
        plan=plan,
        rounds=done,
        days=hours / 24,
        attempts=attempts,
        min_separation=int(closest.min()) if len(closest) else None,
        separation_percentiles=percentiles(closest),
        max_participations=int(count.max(initial=0)),
        participation_percentiles=percentiles(count),
        participants=len(count),
        rounds_per_day={"mean": done / (hours / 24), **percentiles(by_day)},
        waiting_minutes=percentiles(60 * waits),
        by_day=[int(value) for value in by_day],
    )


def percentiles(values: np.ndarray) -> dict[str, float]:
    """Percentiles 1, 10, 50, 90 and 99; empty where there is nothing."""
    if not len(values):
        return {}
    return {f"p{q}": float(np.percentile(values, q)) for q in (1, 10, 50, 90, 99)}
