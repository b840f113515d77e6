"""Random participation: Poisson and fixed-size cohorts, from everybody or from cyclic groups.

Cyclic groups are how a banded mechanism is amplified (BandMF, Alg. 2 and 6): users are put into groups without looking
at their data, and round i draws from group i mod `groups` only.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from reticent.errors import Refused
from reticent.population.sampler import ORDER, Sampler, SamplerState, check_probability, index_type, whole


@dataclass(frozen=True)
class Poisson(Sampler):
    """Every user is there independently with `probability` (DP-FedAvg, Alg. 1): accounted under add-or-remove.

    The size of a cohort is random, and private: divide by `expected_cohort`, which follows from the public estimate of
    the population that the probability was chosen by, not from `population`.
    """

    probability: float
    public_population: int | None = None

    kind: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability(self.probability)
        if self.public_population is not None:
            whole("public_population", self.public_population)

    @property
    def event(self) -> dict[str, Any]:
        return {"kind": "poisson", "probability": self.probability}

    @property
    def expected_cohort(self) -> float:
        return self.probability * public(self)

    def _draw(self, state: SamplerState) -> np.ndarray:
        return state.stream().bernoulli(self.population, self.probability)


@dataclass(frozen=True)
class FixedSize(Sampler):
    """`report_goal` different users, every set of them equally likely: accounted under replace-one, so the population's
    size is public by the choice of adjacency."""

    report_goal: int
    public_population: int | None = None

    kind: ClassVar[str] = "fixed"

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("report_goal", self.report_goal)
        if self.report_goal > self.population:
            raise Refused(
                f"A cohort of {self.report_goal} cannot be drawn from {self.population} users; lower report_goal."
            )
        at_most(self)

    @property
    def event(self) -> dict[str, Any]:
        return {"kind": "fixed", "cohort": self.report_goal, "population": at_most(self)}

    @property
    def expected_cohort(self) -> float:
        return float(self.report_goal)

    def _draw(self, state: SamplerState) -> np.ndarray:
        return state.stream().subset(self.population, self.report_goal)


@dataclass(frozen=True)
class _Cyclic(Sampler):
    groups: int

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("groups", self.groups)
        if self.groups > self.population:
            raise Refused(f"{self.population} users cannot make {self.groups} groups; lower groups.")

    @property
    def smallest_group(self) -> int:
        """Groups differ in size by one at most; nobody is left out."""
        return self.population // self.groups

    def _derived(self, state: SamplerState) -> dict[str, np.ndarray]:
        order = state.stream(ORDER).permutation(self.population)
        return {"order": order.astype(index_type(self.population))}

    def _group(self, state: SamplerState) -> np.ndarray:
        return state.derived["order"][state.round % self.groups :: self.groups]


@dataclass(frozen=True)
class CyclicPoisson(_Cyclic):
    """Round i takes every user of group i mod `groups` independently with `probability`: add-or-remove, as if in
    ceil(rounds / groups) rounds (BandMF, Thm. 5). At most one band per group; groups are drawn from user numbers."""

    probability: float
    public_population: int | None = None

    kind: ClassVar[str] = "cyclic-poisson"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability(self.probability)
        if self.public_population is not None:
            whole("public_population", self.public_population)

    @property
    def event(self) -> dict[str, Any]:
        return {
            "kind": "cyclic",
            "sampling": "poisson",
            "groups": self.groups,
            "smallest_group": public(self) // self.groups,
            "probability": self.probability,
        }

    @property
    def expected_cohort(self) -> float:
        return self.probability * public(self) / self.groups

    def _draw(self, state: SamplerState) -> np.ndarray:
        group = self._group(state)
        return group[state.stream().bernoulli(len(group), self.probability)]


@dataclass(frozen=True)
class CyclicFixed(_Cyclic):
    """Round i draws `report_goal` different users of group i mod `groups` (BandMF, Alg. 2): replace-one, and the
    probability of the smallest group is the one that counts."""

    report_goal: int
    public_population: int | None = None

    kind: ClassVar[str] = "cyclic-fixed"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_most(self)
        whole("report_goal", self.report_goal)
        if self.report_goal > self.smallest_group:
            raise Refused(
                f"A cohort of {self.report_goal} cannot be drawn from groups of {self.smallest_group}; "
                f"use at most {self.population // self.report_goal} groups."
            )

    @property
    def event(self) -> dict[str, Any]:
        return {
            "kind": "cyclic",
            "sampling": "fixed",
            "groups": self.groups,
            "smallest_group": at_most(self) // self.groups,
            "cohort": self.report_goal,
        }

    @property
    def expected_cohort(self) -> float:
        return float(self.report_goal)

    def _draw(self, state: SamplerState) -> np.ndarray:
        group = self._group(state)
        return group[state.stream().subset(len(group), self.report_goal)]


def public(sampler: Poisson | CyclicPoisson) -> int:
    """The population's public estimate; under add-or-remove the count itself is private."""
    if sampler.public_population is None:
        raise Refused(
            "The expected cohort needs a public estimate of the population: under add-or-remove adjacency the number "
            "of users is itself private. Give public_population (see reticent.population.estimates)."
        )
    return sampler.public_population


def at_most(sampler: FixedSize | CyclicFixed) -> int:
    """The population that fixed-size sampling is accounted with: the public estimate, which must not be above the users
    there are, since each would then be likelier to be drawn than stated; without one, these users."""
    if sampler.public_population is None:
        return sampler.population
    whole("public_population", sampler.public_population)
    if not sampler.report_goal <= sampler.public_population <= sampler.population:
        raise Refused(
            f"A fixed-size cohort of {sampler.report_goal:,} is accounted with a population of "
            f"{sampler.public_population:,}, and there are {sampler.population:,} users; give a public_population "
            f"between the two."
        )
    return sampler.public_population
