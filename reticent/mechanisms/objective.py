"""What an optimiser makes of the squared errors after each round."""

from collections.abc import Callable

import numpy as np

Weigh = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""A loss of the squared errors, and its gradient with respect to each."""


def mean_square(squares: np.ndarray) -> tuple[float, np.ndarray]:
    """The squared RmsError."""
    return float(np.mean(squares)), np.full(len(squares), 1 / len(squares))


def soft_peak(power: float) -> Weigh:
    """The power mean of the squared errors, which tends to the squared MaxError from below."""

    def weigh(squares: np.ndarray) -> tuple[float, np.ndarray]:
        largest = float(squares.max())
        scaled = squares / largest
        mean = float(np.mean(scaled**power))
        return largest * mean ** (1 / power), mean ** (1 / power - 1) * scaled ** (power - 1) / len(squares)

    return weigh


# What to minimise one after the other, each from the best of the one before, and the relative change over ten steps at
# which to go on. The peak is sharpened in stages.
STAGES: dict[str, list[tuple[Weigh, float]]] = {
    "rms": [(mean_square, 1e-5)],
    "max": [(soft_peak(16), 1e-3), (soft_peak(128), 1e-3), (soft_peak(512), 2e-4)],
}
