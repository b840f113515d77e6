"""How many partners a client needs, and how many shares open a secret.

Every client draws `neighbours` partners itself, after the cohort is fixed, and deals its two secrets to them: so the
server, even one that deviates, has no say in who guards whom (Bell et al. 2020, Sec. 4). Two clients share a mask when
one drew the other. With C corrupted clients and D drop-outs, chosen by the server as it likes:

* Privacy. The server can take a set A of honest inputs apart from the rest only if it opens the self mask of every
  member of A, that is, if `threshold` of each member's partners are corrupted or in A (honest partners that answer are
  in the same component); and only if nobody in A drew an honest survivor outside A. The failure probability is the
  union bound over every A of at most half of the honest survivors and every choice of drop-outs. A client checks the
  registered signatures of the partners it draws and leaves if one is forged, so inventing clients does not help: a
  member of A must then have drawn neither an honest survivor outside A nor an invention, which are no fewer.
* Liveness. With D drop-outs at random, every client keeps `threshold` partners.

Each is held to half of 2^-40, by hypergeometric tails, not their approximations.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from reticent.errors import Refused

FAILURE_BITS = 40
SMALLEST_COHORT = 3
LARGEST_COHORT = 100_000


@dataclass(frozen=True)
class Graph:
    """The graph's two numbers. `complete` means that everybody is everybody's partner (small cohorts)."""

    neighbours: int
    threshold: int
    complete: bool
    privacy_bits: float
    liveness_bits: float

    def partners(self, roster: int) -> int:
        """Partners that each client draws out of a roster of this size."""
        return roster - 1 if self.complete else self.neighbours


def tolerated(cohort: int, fraction: float) -> int:
    """Clients in a fraction of the cohort, rounded down; 0.29 of 100 is 29 whatever the binary digits of 0.29."""
    return math.floor(cohort * fraction + 1e-9)


def quorum(cohort: int, corrupted: int) -> int:
    """Signatures under one set of survivors that make a second such set impossible: two quorums share an honest one."""
    return (cohort + corrupted) // 2 + 1


@functools.lru_cache(maxsize=256)
def graph_for(cohort: int, dropouts: int, corrupted: int) -> Graph:
    """The sparsest safe graph for a cohort of which at most so many drop out and so many collude with the server.

    Refuses cohorts that no graph makes safe, naming the smallest cohort that would do for the same fractions.
    """
    reason = _infeasible(cohort, dropouts, corrupted)
    if reason:
        raise Refused(f"{reason}{_remedy(cohort, dropouts, corrupted)}")
    smallest = cohort - dropouts
    for neighbours in range(corrupted + 1 if corrupted == 0 else 2, smallest - 1):
        threshold = _largest_threshold(cohort, dropouts, neighbours)
        if threshold < 2:
            continue
        privacy = _log2_exposed(cohort, dropouts, corrupted, neighbours, threshold)
        if privacy <= -(FAILURE_BITS + 1):
            liveness = math.log2(cohort) + _log2_tail(cohort - 1, dropouts, neighbours, neighbours - threshold + 1)
            return Graph(neighbours, threshold, False, -privacy, -liveness)
    return Graph(smallest - 1, smallest - 1, True, math.inf, math.inf)


def _infeasible(cohort: int, dropouts: int, corrupted: int) -> str:
    if cohort < SMALLEST_COHORT:
        return f"A sum over {cohort} clients hides nobody."
    if cohort > LARGEST_COHORT:
        return f"A cohort of {cohort} is more than the {LARGEST_COHORT} that one secure sum serves; split it."
    if min(dropouts, corrupted) < 0 or cohort - dropouts < quorum(cohort, corrupted):
        return (
            f"With {dropouts} of {cohort} clients dropping out, too few are left to outvote a server with {corrupted} "
            "accomplices: the cohort must be larger than 2 * dropouts + corrupted."
        )
    if cohort - dropouts - corrupted < 2:
        return (
            f"With {corrupted} of {cohort} clients corrupted and {dropouts} gone, a sum would be one honest client's."
        )
    return ""


def _remedy(cohort: int, dropouts: int, corrupted: int) -> str:
    if cohort > LARGEST_COHORT or min(dropouts, corrupted) < 0:
        return ""
    share_dropouts, share_corrupted = dropouts / max(cohort, 1), corrupted / max(cohort, 1)
    for larger in range(max(cohort, SMALLEST_COHORT), max(2 * cohort, 100)):
        if not _infeasible(larger, tolerated(larger, share_dropouts), tolerated(larger, share_corrupted)):
            return f" {larger} clients would do at these fractions."
    return " Tolerate fewer drop-outs or fewer corrupted clients."


def _largest_threshold(cohort: int, dropouts: int, neighbours: int) -> int:
    """The most shares that may be asked for, so that drop-outs at random leave them to everybody."""
    limit = -(FAILURE_BITS + 1) - math.log2(cohort)
    threshold = neighbours
    while threshold > 0 and _log2_tail(cohort - 1, dropouts, neighbours, neighbours - threshold + 1) > limit:
        threshold -= 1
    return threshold


@functools.lru_cache(maxsize=8)
def _log2_factorials(largest: int) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(np.log2(np.arange(1, largest + 1)))])


def _log2_choose(factorials: np.ndarray, n: np.ndarray | int, k: np.ndarray | int) -> np.ndarray:
    n, k = np.broadcast_arrays(n, k)
    inside = (k >= 0) & (k <= n) & (n >= 0)
    safe_n, safe_k = np.where(inside, n, 0), np.where(inside, k, 0)
    value = factorials[safe_n] - factorials[safe_k] - factorials[safe_n - safe_k]
    return np.where(inside, value, -np.inf)


def _log2_sum(terms: np.ndarray, axis: int | None = None) -> np.ndarray:
    top = np.max(terms, axis=axis, keepdims=True)
    finite = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        total = np.log2(np.sum(np.exp2(terms - finite), axis=axis, keepdims=True)) + finite
    return total if axis is None else np.squeeze(total, axis=axis)


def _log2_tail(population: int, marked: int, drawn: int, at_least: int) -> float:
    """log2 P[X >= at_least], X the marked among `drawn` of the population without replacement."""
    factorials = _log2_factorials(population + 1)
    hits = np.arange(max(at_least, 0), drawn + 1)
    if not len(hits):
        return -math.inf
    ways = _log2_choose(factorials, marked, hits) + _log2_choose(factorials, population - marked, drawn - hits)
    return min(0.0, float(_log2_sum(ways).item()) - float(_log2_choose(factorials, population, drawn)))


def _log2_exposed(cohort: int, dropouts: int, corrupted: int, neighbours: int, threshold: int) -> float:
    """log2 of the union bound of the module's docstring. Rosters may be as small as cohort - dropouts: each factor is
    taken where the roster size makes it largest."""
    first = math.log2(cohort) + _log2_tail(cohort - dropouts - 1, corrupted, neighbours, threshold)
    if first > -(FAILURE_BITS + 1):
        return first
    factorials = _log2_factorials(cohort + 1)
    honest = cohort - corrupted
    size = np.arange(1, honest // 2 + 1)

    # Every member of A has `threshold` partners that are corrupted or in A.
    population = cohort - dropouts - 1
    marked = np.minimum(corrupted + size - 1, population)[:, None]
    hits = np.arange(threshold, neighbours + 1)[None, :]
    ways = _log2_choose(factorials, marked, hits) + _log2_choose(factorials, population - marked, neighbours - hits)
    guarded = np.minimum(0.0, _log2_sum(ways, axis=1) - _log2_choose(factorials, population, neighbours))
    by_threshold = _log2_choose(factorials, honest, size) + size * guarded

    # Nobody in A drew one of the other honest survivors, whichever drop-outs the server picks.
    others = np.maximum(honest - dropouts - size, 0)
    all_draws = _log2_choose(factorials, cohort - 1, neighbours)
    apart = size * (_log2_choose(factorials, cohort - 1 - others, neighbours) - all_draws)
    choices = _log2_choose(factorials, honest, dropouts) + math.log2(dropouts + 1)
    by_edges = np.where(others > 0, choices + _log2_choose(factorials, honest, size) + apart, np.inf)

    return float(_log2_sum(np.minimum(by_threshold, by_edges)).item())
