"""The loss of one Gaussian around a random number of steps: N(0, sigma^2) against N(J, sigma^2), P(J = j) = weights[j].

Every sampled Gaussian is one: J is 1 for who is sampled and 0 else, and for a user with G examples that are each sampled
by themselves J is binomial (ULDP, Thm. 1). The loss rises with what is seen, x, so that an interval of losses is one of x:

    L(x) = log(sum_j weights[j] exp((2 j x - j^2) / (2 sigma^2))).
"""

import math

import numpy as np

from reticent.accounting.pld import Losses

ALWAYS = np.array([0.0, 1.0])
"""The weights of one Gaussian that everybody is in."""


def binomial(size: int, probability: float) -> np.ndarray:
    """The probabilities of 0..size successes, exact to the last digits also where they are tiny."""
    from scipy.special import gammaln, xlog1py, xlogy

    count = np.arange(size + 1)
    ways = gammaln(size + 1) - gammaln(count + 1) - gammaln(size - count + 1)
    return np.exp(ways + xlogy(count, probability) + xlog1py(size - count, -probability))


def loss_range(noise: float, weights: np.ndarray, tail: float) -> tuple[float, float]:
    """The standard deviation of the loss, and the largest of all but `tail` of the mass."""
    steps, kept, _ = _prune(weights, tail)
    bottom, top = _reach(noise, steps, kept, tail)
    seen = np.linspace(bottom, top, 4001)
    loss = _loss(seen, noise, steps, kept)
    density = (kept[:, None] * np.exp(-(((seen - steps[:, None]) / noise) ** 2) / 2)).sum(0)
    density /= density.sum()
    mean = float(density @ loss)
    return math.sqrt(float(density @ (loss - mean) ** 2)), float(loss[-1])


def losses(noise: float, weights: np.ndarray, step: float, tail: float) -> tuple[Losses, Losses]:
    """The loss of the mixture against the Gaussian (one is removed), and of the Gaussian against it (one is added)."""
    steps, kept, pruned = _prune(weights, tail)
    bottom, top = _reach(noise, steps, kept, tail)
    ends = _loss(np.array([bottom, top]), noise, steps, kept)
    low, high = math.floor(ends[0] / step), math.ceil(ends[1] / step)
    grid = np.arange(low, high + 1) * step
    seen = _where(grid, noise, steps, kept)
    without, before, after = _masses(seen, noise)
    shifted = [_masses(seen - shift, noise) for shift in steps]
    mixed, mixed_before, mixed_after = (
        sum(weight * one[part] for weight, one in zip(kept, shifted, strict=True)) for part in range(3)
    )
    removed = _split(mixed, without, grid[:-1], step)
    removed[0] += mixed_before
    added = _split(without[::-1], mixed[::-1], -grid[:0:-1], step)
    added[0] += after
    return Losses(low, removed, float(mixed_after) + pruned), Losses(-high, added, float(before))


def either(pair: tuple[Losses, Losses]) -> Losses:
    """The worse of both directions at every release: above 0 the first one's losses, below 0 the second one's. It is what
    a symmetric Gaussian does under replace-one when sampled without replacement (Zhu et al. 2022, Prop. 30)."""
    first, second = pair
    low, high = min(second.low, 0), max(first.low + len(first.mass) - 1, 0)
    mass = np.zeros(high - low + 1)
    index = first.low + np.arange(len(first.mass))
    mass[index[index > 0] - low] = first.mass[index > 0]
    index = second.low + np.arange(len(second.mass))
    mass[index[index < 0] - low] = second.mass[index < 0]
    mass[-low] = max(0.0, 1 - mass.sum() - first.infinite)
    return Losses(low, mass, first.infinite)


def _prune(weights: np.ndarray, tail: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Without the last, unlikely steps: their mass counts as infinite loss, and what is not there makes nobody safer."""
    beyond = np.cumsum(weights[::-1])[::-1]
    steps = np.arange(len(weights))[beyond > tail / 8]
    steps = steps[weights[steps] > 0]
    return steps, weights[steps], float(weights[steps[-1] + 1 :].sum())


def _reach(noise: float, steps: np.ndarray, kept: np.ndarray, tail: float) -> tuple[float, float]:
    """Where all but `tail` of the mass is seen, of the Gaussian below and of the mixture above."""
    from scipy.special import ndtri

    each = np.minimum(tail / (2 * len(steps) * kept), 0.5)
    return noise * float(ndtri(tail / 2)), float((steps - noise * ndtri(each)).max())


def _loss(seen: np.ndarray, noise: float, steps: np.ndarray, kept: np.ndarray) -> np.ndarray:
    exponents = np.log(kept)[:, None] + (2 * steps[:, None] * seen - steps[:, None] ** 2) / (2 * noise**2)
    top = exponents.max(0)
    return top + np.log(np.exp(exponents - top).sum(0))


def _where(grid: np.ndarray, noise: float, steps: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The x of each loss; minus infinity for losses that are below every one."""
    floor = math.log(kept[0]) if steps[0] == 0 else -math.inf
    found = np.full(len(grid), -np.inf)
    some = grid > floor
    # Without the constant term the rest is steep everywhere.
    target = grid[some] + (np.log(-np.expm1(floor - grid[some])) if math.isfinite(floor) else 0.0)
    rest = steps > 0
    steps, logs = steps[rest], np.log(kept[rest])
    # Convex and rising, so Newton's steps come down to the root from a point above, which each term alone gives.
    x = np.full(len(target), np.inf)
    for shift, log in zip(steps, logs, strict=True):
        x = np.minimum(x, (target - log) * noise**2 / shift + shift / 2)
    for _ in range(60 if len(steps) > 1 else 0):
        top, value, slope = np.full(len(x), -np.inf), np.zeros(len(x)), np.zeros(len(x))
        exponents = [log + (2 * shift * x - shift**2) / (2 * noise**2) for shift, log in zip(steps, logs, strict=True)]
        for exponent in exponents:
            top = np.maximum(top, exponent)
        for shift, exponent in zip(steps, exponents, strict=True):
            term = np.exp(exponent - top)
            value += term
            slope += shift * term
        move = (top + np.log(value) - target) * noise**2 * value / slope
        x -= move
        if np.abs(move).max(initial=0.0) < 1e-13 * (1 + noise):
            break
    found[some] = x
    return found


def _masses(edges: np.ndarray, noise: float) -> tuple[np.ndarray, float, float]:
    """The normal mass of each interval, to the last digits in both tails, and of what is before and after them all."""
    from scipy.special import ndtr

    far = ndtr(-np.abs(edges) / noise)
    right = edges > 0
    between = np.where(right[1:] == right[:-1], np.abs(far[1:] - far[:-1]), np.maximum(0.0, 1 - far[1:] - far[:-1]))
    before = float(1 - far[0] if right[0] else far[0])
    after = float(far[-1] if right[-1] else 1 - far[-1])
    return between, before, after


def _split(upper: np.ndarray, lower: np.ndarray, starts: np.ndarray, step: float) -> np.ndarray:
    """Each interval's mass onto its two ends, so that both distributions keep theirs."""
    with np.errstate(divide="ignore"):
        against = np.exp(starts + np.log(lower))
    later = np.clip((upper - against) / -math.expm1(-step), 0.0, upper)
    mass = np.zeros(len(upper) + 1)
    mass[:-1] = upper - later
    mass[1:] += later
    return mass
