"""BandMF: the best C with a given number of bands (BandMF, Sec. 3-4), the least error of all families.

Not for large models: the noise needs bands - 1 copies of the model (a BLT needs two to four, and is somewhat worse),
and not for more rounds than it was optimised for.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from reticent.errors import Refused
from reticent.mechanisms.band_sensitivity import band_sensitivity
from reticent.mechanisms.band_stream import BandStream
from reticent.mechanisms.base import Mechanism, Sensitivity, Stream, check_dense
from reticent.mechanisms.participation import Participation
from reticent.mechanisms.toeplitz import check_bands
from reticent.mechanisms.workload import PREFIX_SUM, Workload


@dataclass(frozen=True, eq=False)
class Banded(Mechanism):
    """A lower-triangular C with few bands; `columns[j, l]` is its entry (j + l, j). Fewer rounds use its first ones."""

    kind: ClassVar[str] = "banded"
    columns: np.ndarray

    def __post_init__(self) -> None:
        columns = np.array(self.columns, dtype=np.float64)
        if columns.ndim != 2 or not 1 <= columns.shape[1] <= len(columns):
            raise Refused(
                f"A banded mechanism needs a table of rounds x bands with no more bands than rounds, "
                f"got shape {columns.shape}."
            )
        if not np.isfinite(columns).all() or not (columns[:, 0] > 0).all():
            raise Refused("A banded mechanism needs finite entries and a positive diagonal.")
        # What would lie below the last row is not part of C.
        last = len(columns) - columns.shape[1]
        columns[last:] *= np.arange(columns.shape[1])[:, None] + np.arange(columns.shape[1]) < columns.shape[1]
        columns.flags.writeable = False
        object.__setattr__(self, "columns", columns)

    @property
    def bands(self) -> int:
        return self.columns.shape[1]

    @property
    def max_rounds(self) -> int:
        return len(self.columns)

    def leading(self, rounds: int) -> np.ndarray:
        """The first `rounds` rows and columns of C, by columns."""
        self.check(rounds)
        bands = min(self.bands, rounds)
        leading = self.columns[:rounds, :bands].copy()
        leading[rounds - bands :] *= np.arange(bands)[:, None] + np.arange(bands) < bands
        return leading

    def sensitivity(self, participation: Participation) -> Sensitivity:
        return band_sensitivity(self.leading(participation.rounds), participation)

    def column_norms(self, rounds: int) -> np.ndarray:
        return np.linalg.norm(self.leading(rounds), axis=1)

    def errors(self, rounds: int, workload: Workload = PREFIX_SUM) -> np.ndarray:
        from reticent.mechanisms.banded_loss import inverse_workload, squared_errors

        if (workload.rates(rounds) == 0).any():  # A has no inverse; the general way needs none
            return super().errors(rounds, workload)
        return np.sqrt(squared_errors(self.leading(rounds), inverse_workload(workload, rounds)))

    def matrix(self, rounds: int) -> np.ndarray:
        check_dense(rounds, rounds)
        matrix = np.zeros((rounds, rounds))
        for band, values in enumerate(self.leading(rounds).T):
            matrix.flat[band * rounds :: rounds + 1] = values[: rounds - band]
        return matrix

    def row(self, round: int) -> np.ndarray:
        """Row `round` of C from the diagonal leftwards."""
        band = np.arange(min(self.bands, round + 1))
        return self.columns[round - band, band]

    def memory(self, rounds: int) -> int:
        return min(self.bands, rounds) - 1

    def stream(self, rounds: int) -> Stream:
        self.check(rounds)
        return BandStream(self.row, self.memory(rounds))

    def parameters(self) -> dict[str, Any]:
        return {"rounds": self.max_rounds, "bands": self.bands}

    def arrays(self) -> dict[str, np.ndarray]:
        return {"columns": self.columns}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any], arrays: dict[str, np.ndarray]) -> Mechanism:
        mechanism = cls(arrays["columns"])
        if mechanism.parameters() != parameters:
            raise Refused(f"The matrix has shape {mechanism.columns.shape}, not that of its header; it is damaged.")
        return mechanism


@dataclass(frozen=True, eq=False)
class BandedFree(Banded):
    """BandMF without equal column norms (BandMF, App. B): less error still, for the very participation it is given.

    Optimised for fixed epochs it is a few percent worse than BandMF under a min separation only.
    """

    kind: ClassVar[str] = "banded-free"


def make(participation: Participation, objective: str, workload: Workload, bands: int | None) -> Banded:
    """BandMF with equal column norms (BandMF, Problem 2), by default with as many bands as the min separation."""
    return Banded(_columns(participation, objective, workload, bands, True))


def make_free(participation: Participation, objective: str, workload: Workload, bands: int | None) -> BandedFree:
    """BandMF with column norms that share the sensitivity of this very participation."""
    return BandedFree(_columns(participation, objective, workload, bands, False))


def _columns(
    participation: Participation, objective: str, workload: Workload, bands: int | None, equal_norms: bool
) -> np.ndarray:
    from reticent.mechanisms.banded_optimize import optimal_columns

    return optimal_columns(participation, objective, workload, check_bands(bands, participation), equal_norms)
