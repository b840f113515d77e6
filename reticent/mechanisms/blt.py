"""Buffered linear Toeplitz mechanisms (BLT): the default, with a few model-sized buffers for any number of rounds."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from reticent.errors import Refused
from reticent.mechanisms.base import Mechanism, Sensitivity, Source, Stream, ToeplitzMechanism, all_finite
from reticent.mechanisms.gram import earliest_pattern_norm
from reticent.mechanisms.participation import Participation
from reticent.mechanisms.workload import Workload

# BLT, App. F: (theta, omega) used in production, by the min separation they were made for.
PRODUCTION = {
    "blt-100": (
        (0.989739971007307, 0.7352001759538236, 0.16776199983448145, 0.1677619998016191),
        (0.20502892852480875, 0.23357939425278557, 0.03479503245420878, 0.03479509876050538),
    ),
    "blt-400": (
        (0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778),
        (0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734),
    ),
    "blt-1000": (
        (0.99999999999983397, 0.9973412136664378, 0.9584629472313878, 0.6581796870749317),
        (0.008657392263671862, 0.05890891298180163, 0.14548176930698697, 0.2770117005326523),
    ),
}


class _BltStream(Stream):
    """BLT, Alg. 3: noise for C^-1 straight from the parameters of C."""

    def __init__(self, decays: tuple[float, ...], scales: tuple[float, ...]) -> None:
        self.decays, self.scales = np.array(decays), np.array(scales)

    def init(self, size: int) -> tuple[np.ndarray, ...]:
        return (np.zeros((len(self.decays), size)),)

    def step(
        self, state: tuple[np.ndarray, ...], round: int, source: Source
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        row = source(round, 0) - self.scales @ state[0]
        return row, (self.decays[:, None] * state[0] + row,)


@dataclass(frozen=True)
class BLT(ToeplitzMechanism):
    """C with coefficients 1, then sum_j scales[j] * decays[j]^(i-1) (BLT, eq. 2).

    Not the least noise when rounds and min separation are known exactly and memory does not matter: BandMF is some 5%
    better there, for a hundred times the buffers. A BLT runs for any number of rounds and any separation.
    """

    decays: tuple[float, ...]
    scales: tuple[float, ...]
    kind: ClassVar[str] = "blt"

    def __post_init__(self) -> None:
        object.__setattr__(self, "decays", tuple(float(decay) for decay in self.decays))
        object.__setattr__(self, "scales", tuple(float(scale) for scale in self.scales))
        if not self.decays or len(self.decays) != len(self.scales):
            raise Refused(f"A BLT has as many scales as decays, got {len(self.scales)} and {len(self.decays)}.")
        if not all_finite(*self.decays, *self.scales):
            raise Refused("The decays and scales of a BLT must be finite numbers; optimise the mechanism anew.")
        if not all(0 < decay <= 1 for decay in self.decays) or not all(scale >= 0 for scale in self.scales):
            raise Refused("The decays of a BLT lie in (0, 1] and its scales are not negative; optimise it anew.")
        # With these signs c_1, c_2, ... decay by themselves, and c_1 = sum of scales must not exceed c_0 = 1.
        if sum(self.scales) > 1:
            raise Refused(
                f"The coefficients of this BLT increase from 1 to {sum(self.scales):.6g}, where its sensitivity has no "
                "known formula; its scales must sum to at most 1."
            )

    def coefficients(self, rounds: int) -> np.ndarray:
        self.check(rounds)
        coefficients = np.ones(rounds)
        powers = np.array(self.decays)[:, None] ** np.arange(rounds - 1)
        coefficients[1:] = np.array(self.scales) @ powers
        return coefficients

    def inverse_coefficients(self, rounds: int) -> np.ndarray:
        # Alg. 3 fed with the unit impulse is the buffers' transition matrix to every power, in two levels of powers:
        # stable, where the quotient of two polynomials would lose the digits of decays near 1.
        self.check(rounds)
        scales = np.array(self.scales)
        transition = np.diag(self.decays) - scales
        block = int(np.ceil(np.sqrt(rounds)))
        fine, coarse = np.empty((block, len(scales))), np.empty((len(scales), block))
        row, column = scales, np.ones(len(scales))
        for index in range(block):
            fine[index], row = row, row @ transition
        leap = np.linalg.matrix_power(transition, block)
        for index in range(block):
            coarse[:, index], column = column, leap @ column
        return np.r_[1.0, -(fine @ coarse).T.ravel()[: rounds - 1]]

    def sensitivity(self, participation: Participation) -> Sensitivity:
        # The condition of Thm. 3.1 holds by construction (see __post_init__); the coefficients of decays within rounding
        # of 1 would fail a test of their computed values.
        norm = earliest_pattern_norm(self.coefficients(participation.rounds), participation)
        return Sensitivity(norm, True, "BLT Thm. 3.1")

    def memory(self, rounds: int) -> int:
        return len(self.decays)

    def stream(self, rounds: int) -> Stream:
        return _BltStream(self.decays, self.scales)

    def parameters(self) -> dict[str, Any]:
        return {"decays": list(self.decays), "scales": list(self.scales)}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any], arrays: dict[str, np.ndarray]) -> Mechanism:
        return cls(tuple(parameters["decays"]), tuple(parameters["scales"]))


def make(participation: Participation, objective: str, workload: Workload, size: int | None) -> BLT:
    """The BLT with the smallest loss for this participation; `size` is the most buffers it may have (default 4)."""
    from reticent.mechanisms.blt_optimize import optimize

    return optimize(participation, objective=objective, workload=workload, buffers=4 if size is None else size)


def make_100(participation: Participation, objective: str, workload: Workload, size: None) -> BLT:
    """Gboard's BLT for a min separation near 100."""
    return BLT(*PRODUCTION["blt-100"])


def make_400(participation: Participation, objective: str, workload: Workload, size: None) -> BLT:
    """Gboard's BLT for a min separation near 400: a reasonable default."""
    return BLT(*PRODUCTION["blt-400"])


def make_1000(participation: Participation, objective: str, workload: Workload, size: None) -> BLT:
    """Gboard's BLT for a min separation near 1,000."""
    return BLT(*PRODUCTION["blt-1000"])
