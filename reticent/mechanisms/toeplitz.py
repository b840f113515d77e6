"""Banded Toeplitz mechanisms: BandToep, optimised, and BandFHU, which needs no optimisation (BLT, App. E)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from reticent.errors import Refused
from reticent.mechanisms.band_stream import BandStream
from reticent.mechanisms.base import Mechanism, Sensitivity, Stream, ToeplitzMechanism, all_finite
from reticent.mechanisms.participation import Participation
from reticent.mechanisms.toeplitz_loss import (
    ToeplitzError,
    decaying_sensitivity,
    separate_sensitivity,
    square_root_coefficients,
)
from reticent.mechanisms.workload import Workload


def check_bands(bands: int | None, participation: Participation) -> int:
    """The number of bands asked for, by default as many as the separation; refuses more bands than rounds."""
    if bands is None:
        return participation.min_separation
    if bands > participation.rounds:
        raise Refused(
            f"{bands} bands are more than the {participation.rounds} rounds; "
            f"give at most {participation.rounds} (the best choice is mostly the min separation, "
            f"{participation.min_separation})."
        )
    return bands


@dataclass(frozen=True)
class BandedToeplitz(ToeplitzMechanism):
    """A Toeplitz C with a fixed number of bands, for any number of rounds.

    Its noise needs bands - 1 copies of the model, hundreds in practice: a BLT comes close with two to four.
    """

    kind: ClassVar[str] = "toeplitz"
    band: tuple[float, ...]

    def __post_init__(self) -> None:
        band = tuple(float(value) for value in self.band)
        if not band or not all_finite(*band):
            raise Refused("A Toeplitz mechanism needs at least one coefficient, and all of them finite.")
        if band[0] <= 0:
            raise Refused(f"The first coefficient of a Toeplitz mechanism must be positive, got {band[0]}.")
        object.__setattr__(self, "band", band)

    def coefficients(self, rounds: int) -> np.ndarray:
        self.check(rounds)
        full = np.zeros(rounds)
        full[: len(self.band)] = self.band[:rounds]
        return full

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """Exact where there are no more bands than the separation, or where they decay; a proven bound otherwise."""
        if len(self.band) <= participation.min_separation:
            squared, _ = separate_sensitivity(np.array(self.band[: participation.rounds]), participation)
            return Sensitivity(squared**0.5, True, "BandMF Thm. 2: no more bands than the min separation")
        return super().sensitivity(participation)

    def memory(self, rounds: int) -> int:
        return min(len(self.band), rounds) - 1

    def stream(self, rounds: int) -> Stream:
        band = self.coefficients(rounds)[: len(self.band)]
        return BandStream(lambda round: band[: round + 1], self.memory(rounds))

    def parameters(self) -> dict[str, Any]:
        return {"coefficients": list(self.band)}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any], arrays: dict[str, np.ndarray]) -> Mechanism:
        return cls(tuple(parameters["coefficients"]))


@dataclass(frozen=True)
class BandFhu(BandedToeplitz):
    """The first coefficients of the square root of the workload: nothing to optimise, a few percent worse."""

    kind: ClassVar[str] = "banded-fhu"


def make_fhu(participation: Participation, objective: str, workload: Workload, bands: int | None) -> BandFhu:
    """The registry's maker; the objective changes nothing."""
    return BandFhu(tuple(square_root_coefficients(workload, check_bands(bands, participation))))


def make(participation: Participation, objective: str, workload: Workload, bands: int | None) -> BandedToeplitz:
    """BandToep: the best coefficients for this participation.

    Bands no more than the separation are free, as every choice has an exact sensitivity; more are sought among
    decreasing coefficients, for which BLT's Thm. 3.1 gives it.
    """
    bands = check_bands(bands, participation)
    return BandedToeplitz(tuple(optimal_band(participation, objective, workload, bands)))


def optimal_band(participation: Participation, objective: str, workload: Workload, bands: int) -> np.ndarray:
    """The coefficients of BandToep, the first of them 1."""
    from reticent.mechanisms.lbfgs import minimise

    error = ToeplitzError(participation.rounds, objective, workload)
    start = square_root_coefficients(workload, bands)
    free = bands <= participation.min_separation
    sensitivity = separate_sensitivity if free else decaying_sensitivity

    def loss_of(band: np.ndarray) -> tuple[float, np.ndarray]:
        with np.errstate(over="ignore", invalid="ignore"):
            squared_error, error_slope = error(band)
            squared_sensitivity, sensitivity_slope = sensitivity(band, participation)
            return squared_error * squared_sensitivity, (
                squared_error * sensitivity_slope + squared_sensitivity * error_slope
            )

    if bands == 1:
        return start
    if free:

        def free_loss(rest: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = loss_of(np.append(1.0, rest))
            return value, slope[1:]

        return np.append(1.0, minimise(free_loss, start[1:], rest_change=1e-7))

    def decreasing(logs: np.ndarray) -> np.ndarray:
        return np.cumsum(np.exp(logs)[::-1])[::-1]

    def decreasing_loss(logs: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = loss_of(decreasing(logs))
        return value, np.cumsum(slope) * np.exp(logs)

    band = decreasing(minimise(decreasing_loss, np.log(start - np.append(start[1:], 0.0)), rest_change=1e-7))
    return band / band[0]
