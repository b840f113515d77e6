"""Numbers that look random and depend on nothing but what they are asked for.

Splits and shuffles are decided by hashes of (seed, person, position), not drawn from a stream: a decision about one
person is the same whoever else is in the store or in the cohort. For repeating things only; it protects nobody.
"""

import hashlib

import numpy as np


def mix(value: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64: a bijection of 64-bit integers whose every output bit depends on every input bit."""
    value = np.asarray(value, np.uint64)
    with np.errstate(over="ignore"):
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def salt(purpose: str, seed: int) -> np.uint64:
    """One 64-bit number for each purpose and seed."""
    return np.uint64(int.from_bytes(hashlib.blake2b(f"{purpose} {seed}".encode(), digest_size=8).digest(), "little"))


def hash_id(identifier: str) -> int:
    """64 bits of a user id."""
    return int.from_bytes(hashlib.blake2b(identifier.encode("utf-8"), digest_size=8).digest(), "little")


def spread(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The integers starts[0], starts[0] + 1, ... (counts[0] of them), then those of starts[1], and so on."""
    counts = np.asarray(counts, np.int64)
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(np.asarray(starts, np.int64) - (ends - counts), counts) + np.arange(total)
