"""Group sizes and cohorts for ELS and ULS under a budget of gradients per round (ULDP, App. H and I).

ELS: at most the median number of examples of a user. ULS: Estimate-and-Double (Alg. 3). What is read off the data are
two kinds of numbers: how many examples users have, and how long their gradients are. Both go through histograms in
which every user is one count; on private data each count gets Gaussian noise, and the guarantee of that is composed
with the run's.
"""

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from reticent.accounting.composition import record
from reticent.accounting.gaussian import rho_of_gaussian
from reticent.accounting.guarantee import Guarantee
from reticent.accounting.losses import Gaussian
from reticent.accounting.run import calibrated
from reticent.config import RunFile
from reticent.data.batches import client_rows
from reticent.data.store import Store
from reticent.errors import Refused
from reticent.finetune.bookkeeping import clipped_sums, supports
from reticent.finetune.sources import OfUsers
from reticent.finetune.sums import loss_of_unit
from reticent.models import Model
from reticent.models.clients import map_clients
from reticent.population.keystream import Keystream, secret_key
from reticent.privacy.norms import norm_of

FIRST_GROUP, FIRST_COHORT = 1, 32
# Half an octave apart, and a quarter.
COUNTS = np.unique(np.round(2.0 ** (np.arange(0, 41) / 2)).astype(np.int64))
NORMS = 2.0 ** (np.arange(-48, 49) / 4)
MOST_GROUP = 1024
ROWS = 64


@dataclass(frozen=True)
class Histograms:
    """What was read: users by the examples they have, and by the norm of their gradient for each group size. The medians
    are all that is made of them."""

    counts: np.ndarray
    norms: dict[int, np.ndarray]
    users: float

    @property
    def median_examples(self) -> int:
        return int(COUNTS[_median(self.counts)])

    def examples(self, most: int) -> float:
        """Examples there are, at most `most` of each user; of users as there are in the histogram."""
        return float(np.maximum(self.counts, 0) @ np.minimum(COUNTS, most))

    def norm(self, group: int) -> float:
        """L_ULS(G), the median norm of a user's gradient over G of its examples (ULDP, eq. 8)."""
        return float(NORMS[_median(self.norms[group])])


def read(
    model: Model, params: Any, store: Store, run_file: RunFile, groups: list[int], users: int, noise: float | None
) -> Histograms:
    """Both kinds of histograms of a store; norms over about `users` of its users, by the public estimate of how many there
    are. `noise` is the standard deviation of every count, None for public data: its sums are then exact."""
    assert run_file.population
    assert run_file.population.size is not None
    table, seed = run_file.data, run_file.run.seed
    counts = np.zeros(store.users, np.int64)
    for first in range(0, store.users, 1 << 16):
        part = np.arange(first, min(first + (1 << 16), store.users))
        rows = client_rows(store, part, table.sequence_length, None, None, 0, table.packed)
        counts[part] = np.bincount(rows.client, minlength=len(part))
    some = counts[counts > 0]
    place = np.minimum(np.searchsorted(COUNTS, some), len(COUNTS) - 1)
    # Not by the number of users there are, which is as private as who they are.
    share = min(1.0, users / (store.users if noise is None else run_file.population.size))
    chosen = Keystream(secret_key(), 0, 0).bernoulli(store.users, share)
    norms = {}
    for number, group in enumerate(groups):
        source = OfUsers(store, table.sequence_length, group, seed, table.packed)
        source.heights = (group,)  # one computation to compile for each
        found = _norms(model, params, source, chosen, number)
        binned = np.clip(np.searchsorted(NORMS, found), 0, len(NORMS) - 1)
        norms[group] = _noised(np.bincount(binned, minlength=len(NORMS)), noise)
    noised = _noised(np.bincount(place, minlength=len(COUNTS)), noise)
    return Histograms(noised, norms, float(noised.sum()))


def guarantee_of_reading(noise: float, groups: int) -> Guarantee:
    """What `read` costs: one user is one count in each of 1 + groups histograms."""
    return Guarantee(
        parts=(Gaussian(math.sqrt(1 + groups) / noise),),
        unit="user",
        adjacency="add-or-remove",
        also_holds_for=("zero-out",),
        assumptions=(
            f"group sizes were chosen from {1 + groups} histograms of users, with Gaussian noise of {noise:.6g} per count",
        ),
        accounting=f"one Gaussian over {1 + groups} histograms, for choosing group sizes",
        noise_multiplier=noise,
        sensitivity=math.sqrt(1 + groups),
    )


def noise_for(epsilon: float, delta: float, groups: int) -> float:
    """The noise per count at which reading keeps to epsilon at delta."""
    return math.sqrt((1 + groups) / (2 * rho_of_gaussian(epsilon, delta)))


def record_of(guarantee: Guarantee) -> dict[str, Any]:
    """As `privacy.composed_with` takes it."""
    return record(guarantee)


@dataclass(frozen=True)
class Split:
    """A way to spend a budget of gradients per round: `predicted` is the standard deviation of the noise in an entry of
    the averaged gradient (ULDP, eqs. 5 and 6). `drawn` are expected: users for ULS, examples for ELS."""

    algorithm: str
    budget: int
    group: int
    drawn: float
    probability: float
    noise_multiplier: float
    norm: float

    @property
    def predicted(self) -> float:
        return self.noise_multiplier * self.norm / self.drawn


Sigma = Callable[[float, int], float]
"""From a sampling probability and a group size to the noise multiplier that keeps to the target."""


def sigma_of(run_file: RunFile) -> Sigma:
    """The noise multiplier of a run file's target under Poisson sampling and independent noise (ULDP, Thms. 1 and 2)."""
    assert run_file.privacy
    if run_file.privacy.epsilon is None:
        raise Refused("Group sizes are chosen for a target: give privacy.epsilon, and leave noise_multiplier out.")
    epsilon, delta, rounds = run_file.privacy.epsilon, run_file.delta, run_file.run.rounds
    known: dict[tuple[float, int], float] = {}

    def sigma(probability: float, group: int) -> float:
        key = (probability, group)
        if key not in known:
            accounting: Mapping[str, Any] = {
                "rounds": rounds,
                "mechanism": "independent",
                "participation": {"kind": "poisson", "probability": probability},
                "group_size": group,
            }
            known[key] = calibrated(accounting, delta, epsilon=epsilon)
        return known[key]

    return sigma


def estimate_and_double(
    norm: Callable[[int], float],
    noise: Callable[[int], float],
    budget: int,
    users: int,
    most_group: int,
    group: int = FIRST_GROUP,
    cohort: int = FIRST_COHORT,
) -> list[tuple[int, int]]:
    """(G, M) from the first to the one that spends the budget (ULDP, Alg. 3): each time that of G and M is doubled which
    makes the noise of an average, L(G) `noise`(M), smaller. `norm` is L_ULS. A cohort beyond all users, or a group beyond
    `most_group`, is not doubled.

    The noise of an average over M is sigma(M) / M (eq. 6). Eqs. 9 to 11 print sigma(M) alone, which grows with M, so that
    no cohort would ever be doubled.
    """
    cohort = min(cohort, users)
    path = [(group, cohort)]
    while group * cohort < budget:
        larger_group, larger_cohort = 2 * group <= most_group, 2 * cohort <= users
        if not larger_group and not larger_cohort:
            break
        by_group = norm(2 * group) / norm(group) if larger_group else math.inf
        by_cohort = noise(2 * cohort) / noise(cohort) if larger_cohort else math.inf
        if by_group < by_cohort:
            group *= 2
        else:
            cohort *= 2
        path.append((group, cohort))
    return path


def splits(
    found: Histograms, sigma: Sigma, budget: int, users: int, examples: int | None = None
) -> list[tuple[Split, Split | None]]:
    """ULS and ELS side by side (ULDP, Fig. 2), for each budget on the way of Estimate-and-Double to this one. ELS is None
    where a budget is more than all examples it draws from. `users` and `examples` are public estimates."""
    most = found.median_examples
    pool = examples if examples is not None else found.examples(most) * users / max(found.users, 1.0)
    table = []
    groups = max(found.norms)
    for group, cohort in estimate_and_double(
        found.norm, lambda cohort: sigma(cohort / users, 1), budget, users, groups
    ):
        spent, probability = group * cohort, cohort / users
        ours = Split("uls", spent, group, cohort, probability, sigma(probability, 1), found.norm(group))
        other = None
        if spent < pool:
            chance = spent / pool
            other = Split("els", spent, most, spent, chance, sigma(chance, most), found.norm(1))
        table.append((ours, other))
    return table


def group_sizes_up_to(most: int) -> list[int]:
    """1, 2, 4 and so on: those that Estimate-and-Double may ask about."""
    return [2**power for power in range(int(math.log2(max(most, 1))) + 1)]


def _norms(model: Model, params: Any, source: OfUsers, users: np.ndarray, round: int) -> np.ndarray:
    @jax.jit
    def norms(params: Any, tokens: jax.Array) -> jax.Array:
        if supports(model):
            return clipped_sums(model, params, tokens, 1.0).norms

        def one(rows: jax.Array) -> jax.Array:
            return norm_of(jax.grad(lambda params: loss_of_unit(model, params, rows))(params))[0]

        return map_clients(one, tokens)

    found = [np.zeros(0)]
    for tokens, weights in source.micro_batches(users, round, max(ROWS, source.heights[-1])):
        found.append(np.asarray(norms(params, tokens))[weights > 0])
    return np.concatenate(found)


def _noised(counts: np.ndarray, noise: float | None) -> np.ndarray:
    if noise is None:
        return counts.astype(np.float64)
    draw = secrets.SystemRandom()
    # Rounded: post-processing of the noised count of a whole number.
    return counts + np.array([round(draw.gauss(0.0, noise)) for _ in counts], np.float64)


def _median(histogram: np.ndarray) -> int:
    """The bin in which the cumulative count passes half: of the smoothest rising curve near the noised one."""
    cumulative = np.cumsum(histogram)
    # The mean of the two monotone curves around it, so that noise in the tails does not move the middle.
    above, below = np.maximum.accumulate(cumulative), np.minimum.accumulate(cumulative[::-1])[::-1]
    rising = (above + below) / 2
    return int(min(np.searchsorted(rising, rising[-1] / 2), len(histogram) - 1))
