"""Sensitivity and streams the slow, sure way, to test the fast ways against."""

import itertools
from collections.abc import Iterator

import numpy as np

from reticent.mechanisms import Mechanism, Participation


def patterns(participation: Participation) -> Iterator[tuple[int, ...]]:
    """Every participation pattern of the schema, by trying all subsets of rounds."""
    for size in range(1, participation.most + 1):
        for pattern in itertools.combinations(range(participation.rounds), size):
            gaps = {later - earlier for earlier, later in itertools.pairwise(pattern)}
            separation = participation.min_separation
            if gaps <= {separation} if participation.exact else all(gap >= separation for gap in gaps):
                yield pattern


def brute_sensitivity(matrix: np.ndarray, participation: Participation, seed: int = 0) -> float:
    """The largest norm of C u found over all patterns, all signs, and vector directions improved one row at a time.

    Always attained by some u, so never more than the sensitivity; with as many dimensions as participations and several
    starts the ascent over directions finds the supremum at these sizes.
    """
    random = np.random.default_rng(seed)
    gram = matrix.T @ matrix
    largest = 0.0
    for pattern in patterns(participation):
        block = gram[np.ix_(pattern, pattern)]
        size = len(pattern)
        signs = np.array(list(itertools.product([1.0, -1.0], repeat=size - 1))).reshape(2 ** (size - 1), size - 1)
        signs = np.hstack([np.ones((len(signs), 1)), signs])
        squares = np.einsum("si,ij,sj->s", signs, block, signs)
        largest = max(largest, float(squares.max()))
        if size < 3 or (block >= 0).all():
            continue  # signs reach the supremum here
        for _ in range(4):
            rows = random.normal(size=(size, size))
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            for _ in range(60):
                for i in range(size):
                    pull = block[i] @ rows - block[i, i] * rows[i]
                    norm = np.linalg.norm(pull)
                    rows[i] = pull / norm if norm > 0 else rows[i]
            largest = max(largest, float(np.sum(block * (rows @ rows.T))))
    return largest**0.5


def normals(mechanism: Mechanism, rounds: int, size: int, seed: int = 0) -> np.ndarray:
    """Z in the order of the rows of C, as `source_of` gives it row by row."""
    source = source_of(size, seed)
    return np.array([source(round, draw) for round, draw in mechanism.draws(rounds)])


def source_of(size: int, seed: int = 0):
    """A source of standard normal rows: the same row for the same (round, draw)."""

    def source(round: int, draw: int) -> np.ndarray:
        assert round >= 0
        return np.random.default_rng([seed, round, draw]).normal(size=size)

    return source


def run_stream(mechanism: Mechanism, rounds: int, size: int = 3, seed: int = 0) -> np.ndarray:
    """All noise rows of a run; checks on the way that the state is as large as promised and never changed in place."""
    stream, source = mechanism.stream(rounds), source_of(size, seed)
    state, rows = stream.init(size), []
    for round in range(rounds):
        assert sum(part.nbytes for part in state) == 8 * size * mechanism.memory(rounds)
        before = [part.copy() for part in state]
        row, after = stream.step(state, round, source)
        assert all((part == old).all() for part, old in zip(state, before, strict=True))
        rows.append(row)
        state = after
    return np.array(rows)


def check_stream(mechanism: Mechanism, rounds: int, seed: int = 0) -> None:
    """The stream's rows are exactly inverse @ Z, and inverse is a left inverse of C."""
    inverse = mechanism.inverse(rounds)
    expected = inverse @ normals(mechanism, rounds, 3, seed)
    np.testing.assert_allclose(run_stream(mechanism, rounds, 3, seed), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(inverse @ mechanism.matrix(rounds), np.eye(rounds), atol=1e-9)
