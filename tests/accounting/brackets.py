"""An independent bracket of epsilon: the discretised loss rounded down and rounded up, composed without tricks."""

import math

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import logsumexp
from scipy.stats import norm


def bracket(
    noise: float, weights: np.ndarray, times: int, delta: float, step: float, direction: int = 0
) -> list[float]:
    """epsilon of `times` mixtures N(J, noise^2) against N(0, noise^2) (direction 0; 1: the other way round), from below
    and from above: every sliver of what can be seen has its loss rounded down, or up, to a multiple of `step`."""
    shifts = np.arange(len(weights))
    edges = np.linspace(-12 * noise, len(weights) - 1 + 12 * noise, 60_001)
    with np.errstate(divide="ignore"):
        logs = np.log(weights)
    loss = logsumexp(logs[:, None] + (2 * shifts[:, None] * edges - shifts[:, None] ** 2) / (2 * noise**2), axis=0)
    below, above = loss[:-1], loss[1:]
    mixed = np.diff(
        sum(weight * norm.cdf((edges - shift) / noise) for weight, shift in zip(weights, shifts, strict=True))
    )
    mass = mixed if direction == 0 else np.diff(norm.cdf(edges / noise))
    if direction == 1:
        below, above = -above, -below
    found = []
    for index in (np.floor(below / step).astype(int), np.ceil(above / step).astype(int)):
        low = index.min()
        pmf = np.bincount(index - low, mass)
        size = next_fast_len(math.ceil(len(pmf) + 40 * math.sqrt(times) * _deviation(pmf)), real=True)
        # Rotate so that the mean of the sum is in the middle of the window.
        total = irfft(rfft(pmf / pmf.sum(), size) ** times, size)
        mean = times * (low + (np.arange(len(pmf)) * pmf).sum() / pmf.sum())
        start = round(mean) - size // 2
        total = np.roll(total, -((start - times * low) % size))
        losses = (start + np.arange(size)) * step
        found.append(_epsilon(losses, np.maximum(total, 0), delta))
    return found


def _deviation(pmf: np.ndarray) -> float:
    index = np.arange(len(pmf))
    mean = (index * pmf).sum() / pmf.sum()
    return math.sqrt(((index - mean) ** 2 * pmf).sum() / pmf.sum())


def _epsilon(losses: np.ndarray, mass: np.ndarray, delta: float) -> float:
    low, high = 0.0, float(losses[-1])
    for _ in range(60):
        middle = (low + high) / 2
        over = losses > middle
        value = float((mass[over] * -np.expm1(middle - losses[over])).sum())
        low, high = (low, middle) if value <= delta else (middle, high)
    return high
