"""Sensitivity of a lower-triangular C with few bands, from the bands of its Gram matrix X = C^T C."""

import numpy as np

from reticent.mechanisms.base import Sensitivity
from reticent.mechanisms.gram import heaviest_pattern
from reticent.mechanisms.participation import Participation


def band_sensitivity(columns: np.ndarray, participation: Participation) -> Sensitivity:
    """The sensitivity of C, whose entry (j + l, j) is `columns[j, l]`.

    Exact with no more bands than the min separation (BandMF, Thm. 2), and with no more than twice as many, where only
    successive participations of a user meet in a row of C; above that BandMF's Thm. 3 bounds it.
    """
    bands, separation = columns.shape[1], participation.min_separation
    norms = np.einsum("jl,jl->j", columns, columns)
    if participation.most == 1:
        return Sensitivity(float(np.sqrt(norms.max())), True, "largest column norm, one participation")
    if participation.exact:
        return _fixed_epochs(columns, norms, participation)
    if bands <= separation:
        squared = float(heaviest_pattern(norms, participation))
        return Sensitivity(squared**0.5, True, "BandMF Thm. 2: no more bands than the min separation")
    if bands <= 2 * separation:
        squared = _heaviest_chain(columns, norms, participation)
        return Sensitivity(squared**0.5, True, "only successive participations meet: all patterns, by dynamic program")
    gram = np.zeros((len(columns), 2 * bands - 1))  # row i: |X| at (i, i - bands + 1 .. i + bands - 1)
    for lag in range(min(bands, len(columns))):
        products = np.abs(gram_diagonal(columns, lag))
        gram[: len(products), bands - 1 + lag] = products
        gram[len(gram) - len(products) :, bands - 1 - lag] = products
    squared = float(heaviest_pattern(heaviest_pattern(gram, participation), participation))
    return Sensitivity(squared**0.5, False, "BandMF Thm. 3")


def gram_diagonal(columns: np.ndarray, lag: int) -> np.ndarray:
    """The entries X[j, j + lag]."""
    rounds, bands = columns.shape
    if lag >= min(rounds, bands):
        return np.zeros(max(rounds - lag, 0))
    return np.einsum("jl,jl->j", columns[: rounds - lag, lag:], columns[lag:, : bands - lag])


def _heaviest_chain(columns: np.ndarray, norms: np.ndarray, participation: Participation) -> float:
    # Only successive participations i < j have X[i, j] != 0, and signs along a chain can be chosen freely, so the
    # squared sensitivity is the largest sum of X[i, i] and 2 |X[i, j]| over patterns; best[i] is that of patterns
    # beginning at i.
    rounds, bands = columns.shape
    separation = participation.min_separation
    products = {lag: 2 * np.abs(gram_diagonal(columns, lag)) for lag in range(separation, min(bands, rounds))}
    best = norms.copy()
    for _ in range(participation.most - 1):
        longer = norms.copy()
        for lag, product in products.items():
            np.maximum(longer[: rounds - lag], norms[: rounds - lag] + product + best[lag:], out=longer[: rounds - lag])
        if bands < rounds:
            later = np.maximum.accumulate(best[::-1])[::-1][bands:]
            np.maximum(longer[: rounds - bands], norms[: rounds - bands] + later, out=longer[: rounds - bands])
        best = np.maximum(best, longer)
    return float(best.max())


def _fixed_epochs(columns: np.ndarray, norms: np.ndarray, participation: Participation) -> Sensitivity:
    # Every start, then steps of exactly the separation: sums over windows of consecutive steps, lag by lag.
    rounds, bands = columns.shape
    separation, most = participation.min_separation, participation.most
    total = _window_sums(norms, separation, most, rounds)
    exact = True
    for step in range(1, most):
        lag = step * separation
        if lag >= min(bands, rounds):
            break
        products = gram_diagonal(columns, lag)
        # A sign for every other participation turns any single lag positive; with more lags that need not be so.
        exact = exact and (bands <= 2 * separation or bool((products >= 0).all()))
        total += 2 * _window_sums(np.abs(products), separation, most - step, rounds)
    reason = "all patterns of fixed epochs" + ("" if exact else ", absolute values of a Gram matrix with signs")
    return Sensitivity(float(np.sqrt(total.max())), exact, reason)


def _window_sums(values: np.ndarray, separation: int, count: int, rounds: int) -> np.ndarray:
    """Entry i is the sum of values[i], values[i + b], ..., as many as `count` and as there are."""
    turns = -(-rounds // separation)
    folded = np.zeros(turns * separation)
    folded[: len(values)] = values
    sums = np.cumsum(folded.reshape(turns, separation)[::-1], axis=0)[::-1]
    sums[: max(turns - count, 0)] -= sums[count:].copy() if count < turns else 0.0
    return sums.ravel()[:rounds]
