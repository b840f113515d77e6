"""The noise multiplier for a target: one bracketed solve for every kind of guarantee."""

import math
from collections.abc import Callable

from reticent.accounting.gaussian import check_delta, check_epsilon, rho_of_gaussian
from reticent.accounting.guarantee import Guarantee
from reticent.errors import Refused

TOLERANCE = 1e-6
LEAST, MOST = 1e-4, 1e8


def smallest_noise(
    guarantee: Callable[[float], Guarantee], delta: float, *, epsilon: float | None = None, rho: float | None = None
) -> float:
    """The smallest noise multiplier, to six digits and rounded up, whose guarantee keeps to the target.

    `guarantee` maps a noise multiplier to a guarantee that improves with it. The target is `epsilon` at `delta`, or `rho`.
    """
    check_delta(delta)
    if (epsilon is None) == (rho is None):
        raise Refused("Calibration needs exactly one target: epsilon, or rho.")
    if epsilon is not None:
        check_epsilon(epsilon)
    elif not 0 < rho < math.inf:  # type: ignore[operator]
        raise Refused(f"rho must be above 0 and finite, got {rho!r}.")
    first = guarantee(1.0)
    if first.rho is not None:
        target = rho if rho is not None else rho_of_gaussian(epsilon, delta)  # type: ignore[arg-type]

        def keeps(found: Guarantee) -> bool:
            return (found.rho or 0.0) <= target if epsilon is None else found.epsilon(delta) <= epsilon

        return _of_gaussians(guarantee, first.rho, target, keeps)
    if rho is not None:
        raise Refused("This guarantee has no rho to calibrate to; give epsilon and delta.")
    return _of_any(guarantee, delta, epsilon)  # type: ignore[arg-type]


def _of_gaussians(
    guarantee: Callable[[float], Guarantee], at_one: float, target: float, keeps: Callable[[Guarantee], bool]
) -> float:
    # rho = a / sigma^2 + b, where b is what else is released: two values tell both, and a third is the check.
    far = 1e8
    beside = guarantee(far).rho or 0.0
    beside -= (at_one - beside) / far**2
    if beside >= target:
        raise _out_of_reach(beside, target)
    noise = math.sqrt((at_one - beside) / (target - beside))
    # Where nearly all of the target is used up by what else is released, few digits of the difference are right.
    for attempt in range(60):
        if keeps(guarantee(noise)):
            return noise
        noise *= 1 + 1e-13 * 2**attempt
    raise _out_of_reach(beside, target)


def _of_any(guarantee: Callable[[float], Guarantee], delta: float, epsilon: float) -> float:
    # log epsilon is smooth and falls in log sigma: regula falsi (Illinois) on it, from a bracket that grows by need.
    def excess(noise: float) -> float:
        found = guarantee(noise).epsilon(delta)
        return math.log(max(found, 1e-12) / epsilon) if found < math.inf else math.inf

    low = high = 1.0
    above = below = excess(1.0)
    while below > 0:
        if high > MOST:
            raise Refused(
                f"No noise brings epsilon to {epsilon:g} at delta {delta:g}: something else that is released uses it up; "
                "give it less, or raise the target."
            )
        low, above = high, below
        high *= 2 if below < 1.5 else 4
        below = excess(high)
    while above <= 0:
        if low < LEAST:
            return high
        high, below = low, above
        low /= 2
        above = excess(low)
    side = 0
    left, right = above, below
    while high / low > 1 + TOLERANCE:
        if math.isinf(left) or left - right == 0:
            noise = math.sqrt(low * high)
        else:
            share = left / (left - right)
            noise = math.exp(math.log(low) + share * math.log(high / low))
            # Land a little to the safe side, so that the bracket closes from both.
            noise = min(max(noise * (1 + TOLERANCE / 4), low * (1 + TOLERANCE / 4)), high * (1 - TOLERANCE / 4))
        found = excess(noise)
        if found > 0:
            low, left = noise, found
            right, side = (right / 2, -1) if side == -1 else (right, -1)
        else:
            if -found < TOLERANCE / 4:
                return noise
            high, right = noise, found
            left, side = (left / 2, 1) if side == 1 else (left, 1)
    return high


def _out_of_reach(beside: float, target: float) -> Refused:
    return Refused(
        f"What is released beside the updates alone has rho {beside:.4g}, and the target allows {target:.4g}: no noise on "
        "the updates can mend that; give the rest more noise, or raise the target."
    )
