"""The server's learning rate to start from, read off the noise (BandMF, App. I)."""

import math

from reticent.errors import Refused

SLOPE, INTERCEPT = -0.95, -4.64
LARGEST = 1.7**2
"""Where training without noise does about best in the same experiments (BandMF, Table 6): more noise never asks for more."""


def effective_error(rms_error: float, noise_multiplier: float, report_goal: float) -> float:
    """The root mean square, over rounds, of the noise in the model, in clip norms (BandMF, eq. 11).

    `rms_error` is the mechanism's (`Mechanism.rms_error`), for C as it is held and the prefix sum; the sum is divided by
    `report_goal`.
    """
    for name, value in (
        ("rms_error", rms_error), ("noise_multiplier", noise_multiplier), ("report_goal", report_goal),
    ):  # fmt: skip
        if not 0 < value < math.inf:
            raise Refused(f"{name} must be above 0 and finite, got {value!r}.")
    return rms_error * noise_multiplier / report_goal


def starting_rate(error: float) -> float:
    """The server's learning rate for clip norm 1, by the regression of App. I on the effective error, up to `LARGEST`.

    It was fitted to StackOverflow's next words (SGD with momentum 0.95 at the server, warm-up and decay): a place to
    start a search from, good to a step or two of a grid of 1.7. For another clip norm divide by it.
    """
    if not 0 < error < math.inf:
        raise Refused(f"The effective error must be above 0 and finite, got {error!r}.")
    return min(math.exp(SLOPE * math.log(error) + INTERCEPT), LARGEST)
