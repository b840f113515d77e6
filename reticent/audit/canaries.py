"""How far each canary moved the releases, by anybody who reads them.

Rounds of releases Y (in clip norms), a canary's direction c and the rounds e that it came in: the best linear statistic of
Y c for the presence of e is e' K^-1 Y c, where K is the covariance of Y c over random c. K is Y's Gram matrix over the
dimension: it holds the mechanism's noise and what people sent, and need not be told either. A canary that sent nothing has,
given Y, a score that is a weighted sum of random signs of variance exactly 1, whatever Y is.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reticent.ledger.lines import Ledger
from reticent.ledger.releases import read_release, release_path, release_rounds
from reticent.training.planted import BLOCK, Planted

COLUMNS = 2**13
LARGEST_GRAM = 4000


@dataclass(frozen=True)
class Scores:
    """Of each canary that took part: its score, of variance 1 had it sent nothing; the clip norms that it seems to have
    moved, give or take `deviation`; and whether it sent anything."""

    scores: np.ndarray
    moved: np.ndarray
    deviation: np.ndarray
    present: np.ndarray


def canary_scores(path: Path, ledger: Ledger, entries: np.ndarray) -> Scores | str:
    """The scores of a finished run's canaries; or, in words, why there are none. `entries` are the sizes of the entries of
    a canary's clipped update, over the clip norm."""
    planted = Planted.of(ledger.first["description"])
    if not planted.canaries:
        return "no canaries were planted"
    stated = (ledger.finished or {}).get("simulated_users")
    if stated is None:
        return "the run is not finished: its last line tells when canaries came"
    lines = {line["round"]: line for line in ledger.of_kind("release")}
    rounds = [round for round in release_rounds(path / "releases") if round in lines]
    if not rounds:
        return "no releases are kept"
    if len(rounds) > LARGEST_GRAM:
        return f"the run has more than {LARGEST_GRAM:,} releases"
    came = np.zeros((planted.canaries, len(rounds)))
    for canary, taken in enumerate(stated[planted.writers :]):
        came[canary, np.isin(rounds, taken)] = 1
    chosen = np.flatnonzero(came.any(1))
    if not len(chosen):
        return "no canary was ever drawn into a round whose release is kept"
    gram, products = _gram_and_products(path, lines, rounds, planted, chosen, entries)
    steadied = gram + np.eye(len(rounds)) * (1e-12 * np.trace(gram) / len(rounds) + 1e-300)
    weights = np.linalg.solve(steadied, came[chosen].T)
    found = np.einsum("tc,tc->c", weights, products)
    spread = np.sqrt(np.einsum("tc,ts,sc->c", weights, gram, weights, optimize=True))
    gain = np.einsum("ct,tc->c", came[chosen], weights)
    spread, gain = np.maximum(spread, 1e-300), np.maximum(gain, 1e-300)
    return Scores(found / spread, found / gain, spread / gain, planted.present[chosen])


def _gram_and_products(
    path: Path, lines: dict[int, Any], rounds: list[int], planted: Planted, chosen: np.ndarray, entries: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """K[round, round] and Y c[round, canary], a stretch of columns at a time."""
    size, skipped = len(entries), planted.zero_coordinates
    releases = []
    for round in rounds:
        file = release_path(path / "releases", round)
        read_release(file)  # refuses a damaged one
        start = file.stat().st_size - 4 * lines[round]["values"]
        # In front of the model's entries are those that nobody moves, after them what else is counted.
        releases.append(np.memmap(file, "<i4", "r", offset=start + 4 * skipped, shape=(size,)))
    worth = np.array([lines[round]["grid"] / lines[round]["clip_norm"] for round in rounds])[:, None]
    gram, products = np.zeros((len(rounds), len(rounds))), np.zeros((len(rounds), len(chosen)))
    for block in range(-(-size // BLOCK)):
        packed = np.stack([planted.direction(int(canary), block) for canary in chosen])
        for start in range(block * BLOCK, min((block + 1) * BLOCK, size), COLUMNS):
            end = min(start + COLUMNS, (block + 1) * BLOCK, size)
            part = np.stack([release[start:end] for release in releases]) * worth * entries[start:end]
            minus = np.unpackbits(packed[:, (start - block * BLOCK) // 8 :], axis=1, count=end - start)
            gram += part @ part.T
            # Most of an audit's time: in float32, and with a set bit for a minus as it is.
            products += part.sum(1)[:, None] - 2.0 * (part.astype(np.float32) @ minus.astype(np.float32).T)
    return gram, products
