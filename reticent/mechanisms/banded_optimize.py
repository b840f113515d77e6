"""The best banded C: BandMF (BandMF, Problem 2), and without equal column norms (BandMF, App. B)."""

import numpy as np

from reticent.errors import Refused
from reticent.mechanisms.banded_loss import inverse_workload, loss_and_gradient
from reticent.mechanisms.lbfgs import minimise
from reticent.mechanisms.norms import Norms
from reticent.mechanisms.objective import STAGES, Weigh
from reticent.mechanisms.participation import Participation
from reticent.mechanisms.workload import Workload

MEMORY_LIMIT_BYTES = 8 * 2**30
HISTORY = 5


def check_memory(rounds: int, bands: int) -> None:
    """Refuses an optimisation that would not fit, saying how much it needs."""
    needed = 8 * rounds * bands * (2 * HISTORY + 16)
    if needed > MEMORY_LIMIT_BYTES:
        raise Refused(
            f"Optimising {bands} bands over {rounds} rounds needs {needed / 2**30:.0f} GiB, above the limit of "
            f"{MEMORY_LIMIT_BYTES / 2**30:.0f} GiB; use fewer bands, or the kinds toeplitz or blt."
        )


def optimal_columns(
    participation: Participation,
    objective: str,
    workload: Workload,
    bands: int,
    equal_norms: bool,
    *,
    tighter: float = 1.0,
) -> np.ndarray:
    """The best C with this many bands, by columns: entry [j, l] is C[j + l, j]. The start is BandToep's optimum.

    With equal norms every column has norm 1; without, the pools of `Norms` have sum 1. `tighter` divides the change of the
    loss at which it ends: above 1 the loss changes no more in its fourth digit, and it takes several times longer.
    """
    from reticent.mechanisms.toeplitz import optimal_band

    rounds = participation.rounds
    check_memory(rounds, bands)
    if (workload.rates(rounds) == 0).any():
        raise Refused("A banded mechanism cannot be optimised for learning rates of zero; leave those rounds out.")
    inverse = inverse_workload(workload, rounds)
    norms = Norms.equal(rounds) if equal_norms else Norms.free(participation)
    inside = np.arange(rounds)[:, None] + np.arange(bands) < rounds
    size = rounds * bands

    def columns_of(point: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        raw = point[:size].reshape(rounds, bands)
        lengths = np.sqrt(np.einsum("jl,jl->j", raw, raw))
        shares = norms.shares(point[size:])
        return raw * (np.sqrt(shares[norms.entry]) / lengths)[:, None], lengths, shares

    def loss(point: np.ndarray, weigh: Weigh) -> tuple[float, np.ndarray]:
        if not (point[:size:bands] > 0).all():
            return np.inf, point
        columns, lengths, shares = columns_of(point)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            value, slope = loss_and_gradient(columns, inverse, weigh)
        if not np.isfinite(value):
            return np.inf, point
        slope *= inside
        squared = shares[norms.entry]
        along = np.einsum("jl,jl->j", slope, columns) / squared  # twice the slope in the squared norm
        slope -= along[:, None] * columns
        slope *= (np.sqrt(squared) / lengths)[:, None]
        return value, np.concatenate([slope.ravel(), norms.slope(shares, along / 2)])

    plain = Workload(workload.momentum)  # a schedule has no Toeplitz start, and this one is near enough
    start = np.where(inside, optimal_band(participation, objective, plain, bands), 0.0)
    start /= np.linalg.norm(start, axis=1, keepdims=True)
    point = np.concatenate([start.ravel(), np.zeros(len(norms.pool))])
    for weigh, rest_change in STAGES[objective]:
        point = minimise(lambda p, w=weigh: loss(p, w), point, history=HISTORY, rest_change=rest_change / tighter)  # type: ignore[misc]
    return columns_of(point)[0]
