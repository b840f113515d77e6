"""What really happened: what the enforced participation supports, and, for diagnosis only, the worst that occurred."""

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reticent.errors import Refused
from reticent.mechanisms import Mechanism, Participation
from reticent.mechanisms.base import Sensitivity, ToeplitzMechanism, check_dense

Pattern = tuple[int, ...]

DIAGNOSTIC = (
    "a diagnostic: the participation that occurred depends on the data's owners, so nothing but what was enforced may be "
    "stated as a guarantee"
)


@dataclass(frozen=True)
class Happened:
    """`supported` is the sensitivity under the enforced participation, which the guarantee comes from. The rest describes
    the user whose participations weigh most: an upper bound of what that one could change, for clip norm 1."""

    enforced: Participation
    supported: Sensitivity
    users: int
    most_participations: int
    smallest_separation: int | None
    worst_pattern: tuple[int, ...]
    worst_sensitivity: float

    def summary(self) -> dict[str, Any]:
        """Everything, as plain JSON, the diagnostic labelled as one."""
        return {
            "enforced": {
                "rounds": self.enforced.rounds,
                "min_separation": self.enforced.min_separation,
                "max_participations": self.enforced.most,
            },
            "sensitivity": self.supported.value,
            "sensitivity_exact": self.supported.exact,
            "sensitivity_reason": self.supported.reason,
            "diagnostic": {
                "means": DIAGNOSTIC,
                "users": self.users,
                "most_participations": self.most_participations,
                "smallest_separation": self.smallest_separation,
                "worst_pattern": list(self.worst_pattern),
                "worst_sensitivity": self.worst_sensitivity,
            },
        }


def happened(mechanism: Mechanism, enforced: Participation, patterns: Iterable[Sequence[int]]) -> Happened:
    """From the rounds of each user, in any order: what the enforced participation supports, and the worst that occurred.

    Refuses where somebody did what was to be prevented: then the guarantee of `enforced` does not hold. The patterns say
    who took part when, and are as secret as that; so is the diagnostic.
    """
    users = 0
    different: set[Pattern] = set()
    for rounds in patterns:
        kept = tuple(sorted(int(one) for one in rounds))
        if kept:
            users += 1
            different.add(kept)
    for kept in different:
        _check(kept, enforced)
    gaps = [later - earlier for kept in different for earlier, later in itertools.pairwise(kept)]
    weight, worst = _heaviest(mechanism, enforced.rounds, different)
    return Happened(
        enforced=enforced,
        supported=mechanism.sensitivity(enforced),
        users=users,
        most_participations=max(map(len, different), default=0),
        smallest_separation=min(gaps, default=None),
        worst_pattern=worst,
        worst_sensitivity=weight,
    )


def _check(kept: tuple[int, ...], enforced: Participation) -> None:
    if kept[0] < 0 or kept[-1] >= enforced.rounds:
        raise Refused(f"A user took part in round {kept[0] if kept[0] < 0 else kept[-1]} of {enforced.rounds}.")
    for earlier, later in itertools.pairwise(kept):
        apart = later - earlier
        if apart < enforced.min_separation or (enforced.exact and apart != enforced.min_separation):
            raise Refused(
                f"A user took part in rounds {earlier} and {later}, and {enforced.min_separation} rounds apart were to be "
                "enforced: the guarantee does not hold."
            )
    if len(kept) > enforced.most:
        raise Refused(
            f"A user took part {len(kept)} times, and at most {enforced.most} were to be enforced: the guarantee does not "
            "hold."
        )


def _heaviest(mechanism: Mechanism, rounds: int, patterns: Collection[Pattern]) -> tuple[float, Pattern]:
    """What one user can change in C X by the pattern that weighs most, and that pattern: exactly where no entry of C^T C is
    negative."""
    used = sorted({one for kept in patterns for one in kept})
    place = {one: index for index, one in enumerate(used)}
    best: tuple[float, Pattern] = (0.0, ())
    if not used:
        return best
    columns = _columns(mechanism, rounds, used)
    gram = np.abs(columns.T @ columns)
    for length in {len(kept) for kept in patterns}:
        alike = sorted(kept for kept in patterns if len(kept) == length)
        index = np.array([[place[one] for one in kept] for kept in alike])
        squared = sum(gram[index[:, one], index[:, other]] for one in range(length) for other in range(length))
        first = int(np.argmax(squared))
        best = max(best, (float(np.sqrt(squared[first])), alike[first]))
    return best


def _columns(mechanism: Mechanism, rounds: int, used: list[int]) -> np.ndarray:
    check_dense(rounds, len(used))
    if isinstance(mechanism, ToeplitzMechanism):
        coefficients = mechanism.coefficients(rounds)
        columns = np.zeros((rounds, len(used)))
        for index, one in enumerate(used):
            columns[one:, index] = coefficients[: rounds - one]
        return columns
    return mechanism.matrix(rounds)[:, used]
