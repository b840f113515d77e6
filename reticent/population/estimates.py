"""Numbers about the population that an accountant may use: told by the user, or noised; a plain count is a leak."""

import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np

from reticent.errors import Refused
from reticent.population.sampler import whole


@dataclass(frozen=True)
class PublicEstimate:
    """A number that may be printed and accounted with, and where it comes from: `given`, `noised` or `counted`.

    `event` is what learning it cost, to be composed with the run's guarantee; None where it cost nothing, or where the
    user has said that the plain count may leak.
    """

    value: int
    source: str
    event: dict[str, Any] | None = None

    def __int__(self) -> int:
        return self.value

    def __str__(self) -> str:
        how = {
            "given": "given by the user",
            "noised": f"counted with noise multiplier {(self.event or {}).get('noise_multiplier')}",
            "counted": "counted exactly: not private, and named as a leak",
        }
        return f"{self.value:,} ({how[self.source]})"


def given(value: int) -> PublicEstimate:
    """A number that the user knows from elsewhere."""
    whole("A public estimate", value)
    return PublicEstimate(int(value), "given")


def noised(count: int, noise_multiplier: float) -> PublicEstimate:
    """A count of users with Gaussian noise of this standard deviation: one user changes it by one.

    The noise comes from the operating system's generator and is rounded, which is post-processing of the same sum: the
    count is a whole number. A noised count of less than one becomes one.
    """
    whole("A count", count, least=0)
    if not (np.isfinite(noise_multiplier) and noise_multiplier > 0):
        raise Refused(f"noise_multiplier must be above 0, got {noise_multiplier!r}.")
    noise = round(secrets.SystemRandom().gauss(0.0, noise_multiplier))
    event = {"kind": "gaussian", "noise_multiplier": noise_multiplier, "adjacency": "add-or-remove"}
    return PublicEstimate(max(count + noise, 1), "noised", event)


def counted(count: int, *, may_leak: bool = False) -> PublicEstimate:
    """A plain count off the data. Refused unless `may_leak` says that the number itself needs no protection."""
    if not may_leak:
        raise Refused(
            "The number of users was counted off private data, which leaks it: give a public estimate, noise the "
            "count, or say that it may leak (may_leak=True), which the run's report will name."
        )
    return PublicEstimate(int(count), "counted")
