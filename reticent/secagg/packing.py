"""Integers of m bits as m bits each on the wire.

The vector is laid out as 32 rows, and row j is shifted into m rows of 32-bit words at bit j * m: whole rows at a time,
so that packing costs a few passes over memory whatever m is.
"""

import numpy as np

ROWS = 32


def packed_size(length: int, bits: int) -> int:
    """Bytes that `length` integers of `bits` bits take."""
    return 4 * bits * _columns(length)


def pack(words: np.ndarray, bits: int) -> bytes:
    """The wire form of unsigned integers below 2^bits; what lies above those bits is dropped."""
    columns = _columns(len(words))
    if len(words) < ROWS * columns:
        words = np.concatenate([words, np.zeros(ROWS * columns - len(words), words.dtype)])
    rows = words.reshape(ROWS, columns)
    packed = np.zeros((bits, columns), np.uint32)
    for row in range(ROWS):
        word, shift = divmod(row * bits, 32)
        values = np.bitwise_and(rows[row], np.uint32((1 << bits) - 1), dtype=np.uint32)
        packed[word] |= values << np.uint32(shift)
        if shift + bits > 32:
            packed[word + 1] |= values >> np.uint32(32 - shift)
    return packed.astype("<u4", copy=False).tobytes()


def unpack(data: bytes | memoryview, length: int, bits: int) -> np.ndarray:
    """The uint32 words behind `pack`. ValueError for another size or for anything set behind the last word."""
    if len(data) != packed_size(length, bits):
        raise ValueError(f"{len(data)} bytes where {length} integers of {bits} bits take {packed_size(length, bits)}")
    columns = _columns(length)
    packed = np.frombuffer(data, "<u4").reshape(bits, columns)
    rows = np.empty((ROWS, columns), np.uint32)
    for row in range(ROWS):
        word, shift = divmod(row * bits, 32)
        np.right_shift(packed[word], np.uint32(shift), out=rows[row])
        if shift + bits > 32:
            rows[row] |= packed[word + 1] << np.uint32(32 - shift)
    if bits < 32:
        rows &= np.uint32((1 << bits) - 1)
    words = rows.reshape(-1)
    if words[length:].any():
        raise ValueError("something is set behind the last integer")
    return words[:length]


def _columns(length: int) -> int:
    return -(-length // ROWS)
