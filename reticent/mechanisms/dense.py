"""Dense mechanisms: the optimal C without structure, for one epoch or for fixed epochs (BandMF, Problem 1 and App. B).

Not for running: the noise needs a copy of the model per round, and optimisation costs rounds^3. They are the
baselines that show how much the families with structure leave on the table.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from reticent.errors import Refused
from reticent.mechanisms.band_stream import BandStream
from reticent.mechanisms.base import Mechanism, Sensitivity, Stream
from reticent.mechanisms.gram import gram_sensitivity
from reticent.mechanisms.participation import Participation
from reticent.mechanisms.workload import Workload

ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Dense(Mechanism):
    """Any lower-triangular C with a positive diagonal. Fewer rounds use its leading part."""

    kind: ClassVar[str] = "dense"
    full: np.ndarray

    def __post_init__(self) -> None:
        full = np.array(self.full, dtype=np.float64)
        if full.ndim != 2 or full.shape[0] != full.shape[1] or not len(full):
            raise Refused(f"A dense mechanism needs a square matrix, got shape {full.shape}.")
        if not np.isfinite(full).all() or not (full.diagonal() > 0).all() or np.triu(full, 1).any():
            raise Refused("A dense mechanism needs a finite, lower-triangular matrix with a positive diagonal.")
        full.flags.writeable = False
        object.__setattr__(self, "full", full)

    @property
    def max_rounds(self) -> int:
        return len(self.full)

    def matrix(self, rounds: int) -> np.ndarray:
        self.check(rounds)
        return self.full[:rounds, :rounds]

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """Exact for one participation and fixed epochs without negative products; BandMF's Thm. 3 bounds the rest."""
        matrix = self.matrix(participation.rounds)
        gram = matrix.T @ matrix
        norms = np.sqrt(gram.diagonal())
        # Columns made orthogonal are so but for rounding: those products count with their absolute values.
        rounding = np.abs(gram) <= ROUNDING * np.outer(norms, norms)
        return gram_sensitivity(np.where(rounding, np.abs(gram), gram), participation)

    def memory(self, rounds: int) -> int:
        return rounds - 1

    def stream(self, rounds: int) -> Stream:
        matrix = self.matrix(rounds)
        return BandStream(lambda round: matrix[round, round::-1], self.memory(rounds))

    def parameters(self) -> dict[str, Any]:
        return {"rounds": self.max_rounds}

    def arrays(self) -> dict[str, np.ndarray]:
        return {"matrix": self.full}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any], arrays: dict[str, np.ndarray]) -> Mechanism:
        mechanism = cls(arrays["matrix"])
        if mechanism.parameters() != parameters:
            raise Refused(f"The matrix has shape {mechanism.full.shape}, not that of its header; it is damaged.")
        return mechanism


def make(participation: Participation, objective: str, workload: Workload, size: None) -> Dense:
    """The optimal dense C for fixed epochs: column norms free where epochs are fixed, else equal.

    Equal norms lose little there, and less when the separation is only a minimum (BandMF, Table 2).
    """
    from reticent.mechanisms.dense_optimize import optimal_matrix

    return Dense(optimal_matrix(participation, objective, workload, equal_norms=not participation.exact))
