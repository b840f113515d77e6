"""Random numbers for choosing people, from one 256-bit key.

Who is chosen is what amplification by sampling rests on, so the generator is a cryptographic one (ChaCha20) wherever
the key comes from: the operating system for a real run, a seed for a simulation. Every (key, purpose, round) has a
stream of its own, so a round can be drawn, or drawn again, without the rounds before it.
"""

import hashlib
import secrets

import numpy as np

from reticent.errors import Refused

KEY_BYTES = 32


def secret_key() -> bytes:
    """A fresh key from the operating system: what a run that claims privacy must use."""
    return secrets.token_bytes(KEY_BYTES)


def simulation_key(seed: int) -> bytes:
    """A key that repeats: for simulations, whose guarantee is labelled simulated."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise Refused(f"The seed of a sampler must be a whole number of at least 0, got {seed!r}.")
    return hashlib.sha256(f"reticent sampler, simulation only: {int(seed)}".encode()).digest()


class Keystream:
    """One stream of random numbers: the same for the same key, purpose and round, unrelated to every other."""

    def __init__(self, key: bytes, purpose: int, round: int) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        # ChaCha20's nonce as the library takes it: a block counter that starts at 0, then 96 bits that name the stream.
        nonce = bytes(4) + purpose.to_bytes(4, "little") + round.to_bytes(8, "little")
        self._cipher = Cipher(algorithms.ChaCha20(key, nonce), None).encryptor()

    def words(self, count: int) -> np.ndarray:
        """Uniform 64-bit integers."""
        return np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8")

    def uniforms(self, count: int) -> np.ndarray:
        """Numbers strictly between 0 and 1, uniform on a grid of 2^-53."""
        return ((self.words(count) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    def subset(self, population: int, size: int) -> np.ndarray:
        """`size` different integers below `population`, every subset equally likely, in the order drawn.

        Time and memory grow with `size`, not with `population`. (The remainder of a 64-bit word favours no integer by
        more than population / 2^64.)
        """
        if not 0 <= size <= population:
            raise Refused(f"{size} different people cannot be drawn from {population}.")
        if 2 * size > population:
            return self.permutation(population)[:size]
        drawn = np.empty(0, np.int64)
        while True:
            # Drawing one at a time and passing over repeats is a uniform draw without replacement: this, in bulk.
            more = size - len(drawn)
            fresh = (self.words(more + more // 2 + 16) % np.uint64(population)).astype(np.int64)
            drawn = np.concatenate([drawn, fresh])
            _, first = np.unique(drawn, return_index=True)
            drawn = drawn[np.sort(first)]
            if len(drawn) >= size:
                return drawn[:size]

    def permutation(self, population: int) -> np.ndarray:
        """The integers below `population` in random order."""
        return np.argsort(self.words(population), kind="stable")

    def bernoulli(self, population: int, probability: float) -> np.ndarray:
        """The integers below `population`, each kept independently with `probability`, in increasing order.

        Time grows with the number kept: the gaps between those kept are geometric.
        """
        if probability >= 1:
            return np.arange(population, dtype=np.int64)
        chunks, last = [], -1
        while last < population:
            remaining = (population - 1 - last) * probability
            uniforms = self.uniforms(int(remaining + 6 * np.sqrt(remaining)) + 16)
            gaps = np.floor(np.log(uniforms) / np.log1p(-probability))
            # A gap past the end of the population ends the draw; cutting it there keeps the sum within integers.
            kept = last + np.cumsum(np.minimum(gaps, population).astype(np.int64) + 1)
            chunks.append(kept)
            last = int(kept[-1])
        kept = np.concatenate(chunks)
        return kept[: np.searchsorted(kept, population)]
