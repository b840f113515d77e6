"""The best banded inverse of a Toeplitz C, among those whose C has non-negative, non-increasing coefficients.

With D = C^-1 = (1, d_1, ..., d_p), the first p + 1 coefficients of C and D determine each other. The unknowns are the
ratios of successive coefficients of C there, each between 0 and 1, so that this much of C decreases by construction;
the rest follows from D, and where it does not decrease the loss is infinite. At the best D that wall is far.
"""

import numpy as np

from reticent.mechanisms.inverse_toeplitz import series_of_inverse
from reticent.mechanisms.participation import Participation
from reticent.mechanisms.toeplitz_loss import decaying_sensitivity, error_weights, square_root_coefficients
from reticent.mechanisms.workload import Workload

# The best C has level stretches. Ratios stay this much below 1 so that rounding cannot turn such a stretch into a rise.
MARGIN = 1e-9


def optimal_inverse(participation: Participation, objective: str, workload: Workload, bands: int) -> np.ndarray:
    """The coefficients of D with the least loss, from two starts: the workload's square root and a slower decay."""
    from reticent.mechanisms.lbfgs import minimise

    if bands == 1:
        return np.ones(1)
    loss = _Loss(participation, objective, workload, bands)
    root = square_root_coefficients(workload, bands)
    ratios = np.minimum(root[1:] / root[:-1], 0.999)
    best, least = np.zeros(0), np.inf
    for start in (np.sqrt(ratios), ratios):
        point = np.log(start / (1 - start))
        while not np.isfinite(loss(point)[0]):
            point -= 0.1  # faster decay; at the end of this road lies C = I, which is inside
        point = minimise(loss, point, history=30, rest_change=1e-9, rest_steps=30)
        value, _ = loss(point)
        if value < least:
            best, least = point, value
    return loss.band(best)[2]


class _Loss:
    """The logarithm of the squared loss and its gradient, in the logits of the ratios."""

    def __init__(self, participation: Participation, objective: str, workload: Workload, bands: int):
        self._participation, self._workload = participation, workload
        self._bands, self._rounds = bands, participation.rounds
        self._weights = error_weights(self._rounds, objective)
        self._applied = workload.coefficients(self._rounds)

    def band(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The ratios, the first coefficients of C, and all of D."""
        from scipy.special import expit

        ratios = (1 - MARGIN) * expit(logits)
        head = np.append(1.0, np.cumprod(ratios))
        return ratios, head, series_of_inverse(head, self._bands)

    def __call__(self, logits: np.ndarray) -> tuple[float, np.ndarray]:
        from scipy.signal import lfilter

        ratios, head, band = self.band(logits)
        with np.errstate(over="ignore", invalid="ignore"):
            series = series_of_inverse(band, self._rounds)
        alive = series[: np.count_nonzero(series)]
        if not (alive > 0).all() or not (alive[1:] < alive[:-1]).all():
            return np.inf, logits
        error, by_band = self._squared_error(band)
        sensitivity, by_series = decaying_sensitivity(series, self._participation)
        by_band = by_band / error
        # A change dD of D changes C = 1 / D by -C^2 dD, and in the first coefficients the other way round.
        by_band += _pull(by_series / sensitivity, -lfilter([1.0], band, series), self._bands)
        by_head = _pull(by_band, -np.convolve(band, band)[: self._bands], self._bands)
        by_log_ratio = np.cumsum((by_head * head)[::-1])[::-1][1:]
        return float(np.log(error) + np.log(sensitivity)), by_log_ratio * (1 - ratios / (1 - MARGIN))

    def _squared_error(self, band: np.ndarray) -> tuple[float, np.ndarray]:
        rows = self._workload.apply(np.append(band, np.zeros(self._rounds - self._bands)))
        return float(self._weights @ rows**2), _pull(2 * self._weights * rows, self._applied, self._bands)


def _pull(outer: np.ndarray, factor: np.ndarray, count: int) -> np.ndarray:
    """Entry l is the sum over i of outer[i] factor[i - l]: the transpose of a product of power series."""
    return np.array([float(outer[lag:] @ factor[: len(outer) - lag]) for lag in range(count)])
