"""Sensitivity from the Gram matrix X = C^T C: exact where a theorem says so, a proven upper bound elsewhere.

One user's difference u has rows of norm at most 1 on a participation pattern, so the squared sensitivity is at most the
largest sum of |X[i, j]| over a pattern, and equal to it where X has no negative entry there (BandMF, Prop. E.1).
"""

import numpy as np

from reticent.mechanisms.base import Sensitivity
from reticent.mechanisms.participation import Participation

# Above this many rounds the Gram matrix of a Toeplitz C is not worth its memory, and the envelope bound serves alone.
TOEPLITZ_GRAM_LIMIT = 4096


def heaviest_pattern(values: np.ndarray, participation: Participation) -> np.ndarray:
    """The largest sum of `values` (last axis: rounds) over patterns of min-separation (BandMF, Alg. 3)."""
    separation = participation.min_separation
    best = np.zeros_like(values)
    for _ in range(participation.most):
        later = np.zeros_like(values)
        later[..., :-separation] = best[..., separation:]
        best = np.maximum.accumulate((values + later)[..., ::-1], axis=-1)[..., ::-1]
    return best[..., 0]


def gram_sensitivity(gram: np.ndarray, participation: Participation) -> Sensitivity:
    """The sensitivity of any C with this Gram matrix (BandMF, Thms. 2 and 3 and Prop. B.1)."""
    if participation.most == 1:
        return Sensitivity(float(np.sqrt(gram.diagonal().max())), True, "largest column norm, one participation")
    if participation.exact:
        return _fixed_epochs(gram, participation)
    separation = participation.min_separation
    if not np.tril(gram, -separation).any():
        squared = heaviest_pattern(gram.diagonal().copy(), participation)
        return Sensitivity(float(np.sqrt(squared)), True, "BandMF Thm. 2: no more bands than the min separation")
    rows = heaviest_pattern(np.abs(gram), participation)
    squared = heaviest_pattern(rows, participation)
    return Sensitivity(float(np.sqrt(squared)), False, "BandMF Thm. 3")


def _fixed_epochs(gram: np.ndarray, participation: Participation) -> Sensitivity:
    # Only n patterns: every start, then steps of exactly the separation.
    largest, exact = 0.0, True
    for residue in range(participation.min_separation):
        members = slice(residue, None, participation.min_separation)
        block = gram[members, members]
        exact = exact and bool((block >= 0).all())
        size = len(block)
        count = min(participation.most, size)
        total = np.zeros((size + 1, size + 1))
        total[1:, 1:] = np.abs(block).cumsum(0).cumsum(1)
        first = np.arange(size - count + 1)
        last = first + count
        windows = total[last, last] - total[first, last] - total[last, first] + total[first, first]
        largest = max(largest, float(windows.max()))
    reason = "all patterns of fixed epochs" + (
        "" if exact else ", absolute values of a Gram matrix with negative entries"
    )
    return Sensitivity(float(np.sqrt(largest)), exact, reason)


def has_decaying_coefficients(coefficients: np.ndarray) -> bool:
    """The condition of BLT, Thm. 3.1: non-negative and non-increasing."""
    return bool((coefficients >= 0).all() and (np.diff(coefficients) <= 0).all())


def earliest_pattern_norm(coefficients: np.ndarray, participation: Participation) -> float:
    """The norm of the sum of columns 0, b, 2b, ... of the Toeplitz C (BLT, eq. 5)."""
    rounds, separation, most = participation.rounds, participation.min_separation, participation.most
    # In segments of one separation, the sum of shifted columns is a running sum over the segments before.
    segments = -(-rounds // separation)
    padded = np.zeros(segments * separation)
    padded[:rounds] = coefficients[:rounds]
    total = np.cumsum(padded.reshape(segments, separation), axis=0)
    total[most:] -= total[:-most].copy()
    return float(np.linalg.norm(total.ravel()[:rounds]))


def toeplitz_sensitivity(coefficients: np.ndarray, participation: Participation) -> Sensitivity:
    """The sensitivity of a lower-triangular Toeplitz C: BLT, Thm. 3.1 where its condition holds, else a proven bound."""
    if participation.most == 1:
        return Sensitivity(float(np.linalg.norm(coefficients)), True, "norm of the first column, one participation")
    if has_decaying_coefficients(coefficients):
        return Sensitivity(earliest_pattern_norm(coefficients, participation), True, "BLT Thm. 3.1")
    # The Gram matrix grows with each |c_i|, so that a decaying envelope of |c| bounds it.
    envelope = np.maximum.accumulate(np.abs(coefficients)[::-1])[::-1]
    bound = Sensitivity(earliest_pattern_norm(envelope, participation), False, "BLT Thm. 3.1 on a decaying envelope")
    if participation.rounds <= TOEPLITZ_GRAM_LIMIT:
        general = gram_sensitivity(toeplitz_gram(coefficients), participation)
        if general.exact or general.value < bound.value:
            return general
    return bound


def toeplitz_gram(coefficients: np.ndarray) -> np.ndarray:
    """C^T C of the lower-triangular Toeplitz C, with exact zeros outside the band."""
    rounds = len(coefficients)
    gram = np.zeros((rounds, rounds))
    for lag in range(rounds):
        products = coefficients[lag:] * coefficients[: rounds - lag]
        if not products.any():
            continue
        diagonal = np.cumsum(products)[::-1]
        column = np.arange(rounds - lag)
        gram[column + lag, column] = gram[column, column + lag] = diagonal
    return gram
