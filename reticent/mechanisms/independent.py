"""Independent noise, C = I: DP-SGD and DP-FedAvg."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from reticent.mechanisms.base import Mechanism, Sensitivity, Source, Stream, ToeplitzMechanism
from reticent.mechanisms.participation import Participation


class _IndependentStream(Stream):
    def init(self, size: int) -> tuple[np.ndarray, ...]:
        return ()

    def step(
        self, state: tuple[np.ndarray, ...], round: int, source: Source
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        return source(round, 0), state


@dataclass(frozen=True)
class Independent(ToeplitzMechanism):
    """Fresh noise every round.

    Not for training without amplification by sampling: every correlated mechanism has a smaller loss there. With
    amplification (Poisson cohorts, one band) it is DP-SGD and DP-FedAvg.
    """

    kind: ClassVar[str] = "independent"

    def coefficients(self, rounds: int) -> np.ndarray:
        self.check(rounds)
        return np.eye(1, rounds)[0]

    def inverse_coefficients(self, rounds: int) -> np.ndarray:
        return self.coefficients(rounds)

    def sensitivity(self, participation: Participation) -> Sensitivity:
        return Sensitivity(participation.most**0.5, True, "square root of the participations")

    def memory(self, rounds: int) -> int:
        return 0

    def stream(self, rounds: int) -> Stream:
        return _IndependentStream()

    def parameters(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any], arrays: dict[str, np.ndarray]) -> Mechanism:
        return cls()


def make(participation: Participation, objective: str, workload: object, size: None) -> Independent:
    """The registry's maker; there is nothing to choose."""
    return Independent()
