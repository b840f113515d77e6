"""The exact sensitivity of tree aggregation, by a dynamic program over dyadic blocks.

One user with participations pi changes each node by the number of its rounds that lie in pi, so that the squared
sensitivity is the largest sum over complete nodes of count^2. Blocks of one size are alike. For one of 2^h rounds it is
enough to know, for every number of participations inside and every value reached, how early the last one can be when the
first may not be before a given offset; and an offset of `min_separation` or more never arises, since the participation
before lies outside the block.
"""

import functools
from dataclasses import dataclass

import numpy as np

NONE = -(1 << 40)
"""'No participation yet': far enough in the past to leave the next one free."""


@dataclass(frozen=True)
class _Choices:
    """Undominated ways to take part in a block: entry i takes part `count[i]` times and adds `value[i]`.

    `last[i, f]` is the earliest possible last round when no participation may come before offset f (`FAR` where there is
    no such way).
    """

    count: np.ndarray
    value: np.ndarray
    last: np.ndarray


FAR = 1 << 40


def forest_squared_sensitivity(blocks: tuple[int, ...], separation: int, participations: int) -> int:
    """The largest sum of squared node counts over consecutive trees of these numbers of rounds."""
    sizes = [1 << level for length in blocks for level in reversed(range(length.bit_length())) if length >> level & 1]
    unlimited = participations >= -(-sum(blocks) // separation)
    # From left to right: per way so far, its count, its value, and the last participation counted from the next block.
    count, value, last = np.array([0]), np.array([0]), np.array([NONE])
    for size in sizes:
        choices = _block(size.bit_length() - 1, separation, participations, unlimited)
        offset = np.maximum(0, last + separation)
        free = np.minimum(offset, choices.last.shape[1] - 1)
        ends = np.where((offset < size)[:, None], choices.last[:, free].T, FAR)
        ends = np.where(choices.count[None, :] == 0, last[:, None], ends)
        counts = count[:, None] + choices.count
        values = value[:, None] + choices.value
        keep = (ends < FAR) & (counts <= participations)
        count, value, column = _undominated(counts[keep], values[keep], ends[keep][:, None] - size, unlimited)
        last = column[:, 0]
    return int(value.max())


@functools.lru_cache(maxsize=256)
def _block(level: int, separation: int, participations: int, unlimited: bool) -> _Choices:
    size = 1 << level
    offsets = np.arange(min(size, separation))
    if level == 0:
        return _Choices(np.array([0, 1]), np.array([0, 1]), np.array([[NONE] * len(offsets), [0] * len(offsets)]))
    half = _block(level - 1, separation, participations, unlimited)
    middle = size // 2
    width = half.last.shape[1]
    # Left half empty: the right half from the offset on. Otherwise: from the separation after the left half's last.
    left = np.where(offsets < middle, half.last[:, np.minimum(offsets, width - 1)], FAR)
    left[half.count == 0] = NONE
    start = np.maximum(np.where((half.count == 0)[:, None], offsets, left + separation), middle) - middle
    reachable = start < middle
    starts = np.minimum(start, width - 1)
    right = half.last[:, starts].transpose(1, 0, 2)
    last = np.where(reachable[:, None, :] & (right < FAR), right + middle, FAR)
    empty = half.count == 0
    last[:, empty] = left[:, None, :]
    counts = (half.count[:, None] + half.count).ravel()
    values = (half.value[:, None] + half.value).ravel() + counts**2
    last = last.reshape(len(counts), len(offsets))
    # A last round early enough leaves the next block free, however early it was.
    last[counts > 0] = np.maximum(last[counts > 0], size - separation)
    keep = (counts <= participations) & (last.min(axis=1) < FAR)
    counts, values, last = counts[keep], values[keep], last[keep]
    return _Choices(*_undominated(counts, values, last, unlimited))


def _undominated(
    counts: np.ndarray, values: np.ndarray, last: np.ndarray, unlimited: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One entry per count and value, the earliest last round of each offset, without those that another beats.

    Another beats it with a value no smaller, a last round never later, and a count no worse: more participations are worth
    more at the nodes above, unless their number is limited; then only equal counts compare.
    """
    order = np.lexsort((-values, -counts))
    counts, values, last = counts[order], values[order], last[order]
    first = np.flatnonzero(np.r_[True, (np.diff(counts) != 0) | (np.diff(values) != 0)])
    counts, values, last = counts[first], values[first], np.minimum.reduceat(last, first, axis=0)
    kept: list[int] = []
    start = 0
    for index in range(len(counts)):
        if not unlimited and counts[index] != counts[index - 1]:
            start = len(kept)
        rivals = np.array(kept[start:], dtype=int)
        rivals = rivals[values[rivals] >= values[index]]
        if not (last[rivals] <= last[index]).all(axis=1).any():
            kept.append(index)
    return counts[kept], values[kept], last[kept]
