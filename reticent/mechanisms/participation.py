"""What one user can do: the one description of deterministic participation, from the planner to the devices."""

import math
from dataclasses import dataclass

from reticent.errors import Refused


@dataclass(frozen=True)
class Participation:
    """The participation schema of one user over a training run (BLT, App. C.2; BandMF, Def. 1).

    A user takes part in at most `max_participations` of `rounds` rounds, and two of them, at rounds i < j, satisfy
    j - i >= `min_separation`. With `exact=True` two adjacent ones are exactly `min_separation` apart, which is the
    (k, b) schema of fixed epochs. `max_participations` defaults to the most that fit, and a larger value means that.
    """

    rounds: int
    min_separation: int = 1
    max_participations: int | None = None
    exact: bool = False

    def __post_init__(self) -> None:
        for name in ("rounds", "min_separation", "max_participations"):
            value = getattr(self, name)
            if value is None and name == "max_participations":
                continue
            if isinstance(value, bool) or not math.isfinite(value) or int(value) != value:
                raise Refused(f"{name} must be a whole number, got {value!r}.")
            if value < 1:
                raise Refused(f"{name} must be at least 1, got {value}.")
            object.__setattr__(self, name, int(value))
        if self.min_separation > self.rounds:
            raise Refused(
                f"min_separation {self.min_separation} is larger than the {self.rounds} rounds; "
                f"for users who take part once, give min_separation={self.rounds}."
            )
        most = math.ceil(self.rounds / self.min_separation)
        object.__setattr__(self, "max_participations", min(self.max_participations or most, most))

    @property
    def most(self) -> int:
        """The largest number of participations of one user, as a plain integer."""
        assert self.max_participations is not None
        return self.max_participations

    def within(self, rounds: int, max_participations: int) -> "Participation":
        """The same separation over another number of rounds (the separation shortened where it no longer fits)."""
        return Participation(rounds, min(self.min_separation, rounds), max_participations, self.exact)

    def __str__(self) -> str:
        apart = "exactly" if self.exact else "at least"
        times = "once" if self.most == 1 else f"at most {self.most} times, {apart} {self.min_separation} rounds apart"
        return f"{self.rounds} rounds, each user {times}"
