"""A device's lifetime budget: what all runs together may learn of it, whoever asks."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reticent.deploy.diary import Taken
from reticent.errors import Refused


@dataclass(frozen=True)
class Budget:
    """The limit that a device was shipped with: the composed guarantee of everything it takes part in never exceeds
    `epsilon` at `delta`. `accept_no_noise` lets runs without any noise pass, which protect nobody: for trying things out.

    A run is charged as if it ended with the rounds that this device took part in: with m of them, it costs what one
    device can change that takes part m times, the run's separation apart. When a device takes part does not depend on
    what it holds, so the charge may grow from round to round; what was spent is Gaussian, and adds up in rho.
    """

    epsilon: float
    delta: float
    accept_no_noise: bool = False

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and 0 < self.delta < 1):
            raise Refused("A device's lifetime budget is an epsilon above 0 and a delta between 0 and 1.")

    def spent(self, runs: Sequence[Taken]) -> float:
        """The epsilon, at the budget's delta, of all these runs together."""
        # Imported where it is needed: most steps of a round do not.
        from reticent.accounting.composition import composed

        noisy = [one for one in runs if one.times and one.accounting["noise_multiplier"]]
        if len(noisy) < sum(one.times > 0 for one in runs) and not self.accept_no_noise:
            return math.inf
        return composed([_guarantee(one) for one in noisy]).epsilon(self.delta) if noisy else 0.0

    def check(self, runs: Sequence[Taken]) -> None:
        """Refuses these runs together if they exceed the budget."""
        spent = self.spent(runs)
        if spent > self.epsilon:
            names = ", ".join(sorted({one.name for one in runs}))
            raise Refused(
                f"Taking part would bring what this device has given to {names} to epsilon {spent:.4g} at delta "
                f"{self.delta:g}, above its lifetime budget of {self.epsilon:g}."
            )


def _guarantee(taken: Taken):  # type: ignore[no-untyped-def]
    from reticent.accounting.run import guarantee_of

    event = {**taken.accounting["participation"], "max_participations": taken.times}
    return guarantee_of({**taken.accounting, "participation": event}, arrays_of(taken.arrays))


def arrays_of(content: str) -> dict[str, np.ndarray]:
    """The matrices of a mechanism, as the diary keeps them."""
    return {
        name: np.frombuffer(bytes.fromhex(one["hex"]), np.dtype(one["dtype"])).reshape(one["shape"])
        for name, one in json.loads(content).items()
    }
