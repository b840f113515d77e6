"""From what an attack on one run achieved to a lower bound on epsilon: what the run's epsilon is at least.

`from_scores` is one-shot estimation (Andrew et al., 2023) made a bound: each canary's direction was drawn at random, so
that the distribution of the score of one that sent nothing is known without trying any, as far into its tail as one likes.
It takes canaries to be as good as independent, which nearly orthogonal directions in Gaussian noise are.
`by_counting` (Steinke et al., 2023, Thm. 5.2) needs nothing but the fair coins that decided which canaries sent
anything, and can therefore never say more than the logarithm of how many there are.
"""

import math

import numpy as np

# P(sum of a_i s_i >= t) <= this times P(Z >= t), for signs s and a of norm 1 (Bentkus and Dzindzalieta, 2015).
SIGNS = 3.1787
SHARES = (0.5, 0.2, 0.05)
MOST = 1e4


def log_tail(score: float) -> float:
    """The logarithm of a bound on the probability that random signs, weighted to variance 1, reach this score."""
    from scipy.stats import norm

    if score <= 0:
        return 0.0
    return float(min(0.0, -(score**2) / 2, math.log(SIGNS) + norm.logsf(score)))


def from_scores(scores: np.ndarray, delta: float, confidence: float) -> float:
    """The least epsilon at `delta` that explains these scores of canaries which sent something.

    A score is random signs weighted to variance 1, had the canary sent nothing. With probability e^epsilon times that of
    the null, plus delta, at most, it is above any threshold; the thresholds are scores of given ranks, so that the
    probability that they are exceeded has a known (Beta) distribution.
    """
    from scipy.stats import beta

    count = len(scores)
    if not count:
        return 0.0
    ordered = np.sort(scores)[::-1]
    ranks = sorted({max(1, round(share * count)) for share in SHARES})
    failing = (1 - confidence) / len(ranks)
    best = 0.0
    for rank in ranks:
        reached = float(beta.ppf(failing, rank, count - rank + 1))
        if reached > delta:
            best = max(best, math.log(reached - delta) - log_tail(float(ordered[rank - 1])))
    return min(best, MOST)


def by_counting(canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    """The least epsilon at `delta` under which so many of the guesses, which of the canaries sent anything, are right."""
    low, high = 0.0, 1.0
    if _chance(canaries, guesses, correct, low, delta) > 1 - confidence:
        return 0.0
    while _chance(canaries, guesses, correct, high, delta) <= 1 - confidence:
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (
            (middle, high) if _chance(canaries, guesses, correct, middle, delta) <= 1 - confidence else (low, middle)
        )
    return low


def _chance(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The largest probability of so many right guesses under (epsilon, delta)."""
    from scipy.special import expit
    from scipy.stats import binom

    right = expit(epsilon)
    beyond = float(binom.sf(correct - 1, guesses, right))
    if not delta or not correct:
        return beyond
    nearer = np.arange(1, correct + 1)
    gained = (binom.sf(correct - nearer - 1, guesses, right) - beyond) / nearer
    return min(1.0, beyond + 2 * canaries * delta * float(gained.max()))


def largest_auc(epsilon: float, delta: float) -> float:
    """The largest area under the ROC curve of any attack on what is (epsilon, delta)-DP."""
    wrong = np.linspace(0.0, 1.0, 20_001)
    steep = 1 - delta - math.exp(min(epsilon, 700.0)) * wrong
    missed = np.maximum(0.0, np.maximum(steep, math.exp(-epsilon) * (1 - delta - wrong)))
    return float(1 - np.trapezoid(missed, wrong))
