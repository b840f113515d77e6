"""Any mechanism started anew at chosen rounds: a block-diagonal C, as adaptive clipping and tree restarts need."""

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from reticent.errors import Refused
from reticent.mechanisms.base import Mechanism, Sensitivity, Source, Stream, ToeplitzMechanism, check_dense
from reticent.mechanisms.gram import (
    TOEPLITZ_GRAM_LIMIT,
    earliest_pattern_norm,
    gram_sensitivity,
    has_decaying_coefficients,
)
from reticent.mechanisms.participation import Participation
from reticent.mechanisms.storage import from_header, to_header
from reticent.mechanisms.tree import Tree, tree_sensitivity
from reticent.mechanisms.workload import PREFIX_SUM, Workload


class _RestartedStream(Stream):
    def __init__(self, blocks: list[tuple[int, Stream]]) -> None:
        self.blocks = blocks

    def init(self, size: int) -> tuple[np.ndarray, ...]:
        return self.blocks[0][1].init(size)

    def step(
        self, state: tuple[np.ndarray, ...], round: int, source: Source
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        start, stream = max(block for block in self.blocks if block[0] <= round)
        row_source: Source = lambda inner, draw: source(start + inner, draw)  # noqa: E731
        if round == start:
            state = stream.init(len(source(round, 0)))
        return stream.step(state, round - start, row_source)


@dataclass(frozen=True)
class Restarted(Mechanism):
    """`base`, started anew at each round of `starts` (the first is 0). The last block has no end of its own.

    Not for saving privacy: every restart forgets the noise so far, and the error of the blocks adds up. It is what lets the
    clip norm change.
    """

    base: Mechanism
    starts: tuple[int, ...]
    kind: ClassVar[str] = "restarted"

    def __post_init__(self) -> None:
        starts = tuple(self.starts)
        if not starts or starts[0] != 0 or any(later <= earlier for earlier, later in itertools.pairwise(starts)):
            raise Refused(f"Restarts are increasing rounds that begin with 0, got {list(starts)}.")
        if isinstance(self.base, Restarted):
            raise Refused("A restarted mechanism cannot be restarted again; give all the restarts at once.")
        for start, end in itertools.pairwise(starts):
            self.base.check(end - start)
        object.__setattr__(self, "starts", starts)

    @property
    def max_rounds(self) -> int | None:
        return None if self.base.max_rounds is None else self.starts[-1] + self.base.max_rounds

    def blocks(self, rounds: int) -> list[tuple[int, int]]:
        """The (first round, length) of each block within `rounds` rounds."""
        self.check(rounds)
        ends = [*self.starts[1:], rounds]
        return [
            (start, min(end, rounds) - start) for start, end in zip(self.starts, ends, strict=True) if start < rounds
        ]

    def sensitivity(self, participation: Participation) -> Sensitivity:
        """The worst way to spread the participations over the blocks; exact for trees and decaying Toeplitz bases."""
        blocks = self.blocks(participation.rounds)
        if len(blocks) == 1:
            return self.base.sensitivity(participation)
        if isinstance(self.base, Tree):
            return tree_sensitivity(tuple(length for _, length in blocks), participation)
        if participation.exact or participation.most == 1:
            return gram_sensitivity(self._gram(participation.rounds), participation)
        if isinstance(self.base, ToeplitzMechanism):
            coefficients = self.base.coefficients(max(length for _, length in blocks))
            if has_decaying_coefficients(coefficients):
                return _greedy_over_blocks(coefficients, blocks, participation)
        bound = self._any_spread(blocks, participation)
        if participation.rounds <= TOEPLITZ_GRAM_LIMIT:
            general = gram_sensitivity(self._gram(participation.rounds), participation)
            if general.exact or general.value < bound.value:
                return general
        return bound

    def _gram(self, rounds: int) -> np.ndarray:
        check_dense(rounds, rounds)
        gram = np.zeros((rounds, rounds))
        for start, length in self.blocks(rounds):
            block = self.base.matrix(length)
            gram[start : start + length, start : start + length] = block.T @ block
        return gram

    def _any_spread(self, blocks: list[tuple[int, int]], participation: Participation) -> Sensitivity:
        # A bound: participations in neighbouring blocks are let come as close as they like.
        best = np.zeros(participation.most + 1)
        for _, length in blocks:
            fit = min(participation.most, -(-length // participation.min_separation))
            gains = [
                self.base.sensitivity(participation.within(length, count)).value ** 2 for count in range(1, fit + 1)
            ]
            with_block = best.copy()
            for count, gain in enumerate(gains, start=1):
                with_block[count:] = np.maximum(with_block[count:], best[:-count] + gain)
            best = with_block
        return Sensitivity(
            float(np.sqrt(best.max())), False, "worst spread over blocks, separations across them ignored"
        )

    def matrix(self, rounds: int) -> np.ndarray:
        return self._block_diagonal([self.base.matrix(length) for _, length in self.blocks(rounds)])

    def inverse(self, rounds: int) -> np.ndarray:
        return self._block_diagonal([self.base.inverse(length) for _, length in self.blocks(rounds)])

    def _block_diagonal(self, blocks: list[np.ndarray]) -> np.ndarray:
        from scipy.linalg import block_diag

        check_dense(sum(len(block) for block in blocks), sum(block.shape[1] for block in blocks))
        return block_diag(*blocks)

    def draws(self, rounds: int) -> list[tuple[int, int]]:
        return [
            (start + round, draw) for start, length in self.blocks(rounds) for round, draw in self.base.draws(length)
        ]

    def column_norms(self, rounds: int) -> np.ndarray:
        return np.concatenate([self.base.column_norms(length) for _, length in self.blocks(rounds)])

    def noise_deviations(self, rounds: int) -> np.ndarray:
        return np.concatenate([self.base.noise_deviations(length) for _, length in self.blocks(rounds)])

    def errors(self, rounds: int, workload: Workload = PREFIX_SUM) -> np.ndarray:
        if workload != PREFIX_SUM:
            return super().errors(rounds, workload)
        variances, before = [], 0.0
        for _, length in self.blocks(rounds):
            variances.append(before + self.base.errors(length) ** 2)
            before = variances[-1][-1]
        return np.sqrt(np.concatenate(variances))

    def memory(self, rounds: int) -> int:
        return max(self.base.memory(length) for _, length in self.blocks(rounds))

    def stream(self, rounds: int) -> Stream:
        return _RestartedStream([(start, self.base.stream(length)) for start, length in self.blocks(rounds)])

    def parameters(self) -> dict[str, Any]:
        return {"base": to_header(self.base), "starts": list(self.starts)}

    def arrays(self) -> dict[str, np.ndarray]:
        return self.base.arrays()

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any], arrays: dict[str, np.ndarray]) -> Mechanism:
        return cls(from_header(parameters["base"], arrays, "the restarted mechanism"), tuple(parameters["starts"]))


def _greedy_over_blocks(
    coefficients: np.ndarray, blocks: list[tuple[int, int]], participation: Participation
) -> Sensitivity:
    """Exact for decaying coefficients: within a block, as early as possible is both worst and leaves most room after."""
    separation = participation.min_separation
    # (participations so far, first round the next may be at) -> the largest squared norm.
    worst = {(0, 0): 0.0}
    for start, length in blocks:
        after = dict(worst)
        for (used, free), value in worst.items():
            offset = max(0, free - start)
            left = length - offset
            for count in range(1, min(participation.most - used, -(-left // separation)) + 1 if left > 0 else 1):
                inside = Participation(left, min(separation, left), count)
                gain = earliest_pattern_norm(coefficients[:left], inside) ** 2
                state = (used + count, start + offset + count * separation)
                after[state] = max(after.get(state, 0.0), value + gain)
        worst = after
    return Sensitivity(
        float(np.sqrt(max(worst.values()))), True, "BLT Thm. 3.1 over the worst spread of participations"
    )
