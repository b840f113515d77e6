"""The noise of a lower-triangular C with few bands, one row at a time (BandMF, App. J, Alg. 9)."""

from collections.abc import Callable

import numpy as np

from reticent.mechanisms.base import Source, Stream


class BandStream(Stream):
    """Row i of C^-1 Z from row i of Z and the rows before it: the last `memory` rows are kept, in a ring.

    `band(round)` gives row `round` of C from the diagonal leftwards: entries (round, round), (round, round - 1), ...
    """

    def __init__(self, band: Callable[[int], np.ndarray], memory: int):
        self._band = band
        self._memory = memory

    def init(self, size: int) -> tuple[np.ndarray, ...]:
        return (np.zeros((self._memory, size)),)

    def step(
        self, state: tuple[np.ndarray, ...], round: int, source: Source
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        (ring,) = state
        band = self._band(round)
        reached = min(len(band) - 1, self._memory, round)
        slots = (round - 1 - np.arange(reached)) % max(self._memory, 1)
        weights = np.zeros(self._memory)
        weights[slots] = band[1 : reached + 1]
        row = (source(round, 0) - weights @ ring) / band[0]
        if self._memory:
            ring = ring.copy()
            ring[round % self._memory] = row
        return row, (ring,)
