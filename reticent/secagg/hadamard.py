"""The random rotation: signs shared by everybody in a round, then a normalised Walsh-Hadamard transform."""

import math

import numpy as np

from reticent.secagg.masks import key_stream

_RADIX_BITS = 4
_BLOCK = 1 << 15


def padded_size(dimension: int) -> int:
    """The smallest power of two that holds the dimension."""
    return 1 << max(dimension - 1, 0).bit_length()


def walsh_hadamard(vector: np.ndarray) -> np.ndarray:
    """H x / sqrt(d), its own inverse, in the vector's float type; the length d is a power of two.

    H of size r1 r2 ... is a Kronecker product of small ones, each applied as a matrix product.
    """
    return _transformed(vector, spare=np.empty_like(vector))


def _transformed(vector: np.ndarray, spare: np.ndarray, normalised: bool = True) -> np.ndarray:
    """The transform in a new array; `spare` may be the vector itself, which is lost then."""
    size = len(vector)
    if size == 0 or size & (size - 1):
        raise ValueError("the length is not a power of two")
    bits = size.bit_length() - 1
    if bits == 0:
        return vector.copy()
    step = min(_RADIX_BITS, bits)
    current = (vector.reshape(-1, 1 << step) @ _matrix(step, vector.dtype, normalised)).reshape(-1)
    done = step
    while done < bits:
        step = min(_RADIX_BITS, bits - done)
        shape = (-1, 1 << step, 1 << done)
        np.matmul(_matrix(step, vector.dtype, normalised), current.reshape(shape), out=spare.reshape(shape))
        current, spare = spare, current
        done += step
    return current


def _matrix(bits: int, dtype: np.dtype, normalised: bool) -> np.ndarray:
    """The Walsh-Hadamard matrix of size 2^bits."""
    index = np.arange(1 << bits)
    parity = np.bitwise_count(index[:, None] & index[None, :]) & 1
    return ((1.0 - 2.0 * parity) / (math.sqrt(1 << bits) if normalised else 1.0)).astype(dtype)


def flip_signs(vector: np.ndarray, seed: bytes) -> None:
    """Changes the signs that a 256-bit seed says, in place; doing it again undoes it. For float32 and float64."""
    integer = np.dtype(f"u{vector.itemsize}")
    top = integer.type(8 * vector.itemsize - 1)
    flips = np.unpackbits(np.frombuffer(key_stream(seed, -(-len(vector) // 8)), np.uint8), count=len(vector))
    patterns = vector.view(integer)
    for start in range(0, len(vector), _BLOCK):
        patterns[start : start + _BLOCK] ^= flips[start : start + _BLOCK].astype(integer) << top


def rotate(vector: np.ndarray, seed: bytes) -> np.ndarray:
    """The rotated vector in float32, padded with zeros to a power of two; lengths are preserved."""
    padded = np.zeros(padded_size(len(vector)), np.float32)
    padded[: len(vector)] = vector
    flip_signs(padded[: len(vector)], seed)
    return _transformed(padded, spare=padded)


def unrotate(rotated: np.ndarray, dimension: int, seed: bytes) -> np.ndarray:
    """sqrt(d) times the inverse of `rotate`, the first `dimension` entries of it: exact for whole numbers in float64.
    The rotated vector is lost."""
    vector = _transformed(rotated, spare=rotated, normalised=False)[:dimension]
    flip_signs(vector, seed)
    return vector
