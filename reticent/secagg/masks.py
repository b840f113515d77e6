"""Masks: 256-bit seeds expanded with ChaCha20 (RFC 8439's block function, counter and nonce zero) to words modulo 2^m.

Word i of a mask is bytes [w i, w i + w) of the key stream, little-endian, reduced modulo 2^m: w is 2 bytes up to 16
bits and 4 above. A seed is used for one mask, ever, which is why the nonce may be zero.
"""

from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

SEED_BYTES = 32
MAX_BITS = 32
_CHUNK_BYTES = 1 << 17
_ZEROS = bytes(_CHUNK_BYTES)


def key_stream(seed: bytes, size: int) -> bytes:
    """The first `size` bytes of the seed's ChaCha20 key stream."""
    if len(seed) != SEED_BYTES:
        raise ValueError("a seed has 32 bytes")
    return Cipher(algorithms.ChaCha20(seed, bytes(16)), None).encryptor().update(bytes(size))


def expand(seed: bytes, length: int, bits: int) -> np.ndarray:
    """The mask of a seed, as unsigned integers below 2^bits."""
    return with_masks(np.zeros(length, np.uint32), [(seed, 1)], bits)


def with_masks(words: np.ndarray, signed_seeds: Iterable[tuple[bytes, int]], bits: int) -> np.ndarray:
    """The words plus each seed's mask times its sign (1 or -1), modulo 2^bits: uint16 up to 16 bits, uint32 above."""
    width = np.dtype("<u2") if bits <= 16 else np.dtype("<u4")
    per_chunk = _CHUNK_BYTES // width.itemsize
    buffer = bytearray(_CHUNK_BYTES)
    stream = np.frombuffer(buffer, width)
    masks = []
    for seed, sign in signed_seeds:
        if len(seed) != SEED_BYTES or sign not in (1, -1):
            raise ValueError("a mask needs a seed of 32 bytes and a sign")
        encryptor = Cipher(algorithms.ChaCha20(seed, bytes(16)), None).encryptor()
        masks.append((encryptor.update_into, np.add if sign == 1 else np.subtract))
    # Sums run in a width where they wrap as they should, and are reduced to 2^bits once, at the end.
    masked = words.astype(width)
    # All masks of a chunk, then the next chunk: so the sum stays in the processor's cache.
    for start in range(0, len(masked), per_chunk):
        part = masked[start : start + per_chunk]
        used = len(part) * width.itemsize
        zeros, mask = _ZEROS if used == _CHUNK_BYTES else bytes(used), stream[: len(part)]
        for expand_into, accumulate in masks:
            expand_into(zeros, buffer)
            accumulate(part, mask, out=part)
    return np.bitwise_and(masked, width.type((1 << bits) - 1), out=masked)
