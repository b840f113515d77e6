"""The rule by which a clip norm changes, against Gboard's Alg. 1 written out over all rounds at once."""

import math

import numpy as np
import pytest

from reticent.ledger.clip_norms import Norms, bit_units, first_norms, norms_after, norms_at, norms_due

GRID, SIGMA, COUNT_NOISE, COHORT, QUANTILE, RATE = 2.0**-20, 3.0, 5.0, 100, 0.4, 0.2
RESTARTS = [3, 7]


def description(**more) -> dict:
    return {
        "clip_norm": 0.7,
        "grid": GRID,
        "accounting": {
            "noise_multiplier": SIGMA,
            "restarts": RESTARTS,
            "adaptive_clipping": {"noise_multiplier": COUNT_NOISE},
        },
        "clip_norms": {"kind": "adaptive", "quantile": QUANTILE, "learning_rate": RATE, "cohort": COHORT, **more},
    }


def test_the_norms_are_those_of_algorithm_1():
    """C^{t+1} = C^0 exp(-rate (sum of fractions within - (t + 1) quantile)), taken over where the mechanism restarts."""
    given = description()
    fractions = np.random.default_rng(0).uniform(-0.2, 1.2, 10)
    norms, counts, active = first_norms(given), [], []
    for round, fraction in enumerate(fractions):
        norms = norms_at(given, norms, round)
        active.append(norms.active)
        half = bit_units(given, norms.active, GRID)
        # n/2 less than n bits of 0 and 1.
        counts.append(round_to(2 * half * COHORT * (fraction - 0.5)))
        norms = norms_after(given, norms, GRID, counts[-1])
        expected = 0.7 * math.exp(-RATE * (fractions[: round + 1].sum() - (round + 1) * QUANTILE))
        assert norms.tracked == pytest.approx(expected, rel=1e-5)
    estimates = 0.7 * np.exp(-RATE * np.cumsum(np.append(0, fractions - QUANTILE)))
    np.testing.assert_allclose(active, [0.7] * 3 + [estimates[3]] * 4 + [estimates[7]] * 3, rtol=1e-5)
    due = norms_due(given, iter([(count, GRID) for count in counts]))
    assert [norms.active for norms in due] == active


def round_to(value: float) -> int:
    return math.floor(value + 0.5)


def test_a_bit_is_worth_what_makes_its_noise_sigma_b_people():
    for norm in (0.01, 0.7, 30.0):
        noise = SIGMA * norm / GRID
        people = noise / (2 * bit_units(description(), norm, GRID))
        assert COUNT_NOISE <= people < COUNT_NOISE * 1.001


def test_a_burnt_row_tells_nothing_and_a_restart_still_happens():
    given = description()
    count = -2 * bit_units(given, 0.7, GRID) * COHORT // 2  # nobody within
    grown = 0.7 * math.exp(RATE * QUANTILE)
    due = [norms.active for norms in norms_due(given, iter([(count, GRID), *[(None, GRID)] * 5]))]
    assert due == pytest.approx([0.7] * 3 + [grown] * 3)


def test_an_estimate_does_not_run_away():
    given = description()
    norms = Norms(0.7, 0.7)
    for _ in range(10_000):
        norms = norms_after(given, norms, GRID, -(2**31))
    assert norms.tracked == 0.7 * 2**20


def test_planned_norms():
    given = {**description(), "clip_norms": {"kind": "scheduled", "norms": [0.5, 0.2]}}
    due = [norms.active for norms in norms_due(given, iter([(None, GRID)] * 9))]
    assert due == [0.7] * 3 + [0.5] * 4 + [0.2] * 2
    del given["clip_norms"]
    assert {norms.active for norms in norms_due(given, iter([(None, GRID)] * 9))} == {0.7}
