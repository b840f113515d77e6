"""Who took part when: what the timers saw, for enforcing them and for accounting what happened."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reticent.errors import Refused
from reticent.files import write_atomically
from reticent.mechanisms.participation import Participation

NEVER = -1


@dataclass
class ParticipationTable:
    """The last round and the number of rounds of every user. It is a secret of the run.

    A user has taken part from the moment that an update may have left the device, used or not; a round that is done
    anew is one round. The table changes in place: it is one per run and as large as the population.
    """

    last_round: np.ndarray
    count: np.ndarray
    closest: int | None = None

    @classmethod
    def empty(cls, population: int) -> "ParticipationTable":
        return cls(np.full(population, NEVER, np.int32), np.zeros(population, np.int32))

    def record(self, round: int, users: np.ndarray) -> None:
        """Users who take part in `round`; refuses a round before one that a user is already in."""
        users = np.unique(np.asarray(users, np.int64))
        if len(users) and not (users[0] >= 0 and users[-1] < len(self.count)):
            raise Refused(f"The participation table has {len(self.count):,} users; there is no user {users[-1]}.")
        before = self.last_round[users]
        if round < 0 or np.any(before > round):
            raise Refused(
                f"Round {round} comes after round {before.max()} in the participation table; record in order."
            )
        users, before = users[before != round], before[before != round]
        again = before != NEVER
        if again.any():
            gap = round - int(before[again].max())
            self.closest = gap if self.closest is None else min(self.closest, gap)
        self.last_round[users] = round
        self.count[users] += 1

    def may_take_part(self, users: np.ndarray, round: int, participation: Participation) -> np.ndarray:
        """For each of these users, whether taking part in `round` keeps separation and cap."""
        last, count = self.last_round[users], self.count[users]
        rested = (last == NEVER) | (last == round) | (round - last >= participation.min_separation)
        return rested & ((count < participation.most) | (last == round))

    def occurred(self, rounds: int) -> Participation:
        """The tightest schema that everything recorded fits: the largest participation that occurred."""
        if len(self.last_round) and self.last_round.max() >= rounds:
            raise Refused(f"The table holds round {self.last_round.max()}, past the {rounds} rounds asked about.")
        most = int(self.count.max(initial=0))
        return Participation(rounds, rounds if self.closest is None else self.closest, max(most, 1))

    def save(self, path: str | Path) -> None:
        """Writes the table durably, readable by its owner only."""
        header = json.dumps({"schema": 1, "population": len(self.count), "closest": self.closest}).encode()
        body = self.last_round.astype("<i4").tobytes() + self.count.astype("<i4").tobytes()
        write_atomically(Path(path), header + b"\n" + body, mode=0o600)

    @classmethod
    def load(cls, path: str | Path) -> "ParticipationTable":
        """The table that `save` wrote; refuses one that is cut short."""
        line, _, body = Path(path).read_bytes().partition(b"\n")
        try:
            header = json.loads(line)
            last_round, count = np.frombuffer(body, "<i4").reshape(2, header["population"]).astype(np.int32)
            return cls(last_round, count, header["closest"])
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(f"{path} is no whole participation table; restore it from the secrets directory.") from error
