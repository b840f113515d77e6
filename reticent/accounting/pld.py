"""Privacy loss distributions on a grid: always an upper bound, composed at once, exact far into the tail.

A release of which two datasets make a pair of distributions P and Q has the privacy loss log(P / Q) under P. Its interval
between two points of the grid is split onto these two so that it keeps its mass under P *and* under Q, which makes a
worse pair (Doroshenko et al., "Connect the dots") that equals the true one at every point of the grid. Many releases
compose by one Fourier transform of the tilted distribution m(loss) exp(theta loss), with theta chosen so that the loss
asked about lies where most of the tilted mass is: rounding is then relative to that mass and not to 1, and deltas of
1e-15 and below keep their digits. What a window leaves out is bounded by Chernoff's inequality and added.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from reticent.errors import Refused

# The variance that the grid may add, as a share of all variance: epsilon grows by half of it, relatively.
FINENESS = 2e-4
MOST_POINTS = 2**15
LEFT_OUT = 1e-11
# The window of so many releases together has some 10^7 points.
MOST_RELEASES = 10**9


@dataclass(frozen=True)
class Losses:
    """One release: `mass[i]` at the loss (low + i) * step, `infinite` at infinity."""

    low: int
    mass: np.ndarray
    infinite: float


class Releases(Protocol):
    """`times` releases alike, as the parts of a guarantee are."""

    @property
    def times(self) -> int: ...

    def loss_range(self, tail: float) -> tuple[float, float]:
        """The standard deviation of one loss, and the largest of all but `tail` of the mass."""
        ...

    def losses(self, step: float, tail: float) -> tuple[Losses, Losses]:
        """One release on a grid of this step, in both directions; what lies beyond `tail` of the mass may be put
        higher."""
        ...


@dataclass(frozen=True)
class Together:
    """All these releases of the same people together."""

    parts: Sequence[Releases]

    def __post_init__(self) -> None:
        times = sum(part.times for part in self.parts)
        if times > MOST_RELEASES:
            raise Refused(
                f"{times:,} sampled releases are more than the {MOST_RELEASES:,} that can be composed exactly."
            )

    def delta(self, epsilon: float) -> float:
        """Rounded up."""
        return max(composed.delta(epsilon) for composed in self._composed(1e-30))

    def epsilon(self, delta: float) -> float:
        """Rounded up."""
        removed, added = self._composed(1e-7 * delta)
        epsilon = removed.epsilon(delta)
        return epsilon if added.is_below(epsilon, delta) else max(epsilon, added.epsilon(delta))

    def _composed(self, tail: float) -> "list[_Composed]":
        tail /= sum(part.times for part in self.parts)
        step = step_for(self.parts, tail)
        pairs = [part.losses(step, tail) for part in self.parts]
        times = [part.times for part in self.parts]
        return [_Composed(step, [pair[direction] for pair in pairs], times) for direction in (0, 1)]


def step_for(parts: Sequence[Releases], tail: float) -> float:
    """The widest grid that adds next to nothing, or the finest that is affordable."""
    ranges = [part.loss_range(tail) for part in parts]
    times = [part.times for part in parts]
    variance = sum(count * deviation**2 for count, (deviation, _) in zip(times, ranges, strict=True))
    wanted = math.sqrt(6 * FINENESS * variance / sum(times))
    return max(wanted, max(largest for _, largest in ranges) / MOST_POINTS)


class _Composed:
    """All releases in one direction."""

    def __init__(self, step: float, losses: list[Losses], times: list[int]) -> None:
        self.step, self.times, self.losses = step, times, losses
        self.fine = [_Moments.of(one, step) for one in losses]
        # What only looks for a good tilt may look through the fingers.
        self.coarse = [moments.coarse() for moments in self.fine]
        # 1 - product of (1 - infinite)^times
        self.infinite = -math.expm1(
            sum(count * math.log1p(-min(one.infinite, 1 - 1e-16)) for one, count in zip(losses, times, strict=True))
        )

    def log_moment(self, tilt: float) -> float:
        """log E exp(tilt loss) of all releases together."""
        return sum(count * one.at(tilt)[0] for one, count in zip(self.fine, self.times, strict=True))

    def about(self, tilt: float) -> tuple[float, float, float]:
        """Nearly: log E exp(tilt loss), and mean and variance of the tilted distribution."""
        each = [one.at(tilt) for one in self.coarse]
        total, mean, variance = (
            sum(count * values[part] for values, count in zip(each, self.times, strict=True)) for part in range(3)
        )
        return total, mean, variance

    def epsilon(self, delta: float) -> float:
        """Rounded up."""
        if self.infinite >= delta:
            return math.inf
        epsilon = max(0.0, _Tilted(self, self._tilt_for(delta)).epsilon(delta))
        # Where all of the loss is about as small as this, the delta may cover it whole.
        deviation = math.sqrt(self.about(0.0)[2])
        return 0.0 if epsilon <= 2 * deviation and self.delta(0.0) <= delta else epsilon

    def is_below(self, epsilon: float, delta: float) -> bool:
        """Whether Chernoff's inequality alone shows that this delta is reached at this epsilon."""
        tilt = self._tilt_for(delta)
        return self.infinite + math.exp(min(0.0, self.log_moment(tilt) - tilt * epsilon)) <= delta

    def delta(self, epsilon: float) -> float:
        """Rounded up."""
        tilt = self._rising_to_zero(lambda tilt: self.about(tilt)[1] - epsilon)
        return min(1.0, _Tilted(self, tilt).delta(epsilon))

    def _tilt_for(self, delta: float) -> float:
        def short(tilt: float) -> float:
            total, mean, _ = self.about(tilt)
            return tilt * mean - total + math.log(delta)

        return self._rising_to_zero(short)

    def _rising_to_zero(self, short: Callable[[float], float]) -> float:
        """Where a function that rises with the tilt is zero, to a few percent, which is enough."""
        deviation = math.sqrt(max(self.about(0.0)[2], 1e-300))
        low, high = 0.0, 1 / deviation
        while short(high) < 0:
            low, high = high, 4 * high
            if high > 1e3 / self.step:
                return high
        while high - low > 0.03 * high and high > 1e-3 / deviation:
            middle = math.sqrt(low * high) if low > 0 else high / 4
            low, high = (middle, high) if short(middle) < 0 else (low, middle)
        return high


@dataclass(frozen=True)
class _Moments:
    grid: np.ndarray
    logs: np.ndarray

    @classmethod
    def of(cls, losses: Losses, step: float) -> "_Moments":
        with np.errstate(divide="ignore"):
            return cls((losses.low + np.arange(len(losses.mass))) * step, np.log(losses.mass))

    def coarse(self, points: int = 2048) -> "_Moments":
        if len(self.grid) <= 2 * points:
            return self
        starts = np.arange(0, len(self.grid), -(-len(self.grid) // points))
        mass = np.exp(self.logs)
        sums = np.add.reduceat(mass, starts)
        some = sums > 0
        means = np.add.reduceat(mass * self.grid, starts)[some] / sums[some]
        return _Moments(means, np.log(sums[some]))

    def at(self, tilt: float) -> tuple[float, float, float]:
        """log E exp(tilt loss), and mean and variance of the tilted distribution."""
        exponents = self.logs + tilt * self.grid
        top = float(exponents.max())
        weights = np.exp(exponents - top)
        whole = float(weights.sum())
        mean = float(weights @ self.grid) / whole
        return top + math.log(whole), mean, float(weights @ (self.grid - mean) ** 2) / whole


class _Tilted:
    """The composed distribution, tilted: `mass[i]` at (first + i) * step, times exp(total - tilt * loss)."""

    def __init__(self, composed: _Composed, tilt: float) -> None:
        from scipy.fft import irfft, next_fast_len, rfft

        self.step, self.tilt, self.infinite = composed.step, tilt, composed.infinite
        self.total = composed.log_moment(tilt)
        bottom, top = self._window(composed)
        self.first = math.floor(bottom / self.step)
        size = next_fast_len(math.ceil(top / self.step) - self.first + 1, real=True)
        spectrum = np.ones(size // 2 + 1, complex)
        for one, moments, count in zip(composed.losses, composed.fine, composed.times, strict=True):
            exponents = moments.logs + tilt * moments.grid
            weights = np.exp(exponents - exponents.max())
            wrapped = np.bincount((one.low + np.arange(len(weights))) % size, weights / weights.sum(), size)
            spectrum *= rfft(wrapped) ** count
        mass = np.roll(irfft(spectrum, size), -(self.first % size))
        self.mass = np.maximum(mass, 0.0)
        # What lies outside of the window, and the rounding of the transform, are at most this, at the loss asked about.
        self.unseen = LEFT_OUT + 1e-15 * sum(composed.times)

    def _window(self, composed: _Composed) -> tuple[float, float]:
        total, self.mean, variance = composed.about(self.tilt)
        room = -math.log(LEFT_OUT)
        self.deviation = deviation = math.sqrt(max(variance, self.step**2))
        ends = []
        for sign in (-1, 1):
            turns = [sign * 2.0**power / deviation for power in range(-2, 8)]
            best = min(turns, key=lambda turn: (composed.about(self.tilt + turn)[0] - total + room) / abs(turn))
            ends.append((composed.log_moment(self.tilt + best) - self.total + room) / best)
        return ends[0], ends[1]

    def delta(self, epsilon: float) -> float:
        start = max(math.floor(epsilon / self.step) - self.first + 1, 0)
        above, below, unseen = self._sums(start, epsilon)
        return self.infinite + above - below + unseen

    def _sums(self, start: int, epsilon: float) -> tuple[float, float, float]:
        # delta = sum over losses above epsilon of mass * (1 - exp(epsilon - loss))
        scale = math.exp(min(self.total - self.tilt * epsilon, 700.0))
        reach = len(self.mass) if self.tilt == 0 else start + math.ceil(40 / (self.tilt * self.step)) + 1
        mass = self.mass[start:reach]
        over = (self.first + start + np.arange(len(mass))) * self.step - epsilon
        weights = mass * np.exp(-self.tilt * over)
        cut = 0.0 if self.tilt == 0 else math.exp(-40)
        return scale * float(weights.sum()), scale * float(weights @ np.exp(-over)), scale * (self.unseen + cut)

    def epsilon(self, delta: float) -> float:
        # The tilt was chosen so that the answer is near the tilted mean: look around it, further and further.
        last = len(self.mass) - 1
        low = high = min(max(round(self.mean / self.step) - self.first, 0), last)
        left = right = self._excess(low, delta)
        reach = max(2, round(self.deviation / (4 * self.step)))
        while left <= 0:
            if low == 0:
                return self.first * self.step
            high, right = low, left
            low, reach = max(low - reach, 0), 2 * reach
            left = self._excess(low, delta)
        while right > 0:
            if high == last:
                return (self.total + math.log(1 / (delta - self.infinite))) / self.tilt
            low, left = high, right
            high, reach = min(high + reach, last), 2 * reach
            right = self._excess(high, delta)
        # log delta falls smoothly: regula falsi (Illinois) to one interval of the grid, or halving where it is slow.
        turn = 0
        while high - low > 1:
            turn += 1
            share = left / (left - right) if turn % 8 else 0.5
            middle = min(max(low + round(share * (high - low)), low + 1), high - 1)
            found = self._excess(middle, delta)
            if found > 0:
                low, left, right = middle, found, right / 2
            else:
                high, right, left = middle, found, left / 2
        # Between two points of the grid delta is a - b exp(epsilon).
        start = (self.first + low) * self.step
        above, below, unseen = self._sums(low + 1, start)
        if below == 0:
            return start + self.step
        return start + math.log(max(1.0, (self.infinite + above + unseen - delta) / below))

    def _excess(self, index: int, delta: float) -> float:
        return math.log(max(self.delta((self.first + index) * self.step) / delta, 1e-300))
