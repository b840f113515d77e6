"""Squared error and squared sensitivity of Toeplitz mechanisms, with their gradients in the coefficients of C."""

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from reticent.errors import Refused
from reticent.mechanisms.base import invert_series
from reticent.mechanisms.participation import Participation
from reticent.mechanisms.workload import Workload


def square_root_coefficients(workload: Workload, count: int) -> np.ndarray:
    """The Toeplitz square root of A: Fichtenberger et al.'s coefficients for prefix sums, binom(2i, i) / 4^i."""
    if not workload.is_toeplitz:
        raise Refused(
            "A workload with a learning-rate schedule has no Toeplitz square root; "
            "make the mechanism without the schedule and then look at its errors under it."
        )
    index = np.arange(1, count)
    root = np.cumprod(np.append(1.0, (2 * index - 1) / (2 * index)))
    if workload.momentum == 0:
        return root
    return _Products(count)(root, root * workload.momentum ** np.arange(count))


def error_weights(rounds: int, objective: str) -> np.ndarray:
    """The weights with which the squares of the coefficients of B = A C^-1 make the squared error (BLT, Prop. 3.2)."""
    return np.ones(rounds) if objective == "max" else (rounds - np.arange(rounds)) / rounds


class ToeplitzError:
    """The squared error as a function of the coefficients of C, by fast Fourier transforms."""

    def __init__(self, rounds: int, objective: str, workload: Workload):
        self._rounds = rounds
        self._weights = error_weights(rounds, objective)
        self._workload = workload
        self._products = _Products(rounds)

    def __call__(self, coefficients: np.ndarray) -> tuple[float, np.ndarray]:
        """The value and the gradient, for the first few coefficients of C (the others being zero)."""
        full = np.zeros(self._rounds)
        full[: len(coefficients)] = coefficients
        inverse = invert_series(full)
        rows = self._workload.apply(inverse)
        # A change dC of C changes B = A / C by -B / C dC.
        pulled = self._products.transposed(self._weights * rows, self._products(rows, inverse), len(coefficients))
        return float(self._weights @ rows**2), -2 * pulled


class _Products:
    """Products of power series of a fixed length, and the transposes of such products."""

    def __init__(self, length: int):
        self._length = length
        self._size = next_fast_len(2 * length, real=True)

    def __call__(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        product = irfft(rfft(left, self._size) * rfft(right, self._size), self._size)
        return product[: self._length]

    def transposed(self, outer: np.ndarray, factor: np.ndarray, count: int) -> np.ndarray:
        """Entry l is the sum over i of outer[i] factor[i - l]."""
        return irfft(rfft(outer, self._size) * np.conj(rfft(factor, self._size)), self._size)[:count]


def separate_sensitivity(coefficients: np.ndarray, participation: Participation) -> tuple[float, np.ndarray]:
    """Squared sensitivity and gradient where no two participations of a user meet in a row of C.

    With no more bands than the separation it is the sum of the squared norms of columns 0, b, 2b, ... (BandMF, Thm. 2;
    no column is longer than an earlier one).
    """
    lengths = participation.rounds - np.arange(participation.most)[::-1] * participation.min_separation
    times = participation.most - np.searchsorted(lengths, np.arange(len(coefficients)), "right")
    return float(times @ coefficients**2), 2 * times * coefficients


def decaying_sensitivity(coefficients: np.ndarray, participation: Participation) -> tuple[float, np.ndarray]:
    """Squared sensitivity and gradient for non-negative, non-increasing coefficients (BLT, Thm. 3.1)."""
    total = comb(coefficients, participation)
    return float(total @ total), 2 * comb(total[::-1], participation)[::-1][: len(coefficients)]


def comb(values: np.ndarray, participation: Participation) -> np.ndarray:
    """The sum of the shifts of `values` by 0, b, 2b, ..., one per participation."""
    rounds, separation = participation.rounds, participation.min_separation
    folded = np.zeros(-(-rounds // separation) * separation)
    folded[: len(values)] = values
    folded = np.cumsum(folded.reshape(-1, separation), axis=0)
    folded[participation.most :] -= folded[: -participation.most].copy() if participation.most < len(folded) else 0.0
    return folded.ravel()[:rounds]
