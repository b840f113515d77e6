"""One Gaussian mechanism, exactly: rho, epsilon and delta, from each other.

Every matrix mechanism is one: C X + Z is a Gaussian around what it protects, whose sensitivity in standard deviations,
mu = sqrt(2 rho), tells all (BLT, Sec. 2.2). The privacy loss is normal, and

    delta(epsilon) = Phi(-x) - exp(epsilon) Phi(-y),   x = epsilon / mu - mu / 2,   y = epsilon / mu + mu / 2.

As exp(epsilon) phi(y) = phi(x), this is phi(x) (R(x) - R(y)) with Mills' ratio R, which has no cancellation of large
terms: it is exact to 12 digits where the first form has none left.
"""

import math

from reticent.errors import Refused

TINY = 1e-6
"""Below this mu delta is taken from its tangent, which is above it by a share of about mu."""


def delta_of_gaussian(rho: float, epsilon: float) -> float:
    """The smallest delta at which one Gaussian of this rho is (epsilon, delta)-DP."""
    from scipy.special import erfcx, log_ndtr, ndtr

    if epsilon < 0:
        raise Refused(f"epsilon must not be negative, got {epsilon!r}.")
    if rho == 0:
        return 0.0
    if math.isinf(rho):
        return 0.0 if math.isinf(epsilon) else 1.0
    mu = math.sqrt(2 * rho)
    x, y = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    root = math.sqrt(0.5)
    if mu < TINY:
        # R is convex and falls, so that R(x) - R(y) <= -mu R'(x); the difference itself would have no digits.
        ratio = math.sqrt(math.pi / 2) * float(erfcx(x * root))
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi) * mu * max(0.0, 1 - x * ratio)
    if x < -3:
        return float(ndtr(-x) - math.exp(epsilon + log_ndtr(-y)))
    return float(0.5 * math.exp(-x * x / 2) * (erfcx(x * root) - erfcx(y * root)))


def epsilon_of_gaussian(rho: float, delta: float) -> float:
    """The smallest epsilon at which one Gaussian of this rho is (epsilon, delta)-DP, rounded up."""
    check_delta(delta)
    if math.isinf(rho):
        return math.inf
    if delta_of_gaussian(rho, 0.0) <= delta:
        return 0.0
    # zCDP's own conversion is never below the exact one.
    low, high = 0.0, rho + 2 * math.sqrt(rho * math.log(1 / delta))
    return _last(low, high, lambda epsilon: delta_of_gaussian(rho, epsilon) <= delta)


def rho_of_gaussian(epsilon: float, delta: float) -> float:
    """The largest rho of one Gaussian that is (epsilon, delta)-DP, rounded down."""
    check_delta(delta)
    check_epsilon(epsilon)
    high = 1.0
    while delta_of_gaussian(high, epsilon) <= delta:
        high *= 4
    low = high / 4
    while delta_of_gaussian(low, epsilon) > delta:
        low /= 4
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return low
        if delta_of_gaussian(middle, epsilon) <= delta:
            low = middle
        else:
            high = middle


def check_delta(delta: float) -> None:
    """Refuses what is no delta: at 1 nothing is promised, at 0 no Gaussian noise is enough."""
    if not 0 < delta < 1:
        raise Refused(
            f"delta must be above 0 and below 1, got {delta!r}: at 0 epsilon is infinite for any Gaussian noise, at 1 "
            "nothing is promised; the population to the power -1.1 is usual."
        )


def check_epsilon(epsilon: float) -> None:
    """Refuses what is no target."""
    if not (0 < epsilon < math.inf):
        raise Refused(f"epsilon must be above 0 and finite, got {epsilon!r}.")


def _last(low: float, high: float, holds) -> float:  # type: ignore[no-untyped-def]
    """The end at which `holds` becomes true between low (where it does not) and high (where it does)."""
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
