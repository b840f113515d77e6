"""Deterministic participation by passing over everybody: one shuffle for all epochs, or a new order within shards."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from reticent.errors import Refused
from reticent.mechanisms.participation import Participation
from reticent.population.keystream import Keystream
from reticent.population.sampler import COHORT, ORDER, Sampler, SamplerState, deterministic, index_type, whole


@dataclass(frozen=True)
class ShuffledEpochs(Sampler):
    """Shuffles once, then passes over the same cohorts in the same order: (k, b)-participation with b rounds an epoch.

    What does not fill a cohort takes no part in the run at all: `left_out` users, fewer than a cohort, chosen by the
    shuffle (BandMF, Sec. 5).
    """

    report_goal: int

    kind: ClassVar[str] = "shuffled-epochs"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_cohort(self.report_goal, self.population)

    @property
    def epoch(self) -> int:
        """Rounds in one pass."""
        return self.population // self.report_goal

    @property
    def left_out(self) -> int:
        return self.population - self.epoch * self.report_goal

    @property
    def participation(self) -> Participation:
        return Participation(self.rounds, min(self.epoch, self.rounds), exact=True)

    @property
    def event(self) -> dict[str, Any]:
        return deterministic(self.participation)

    def shuffled(self, groups: int) -> dict[str, Any]:
        """Instead of `event`: the shuffle itself as what amplifies a mechanism of up to `groups` bands (BandMF,
        Cor. F.1, which needs a whole number of turns of the groups in an epoch)."""
        if groups < 1 or self.epoch % groups:
            raise Refused(
                f"{groups} groups do not take turns evenly in an epoch of {self.epoch} rounds; use a divisor."
            )
        smallest = self.epoch // groups * self.report_goal
        return {
            "kind": "cyclic",
            "sampling": "shuffle",
            "groups": groups,
            "smallest_group": smallest,
            "cohort": self.report_goal,
        }

    @property
    def expected_cohort(self) -> float:
        return float(self.report_goal)

    def _derived(self, state: SamplerState) -> dict[str, np.ndarray]:
        return {"order": state.stream(ORDER).permutation(self.population).astype(index_type(self.population))}

    def _draw(self, state: SamplerState) -> np.ndarray:
        place = state.round % self.epoch
        return state.derived["order"][place * self.report_goal : (place + 1) * self.report_goal].copy()


@dataclass(frozen=True)
class ShuffledShards(Sampler):
    """Visits `shards` blocks of neighbouring users in turn, each visit in a new random order.

    Reads stay within one block, every epoch mixes anew, and a user can come last in one visit and first in the next:
    the separation is an epoch less the rounds of a visit, plus one. In a visit fewer than a cohort, chosen by its
    order, are passed over; they have their turn in another.
    """

    report_goal: int
    shards: int

    kind: ClassVar[str] = "shuffled-shards"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_cohort(self.report_goal, self.population)
        whole("shards", self.shards)
        if self.population // self.shards < self.report_goal:
            raise Refused(
                f"{self.shards} shards of {self.population} users cannot each fill a cohort of {self.report_goal}; "
                f"use at most {self.population // self.report_goal} shards."
            )

    @property
    def visit(self) -> int:
        """Rounds in one visit to a shard."""
        return self.population // self.shards // self.report_goal

    @property
    def participation(self) -> Participation:
        epoch = self.visit * self.shards
        separation = epoch - self.visit + 1
        return Participation(self.rounds, min(separation, self.rounds), math.ceil(self.rounds / epoch))

    @property
    def event(self) -> dict[str, Any]:
        return deterministic(self.participation)

    @property
    def expected_cohort(self) -> float:
        return float(self.report_goal)

    def _draw(self, state: SamplerState) -> np.ndarray:
        visits, place = divmod(state.round, self.visit)
        shard = visits % self.shards
        first = shard * self.population // self.shards
        after = (shard + 1) * self.population // self.shards
        # The order of a visit comes from the stream of its first round, so each of its rounds can find it again.
        if state.derived.get("visit") != visits:
            order = Keystream(state.key, COHORT, visits * self.visit).permutation(after - first)
            state.derived.update(visit=visits, order=order)
        return first + state.derived["order"][place * self.report_goal : (place + 1) * self.report_goal]


def check_cohort(report_goal: int, population: int) -> None:
    """Refuses a cohort larger than the population."""
    whole("report_goal", report_goal)
    if report_goal > population:
        raise Refused(f"A cohort of {report_goal} cannot be filled from {population} users; lower report_goal.")
