"""One attempt at one round: what everybody must agree on before the first key is sent."""

import os
import struct
from dataclasses import dataclass, field, replace
from functools import cached_property

from reticent.errors import Refused
from reticent.secagg.graph import Graph, graph_for, quorum, tolerated
from reticent.secagg.keys import digest
from reticent.secagg.masks import MAX_BITS

MAX_ATTEMPTS = 16
_NUMBERS = ">QIIQIII"


@dataclass(frozen=True)
class Round:
    """The round's numbers. All but `number`, `attempt` and `nonce` come from the client's own copy of the run file,
    never from the server. Partners and threshold follow from them, so nobody can ask for weak ones.

    `cohort` is the largest number of clients that can take part; `dropouts` and `corrupted` how many of them may
    vanish, and may collude with the server. Refuses what no graph makes safe.
    """

    run: str
    number: int
    cohort: int
    length: int
    modulus_bits: int
    dropouts: int
    corrupted: int
    attempt: int = 0
    nonce: bytes = field(default_factory=lambda: os.urandom(16))

    def __post_init__(self) -> None:
        if not 1 <= self.modulus_bits <= MAX_BITS or self.length < 1:
            raise Refused(f"A secure sum is of at least one word of 1 to {MAX_BITS} bits.")
        if not 0 <= self.attempt < MAX_ATTEMPTS:
            raise Refused(f"A round is attempted at most {MAX_ATTEMPTS} times; go on to the next round.")
        if self.number < 0 or len(self.nonce) != 16 or len(self.run.encode()) > 255:
            raise Refused("A round has a number from 0, a nonce of 16 bytes and a run name of at most 255 bytes.")
        graph_for(self.cohort, self.dropouts, self.corrupted)

    @classmethod
    def plan(
        cls,
        run: str,
        number: int,
        cohort: int,
        length: int,
        modulus_bits: int,
        dropout: float = 0.05,
        corruption: float = 0.05,
    ) -> "Round":
        """The first attempt at a round, from the fractions of the cohort that may drop out and may be corrupted."""
        if not (0 <= dropout < 1 and 0 <= corruption < 1):
            raise Refused("The fractions that may drop out and may be corrupted are between 0 and 1.")
        return cls(run, number, cohort, length, modulus_bits, tolerated(cohort, dropout), tolerated(cohort, corruption))

    @property
    def graph(self) -> Graph:
        return graph_for(self.cohort, self.dropouts, self.corrupted)

    @property
    def fewest(self) -> int:
        """Clients that must be left at every step."""
        return self.cohort - self.dropouts

    @property
    def quorum(self) -> int:
        return quorum(self.cohort, self.corrupted)

    @cached_property
    def digest(self) -> bytes:
        """The round's identity, which every message carries."""
        return digest(b"round", self.to_bytes())

    def next_attempt(self) -> "Round":
        """Another attempt, with another identity. `server.retry` says whether there may be one."""
        return replace(self, attempt=self.attempt + 1, nonce=os.urandom(16))

    def to_bytes(self) -> bytes:
        numbers = struct.pack(
            _NUMBERS,
            self.number,
            self.attempt,
            self.cohort,
            self.length,
            self.modulus_bits,
            self.dropouts,
            self.corrupted,
        )
        return numbers + self.nonce + self.run.encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Round":
        size = struct.calcsize(_NUMBERS)
        number, attempt, cohort, length, bits, dropouts, corrupted = struct.unpack(_NUMBERS, data[:size])
        nonce, run = data[size : size + 16], data[size + 16 :].decode()
        return cls(run, number, cohort, length, bits, dropouts, corrupted, attempt, nonce)
