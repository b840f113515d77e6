"""Binary-tree aggregation: every complete dyadic block of rounds is a node with noise of its own.

`tree` combines the nodes as they are completed (online Honaker), with ceil(log2 rounds) model-sized buffers; `tree-full`
combines all nodes optimally (the pseudo-inverse, full Honaker) and needs one buffer per round (BLT, App. A.3).
"""

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from reticent.errors import Refused
from reticent.mechanisms.base import Mechanism, Sensitivity, Source, Stream, check_dense
from reticent.mechanisms.participation import Participation
from reticent.mechanisms.tree_sensitivity import forest_squared_sensitivity
from reticent.mechanisms.workload import PREFIX_SUM, Workload


def nodes(rounds: int) -> list[tuple[int, int]]:
    """The (last round, level) of each complete node, in the order in which rounds complete them."""
    return [(round, level) for round in range(rounds) for level in range(completed_levels(round))]


def completed_levels(round: int) -> int:
    """How many nodes `round` completes: its leaf, and one more for every trailing one in its binary form."""
    return (~round & (round + 1)).bit_length()


def level_variances(levels: int) -> np.ndarray:
    """The variance of the online Honaker estimate of a complete block of 2^level rounds, for sigma = 1.

    A block's own noise has variance 1, the sum of its two halves' estimates twice theirs; the best combination has the
    harmonic sum of the two (Honaker's estimate from below).
    """
    variances = np.ones(levels)
    for level in range(1, levels):
        variances[level] = 1 / (1 + 1 / (2 * variances[level - 1]))
    return variances


def own_weights(levels: int) -> np.ndarray:
    """The weight of a block's own noise in its estimate; its halves' estimates get the rest."""
    return level_variances(levels)


class _OnlineStream(Stream):
    """The stack of estimates of the blocks that tile the rounds so far, as in binary counting."""

    def __init__(self, rounds: int) -> None:
        self.levels = (rounds - 1).bit_length()
        self.weights = own_weights(self.levels + 1)

    def init(self, size: int) -> tuple[np.ndarray, ...]:
        return (np.zeros((self.levels, size)),)

    def step(
        self, state: tuple[np.ndarray, ...], round: int, source: Source
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        stack = state[0].copy()
        estimate, merged = source(round, 0), 0.0
        for level in range(1, completed_levels(round)):
            left = stack[level - 1].copy()
            stack[level - 1] = 0
            merged = merged + left
            weight = self.weights[level]
            estimate = weight * source(round, level) + (1 - weight) * (left + estimate)
        if completed_levels(round) <= self.levels:
            stack[completed_levels(round) - 1] = estimate
        # The noise of a round is the prefix sum's noise after it less that before it.
        return estimate - merged, (stack,)


@dataclass(frozen=True)
class Tree(Mechanism):
    """Tree aggregation with online variance reduction, for any number of rounds.

    Not the best choice for new runs: a BLT has less noise and less memory. It is what production used first.
    """

    kind: ClassVar[str] = "tree"

    def matrix(self, rounds: int) -> np.ndarray:
        self.check(rounds)
        order = nodes(rounds)
        check_dense(len(order), rounds)
        matrix = np.zeros((len(order), rounds))
        for row, (last, level) in enumerate(order):
            matrix[row, last + 1 - 2**level : last + 1] = 1
        return matrix

    def column_norms(self, rounds: int) -> np.ndarray:
        return np.sqrt(_nodes_above(rounds))

    def sensitivity(self, participation: Participation) -> Sensitivity:
        return tree_sensitivity((participation.rounds,), participation)

    def draws(self, rounds: int) -> list[tuple[int, int]]:
        return nodes(rounds)

    def inverse(self, rounds: int) -> np.ndarray:
        order = self.draws(rounds)
        check_dense(rounds, len(order))
        rows = dict(zip(order, np.eye(len(order)), strict=True))
        stream = self.stream(rounds)
        state, noise = stream.init(len(order)), np.zeros((rounds, len(order)))
        for round in range(rounds):
            noise[round], state = stream.step(state, round, lambda *draw: rows[draw])
        return noise

    def noise_deviations(self, rounds: int) -> np.ndarray:
        # A round's noise is the estimate of the largest block it completes, less those of the left halves it is made of.
        self.check(rounds)
        own, estimated = own_weights(rounds.bit_length()), level_variances(rounds.bit_length())
        by_level = np.empty(len(own))
        for top in range(len(own)):
            reach = np.append(np.cumprod(1 - own[1 : top + 1][::-1])[::-1], 1.0)
            drawn = (reach * own[: top + 1]) ** 2
            by_level[top] = drawn.sum() + ((1 - reach[:-1]) ** 2 @ estimated[:top])
        return np.sqrt([by_level[completed_levels(round) - 1] for round in range(rounds)])

    def errors(self, rounds: int, workload: Workload = PREFIX_SUM) -> np.ndarray:
        self.check(rounds)
        if workload != PREFIX_SUM:
            return super().errors(rounds, workload)
        # The blocks that tile a prefix are the ones in its binary form, and their noises are independent.
        levels = rounds.bit_length()
        bits = (np.arange(1, rounds + 1)[:, None] >> np.arange(levels)) & 1
        return np.sqrt(bits @ level_variances(levels))

    def memory(self, rounds: int) -> int:
        return (rounds - 1).bit_length()

    def stream(self, rounds: int) -> Stream:
        self.check(rounds)
        return _OnlineStream(rounds)

    def parameters(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any], arrays: dict[str, np.ndarray]) -> Mechanism:
        return cls()


def tree_sensitivity(blocks: tuple[int, ...], participation: Participation) -> Sensitivity:
    """The exact sensitivity of trees over consecutive blocks of rounds (one block where the tree never restarts)."""
    if participation.exact:
        return _fixed_epochs_sensitivity(blocks, participation)
    squared = forest_squared_sensitivity(blocks, participation.min_separation, participation.most)
    return Sensitivity(float(np.sqrt(squared)), True, "dynamic program over dyadic blocks")


def _fixed_epochs_sensitivity(blocks: tuple[int, ...], participation: Participation) -> Sensitivity:
    # C is non-negative, so that each of the few patterns counts with its plain norm: the nodes' counts, squared.
    rounds, separation = participation.rounds, participation.min_separation
    largest = 0
    for first in range(rounds):
        last = min(first + participation.most * separation, rounds)
        taken = np.arange(first, last, separation)
        squared, start = 0, 0
        for length in blocks:
            inside = taken[(taken >= start) & (taken < start + length)] - start
            for level in range(length.bit_length()):
                counts = np.bincount(inside >> level)[: length >> level]
                squared += int((counts**2).sum())
            start += length
        largest = max(largest, squared)
    return Sensitivity(float(np.sqrt(largest)), True, "all patterns of fixed epochs")


def _nodes_above(rounds: int) -> np.ndarray:
    # A leaf lies in a complete node of a level when that node ends within the rounds.
    leaves = np.arange(rounds)
    levels = np.arange(rounds.bit_length())[:, None]
    return ((leaves >> levels) < (rounds >> levels)).sum(axis=0)


class _FactorStream(Stream):
    """Forward substitution with a square factor; keeps every noise row so far."""

    def __init__(self, factor: np.ndarray) -> None:
        self.factor = factor

    def init(self, size: int) -> tuple[np.ndarray, ...]:
        check_dense(len(self.factor), size)
        return (np.zeros((len(self.factor), size)),)

    def step(
        self, state: tuple[np.ndarray, ...], round: int, source: Source
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        rows = state[0].copy()
        rows[round] = (source(round, 0) - self.factor[round, :round] @ rows[:round]) / self.factor[round, round]
        return rows[round], (rows,)


@dataclass(frozen=True)
class TreeFull(Mechanism):
    """Tree aggregation with the optimal combination of all nodes, over a fixed number of rounds.

    Not for large models: its noise needs one model-sized buffer per round. The noise has covariance (C^T C)^-1, that of
    the pseudo-inverse of the tree's C; it is made from the square lower-triangular factor L with L^T L = C^T C, which
    releases the same distribution, round by round.
    """

    rounds: int
    kind: ClassVar[str] = "tree-full"

    def __post_init__(self) -> None:
        if isinstance(self.rounds, bool) or not isinstance(self.rounds, int) or self.rounds < 1:
            raise Refused(f"rounds must be a whole number, at least 1, got {self.rounds!r}.")
        check_dense(self.rounds, self.rounds)

    @property
    def max_rounds(self) -> int | None:
        return self.rounds

    @functools.cached_property
    def _factor(self) -> np.ndarray:
        leaves = np.arange(self.rounds)
        gram = np.zeros((self.rounds, self.rounds))
        for level in range(self.rounds.bit_length()):
            block = np.where((leaves >> level) < (self.rounds >> level), leaves >> level, -1 - leaves)
            gram += (block[:, None] == block) & (block >= 0)
        # BandMF, Prop. 4.1: L^T L = X from the Cholesky factor of X with both axes reversed.
        return np.linalg.cholesky(gram[::-1, ::-1])[::-1, ::-1].T.copy()

    def matrix(self, rounds: int) -> np.ndarray:
        self.check(rounds)
        return self._factor[:rounds, :rounds]

    def column_norms(self, rounds: int) -> np.ndarray:
        self.check(rounds)
        return np.sqrt(_nodes_above(self.rounds))[:rounds]

    def sensitivity(self, participation: Participation) -> Sensitivity:
        self.check(participation.rounds)
        if participation.rounds == self.rounds:
            return tree_sensitivity((self.rounds,), participation)
        # Stopped early: what was released is a part of the whole, so that the whole's sensitivity bounds it.
        whole = Participation(self.rounds, participation.min_separation, participation.most, participation.exact)
        bound = tree_sensitivity((self.rounds,), whole)
        return Sensitivity(bound.value, False, f"tree of all {self.rounds} rounds, of which {participation.rounds} ran")

    def memory(self, rounds: int) -> int:
        return rounds

    def stream(self, rounds: int) -> Stream:
        self.check(rounds)
        return _FactorStream(self._factor[:rounds, :rounds])

    def parameters(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any], arrays: dict[str, np.ndarray]) -> Mechanism:
        return cls(rounds=parameters["rounds"])


def make(participation: Participation, objective: str, workload: Workload, size: None) -> Tree:
    """The registry's maker; there is nothing to choose."""
    return Tree()


def make_full(participation: Participation, objective: str, workload: Workload, size: None) -> TreeFull:
    """The registry's maker: the optimal combination for exactly these rounds."""
    return TreeFull(participation.rounds)
