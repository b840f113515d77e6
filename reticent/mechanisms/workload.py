"""What the noise is judged on: the linear map from per-round updates to models."""

import math
from dataclasses import dataclass

import numpy as np

from reticent.errors import Refused


@dataclass(frozen=True)
class Workload:
    """The matrix A: row i is the model after round i as a linear function of the updates of rounds 0..i.

    The default is the prefix sum, plain SGD on the server. `momentum` is SGD with momentum beta (BandMF, App. J);
    `learning_rates`, one per round, is a learning-rate schedule.
    """

    momentum: float = 0.0
    learning_rates: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise Refused(f"momentum must be in [0, 1), got {self.momentum}.")
        if self.learning_rates is not None:
            rates = tuple(float(rate) for rate in self.learning_rates)
            if not rates or not all(math.isfinite(rate) and rate >= 0 for rate in rates) or not any(rates):
                raise Refused("learning_rates must be finite, not negative, and not all zero.")
            object.__setattr__(self, "learning_rates", rates)

    @property
    def is_toeplitz(self) -> bool:
        return self.learning_rates is None

    def coefficients(self, rounds: int) -> np.ndarray:
        """The first column of A where A is Toeplitz: sum over l <= i of beta^l."""
        if self.learning_rates is not None:
            raise Refused("A workload with a learning-rate schedule has no Toeplitz coefficients; use matrix(rounds).")
        if self.momentum == 0:
            return np.ones(rounds)
        return (1 - self.momentum ** np.arange(1, rounds + 1)) / (1 - self.momentum)

    def rates(self, rounds: int) -> np.ndarray:
        """One learning rate per round (ones without a schedule)."""
        if self.learning_rates is None:
            return np.ones(rounds)
        if len(self.learning_rates) < rounds:
            raise Refused(f"learning_rates has {len(self.learning_rates)} entries for {rounds} rounds; give one each.")
        return np.array(self.learning_rates[:rounds])

    def apply(self, rows: np.ndarray) -> np.ndarray:
        """A @ rows, in time linear in the number of rows."""
        velocity = rows
        if self.momentum:
            from scipy.signal import lfilter

            velocity = lfilter([1.0], [1.0, -self.momentum], rows, axis=0)
        rates = self.rates(len(rows)).reshape(-1, *[1] * (rows.ndim - 1))
        return np.cumsum(rates * velocity, axis=0)

    def matrix(self, rounds: int) -> np.ndarray:
        """A, densely."""
        return self.apply(np.eye(rounds))


PREFIX_SUM = Workload()
