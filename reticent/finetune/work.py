"""The work of `els`, `uls` and `dpsgd`: what is drawn, for whom the guarantee is, and how it is summed."""

import abc
import math
from collections.abc import Mapping
from typing import Any

import jax

from reticent.config import RunFile
from reticent.config.datacenter import POISSON
from reticent.data.store import Store
from reticent.errors import Refused
from reticent.finetune.bookkeeping import supports
from reticent.finetune.pool import Pool, check_shared, make_pool, nobody_has
from reticent.finetune.sources import ExamplesOfUsers, OfExamples, OfUsers, Source
from reticent.finetune.sums import Single, Together, UnitSums
from reticent.finetune.trial import micro_batch
from reticent.models import Model
from reticent.population import sampler_of
from reticent.population.epochs import ShuffledEpochs
from reticent.population.pooled import PooledPoisson
from reticent.privacy.clipping import Clipping
from reticent.privacy.grid import Grid
from reticent.training.planted import Planted
from reticent.training.setup import Data, Setup
from reticent.training.updates import CohortSums
from reticent.training.work import SAMPLER_KEYS, Sums, Work, largest_cohort, local_work, user_sampler

__all__ = ["work_of"]


def work_of(run_file: RunFile, data: Data, model: Model, planted: Planted, stored: Mapping[str, Any] | None) -> Work:
    """The work of a run file, for `reticent.training.train`: els, uls or dpsgd."""
    kinds: dict[str, type[_Datacenter]] = {"els": ExampleLevelSampling, "uls": UserLevelSampling, "dpsgd": Examples}
    if run_file.run.algorithm not in kinds:
        raise Refused(f"{run_file.run.algorithm!r} is no datacenter algorithm; those are {', '.join(kinds)}.")
    return kinds[run_file.run.algorithm](run_file, data, model, stored)


class _Datacenter(Work):
    """What the three have in common. `source` says whose gradients are clipped."""

    source: Source

    def __init__(self, run_file: RunFile, data: Data, model: Model, stored: Mapping[str, Any] | None) -> None:
        self.run_file, self.data, self.model = run_file, data, model
        self.table = run_file.data
        assert run_file.population
        assert run_file.clipping
        self.population, self.clipping = run_file.population, run_file.clipping
        self._draw()
        self.rows = None if stored is None else stored.get("micro_batch")

    @abc.abstractmethod
    def _draw(self) -> None:
        """Sets `sampler` and `source`."""

    @property
    def together(self) -> bool:
        """Whether gradients are clipped without making single ones: what the guarantee has to know."""
        asked, table = self.clipping.gradients, self.clipping
        if asked == "together" and not supports(self.model):
            raise Refused(
                f"A model of kind {self.model.kind!r} cannot clip gradients together; leave clipping.gradients out."
            )
        possible = supports(self.model) and table.style == "flat" and table.zero_above is None
        return asked != "single" and possible and table.estimator == "fixed"

    def rounding(self, dimension: int, clip_norm: float, grid: Grid) -> dict[str, Any]:
        # Two float sums that differ by a clip norm, each rounded once, differ by one step in every entry more.
        return {"rounding": grid.step * math.sqrt(dimension) / clip_norm} if self.together else {}

    @property
    def description(self) -> dict[str, Any]:
        told: dict[str, Any] = {"gradients": "together" if self.together else "single"}
        if self.micro_batch is not None:
            told["micro_batch"] = self.micro_batch
        if self.population.accounted_as:
            told["estimate"] = "cohorts were shuffled, and accounted as if they were Poisson-sampled"
        return told

    @property
    def micro_batch(self) -> int | None:
        """The rows computed at once: of the run file, of the run that is resumed, or by trial."""
        if self.rows is None:
            self.rows = self.run_file.client.micro_batch or self._tried()
        return self.rows

    def _tried(self) -> int:
        # No gradient is kept, so any grid will do.
        how = self._how(Clipping(1.0, Grid(-20)))
        params = self.model.init(jax.random.key(0))
        return micro_batch(how, params, self.source.tallest, self.source.sequence_length)

    def _how(self, clipping: Clipping) -> Together | Single:
        return Together(self.model, clipping) if self.together else Single(self.model, clipping)

    def sums(self, setup: Setup, texts: Store | None) -> Sums:
        assert self.micro_batch is not None
        return UnitSums(self._how(setup.clipping), self.source, self.micro_batch, largest_cohort(self.sampler))

    def _event(self, event: dict[str, Any]) -> dict[str, Any]:
        """What is accounted: the sampler's event, unless the run file says what practice takes it for."""
        if self.population.accounted_as is None:
            return event
        assert self.population.size is not None
        return {"kind": "poisson", "probability": min(1.0, self.sampler.expected_cohort / self._public)}

    @property
    def _public(self) -> int:
        """The public estimate of what is drawn from."""
        assert self.population.size is not None
        return self.population.size

    def _pool(self, most: int | None) -> Pool:
        table = self.table
        return make_pool(self.data.train, table.sequence_length, most, self.run_file.run.seed, table.packed)


class UserLevelSampling(_Datacenter):
    """`uls` (ULDP, Alg. 2): users, up to G examples of each, one clipped gradient, or local training, per user."""

    def _draw(self) -> None:
        most = self.table.max_examples_per_user
        assert most is not None
        self.sampler = user_sampler(self.run_file, self.data.train.users)
        if self.run_file.client.local_training:
            return
        self.source = OfUsers(
            self.data.train,
            self.table.sequence_length,
            most,
            self.run_file.run.seed,
            self.table.packed,
            self.table.max_tokens_per_user,
            self.clipping.weight_cap,
        )
        if self.source.heights[-1] < most and self.table.max_tokens_per_user is None:
            raise Refused(nobody_has(most))

    @property
    def together(self) -> bool:
        return not self.run_file.client.local_training and super().together

    @property
    def accounting(self) -> dict[str, Any]:
        return {"participation": self._event(self.sampler.event), "unit": "user"}

    @property
    def micro_batch(self) -> int | None:
        return None if self.run_file.client.local_training else super().micro_batch

    def sums(self, setup: Setup, texts: Store | None) -> Sums:
        if not self.run_file.client.local_training:
            return super().sums(setup, texts)
        work = local_work(self.run_file)
        return CohortSums(setup.model, setup.data.train, work, setup.clipping, self.run_file.run.seed)


class ExampleLevelSampling(_Datacenter):
    """`els` (ULDP, Alg. 1): examples of at most G of each user, each gradient clipped; the guarantee is the user's."""

    def _draw(self) -> None:
        table, most = self.population, self.table.max_examples_per_user
        assert most is not None
        self.most = most
        self.pool = self._pool(most)
        check_shared(self.pool, "lower data.max_examples_per_user, or train on more people's text")
        rounds = self.run_file.run.rounds
        self.source = OfExamples(self.pool)
        if table.sampler in POISSON:
            assert table.probability is not None
            self.sampler = PooledPoisson(
                population=self.pool.size,
                rounds=rounds,
                groups=table.groups or 1,
                probability=table.probability,
                group_size=most,
                public_examples=self._public,
                starts=self.pool.starts,
            )
        elif table.accounted_as:
            assert table.report_goal is not None
            self.sampler = ShuffledEpochs(self.pool.size, rounds, table.report_goal)
        else:
            assert self.table.max_examples_per_round is not None
            self.each = self.table.max_examples_per_round
            self.sampler = user_sampler(self.run_file, self.data.train.users)
            self.source = ExamplesOfUsers(self.pool, self.each, self.run_file.run.seed)

    @property
    def _public(self) -> int:
        if self.population.examples is not None:
            return self.population.examples
        if self.population.size is None:
            raise Refused(
                "els divides by the number of examples expected; give population.examples or population.size."
            )
        return self.population.size * self.most

    @property
    def accounting(self) -> dict[str, Any]:
        size = self.each if isinstance(self.source, ExamplesOfUsers) else self.most
        told: dict[str, Any] = {"participation": self._event(self.sampler.event), "unit": "user"}
        return told | ({"group_size": size} if size > 1 else {})

    @property
    def description(self) -> dict[str, Any]:
        chosen = {"examples_per_user": self.most, "seed": self.run_file.run.seed}
        return {**super().description, "sub_dataset": chosen}


class Examples(_Datacenter):
    """`dpsgd`: examples drawn whoever they are of, each gradient clipped; the guarantee is for an example."""

    def _draw(self) -> None:
        self.pool = self._pool(self.table.max_examples_per_user)
        check_shared(self.pool, "a guarantee for single examples tells next to nothing of that user: use els or uls")
        table = self.population.model_dump(include=SAMPLER_KEYS)
        self.sampler = sampler_of(table, self.pool.size, self.run_file.run.rounds)
        self.source = OfExamples(self.pool)

    @property
    def accounting(self) -> dict[str, Any]:
        return {"participation": self._event(self.sampler.event), "unit": "example"}
