"""Examples drawn from cyclic groups of users: how a banded mechanism is amplified where a user has several examples."""

import hashlib
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from reticent.errors import Refused
from reticent.population.sampler import ORDER, Sampler, SamplerState, check_probability, whole


@dataclass(frozen=True)
class PooledPoisson(Sampler):
    """Round i takes every example of the users of group i mod `groups` independently with `probability`.

    `starts[u] : starts[u + 1]` are user u's examples, at most `group_size` of them. Users, not examples, fall into groups,
    each by a draw of its own that looks at nobody's data, so that all of a user's examples are drawn in the rounds of one
    group only: each of these sees Binom(group_size, probability) of them (ULDP, Thm. 1, with BandMF, Thm. 5). Add-or-remove.
    """

    groups: int
    probability: float
    group_size: int
    public_examples: int
    starts: np.ndarray = field(repr=False, compare=False)

    kind: ClassVar[str] = "pooled-poisson"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("groups", "group_size", "public_examples"):
            whole(name, getattr(self, name))
        check_probability(self.probability)
        if self.starts[-1] != self.population or np.diff(self.starts).max(initial=0) > self.group_size:
            raise Refused(f"The examples of the pool are not at most {self.group_size} of each user.")
        if self.groups > self.users:
            raise Refused(f"{self.users} users cannot make {self.groups} groups; lower groups.")

    @property
    def users(self) -> int:
        return len(self.starts) - 1

    @property
    def drawn_from(self) -> int:
        """The most examples that a round is drawn from."""
        if self.groups == 1:
            return self.population
        mean = self.users / self.groups
        return min(self.population, math.ceil(mean + 12 * math.sqrt(mean) + 12) * self.group_size)

    @property
    def event(self) -> dict[str, Any]:
        if self.groups == 1:
            return {"kind": "poisson", "probability": self.probability}
        return {
            "kind": "cyclic",
            "sampling": "poisson",
            "groups": self.groups,
            "groups_of": "users",
            "probability": self.probability,
        }

    @property
    def expected_cohort(self) -> float:
        return self.probability * self.public_examples / self.groups

    @property
    def digest(self) -> str:
        told = (self.kind, self.population, self.rounds, self.groups, self.probability, self.group_size)
        content = repr((*told, self.public_examples)).encode() + np.ascontiguousarray(self.starts, "<i8").tobytes()
        return hashlib.sha256(content).hexdigest()

    def _derived(self, state: SamplerState) -> dict[str, np.ndarray]:
        if self.groups == 1:
            return {}
        # Each by itself, so that one user more moves nobody else. (The remainder favours no group by more than 2^-32.)
        return {"group": (state.stream(ORDER).words(self.users) % np.uint64(self.groups)).astype(np.int32)}

    def _draw(self, state: SamplerState) -> np.ndarray:
        if self.groups == 1:
            return state.stream().bernoulli(self.population, self.probability)
        users = np.flatnonzero(state.derived["group"] == state.round % self.groups)
        counts = np.diff(self.starts)[users]
        first = np.repeat(self.starts[users] - (np.cumsum(counts) - counts), counts)
        examples = first + np.arange(counts.sum())
        return examples[state.stream().bernoulli(len(examples), self.probability)]
