"""Toeplitz mechanisms whose *inverse* has few bands: correlated noise that keeps nothing between rounds.

A row of noise is a weighted sum of the last few rows of Z, and rows of Z can be drawn again from their keys at any
time. So the price is not memory but random numbers: as many Gaussian rows per round as there are bands.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from reticent.errors import Refused
from reticent.mechanisms.base import Mechanism, Source, Stream, ToeplitzMechanism, all_finite
from reticent.mechanisms.participation import Participation
from reticent.mechanisms.toeplitz import check_bands
from reticent.mechanisms.workload import Workload

DEFAULT_BANDS = 9
# Coefficients of C below this are zero: nothing is left of their digits, and they change no sensitivity.
VANISHING = 1e-200


class _RegeneratingStream(Stream):
    def __init__(self, band: tuple[float, ...]):
        self._band = band

    def init(self, size: int) -> tuple[np.ndarray, ...]:
        return ()

    def step(
        self, state: tuple[np.ndarray, ...], round: int, source: Source
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        row = self._band[0] * source(round, 0)
        for back in range(1, min(len(self._band), round + 1)):
            row = row + self._band[back] * source(round - back, 0)
        return row, state


@dataclass(frozen=True)
class InverseToeplitz(ToeplitzMechanism):
    """C^-1 is banded Toeplitz with these coefficients; its noise is `bands` Gaussian rows per round and no state.

    Not where Gaussians are dearer than memory: a BLT with as little error draws one row per round and keeps a few.
    """

    kind: ClassVar[str] = "banded-inverse"
    band: tuple[float, ...]

    def __post_init__(self) -> None:
        band = tuple(float(value) for value in self.band)
        if not band or not all_finite(*band):
            raise Refused("A banded-inverse mechanism needs at least one coefficient, and all of them finite.")
        if band[0] <= 0:
            raise Refused(f"The first coefficient of a banded-inverse mechanism must be positive, got {band[0]}.")
        object.__setattr__(self, "band", band)

    def coefficients(self, rounds: int) -> np.ndarray:
        self.check(rounds)
        return series_of_inverse(np.array(self.band), rounds)

    def inverse_coefficients(self, rounds: int) -> np.ndarray:
        self.check(rounds)
        full = np.zeros(rounds)
        full[: len(self.band)] = self.band[:rounds]
        return full

    def memory(self, rounds: int) -> int:
        return 0

    def draws_per_round(self, rounds: int) -> float:
        return float(np.minimum(np.arange(1, rounds + 1), len(self.band)).mean())

    def stream(self, rounds: int) -> Stream:
        return _RegeneratingStream(self.band)

    def parameters(self) -> dict[str, Any]:
        return {"inverse_coefficients": list(self.band)}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any], arrays: dict[str, np.ndarray]) -> Mechanism:
        return cls(tuple(parameters["inverse_coefficients"]))


def series_of_inverse(band: np.ndarray, rounds: int) -> np.ndarray:
    """The first coefficients of 1 / band, by recursion; what has vanished is zero."""
    from scipy.signal import lfilter

    series = lfilter([1.0], band, np.eye(1, rounds)[0])
    vanished = np.flatnonzero(np.abs(series) < VANISHING)
    if len(vanished):
        series[vanished[0] :] = 0.0
    return series


def make(participation: Participation, objective: str, workload: Workload, bands: int | None) -> InverseToeplitz:
    """The best `bands` coefficients of C^-1 (one more than the rows drawn again each round), by default 9.

    They are sought inside the set where the coefficients of C are non-negative and non-increasing, so that BLT's
    Thm. 3.1 gives the sensitivity exactly; of the best outside it only a far larger bound is known.
    """
    from reticent.mechanisms.inverse_optimize import optimal_inverse

    bands = check_bands(min(DEFAULT_BANDS, participation.rounds) if bands is None else bands, participation)
    return InverseToeplitz(tuple(optimal_inverse(participation, objective, workload, bands).tolist()))
