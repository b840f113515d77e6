"""The best dense C for users who take part at fixed steps (BandMF, Problem 1).

The unknown is X = C^T C. Two rounds that one user can be in have orthogonal columns, so that the squared sensitivity
is a sum of the diagonal of X over a pattern (BandMF, footnote 8: conjectured to cost nothing); with equal norms that
diagonal is fixed.
"""

import numpy as np

from reticent.errors import Refused
from reticent.mechanisms.base import DENSE_LIMIT_BYTES, lower_toeplitz
from reticent.mechanisms.lbfgs import minimise
from reticent.mechanisms.norms import Norms
from reticent.mechanisms.objective import STAGES, Weigh
from reticent.mechanisms.participation import Participation
from reticent.mechanisms.workload import Workload

HISTORY = 10


def check_memory(rounds: int) -> None:
    """Refuses an optimisation that would not fit, saying how much it needs."""
    needed = 8 * rounds * rounds * (2 * HISTORY + 10)
    if needed > DENSE_LIMIT_BYTES:
        most = int((DENSE_LIMIT_BYTES / (8 * (2 * HISTORY + 10))) ** 0.5)
        raise Refused(
            f"Optimising a dense mechanism over {rounds} rounds needs {needed / 2**30:.0f} GiB, above the limit of "
            f"{DENSE_LIMIT_BYTES / 2**30:.0f} GiB; use at most {most} rounds, or a family with structure "
            "(blt, banded, toeplitz)."
        )


def optimal_matrix(
    participation: Participation, objective: str, workload: Workload, *, equal_norms: bool
) -> np.ndarray:
    """The lower-triangular C with the least error under fixed epochs. The start is BandToep's optimum.

    With equal norms every column has norm 1; without, the pools of `Norms` have sum 1.
    """
    from scipy.linalg import cholesky

    from reticent.mechanisms.toeplitz import optimal_band

    rounds, separation, most = participation.rounds, participation.min_separation, participation.most
    check_memory(rounds)
    norms = Norms.equal(rounds) if equal_norms else Norms.free(participation)
    lag = np.abs(np.subtract.outer(np.arange(rounds), np.arange(rounds)))
    free = (lag % separation != 0) | (lag >= most * separation)
    size = rounds * rounds

    def gram_of(point: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        shares = norms.shares(point[size:])
        scale = np.sqrt(shares[norms.entry])
        return point[:size].reshape(rounds, rounds) * np.outer(scale, scale), scale, shares

    def loss(point: np.ndarray, weigh: Weigh) -> tuple[float, np.ndarray]:
        gram, scale, shares = gram_of(point)
        inverse = _inverse(gram)
        if inverse is None:
            return np.inf, point
        rows = workload.apply(inverse)
        value, weights = weigh(np.maximum(workload.apply(rows.T.copy()).diagonal(), 0.0))
        rows *= np.sqrt(weights)[:, None]
        slope = -(rows.T @ rows)
        by_norm = np.einsum("ij,ij->i", slope, gram) / scale**2
        slope *= np.outer(scale, scale) * free
        return value, np.concatenate([slope.ravel(), norms.slope(shares, by_norm)])

    plain = Workload(workload.momentum)  # a schedule has no Toeplitz start, and this one is near enough
    bands = rounds if most == 1 else separation
    band = optimal_band(participation, objective, plain, bands)
    start = lower_toeplitz(np.append(band, np.zeros(rounds - bands)))
    start /= np.linalg.norm(start, axis=0)
    point = np.concatenate([(start.T @ start).ravel(), np.zeros(len(norms.pool))])
    for weigh, rest_change in STAGES[objective]:
        point = minimise(lambda p, w=weigh: loss(p, w), point, history=HISTORY, rest_change=rest_change)  # type: ignore[misc]
    # BandMF, Prop. 4.1: the Cholesky factor from the last row upwards.
    reversed_factor = cholesky(gram_of(point)[0][::-1, ::-1], lower=True)
    return np.tril(reversed_factor.T[::-1, ::-1])


def _inverse(gram: np.ndarray) -> np.ndarray | None:
    """The inverse of a positive definite matrix, None of others."""
    from scipy.linalg.lapack import dpotrf, dpotri

    factor, failed = dpotrf(gram, lower=1)
    if failed:
        return None
    inverse, failed = dpotri(factor, lower=1, overwrite_c=1)
    if failed:
        return None
    inverse = np.tril(inverse)
    return inverse + np.tril(inverse, -1).T
