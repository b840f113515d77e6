"""What an algorithm decides of a run: who or what is drawn in a round, how it is accounted, and how it is summed.

The loop, the ledger, the noise and the report are the same for all of them. Devices' rounds are here; other algorithms give
`train` their own (`reticent.finetune`).
"""

import abc
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from reticent.config import RunFile
from reticent.data.store import Store
from reticent.models import Model
from reticent.population import Sampler, sampler_of
from reticent.privacy.clipping import Contribution
from reticent.privacy.grid import Grid
from reticent.training.planted import Planted
from reticent.training.secure import SecureSums
from reticent.training.updates import CohortSums, LocalWork

if TYPE_CHECKING:
    from reticent.training.setup import Data, Setup


class Sums(Protocol):
    """The sum of a cohort's clipped contributions, in integers on the run's grid. Secret until it is noised."""

    devices: list[Any]

    def compile(self, params: Any) -> None: ...

    def __call__(self, params: Any, cohort: np.ndarray, round: int) -> Contribution: ...

    def of_nobody(self, params: Any, device: Any) -> Contribution: ...

    def close(self) -> None: ...


class Work(abc.ABC):
    """One algorithm on one run's data."""

    sampler: Sampler
    each: int = 1
    """The most clipped vectors that one member of a cohort adds to a sum."""

    @property
    def accounting(self) -> dict[str, Any]:
        """The keys of the run's accounting that say what is drawn and whom the guarantee is for."""
        return {"participation": self.sampler.event, "unit": "user"}

    @property
    def denominator(self) -> float:
        """What a sum is divided by: a constant, chosen in advance."""
        return self.sampler.expected_cohort * self.each

    @property
    def largest(self) -> int:
        """The most contributions that a sum must have room for."""
        return largest_cohort(self.sampler) * self.each

    def rounding(self, dimension: int, clip_norm: float, grid: Grid) -> dict[str, Any]:
        """The keys of the accounting that tell of a float sum rounded once; none where every contribution is on the grid."""
        return {}

    @property
    def description(self) -> dict[str, Any]:
        """What else the first line of the ledger has to say, plain JSON that may be shown."""
        return {}

    @abc.abstractmethod
    def sums(self, setup: "Setup", texts: Store | None) -> Sums:
        """What makes the sums; `texts` are those that an audit plants, of users with the numbers -1, -2, ..."""


WorkOf = Callable[[RunFile, "Data", Model, Planted, Mapping[str, Any] | None], Work]
"""From a run file, its data, its model, what an audit plants, and on resume the description the run began with, to the
work."""


class Federated(Work):
    """Devices' rounds: each member of a cohort trains on its own text (fedavg), or makes one step (fedsgd)."""

    def __init__(self, run_file: RunFile, data: "Data", planted: Planted) -> None:
        self.run_file = run_file
        self.sampler = user_sampler(run_file, data.train.users + planted.users)

    def sums(self, setup: "Setup", texts: Store | None) -> Sums:
        table = self.run_file.run
        of = (setup.model, setup.data.train, local_work(self.run_file), setup.clipping, table.seed, texts)
        if setup.aggregation is None:
            return CohortSums(*of)
        return SecureSums(setup.aggregation, setup.grid, table.simulated_row_seed, *of)


def federated(
    run_file: RunFile, data: "Data", model: Model, planted: Planted, stored: Mapping[str, Any] | None
) -> Work:
    """The work of `fedavg` and `fedsgd`."""
    return Federated(run_file, data, planted)


def user_sampler(run_file: RunFile, users: int) -> Sampler:
    """The sampler of a run file, over users."""
    assert run_file.population
    table = run_file.population.model_dump(include=SAMPLER_KEYS)
    if run_file.population.simulated_cohort is not None:
        table["report_goal"] = run_file.population.simulated_cohort
    return sampler_of(table, users, run_file.run.rounds)


SAMPLER_KEYS = {
    "size", "sampler", "report_goal", "min_separation", "max_participations", "probability", "groups", "shards",
}  # fmt: skip


def largest_cohort(sampler: Sampler) -> int:
    """How many updates a sum must have room for: of random cohorts, what is never exceeded in practice. (A sum that
    leaves the grid's 32 bits wraps around, which is as private, and wrong.)"""
    probability = getattr(sampler, "probability", None)
    if probability is None:
        return round(sampler.expected_cohort)
    drawn_from = getattr(sampler, "drawn_from", sampler.population / getattr(sampler, "groups", 1))
    mean = probability * drawn_from
    return min(math.ceil(drawn_from), math.ceil(mean + 12 * math.sqrt(mean * (1 - probability)) + 12))


def local_work(run_file: RunFile) -> LocalWork:
    """What a run file has a client do."""
    return LocalWork(
        batch_size=run_file.client.batch_size,
        sequence_length=run_file.data.sequence_length,
        learning_rate=run_file.client.learning_rate,
        epochs=run_file.client.epochs if run_file.run.algorithm in ("fedavg", "uls") else 1,
        one_step=run_file.run.algorithm == "fedsgd",
        max_examples=run_file.data.max_examples_per_user,
        max_tokens=run_file.data.max_tokens_per_user,
        packed=run_file.data.packed,
        weight_cap=run_file.clipping.weight_cap if run_file.clipping else None,
    )
