"""Whether the noise that was released is the noise that is claimed: whitened by the claimed covariance, it must be white.

In coordinates that nobody moves releases are noise alone, and everybody can look. All of the noise can be looked at only
with the row keys, before they are destroyed; of that nothing may be told but whether it is as claimed: with any figure of
it, and the releases, one could tell two guesses at what people sent from one another.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from reticent.mechanisms import Mechanism

# Of a sound run, the chance that one of these tests rejects it. Where only the verdict on secret noise is published, that
# chance is what it can add to delta.
OPEN, SECRET = 1e-6, 1e-12


@dataclass(frozen=True)
class Whiteness:
    """Noise as a multiple of the claimed standard deviation, with an interval, and how likely noise as claimed would look
    as odd: in all, in its oddest round, and in the two rounds most alike."""

    scale: float
    interval: tuple[float, float]
    whole: float
    oddest_round: tuple[float, int]
    most_alike: tuple[float, int, int]

    def holds(self, significance: float) -> bool:
        return min(self.whole, self.oddest_round[0], self.most_alike[0]) > significance / 3


def whiteness(
    noise: np.ndarray, rounds: list[int], mechanism: Mechanism, total: int, deviations: np.ndarray
) -> Whiteness:
    """Tests noise[round, coordinate] of these rounds, of a mechanism for `total`, `deviations` being the claimed standard
    deviation of an entry of Z in each round."""
    from scipy.linalg import cholesky, solve_triangular
    from scipy.stats import chi2, norm

    inverse = mechanism.inverse(total)[rounds] * deviations[:, None]
    covariance = inverse @ inverse.T + np.eye(len(rounds)) / 12  # of rounding to whole numbers
    white = solve_triangular(cholesky(covariance, lower=True), noise.astype(np.float64), lower=True)
    count = white.size
    square = float((white**2).sum())

    def both_sides(value: Any, degrees: int) -> Any:
        return 2 * np.minimum(chi2.sf(value, degrees), chi2.cdf(value, degrees))

    by_round = both_sides((white**2).sum(1), white.shape[1])
    oddest = int(np.argmin(by_round))
    alike, first, second = 1.0, 0, 0
    if len(rounds) > 1 and white.shape[1] > 3:
        lengths = np.linalg.norm(white, axis=1)
        cosines = np.abs(np.triu(white @ white.T / np.outer(lengths, lengths), 1))
        first, second = (int(one) for one in np.unravel_index(int(np.argmax(cosines)), cosines.shape))
        deviation = np.arctanh(min(float(cosines[first, second]), 1 - 1e-15)) * np.sqrt(white.shape[1] - 3)
        alike = min(1.0, float(norm.sf(deviation)) * len(rounds) * (len(rounds) - 1))
    low, high = (float(np.sqrt(square / chi2.ppf(share, count))) for share in (0.975, 0.025))
    return Whiteness(
        scale=float(np.sqrt(square / count)),
        interval=(low, high),
        whole=float(both_sides(square, count)),
        oddest_round=(min(1.0, float(by_round[oddest]) * len(rounds)), rounds[oddest]),
        most_alike=(alike, rounds[first], rounds[second]),
    )


def stacked(rows: Iterable[np.ndarray], columns: int) -> np.ndarray:
    """The first entries of each row."""
    return np.stack([np.asarray(row[:columns]) for row in rows])
