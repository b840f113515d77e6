"""The loss of a BLT and its gradient in closed form: sums of geometric series in pairs of decays, independent of rounds.

C(x) = prod_i (1 - psi_i x) / prod_i (1 - theta_i x), with theta the decays of C and psi those of C^-1 (BLT, Sec. 3.3 and
Alg. 5). Everything is written in the distances u = 1 - theta and w = 1 - psi, because decays crowd at 1 and differences of
decays are then differences of small numbers. With 0 < u_1 < w_1 < u_2 < w_2 < ... < 1 every output scale is positive.
"""

import functools
from dataclasses import dataclass

import numpy as np

from reticent.mechanisms.participation import Participation

_SERIES_BELOW = 0.05
_TERMS = 9


def geometric(distance: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """sum_{i<length} r^i at r = 1 - distance, and its derivative in `distance`."""
    near = length * distance < _SERIES_BELOW
    safe = np.where(near, 0.5, distance)
    log_power = length * np.log1p(-safe)
    value = -np.expm1(log_power) / safe
    slope = (length * np.exp(log_power) / (1 - safe) - value) / safe
    if near.any():
        value = np.where(near, _binomial_series(distance, length, 1), value)
        slope = np.where(near, _binomial_slope(distance, length, 1), slope)
    return value, slope


def weighted_geometric(distance: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """sum_{i<length} (length - i) r^i at r = 1 - distance, and its derivative in `distance`."""
    near = length * distance < _SERIES_BELOW
    safe = np.where(near, 0.5, distance)
    inner, inner_slope = geometric(safe, length)
    value = (length - (1 - safe) * inner) / safe
    slope = (inner - (1 - safe) * inner_slope - value) / safe
    if near.any():
        value = np.where(near, _binomial_series(distance, length + 1, 2), value)
        slope = np.where(near, _binomial_slope(distance, length + 1, 2), slope)
    return value, slope


@functools.lru_cache(maxsize=64)
def _binomials(length: int, start: int) -> tuple[float, ...]:
    # Binomial coefficients (length over start), (length over start + 1), ...: the expansion around r = 1.
    values, current = [], 1.0
    for index in range(start + _TERMS + 1):
        if index >= start:
            values.append(current)
        current *= (length - index) / (index + 1)
    return tuple(values)


def _binomial_series(distance: np.ndarray, length: int, start: int) -> np.ndarray:
    return _polynomial(-distance, _binomials(length, start)[:_TERMS])


def _binomial_slope(distance: np.ndarray, length: int, start: int) -> np.ndarray:
    return _polynomial(
        -distance, tuple(-(power + 1) * value for power, value in enumerate(_binomials(length, start)[1:]))
    )


def _polynomial(x: np.ndarray, coefficients: tuple[float, ...]) -> np.ndarray:
    value = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + coefficient
    return value


def pair_distances(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """1 - (1 - left_i)(1 - right_j), without cancellation."""
    return left[:, None] + right - left[:, None] * right


def output_scales(u: np.ndarray, w: np.ndarray) -> np.ndarray:
    """omega of C (BLT, Alg. 5): prod_i (theta_j - psi_i) / prod_{i != j} (theta_j - theta_i)."""
    apart = u - u[:, None]
    np.fill_diagonal(apart, 1.0)
    return np.prod(w - u[:, None], axis=1) / np.prod(apart, axis=1)


@dataclass(frozen=True)
class _Gradient:
    value: float
    u: np.ndarray
    w: np.ndarray


def squared_sensitivity(u: np.ndarray, w: np.ndarray, participation: Participation) -> _Gradient:
    """The squared norm of columns 0, b, 2b, ... together (BLT, Thm. 3.1), with its gradient."""
    separation, most = participation.min_separation, participation.most
    theta, omega = 1 - u, output_scales(u, w)
    powers = np.exp(separation * np.log1p(-u)) ** np.arange(most)[:, None]
    # In segment s, participations 0..s are under way: buffer j holds weights[s, j] times its decay since the segment began.
    weights = np.cumsum(powers, axis=0)
    heights = omega * weights
    carried = np.exp((separation - 1) * np.log1p(-u))
    # The first round of a segment has the new participation's own coefficient, 1, as well.
    firsts = np.append(1.0, 1 + heights[:-1] @ carried)
    distances = pair_distances(u, u)
    inner, inner_slope = geometric(distances, separation - 1)
    tail, tail_slope = geometric(distances, participation.rounds - (most - 1) * separation - 1)
    full = heights[:-1].T @ heights[:-1]
    final = np.outer(heights[-1], heights[-1])
    value = float(firsts @ firsts + np.sum(full * inner) + np.sum(final * tail))

    by_height = 2 * np.vstack([heights[:-1] @ inner + firsts[1:, None] * carried, heights[-1:] @ tail])
    by_weight = by_height * omega
    steps = np.arange(1, most)[:, None]
    by_power = np.cumsum(by_weight[::-1], axis=0)[::-1][1:]
    # d(power m)/du = -m b theta^(mb - 1), and the same for the decay carried into a segment's first round.
    by_u = -separation * np.sum(by_power * steps * powers[1:], axis=0) / theta
    by_u -= (separation - 1) * carried / theta * 2 * (firsts[1:] @ heights[:-1])
    by_u += 2 * ((full * inner_slope + final * tail_slope) @ theta)
    by_log_omega = np.sum(by_height * weights, axis=0) * omega
    by_u_scales, by_w = _through_logs(by_log_omega, u, w)
    return _Gradient(value, by_u + by_u_scales, by_w)


def _through_logs(by_log: np.ndarray, u: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # log omega_j = sum_i log(w_i - u_j) - sum_{i != j} log(u_i - u_j).
    across = 1 / (w - u[:, None])
    apart = u - u[:, None]
    np.fill_diagonal(apart, np.inf)
    among = 1 / apart
    by_u = by_log * (among.sum(axis=1) - across.sum(axis=1)) - by_log @ among
    return by_u, by_log @ across


def squared_error(u: np.ndarray, w: np.ndarray, rounds: int, momentum: float, objective: str) -> _Gradient:
    """MaxError^2 or RmsError^2 over the workload (BLT, Prop. 3.2), with its gradient.

    b has the generating function A(x) / C(x), a sum of geometric series in the poles 1, psi_j and, with momentum, beta.
    """
    fixed = np.array([0.0]) if momentum == 0 else np.array([0.0, 1 - momentum])
    extra = len(fixed) - 1
    poles = np.append(fixed, w)
    apart = poles - poles[:, None]
    np.fill_diagonal(apart, 1.0)
    weights = np.prod(u - poles[:, None], axis=1) / np.prod(apart, axis=1) * (1 - poles) ** extra
    series = geometric if objective == "max" else weighted_geometric
    sums, slopes = series(pair_distances(poles, poles), rounds)
    if objective == "rms":
        sums, slopes = sums / rounds, slopes / rounds
    value = float(weights @ sums @ weights)

    by_pole = 2 * weights * (slopes @ (weights * (1 - poles)))
    by_log = 2 * weights * (sums @ weights)
    np.fill_diagonal(apart, np.inf)
    across, among = 1 / (u - poles[:, None]), 1 / apart
    by_pole += by_log * (among.sum(axis=1) - across.sum(axis=1) - extra / (1 - poles)) - by_log @ among
    return _Gradient(value, by_log @ across, by_pole[len(fixed) :])


def log_loss(
    logits: np.ndarray, participation: Participation, momentum: float, objective: str
) -> tuple[float, np.ndarray]:
    """The logarithm of MaxLoss or RmsLoss and its gradient, in free parameters (see `distances`)."""
    u, w, scale = distances(logits)
    error = squared_error(u, w, participation.rounds, momentum, objective)
    sensitivity = squared_sensitivity(u, w, participation)
    by_distance = np.empty(2 * len(u))
    by_distance[0::2] = (error.u / error.value + sensitivity.u / sensitivity.value) / 2
    by_distance[1::2] = (error.w / error.value + sensitivity.w / sensitivity.value) / 2
    ordered = np.empty(2 * len(u))
    ordered[0::2], ordered[1::2] = u, w
    by_sum = np.cumsum((by_distance * ordered * (1 - ordered))[::-1])[::-1]
    value = (np.log(error.value) + np.log(sensitivity.value)) / 2
    return float(value), by_sum * scale


def distances(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(u, w) interlaced by construction: the logits of u_1, w_1, u_2, ... are one number and then positive steps.

    The third value is the derivative of each step in its parameter.
    """
    scale = np.append(1.0, np.exp(logits[1:]))
    steps = np.cumsum(np.append(logits[0], scale[1:]))
    ordered = 1 / (1 + np.exp(-steps))
    return ordered[0::2], ordered[1::2], scale
