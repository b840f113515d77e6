"""Rounds that a person is in by chance: Poisson sampling, and fixed-size sampling."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from reticent.accounting.losses import Part
from reticent.accounting.mixture import binomial, either, loss_range, losses
from reticent.accounting.pld import Losses


@dataclass(frozen=True)
class Poisson(Part):
    """`times` rounds with Gaussian noise of standard deviation `noise`, in each of which every unit is with
    `probability`, by itself; one person is `group` units, each moving the sum by at most 1.

    Under add-or-remove this is, exactly, `times` mixtures N(Binom(group, probability), noise^2) against N(0, noise^2)
    (ULDP, Thms. 1 and 2). A group of people is one with so many times the units, exactly.
    """

    noise: float
    probability: float
    times: int
    group: int = 1

    @property
    def _weights(self) -> np.ndarray:
        return binomial(self.group, self.probability)

    def losses(self, step: float, tail: float) -> tuple[Losses, Losses]:
        return losses(self.noise, self._weights, step, tail)

    def loss_range(self, tail: float) -> tuple[float, float]:
        return loss_range(self.noise, self._weights, tail)

    def grouped(self, size: int) -> "Poisson":
        return Poisson(self.noise, self.probability, self.times, self.group * size)

    def event(self) -> Any:
        import dp_accounting

        if self.group > 1:
            return super().event()
        sampled = dp_accounting.PoissonSampledDpEvent(self.probability, dp_accounting.GaussianDpEvent(self.noise))
        return dp_accounting.SelfComposedDpEvent(sampled, self.times)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "poisson",
            "noise": self.noise,
            "probability": self.probability,
            "times": self.times,
            "group": self.group,
        }


@dataclass(frozen=True)
class FixedSize(Part):
    """`times` rounds with noise of standard deviation `noise`, each on a subset drawn from all of its size, which one
    person is in with `probability`; a person moves the sum by at most 1, hence replacing one by another by at most 2.

    Under replace-one: the Gaussian of multiplier noise / 2, amplified by sampling without replacement, which is worst by
    the worse direction at each round (Zhu et al. 2022, Prop. 30).
    """

    noise: float
    probability: float
    times: int

    def losses(self, step: float, tail: float) -> tuple[Losses, Losses]:
        both = either(losses(self.noise / 2, binomial(1, self.probability), step, tail))
        return both, both

    def loss_range(self, tail: float) -> tuple[float, float]:
        return loss_range(self.noise / 2, binomial(1, self.probability), tail)

    def describe(self) -> dict[str, Any]:
        return {"kind": "fixed", "noise": self.noise, "probability": self.probability, "times": self.times}
