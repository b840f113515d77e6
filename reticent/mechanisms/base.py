"""The one interface of all noise mechanisms.

A mechanism is an immutable description of a matrix C. Rounds of updates X are released as X + C^-1 Z (BLT, eq. 1): Z is
independent Gaussian noise of standard deviation sigma times the clip norm, and privacy is that of C X + Z, so that
rho = (sensitivity / sigma)^2 / 2. A family is a file beside this one, with one line in `registry.py`.
"""

import abc
import functools
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from reticent.errors import Refused
from reticent.mechanisms.participation import Participation
from reticent.mechanisms.workload import PREFIX_SUM, Workload

Source = Callable[[int, int], np.ndarray]
"""`source(round, draw)` is a row of standard normals: always the same row for the same arguments, independent rows for
others. Draw 0 is the only one for most families; a tree draws one more for every node that its round completes."""

DENSE_LIMIT_BYTES = 4 * 2**30


@dataclass(frozen=True)
class Sensitivity:
    """The largest change of C X, for clip norm 1, that one user can cause: exact, or a proven upper bound."""

    value: float
    exact: bool
    reason: str

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.value:.6g} ({'exact' if self.exact else 'upper bound'}: {self.reason})"


class Stream(abc.ABC):
    """Noise rows one at a time: explicit state in, explicit state out, so that a run can be stopped and resumed."""

    @abc.abstractmethod
    def init(self, size: int) -> tuple[np.ndarray, ...]:
        """The state before round 0, for rows of `size` entries; its bytes are the memory the mechanism promises."""

    @abc.abstractmethod
    def step(
        self, state: tuple[np.ndarray, ...], round: int, source: Source
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """The noise row of `round` (row `round` of C^-1 Z) and the state after it. Rounds come in order from 0."""


class Mechanism(abc.ABC):
    """An immutable description of C: its sensitivity, its error, its noise."""

    kind: ClassVar[str]

    @property
    def max_rounds(self) -> int | None:
        """The most rounds this mechanism can serve; None where there is no limit."""
        return None

    @abc.abstractmethod
    def sensitivity(self, participation: Participation) -> Sensitivity:
        """What one user can change in C X under this participation: exact or a proven bound, never a guess."""

    @abc.abstractmethod
    def matrix(self, rounds: int) -> np.ndarray:
        """C over the first `rounds` rounds, densely; one column per round, one row per row of Z."""

    @abc.abstractmethod
    def memory(self, rounds: int) -> int:
        """Model-sized buffers that the noise needs between rounds, as a multiple of the model."""

    @abc.abstractmethod
    def stream(self, rounds: int) -> Stream:
        """The noise rows of a run of `rounds` rounds."""

    def inverse(self, rounds: int) -> np.ndarray:
        """The matrix whose product with Z is the noise: C^-1 for a square C, a left inverse of it otherwise."""
        from scipy.linalg import solve_triangular

        return solve_triangular(self.matrix(rounds), np.eye(rounds), lower=True)

    def draws(self, rounds: int) -> Sequence[tuple[int, int]]:
        """The (round, draw) of each row of Z, in the order of the rows of C."""
        return [(round, 0) for round in range(rounds)]

    def draws_per_round(self, rounds: int) -> float:
        """Rows of Gaussians drawn per round, on average: what the noise costs in random bits."""
        return len(self.draws(rounds)) / rounds

    def column_norms(self, rounds: int) -> np.ndarray:
        """The norm of each column of C: what one participation alone changes."""
        return np.linalg.norm(self.matrix(rounds), axis=0)

    def noise_deviations(self, rounds: int) -> np.ndarray:
        """The standard deviation of an entry of each round's noise, for sigma = 1 (rows of C^-1)."""
        self.check(rounds)
        return np.linalg.norm(self.inverse(rounds), axis=1)

    def errors(self, rounds: int, workload: Workload = PREFIX_SUM) -> np.ndarray:
        """The standard deviation of the noise in the model after each round, for sigma = 1 (rows of B = A C^-1)."""
        self.check(rounds)
        return np.linalg.norm(workload.apply(self.inverse(rounds)), axis=1)

    def max_error(self, rounds: int, workload: Workload = PREFIX_SUM) -> float:
        """The largest of `errors` (BLT, Sec. 3.2)."""
        return float(self.errors(rounds, workload).max())

    def rms_error(self, rounds: int, workload: Workload = PREFIX_SUM) -> float:
        """The root mean square of `errors` (BLT, Sec. 3.2)."""
        return float(np.sqrt(np.mean(self.errors(rounds, workload) ** 2)))

    def max_loss(self, participation: Participation, workload: Workload = PREFIX_SUM) -> float:
        """`max_error` times the sensitivity (BLT, eq. 6): what mechanisms are compared by."""
        return self.max_error(participation.rounds, workload) * self.sensitivity(participation).value

    def rms_loss(self, participation: Participation, workload: Workload = PREFIX_SUM) -> float:
        """`rms_error` times the sensitivity (BLT, eq. 7)."""
        return self.rms_error(participation.rounds, workload) * self.sensitivity(participation).value

    def check(self, rounds: int) -> None:
        """Refuses a number of rounds that this mechanism cannot serve."""
        if rounds < 1:
            raise Refused(f"rounds must be at least 1, got {rounds}.")
        if self.max_rounds is not None and rounds > self.max_rounds:
            raise Refused(
                f"This {self.kind} mechanism was made for {self.max_rounds} rounds and cannot serve {rounds}; "
                f"optimise it for more rounds, or use a BLT, which has no limit."
            )

    @abc.abstractmethod
    def parameters(self) -> dict[str, Any]:
        """What it is made of, as plain JSON; the inverse of `from_parameters`."""

    @classmethod
    @abc.abstractmethod
    def from_parameters(cls, parameters: dict[str, Any], arrays: dict[str, np.ndarray]) -> "Mechanism":
        """The mechanism of these parameters; refuses ones that make no valid mechanism."""

    def arrays(self) -> dict[str, np.ndarray]:
        """The matrices it holds, if any; they are saved as `.npz` instead of JSON."""
        return {}

    @functools.cached_property
    def digest(self) -> str:
        """A SHA-256 of kind, parameters and arrays: equal for equal mechanisms."""
        header = json.dumps({"kind": self.kind, "parameters": self.parameters()}, sort_keys=True)
        hasher = hashlib.sha256(header.encode())
        for name, array in sorted(self.arrays().items()):
            hasher.update(f"{name} {array.dtype.str} {array.shape}".encode())
            hasher.update(np.ascontiguousarray(array).tobytes())
        return hasher.hexdigest()

    def save(self, path: str | Path) -> None:
        """Writes the mechanism to one file, atomically: JSON, or `.npz` where it holds a matrix."""
        from reticent.mechanisms.storage import save

        save(self, Path(path))


class ToeplitzMechanism(Mechanism):
    """A mechanism whose C is lower-triangular Toeplitz: everything follows from its coefficients."""

    @abc.abstractmethod
    def coefficients(self, rounds: int) -> np.ndarray:
        """The first column of C."""

    def inverse_coefficients(self, rounds: int) -> np.ndarray:
        """The first column of C^-1, by the power series of 1 / C(x)."""
        return invert_series(self.coefficients(rounds))

    def matrix(self, rounds: int) -> np.ndarray:
        return lower_toeplitz(self.coefficients(rounds))

    def inverse(self, rounds: int) -> np.ndarray:
        return lower_toeplitz(self.inverse_coefficients(rounds))

    def column_norms(self, rounds: int) -> np.ndarray:
        return np.sqrt(np.cumsum(self.coefficients(rounds) ** 2)[::-1])

    def noise_deviations(self, rounds: int) -> np.ndarray:
        return np.sqrt(np.cumsum(self.inverse_coefficients(rounds) ** 2))

    def errors(self, rounds: int, workload: Workload = PREFIX_SUM) -> np.ndarray:
        # BLT, Prop. 3.2: the rows of B = A C^-1 are prefixes of one sequence b.
        self.check(rounds)
        if not workload.is_toeplitz:
            return super().errors(rounds, workload)
        return np.sqrt(np.cumsum(workload.apply(self.inverse_coefficients(rounds)) ** 2))

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """Thm. 3.1 of BLT, after checking its condition; otherwise the proven bound for any C."""
        from reticent.mechanisms.gram import toeplitz_sensitivity

        self.check(participation.rounds)
        return toeplitz_sensitivity(self.coefficients(participation.rounds), participation)


def check_dense(rows: int, columns: int) -> None:
    """Refuses a dense matrix that would not fit, saying how much it needs."""
    needed = 8 * rows * columns
    if needed > DENSE_LIMIT_BYTES:
        raise Refused(
            f"A dense {rows} x {columns} matrix needs {needed / 2**30:.0f} GiB, above the limit of "
            f"{DENSE_LIMIT_BYTES / 2**30:.0f} GiB; use fewer rounds, or a family with structure (blt, banded, toeplitz)."
        )


def lower_toeplitz(coefficients: np.ndarray) -> np.ndarray:
    """The lower-triangular Toeplitz matrix with this first column."""
    from scipy.linalg import toeplitz

    check_dense(len(coefficients), len(coefficients))
    return np.tril(toeplitz(coefficients))


def invert_series(series: np.ndarray) -> np.ndarray:
    """The power series 1 / series to the same length, by Newton's iteration with FFTs."""
    inverse = np.array([1 / series[0]])
    while len(inverse) < len(series):
        length = min(2 * len(inverse), len(series))
        residual = -_product(series[:length], inverse, length)
        residual[0] += 2
        inverse = _product(inverse, residual, length)
    return inverse


def _product(left: np.ndarray, right: np.ndarray, length: int) -> np.ndarray:
    size = len(left) + len(right)
    return np.fft.irfft(np.fft.rfft(left, size) * np.fft.rfft(right, size), size)[:length]


def all_finite(*values: float) -> bool:
    """Whether none of these is an infinity or NaN."""
    return all(math.isfinite(value) for value in values)
