import os

import jax.numpy as jnp
import numpy as np
import pytest

from reticent.audit import keys
from reticent.mechanisms import Participation, make
from reticent.mechanisms.storage import to_header
from reticent.privacy.grid import Grid
from reticent.privacy.keys import row_key
from reticent.privacy.noise import add_noise

MECHANISM = make("blt", Participation(24, 6))
DESCRIPTION = {"accounting": {"rounds": 24, "noise_multiplier": 1.3, "mechanism": to_header(MECHANISM)}}


def first_row(key: bytes, size: int) -> np.ndarray:
    grid = Grid(-20)
    noise = add_noise(MECHANISM, 24, 1.3, 0.5, grid)
    zeros = jnp.zeros(size, jnp.int32)
    return np.asarray(noise.update(zeros, noise.init(zeros), key=row_key(key))[0])


@pytest.mark.full
@pytest.mark.parametrize("way", ["the number itself, little-endian", "NumPy's default_rng, seeded with it"])
def test_a_key_of_16_bits_is_found_from_its_noise_alone(way):
    key = keys.WAYS[way](51_234)
    assert keys.way_of(key) == way
    assert keys.search(first_row(key, 5000)[:7], DESCRIPTION, {}, 0.5, Grid(-20).step, 64) == way


def test_a_key_of_the_operating_system_is_not():
    key = os.urandom(32)
    assert keys.way_of(key) is None
    assert keys.search(first_row(key, 200)[:7], DESCRIPTION, {}, 0.5, Grid(-20).step, 64) is None


def test_ways_make_different_keys():
    drawn = np.concatenate([keys.weak_keys(way)[1:] for way in keys.WAYS])
    assert drawn.shape == (len(keys.WAYS) * (keys.SEEDS - 1), 32)
    assert len(np.unique(drawn.view("V32"))) > len(drawn) - 300  # numbers of one byte are the same in few ways
