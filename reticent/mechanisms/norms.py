"""How the columns of C share the sensitivity."""

from dataclasses import dataclass

import numpy as np

from reticent.mechanisms.participation import Participation


@dataclass(frozen=True)
class Norms:
    """How columns share the sensitivity: column j has squared norm share[entry[j]]; the shares of a pool sum to 1."""

    entry: np.ndarray
    pool: np.ndarray

    @classmethod
    def equal(cls, rounds: int) -> "Norms":
        return cls(np.zeros(rounds, dtype=int), np.zeros(1, dtype=int))

    @classmethod
    def free(cls, participation: Participation) -> "Norms":
        """Norms free as far as every allowed pattern still has, at most, the same sum of squared norms.

        For fixed epochs a pattern is k columns of one residue, so each residue is a pool of k shares that repeat
        (BandMF, Prop. B.1). Under a min separation a pattern takes at most one column of any b neighbours, so a share
        for each b neighbours will do where users can be in all of them; where not, the norms stay equal.
        """
        rounds, separation, most = participation.rounds, participation.min_separation, participation.most
        turn, residue = np.divmod(np.arange(rounds), separation)
        if participation.exact:
            return cls(residue * most + turn % most, np.repeat(np.arange(separation), most))
        if most < turn[-1] + 1:
            return cls.equal(rounds)
        return cls(turn, np.zeros(most, dtype=int))

    def shares(self, logits: np.ndarray) -> np.ndarray:
        weights = np.exp(logits - logits.max()) * np.isin(np.arange(len(logits)), self.entry)
        return weights / np.bincount(self.pool, weights)[self.pool]

    def slope(self, shares: np.ndarray, column_slopes: np.ndarray) -> np.ndarray:
        """The gradient in the logits, from that in the squared norm of each column."""
        each = shares * np.bincount(self.entry, column_slopes, minlength=len(shares))
        return each - shares * np.bincount(self.pool, each)[self.pool]
