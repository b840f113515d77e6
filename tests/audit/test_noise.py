"""Noise as claimed passes; noise that is smaller, otherwise correlated, odd in one round or used twice does not."""

import numpy as np
import pytest

from reticent.audit.noise import OPEN, whiteness
from reticent.mechanisms import Participation, make
from reticent.mechanisms.restarted import Restarted

ROUNDS, COLUMNS, UNITS = 24, 300, 5000.0
WITHIN = Participation(ROUNDS, 6)


def noise_of(mechanism, seed=0):
    inverse = mechanism.inverse(ROUNDS)
    return np.rint(UNITS * inverse @ np.random.default_rng(seed).normal(size=(inverse.shape[1], COLUMNS)))


def white(noise, mechanism, rounds=None):
    rounds = list(range(ROUNDS)) if rounds is None else rounds
    return whiteness(noise, rounds, mechanism, ROUNDS, np.full(len(rounds), UNITS))


@pytest.mark.parametrize("kind", ["independent", "tree", "blt", "banded", "banded-inverse"])
def test_noise_as_claimed(kind):
    mechanism = make(kind, WITHIN)
    for seed in range(20):
        found = white(noise_of(mechanism, seed), mechanism)
        assert found.holds(OPEN)
        assert found.scale == pytest.approx(1, abs=0.04)
    some = [1, 4, 5, 20]
    assert white(noise_of(mechanism)[some], mechanism, some).holds(OPEN)


def test_noise_with_restarts():
    mechanism = Restarted(make("tree", WITHIN), (0, 10))
    assert white(noise_of(mechanism), mechanism).holds(OPEN)
    assert not white(noise_of(make("tree", WITHIN)), mechanism).holds(OPEN)


def test_p_values_are_uniform():
    mechanism = make("blt", WITHIN)
    values = sorted(white(noise_of(mechanism, seed), mechanism).whole for seed in range(200))
    assert np.abs(np.array(values) - (np.arange(200) + 0.5) / 200).max() < 0.12


def test_noise_that_is_not_as_claimed():
    mechanism = make("blt", WITHIN)
    noise = noise_of(mechanism)
    assert not white(noise / 2, mechanism).holds(OPEN)
    assert not white(noise * 1.1, mechanism).holds(OPEN)
    assert white(noise / 2, mechanism).scale == pytest.approx(0.5, abs=0.02)
    odd = noise.copy()
    odd[7] *= 1.5
    found = white(odd, mechanism)
    assert not found.holds(OPEN)
    assert found.oddest_round[1] in (7, 8)
    assert not white(noise_of(make("independent", WITHIN)), mechanism).holds(OPEN)


def test_a_row_used_twice_is_seen():
    mechanism = make("blt", WITHIN)
    rows = np.random.default_rng(0).normal(size=(ROUNDS, COLUMNS))
    rows[15] = rows[4]
    found = white(np.rint(UNITS * mechanism.inverse(ROUNDS) @ rows), mechanism)
    assert found.whole > OPEN
    assert not found.holds(OPEN)
    assert found.most_alike[1:] == (4, 15)
