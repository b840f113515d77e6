"""Device timers by rounds: cohorts of a fixed size in which nobody comes back too soon."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from reticent.errors import Refused
from reticent.mechanisms.participation import Participation
from reticent.population.sampler import ORDER, Sampler, SamplerState, deterministic, index_type, whole


@dataclass(frozen=True)
class MinSeparated(Sampler):
    """`report_goal` users a round, drawn evenly from those whose last round is at least `min_separation` rounds ago
    (b-min-sep participation, BandMF, Def. 1; the timers of Gboard, Sec. 2.2).

    With `max_participations` nobody takes part for the (i+1)-th time while somebody who rests no more has taken part
    less than i times, which is what lets a cap be kept to the end. Where more users are invited than the goal, give the
    number invited: each of them counts. A round costs time in proportion to `report_goal`; the state holds one integer
    per user (and with a cap, two).
    """

    report_goal: int
    min_separation: int
    max_participations: int | None = None

    kind: ClassVar[str] = "min-separated"

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("report_goal", self.report_goal)
        Participation(self.rounds, self.min_separation, self.max_participations)
        if self.report_goal > self.population:
            raise Refused(
                f"A report goal of {self.report_goal:,} cannot be met by {self.population:,} users; lower it."
            )
        if self.report_goal * self.min_separation > self.population:
            raise Refused(
                f"A min_separation of {self.min_separation:,} rounds with a report goal of {self.report_goal:,} needs "
                f"{self.report_goal * self.min_separation:,} users and there are {self.population:,}; the largest "
                f"min_separation that can be kept is {self.population // self.report_goal:,}."
            )
        fewest = -(-self.rounds * self.report_goal // self.population)
        if self.max_participations is not None and self.max_participations < fewest:
            raise Refused(
                f"{self.rounds:,} rounds of {self.report_goal:,} out of {self.population:,} users need somebody to "
                f"take part {fewest} times; raise max_participations from {self.max_participations} to {fewest}, or "
                f"run at most {self.max_participations * self.population // self.report_goal:,} rounds."
            )

    @property
    def participation(self) -> Participation:
        return Participation(self.rounds, self.min_separation, self.max_participations)

    @property
    def event(self) -> dict[str, Any]:
        return deterministic(self.participation)

    @property
    def expected_cohort(self) -> float:
        return float(self.report_goal)

    def _arrays(self, state: SamplerState) -> dict[str, np.ndarray]:
        # The first `min_separation * report_goal` places of `order` are a ring of resting cohorts, one slot a round;
        # the others are the pool. The cohort in a round's own slot is the one that has just finished its rest. Of the
        # pool, the first `fresh` have taken part `level` times only. The clock holds round, `fresh` and `level`.
        order = state.stream(ORDER).permutation(self.population).astype(index_type(self.population))
        pool = self.population - self.report_goal * self.min_separation
        arrays = {"clock": np.array([0, pool, 0], np.int64), "order": order}
        if self.max_participations is not None:
            arrays["counts"] = np.zeros(self.population, np.uint16 if self.rounds < 2**16 else np.uint32)
        return arrays

    def _draw(self, state: SamplerState) -> np.ndarray:
        clock, order, counts = state.arrays["clock"], state.arrays["order"], state.arrays.get("counts")
        if clock[0] != state.round:
            raise Refused("This sampler state was used already; go on with the state that `cohort` handed back.")
        goal, ring = self.report_goal, self.report_goal * self.min_separation
        place = state.round % self.min_separation * goal
        slot, pool = order[place : place + goal], order[ring:]
        fresh, level = int(clock[1]), int(clock[2])
        stream = state.stream()

        rested = np.ones(goal, bool) if counts is None else counts[slot] == level
        first_choice = np.flatnonzero(rested)
        if len(first_choice) + fresh >= goal:
            from_slot, from_pool = _split(stream.subset(len(first_choice) + fresh, goal), first_choice)
            stay = _mask(from_slot, goal)
            arriving, done = slot[~stay & rested], slot[~stay & ~rested]
            cohort = np.concatenate([slot[stay], pool[from_pool]])
            clock[1] = _refill(pool, from_pool, arriving, done, fresh)
        else:
            # The last of this level, all of whom have rested, and for the remainder of the goal some of the next.
            second_choice = np.flatnonzero(~rested)
            more = goal - len(first_choice) - fresh
            from_slot, from_pool = _split(stream.subset(len(second_choice) + len(pool) - fresh, more), second_choice)
            stay = _mask(np.concatenate([first_choice, from_slot]), goal)
            vacated = np.concatenate([np.arange(fresh), fresh + from_pool])
            cohort = np.concatenate([slot[stay], pool[vacated]])
            pool[vacated] = slot[~stay]
            clock[1:] = len(pool), level + 1
        slot[:] = cohort
        if counts is not None:
            counts[cohort] += 1
        clock[0] += 1
        return cohort


def _split(chosen: np.ndarray, candidates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Chosen numbers below len(candidates) stand for those candidates, the others for places of the pool."""
    inside = chosen < len(candidates)
    return candidates[chosen[inside]], chosen[~inside] - len(candidates)


def _mask(places: np.ndarray, length: int) -> np.ndarray:
    mask = np.zeros(length, bool)
    mask[places] = True
    return mask


def _refill(pool: np.ndarray, vacated: np.ndarray, arriving: np.ndarray, done: np.ndarray, fresh: int) -> int:
    """Puts the users who come out of the ring into the vacated places, all below `fresh`, keeping those who are done
    with this level behind the others; returns the new `fresh`."""
    boundary = fresh - len(done)
    tail = np.ones(len(done), bool)
    tail[vacated[vacated >= boundary] - boundary] = False
    moving = pool[boundary:fresh][tail]
    pool[vacated[vacated < boundary]] = np.concatenate([moving, arriving])
    pool[boundary:fresh] = done
    return boundary
