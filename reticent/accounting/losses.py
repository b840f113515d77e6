"""What a guarantee is made of: the privacy losses of independent parts, which add up.

A part is something that was released of the same people. One Gaussian is exact by its formula; parts of other kinds
(`sampled.py`) know their privacy loss distribution, and a sum of several is composed there. A part that only an accountant
of its own can read (`renyi.py`) goes with others where that accountant can.
"""

import abc
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reticent.accounting.gaussian import delta_of_gaussian, epsilon_of_gaussian
from reticent.errors import Refused

if TYPE_CHECKING:
    from reticent.accounting.pld import Losses


class Part(abc.ABC):
    """One release, or `times` alike, of the same people."""

    times: int

    @abc.abstractmethod
    def losses(self, step: float, tail: float) -> "tuple[Losses, Losses]":
        """The privacy loss of one release on a grid, in both directions (`pld.Releases`)."""

    @abc.abstractmethod
    def loss_range(self, tail: float) -> tuple[float, float]:
        """The standard deviation of one release's loss, and the largest of all but `tail` of the mass."""

    @property
    def rho(self) -> float | None:
        """Its zCDP, where it is one Gaussian."""
        return None

    def grouped(self, size: int) -> "Part | None":
        """The same part against `size` people at once, where that is exact; None where only the generic bound holds."""
        return None

    def event(self) -> Any:
        """The same as an event of dp_accounting, where it has one."""
        raise Refused(f"There is no Renyi accountant for {self.describe()['kind']} releases; use the pld accountant.")

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """What it is, as plain JSON; `composition.recorded` reads it back."""


@dataclass(frozen=True)
class Gaussian(Part):
    """One Gaussian mechanism of sensitivity mu standard deviations, rho = mu^2 / 2."""

    mu: float
    times = 1

    @property
    def rho(self) -> float:
        return self.mu**2 / 2

    def grouped(self, size: int) -> "Gaussian":
        return Gaussian(self.mu * size)

    def losses(self, step: float, tail: float) -> "tuple[Losses, Losses]":
        from reticent.accounting.mixture import ALWAYS, losses

        return losses(1 / self.mu, ALWAYS, step, tail)

    def loss_range(self, tail: float) -> tuple[float, float]:
        from reticent.accounting.mixture import ALWAYS, loss_range

        return loss_range(1 / self.mu, ALWAYS, tail)

    def event(self) -> Any:
        import dp_accounting

        return dp_accounting.GaussianDpEvent(1 / self.mu)

    def describe(self) -> dict[str, Any]:
        return {"kind": "gaussian", "rho": self.rho}


def total_rho(parts: Iterable[Part]) -> float | None:
    """The zCDP of all parts together, where each is a Gaussian."""
    rhos = [part.rho for part in parts]
    return None if any(rho is None for rho in rhos) else math.fsum(rho for rho in rhos if rho is not None)


def delta_of(parts: Sequence[Part], epsilon: float) -> float:
    """The delta of all parts together."""
    rho = total_rho(parts)
    if rho is not None:
        return delta_of_gaussian(rho, epsilon)
    return _accountant(parts).delta(epsilon)


def epsilon_of(parts: Sequence[Part], delta: float) -> float:
    """The epsilon of all parts together."""
    rho = total_rho(parts)
    if rho is not None:
        return epsilon_of_gaussian(rho, delta)
    return _accountant(parts).epsilon(delta)


def _accountant(parts: Sequence[Part]) -> Any:
    from reticent.accounting.pld import Together
    from reticent.accounting.renyi import OwnAccountant

    for part in parts:
        if isinstance(part, OwnAccountant):
            return part.with_others([other for other in parts if other is not part])
    return Together(merged(parts))


def merged(parts: Iterable[Part]) -> list[Part]:
    """The same parts with all Gaussians in one."""
    parts = list(parts)
    others = [part for part in parts if part.rho is None]
    rho = math.fsum(part.rho for part in parts if part.rho is not None)
    return [*others, Gaussian(math.sqrt(2 * rho))] if rho > 0 else others


def check_noise(noise_multiplier: float, name: str = "noise_multiplier") -> None:
    """Refuses a noise multiplier that protects nobody."""
    if noise_multiplier == 0:
        raise Refused(f"{name} is 0: without noise epsilon is infinite; give a positive one.")
    if not 0 < noise_multiplier < math.inf:
        raise Refused(f"{name} must be positive and finite, got {noise_multiplier!r}.")
