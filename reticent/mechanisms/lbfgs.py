"""Unconstrained minimisation by limited-memory BFGS, for losses that are infinite outside an open set.

SciPy's line search interpolates between the values it gets and loses its way at an infinity, and it cannot stop when
the loss has come to rest over several steps; this one bisects, and can.
"""

from collections import deque
from collections.abc import Callable

import numpy as np

Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""Value and gradient; the value may be infinite, and the gradient is then not looked at."""


def minimise(
    loss: Loss,
    start: np.ndarray,
    *,
    history: int = 10,
    max_steps: int = 1000,
    rest_change: float = 1e-10,
    rest_steps: int = 10,
) -> np.ndarray:
    """The best point found; it stops when `rest_steps` steps lower the loss by less than `rest_change`, relatively."""
    point = start
    value, gradient = loss(point)
    if not np.isfinite(value):
        raise ValueError("the start of a minimisation must have a finite loss")
    pairs: deque[tuple[np.ndarray, np.ndarray, float]] = deque(maxlen=history)
    values = [value]
    for _ in range(max_steps):
        direction = _direction(gradient, pairs)
        slope = float(np.vdot(direction, gradient))
        if slope >= 0:
            if not pairs:
                break
            pairs.clear()
            continue
        if not pairs:  # the length of a first step is a guess: a tenth of the point's own length
            step = 0.1 * float((np.linalg.norm(point) or 1.0) / np.linalg.norm(direction))
        else:
            step = 1.0
        found = _search(loss, point, value, direction, slope, step)
        if found is None:
            if not pairs:
                break
            pairs.clear()
            continue
        step, new_value, new_gradient = found
        move, change = step * direction, new_gradient - gradient
        curvature = float(np.vdot(move, change))
        if curvature > 1e-12 * float(np.vdot(change, change)) ** 0.5 * float(np.vdot(move, move)) ** 0.5:
            pairs.append((move, change, curvature))
        point, value, gradient = point + move, new_value, new_gradient
        values.append(value)
        if len(values) > rest_steps and values[-1 - rest_steps] - value <= rest_change * abs(value):
            break
    return point


def _direction(gradient: np.ndarray, pairs: deque[tuple[np.ndarray, np.ndarray, float]]) -> np.ndarray:
    # The two-loop recursion.
    direction = -gradient
    weights = []
    for move, change, curvature in reversed(pairs):
        weight = float(np.vdot(move, direction)) / curvature
        direction -= weight * change
        weights.append(weight)
    if pairs:
        _, change, curvature = pairs[-1]
        direction *= curvature / float(np.vdot(change, change))
    for (move, change, curvature), weight in zip(pairs, reversed(weights), strict=True):
        direction += (weight - float(np.vdot(change, direction)) / curvature) * move
    return direction


def _search(
    loss: Loss, point: np.ndarray, value: float, direction: np.ndarray, slope: float, step: float
) -> tuple[float, float, np.ndarray] | None:
    # Bisection towards the weak Wolfe conditions, which keeps the curvature of the step positive.
    low, high = 0.0, np.inf
    best = None
    for _ in range(30):
        new_value, new_gradient = loss(point + step * direction)
        if not np.isfinite(new_value) or new_value > value + 1e-4 * step * slope:
            high = step
        else:
            best = (step, new_value, new_gradient)
            if float(np.vdot(direction, new_gradient)) >= 0.9 * slope:
                return best
            low = step
        step = (low + high) / 2 if np.isfinite(high) else 2 * step
    return best
