"""The bound of one shuffle: never below the truth where this can be integrated, and worth something where it counts."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from reticent.accounting.gaussian import epsilon_of_gaussian
from reticent.accounting.shuffled import Shuffled, _clones


def divergence(noise: float, others: tuple[float, ...], epsilon: float) -> float:
    """The true delta of replacing +1 by -1 among people at `others`, by integration over all rounds' outputs."""
    grid = np.linspace(-1 - 7 * noise, 1 + 7 * noise, 121)
    weight = grid[1] - grid[0]

    def density(people: tuple[float, ...]) -> np.ndarray:
        total = 0.0
        for order in itertools.permutations(people):
            each = [norm.pdf(grid, place, noise) * weight for place in order]
            product = each[0]
            for one in each[1:]:
                product = np.multiply.outer(product, one)
            total = total + product / math.factorial(len(people))
        return total

    return float(np.maximum(density((1.0, *others)) - math.exp(epsilon) * density((-1.0, *others)), 0).sum())


@pytest.mark.parametrize("others", [(1.0,), (-1.0,), (0.0,), (1.0, -1.0), (-1.0, -1.0)])
@pytest.mark.parametrize("noise", [1.0, 2.5])
def test_never_below_the_truth(noise: float, others: tuple[float, ...]) -> None:
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        assert Shuffled(noise, len(others) + 1).delta(epsilon) >= divergence(noise, others, epsilon) - 1e-9


def test_clones_by_enumeration() -> None:
    others, probability, epsilon = 12, 0.4, 0.7
    first, second = {}, {}
    for clones in range(others + 1):
        for one in range(clones + 1):
            mass = binom.pmf(clones, others, probability) * binom.pmf(one, clones, 0.5)
            first[one + 1, clones - one] = mass
            second[one, clones - one + 1] = mass
    due = sum(max(0.0, mass - math.exp(epsilon) * second.get(seen, 0.0)) for seen, mass in first.items())
    assert _clones(epsilon, others, probability) == pytest.approx(due, rel=1e-9)


def test_amplifies_many_and_never_harms() -> None:
    for noise, slots in ((4.0, 1), (4.0, 10), (8.0, 1000), (8.0, 100_000)):
        plain = epsilon_of_gaussian((2 / noise) ** 2 / 2, 1e-8)
        assert Shuffled(noise, slots).epsilon(1e-8) <= plain * 1.001
    few, many = Shuffled(8.0, 1000).epsilon(1e-8), Shuffled(8.0, 100_000).epsilon(1e-8)
    assert many < few < epsilon_of_gaussian((2 / 8.0) ** 2 / 2, 1e-8)
    assert Shuffled(8.0, 1000).delta(few) <= 1e-8
