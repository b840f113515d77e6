"""What an audit plants in a run, declared before training: users that are nobody, and coordinates that nobody moves.

- canaries: each sends, whenever it is drawn, one random direction of signs, `RAW_NORM` clip norms long before it is
  clipped like everybody's update; a coin decides beforehand whether it is `present` or sends nothing at all;
- writers: simulated users whose whole text is a secret phrase;
- zero coordinates in front of every release, to which nothing but noise is ever added.

They are drawn into cohorts by the run's own sampler, as further users; divisor, clip norm and noise do not know of them.
They have negative numbers in intents: writers -1, -2, ..., canaries after them. All that is theirs follows from one key that
the ledger's first line publishes: it protects nobody, since they are nobody.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reticent.config import RunFile
from reticent.data.store import Store, StoreWriter
from reticent.data.tokenizers import Tokenizer
from reticent.population.keystream import Keystream

RAW_NORM = 10.0
BLOCK = 2**16
LONGEST_PHRASE = 8
KINDS = ("once", "repeated", "shared")
"""Of a phrase: written once by one user; several times by one user; several times by several users."""


@dataclass(frozen=True)
class Planted:
    """What is planted, as the ledger's description has it under `audit`; `phrases` is the number of each kind."""

    key: str = ""
    canaries: int = 0
    phrases: int = 0
    phrase_repeats: int = 0
    phrase_users: int = 0
    zero_coordinates: int = 0

    @classmethod
    def declared(cls, run_file: RunFile) -> "Planted":
        """What a run file asks for, with a fresh key (of a run that repeats: one that repeats)."""
        table = run_file.audit
        if not table.declared:
            return cls()
        seed = run_file.run.simulated_row_seed
        key = (
            os.urandom(32)
            if seed is None
            else hashlib.sha256(f"reticent audit, simulation only: {seed}".encode()).digest()
        )
        return cls(key=key.hex(), **table.model_dump())

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> "Planted":
        """What a run's description says was planted."""
        return cls(**description.get("audit", {}))

    @property
    def described(self) -> dict[str, Any]:
        """The description's key `audit`; nothing where nothing is planted."""
        return {"audit": vars(self)} if self.key else {}

    @property
    def writers(self) -> int:
        return self.phrases * (2 + self.phrase_users)

    @property
    def users(self) -> int:
        """Simulated users, canaries and writers."""
        return self.writers + self.canaries

    def numbered(self, cohort: np.ndarray, people: int) -> np.ndarray:
        """A sampler's cohort, in which simulated users come after the `people`, with their negative numbers."""
        return np.where(cohort < people, cohort, people - 1 - cohort)

    def canaries_in(self, cohort: np.ndarray) -> np.ndarray:
        """The canaries of a cohort, numbered from 0."""
        return -1 - cohort[cohort < -self.writers] - self.writers

    def stream(self, purpose: str, number: int = 0, part: int = 0) -> Keystream:
        return Keystream(hashlib.sha256(f"{purpose} {self.key}".encode()).digest(), part, number)

    @property
    def present(self) -> np.ndarray:
        """Which canaries send anything: a fair coin for each."""
        return (self.stream("coins").words(self.canaries) & np.uint64(1)).astype(bool)

    def direction(self, canary: int, block: int) -> np.ndarray:
        """The signs of a canary's update in entries `block * BLOCK` on, packed: a set bit is a minus."""
        return self.stream("direction", canary, block).words(BLOCK // 64).view(np.uint8)

    def whole_direction(self, canary: int, parameters: int) -> np.ndarray:
        """All of a canary's signs, packed, and some more."""
        return np.concatenate([self.direction(canary, block) for block in range(-(-parameters // BLOCK))])

    def phrase_words(
        self, tokenizer: Tokenizer, sequence_length: int, count: int, purpose: str = "phrases"
    ) -> np.ndarray:
        """`count` random phrases as ids, int32[count, words]; of one key and purpose always the same."""
        special = {tokenizer.pad, tokenizer.begin, tokenizer.end, tokenizer.unknown}
        usable = np.array([index for index in range(tokenizer.size) if index not in special], np.int32)
        words = max(min(LONGEST_PHRASE, sequence_length - 1), 1)
        drawn = self.stream(purpose).words(count * words) % np.uint64(len(usable))
        return usable[drawn.astype(np.int64)].reshape(count, words)

    def writers_of(self, phrase: int) -> list[int]:
        """The numbers, from 0, of the writers of a phrase; phrases are numbered by kind, `phrases` of each."""
        kind, number = divmod(phrase, self.phrases)
        if kind < 2:
            return [phrase]
        first = 2 * self.phrases + number * self.phrase_users
        return list(range(first, first + self.phrase_users))

    def write_texts(self, path: Path, tokenizer: Tokenizer, sequence_length: int) -> Store:
        """A store of what the writers write, in the order of their numbers."""
        words = self.phrase_words(tokenizer, sequence_length, len(KINDS) * self.phrases)
        with StoreWriter(path, tokenizer) as writer:
            for phrase, inner in enumerate(words):
                text = np.concatenate([[tokenizer.begin], inner, [tokenizer.end]]).astype(np.int32)
                copies = 1 if phrase < self.phrases else self.phrase_repeats
                for number in self.writers_of(phrase):
                    writer.add_user(f"writer {number}", [text] * copies)
        return Store.open(path)
