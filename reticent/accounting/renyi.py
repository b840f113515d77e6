"""Accounting by Renyi divergences: the moments accountant as published, today's, and the choice among many runs."""

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reticent.accounting.losses import Part
from reticent.accounting.sampled import Poisson
from reticent.errors import Refused


class OwnAccountant(Part):
    """A part that is read by an accountant of its own and not by its loss distribution."""

    times = 1

    @abc.abstractmethod
    def epsilon(self, delta: float) -> float:
        """An upper bound."""

    @abc.abstractmethod
    def delta(self, epsilon: float) -> float:
        """An upper bound."""

    def with_others(self, others: Sequence[Part]) -> "OwnAccountant":
        """This and other releases together; refused where this accountant cannot read them."""
        if others:
            raise Refused(f"A guarantee by the {self.describe()['kind']} accountant does not compose with others here.")
        return self

    def losses(self, step: float, tail: float) -> Any:
        raise Refused(f"The {self.describe()['kind']} accountant has no loss distribution.")

    def loss_range(self, tail: float) -> Any:
        return self.losses(1.0, tail)


@dataclass(frozen=True)
class Moments(OwnAccountant):
    """The moments accountant that DP-FedAvg was published with: moments 1 to 32 (orders 2 to 33) of a Poisson-sampled
    Gaussian, and epsilon = rdp + log(1 / delta) / (order - 1). Looser than the loss distribution, sometimes far."""

    release: Poisson

    def _values(self) -> tuple[np.ndarray, np.ndarray]:
        orders = np.arange(2, 34)
        q, noise = self.release.probability, self.release.noise
        each = np.array([_log_moment(int(order), q, noise) / (order - 1) for order in orders])
        return orders, self.release.times * each

    def epsilon(self, delta: float) -> float:
        orders, values = self._values()
        return float((values + math.log(1 / delta) / (orders - 1)).min())

    def delta(self, epsilon: float) -> float:
        orders, values = self._values()
        return float(np.exp(np.minimum(0.0, (orders - 1) * (values - epsilon))).min())

    def describe(self) -> dict[str, Any]:
        return {"kind": "moments", "release": self.release.describe()}


def _log_moment(order: int, q: float, noise: float) -> float:
    """log E[(mixture / Gaussian)^order] under the Gaussian, which is a binomial sum at integer orders."""
    from scipy.special import gammaln, logsumexp, xlog1py, xlogy

    count = np.arange(order + 1)
    ways = gammaln(order + 1) - gammaln(count + 1) - gammaln(order - count + 1)
    return float(logsumexp(ways + xlogy(count, q) + xlog1py(order - count, -q) + count * (count - 1) / (2 * noise**2)))


@dataclass(frozen=True)
class Renyi(OwnAccountant):
    """Today's Renyi accountant (dp_accounting) over parts; with `runs`, (mean, shape), the best of a random number of
    runs of them all: Poisson (shape infinity), geometric (1), logarithmic (0), or negative binomial between."""

    parts: tuple[Part, ...]
    runs: tuple[float, float] | None = None

    def event(self) -> Any:
        import dp_accounting

        one = dp_accounting.ComposedDpEvent([part.event() for part in self.parts])
        return one if self.runs is None else dp_accounting.dp_event.RepeatAndSelectDpEvent(one, *self.runs)

    def epsilon(self, delta: float) -> float:
        return float(self._accountant().get_epsilon(delta))

    def delta(self, epsilon: float) -> float:
        return float(self._accountant().get_delta(epsilon))

    def _accountant(self) -> Any:
        import dp_accounting

        return dp_accounting.rdp.RdpAccountant().compose(self.event())

    def with_others(self, others: Sequence[Part]) -> "Renyi":
        return Renyi((self, *others)) if others else self

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "renyi",
            "parts": [part.describe() for part in self.parts],
            "runs": None if self.runs is None else [self.runs[0], None if math.isinf(self.runs[1]) else self.runs[1]],
        }
