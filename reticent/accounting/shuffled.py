"""Amplification by one shuffle: everybody is in one round of their group, which of them is secret (BandMF, Cor. F.1).

Reveal, for each round of the group, all of its members but one, so that the person in question and one member of each
other round remain, in an unknown order: `slots` people shuffled over as many Gaussians, whose inputs differ by two clip
norms at most. Each of the others then hides the person (Feldman, McMillan and Talwar, "Hiding Among the Clones", Thm. 3.1):
with probability exp(-e) it does as if it were the one, or the one it is replaced by, where e bounds the loss of one Gaussian
except for its hockey-stick divergence at e, which is paid for in delta, round by round. The best e is taken.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from reticent.accounting.gaussian import delta_of_gaussian
from reticent.accounting.renyi import OwnAccountant


@dataclass(frozen=True)
class Shuffled(OwnAccountant):
    """One pass over shuffled people, `slots` rounds to a group, under replace-one; `noise` is for one's own contribution,
    of at most 1. Never worse than without the shuffle."""

    noise: float
    slots: int

    @property
    def _rho(self) -> float:
        return (2 / self.noise) ** 2 / 2

    def delta(self, epsilon: float) -> float:
        plain = delta_of_gaussian(self._rho, epsilon)
        # Below the epsilon asked about a clone hides nobody better than the Gaussian does.
        losses = epsilon + np.geomspace(1e-3, 4 * math.sqrt(2 * self._rho) * 8 + self._rho + 1, 60)
        return min([plain, *(self._with_clones(epsilon, float(loss)) for loss in losses)])

    def epsilon(self, delta: float) -> float:
        low, high = 0.0, 1.0
        if self.delta(0.0) <= delta:
            return 0.0
        while self.delta(high) > delta:
            low, high = high, 2 * high
        while high - low > 1e-4 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.delta(middle) <= delta else (middle, high)
        return high

    def _with_clones(self, epsilon: float, loss: float) -> float:
        others = self.slots - 1
        missed = others * math.exp(-loss) * delta_of_gaussian(self._rho, loss)
        paid = (1 + math.exp(min(epsilon, 700.0))) * missed
        return paid + _clones(epsilon, others, math.exp(-loss)) if paid < 1 else 1.0

    def describe(self) -> dict[str, Any]:
        return {"kind": "shuffled", "noise": self.noise, "slots": self.slots}


def _clones(epsilon: float, others: int, probability: float) -> float:
    """The divergence of (A + 1, C - A) from (A, C - A + 1), with C clones, Binom(others, probability), A of them of the
    first kind, Binom(C, 1/2)."""
    from scipy.special import betainc
    from scipy.stats import binom

    middle, wide = others * probability, 12 * math.sqrt(others * probability * (1 - probability)) + 12
    low, high = max(0, math.floor(middle - wide)), min(others, math.ceil(middle + wide))
    clones = np.arange(low, high + 1)
    weight = binom.pmf(clones, others, probability)
    # The likelihood ratio of a to C + 1 - a is above exp(epsilon) from this a on.
    least = np.floor((clones + 1) / (1 + math.exp(-epsilon))) + 1
    above = np.where(least - 1 <= 0, 1.0, betainc(np.maximum(least - 1, 1), np.maximum(clones - least + 2, 1e-9), 0.5))
    below = np.where(least > clones, 0.0, betainc(np.maximum(least, 1), np.maximum(clones - least + 1, 1e-9), 0.5))
    above = np.where(least - 1 > clones, 0.0, above)
    unseen = float(binom.cdf(low - 1, others, probability) + binom.sf(high, others, probability))
    return float(weight @ np.maximum(0.0, above - math.exp(epsilon) * below)) + unseen
