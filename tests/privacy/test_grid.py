import math
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from reticent.errors import Refused
from reticent.privacy.grid import LARGEST, Grid, round_towards_zero


@pytest.mark.parametrize("cohort", [1, 7, 1000, 10**6])
@pytest.mark.parametrize("clip_norm", [1e-6, 0.3, 1.0, 5e4])
@pytest.mark.parametrize("noise", [0.0, 0.5, 7.0, 300.0])
def test_the_finest_grid_has_room_and_a_finer_one_has_not(cohort, clip_norm, noise):
    grid = Grid.finest(cohort, clip_norm, noise * clip_norm)
    largest = cohort * Fraction(clip_norm) + 10 * Fraction(noise * clip_norm)
    slack = Fraction(1) + Fraction(1, 2**40)
    assert largest <= LARGEST * Fraction(grid.step) * slack
    assert largest * slack > LARGEST * Fraction(grid.step) / 2
    assert Grid.of_step(grid.step) == grid


def test_room_is_counted_to_the_last_unit():
    assert Grid.finest(LARGEST, 1.0, 0.0).step == 1.0
    assert Grid.finest(LARGEST + 1, 1.0, 0.0).step == 2.0


def test_rounding_goes_towards_zero_exactly():
    rng = np.random.default_rng(0)
    grid = Grid(-20)
    values = (rng.normal(size=10_000) * 10.0 ** rng.uniform(-12, 2, 10_000)).astype(np.float32)
    units = np.asarray(round_towards_zero(jnp.asarray(values), grid)).astype(int)
    expected = [math.trunc(Fraction(float(value)) * 2**20) for value in values]
    assert units.tolist() == expected


def test_what_makes_no_grid_is_refused():
    for cohort, clip_norm, deviation in (
        (0, 1.0, 1.0),
        (1, 0.0, 1.0),
        (1, math.inf, 1.0),
        (1, 1.0, math.nan),
        (1, 1.0, -1.0),
    ):
        with pytest.raises(Refused):
            Grid.finest(cohort, clip_norm, deviation)
    with pytest.raises(Refused, match="out of reach"):
        Grid.finest(1, 1e-30, 0.0)
    for step in (0.3, 0.0, -2.0, math.inf):
        with pytest.raises(Refused):
            Grid.of_step(step)
