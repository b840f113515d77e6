"""Every bound here is checked in whole numbers: a float norm could not tell the clip norm from a hair above it."""

import math
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.errors import Refused
from reticent.models import make
from reticent.models.clients import local_updates
from reticent.privacy.clipping import Clipping, Contribution
from reticent.privacy.grid import Grid
from reticent.privacy.weighting import WHOLE

FINE = Grid.finest(1, 1.0, 0.0)


def squared_units(units) -> int:
    """The squared norm of a pytree of integers, exactly."""
    leaves = [np.asarray(leaf).ravel().astype(np.int64) for leaf in jax.tree.leaves(units)]
    values = np.concatenate(leaves)
    high, low = np.divmod(np.abs(values), 2**16)
    # Each of the three sums stays below 2^63 for four billion entries.
    return (int((high * high).sum()) << 32) + (int((high * low).sum()) << 17) + int((low * low).sum())


def within(units, norm: float, grid: Grid, weight: int = WHOLE) -> bool:
    """Whether integers on the grid have at most this norm times weight / WHOLE, in exact arithmetic."""
    bound = Fraction(norm) / Fraction(grid.step) * Fraction(weight, WHOLE)
    return squared_units(units) <= bound**2


def check_clipped(clipping: Clipping, update, weight: int = WHOLE) -> Contribution:
    made = jax.jit(clipping)(update, weight)
    assert within(made.units, clipping.norm, clipping.grid, weight)
    return made


def directions(size: int) -> dict[str, np.ndarray]:
    """Updates whose norms float32 has a hard time with."""
    rng = np.random.default_rng(size)
    wide = rng.normal(size=size) * 10.0 ** rng.uniform(-20, 20, size)
    spike = np.full(size, 1e-4)
    spike[size // 2] = 1.0
    return {
        "normal": rng.normal(size=size),
        "equal": np.ones(size),
        "just below a power of two": np.full(size, 1 - 2.0**-24),
        "wide": wide,
        "spike": spike,
        "ordered": np.sort(np.abs(rng.normal(size=size)))[::-1] ** 3,
        "sawtooth": (np.arange(size) % 128 == 0) + 2.0**-12,
    }


@pytest.mark.parametrize("size", [1, 2, 127, 128, 129, 4096, 16385, 300_001])
@pytest.mark.parametrize("norm", [1.0, 0.3, 1e-4, 12345.678])
def test_the_norm_is_at_most_the_clip_norm_in_exact_arithmetic(size, norm):
    grid = Grid.finest(1, norm, 0.0)
    clip = jax.jit(Clipping(norm, grid))
    for name, direction in directions(size).items():
        unit = direction / np.linalg.norm(direction)
        for length in (1 - 1e-5, 1 - 2.0**-24, 1.0, 1 + 2.0**-23, 1 + 1e-5, 3.0, 1e9, 1e25):
            units = clip((unit * norm * length).astype(np.float32)).units
            assert within(units, norm, grid), (name, length)
            # And not much less than it: what rounding takes off an entry is less than a unit.
            least = norm * (1 - 4e-4) * min(length, 1) - math.sqrt(size) * grid.step
            assert math.sqrt(squared_units(units)) * grid.step >= least, (name, length)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=37, max_size=37),
    st.sampled_from([1e-3, 1.0, 1e6]),
    st.integers(0, WHOLE),
)
def test_any_floats_at_all(values, norm, weight):
    grid = Grid.finest(1, 1e6, 0.0)
    update = jnp.asarray(np.array(values, np.float32))
    made = _clip(norm, grid, update, weight)
    assert within(made.units, norm, grid, weight)
    assert made.zeroed == (0 if np.isfinite(update).all() else 1)


@partial(jax.jit, static_argnums=(0, 1))
def _clip(norm, grid, update, weight):
    return Clipping(norm, grid)(update, weight)


def test_an_update_within_the_norm_is_only_rounded():
    update = {"a": jnp.asarray([0.25, -0.5]), "b": jnp.asarray([[0.125]])}
    made = check_clipped(Clipping(1.0, Grid(-10)), update)
    assert np.asarray(made.units["a"]).tolist() == [256, -512]
    assert np.asarray(made.units["b"]).tolist() == [[128]]
    assert (int(made.weight), int(made.zeroed)) == (WHOLE, 0)


def test_per_layer_clipping_clips_every_array_by_itself():
    update = {"a": jnp.full(100, 5.0), "b": jnp.full((3, 4), 1e-3), "c": jnp.asarray(-7.0), "d": jnp.full(9, 1e-2)}
    norm, grid = 2.0, Grid.finest(1, 2.0, 0.0)
    made = check_clipped(Clipping(norm, grid, "per-layer"), update)
    for name, leaf in made.units.items():
        # S_j = S / sqrt(4) = 1.
        assert within(leaf, 1.0, grid)
        assert math.sqrt(squared_units(leaf)) * grid.step == pytest.approx(
            min(1, np.linalg.norm(update[name])), rel=1e-3
        )
    given = Clipping(norm, grid, "per-layer", layer_norms=(1.0, 0.0, 1.7, 0.2))
    made = check_clipped(given, update)
    for leaf, share in zip(made.units.values(), given.layer_norms, strict=True):
        assert within(leaf, share, grid)
    assert not np.asarray(made.units["b"]).any()
    assert math.sqrt(squared_units(made.units["c"])) * grid.step == pytest.approx(1.7, rel=1e-3)


@pytest.mark.parametrize("style", ["flat", "per-layer"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 11.0, -3e38])
def test_a_bad_update_counts_as_zero(style, bad):
    clipping = Clipping(1.0, FINE, style, zero_above=10.0)
    good = {"a": jnp.asarray([1.0, 2.0]), "b": jnp.asarray([10.0])}
    assert int(check_clipped(clipping, good).zeroed) == 0
    made = check_clipped(clipping, {"a": jnp.asarray([1.0, bad]), "b": jnp.asarray([3.0])})
    assert int(made.zeroed) == 1
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(made.units))


def test_a_large_finite_update_is_clipped_where_nothing_is_zeroed():
    made = check_clipped(Clipping(1.0, FINE), jnp.full(10_000, 1e30))
    assert math.sqrt(squared_units(made.units)) * FINE.step > 0.999
    tiny = check_clipped(Clipping(1.0, FINE), jnp.full(10_000, 1e-42))
    assert (int(tiny.zeroed), np.asarray(tiny.units).any()) == (0, False)


def weighted_first(clipping: Clipping, update, weight: int) -> Contribution:
    """The planted fault: clip(w x) in place of w clip(x)."""
    return clipping(jax.tree.map(lambda leaf: leaf * (weight / WHOLE), update))


def test_weights_come_after_clipping():
    """A long update of weight w moves the sum by w clip norms, not by a whole one."""
    update, clipping = jnp.full(50, 100.0), Clipping(1.0, FINE)
    for weight in (0, 1, WHOLE // 100, WHOLE // 3, WHOLE):
        made = check_clipped(clipping, update, weight)
        assert math.sqrt(squared_units(made.units)) * FINE.step == pytest.approx(weight / WHOLE, rel=1e-3, abs=1e-6)
    assert not within(weighted_first(clipping, update, WHOLE // 3).units, 1.0, FINE, WHOLE // 3)


MODEL = make("cifg", vocabulary=20, embedding=4, hidden=5)
COHORT = 5


def check_every_user_is_bounded(each, norm: float, grid: Grid) -> None:
    """Leaves out one user at a time: exactly what the sum changes by is at most the clip norm. Local steps are so long that
    everybody has to be clipped."""
    params = MODEL.init(jax.random.key(0))
    tokens = np.random.default_rng(0).integers(0, 20, (COHORT, 2, 3, 6)).astype(np.int32)
    beside = (np.arange(COHORT),)
    total = jax.jit(lambda tokens: local_updates(MODEL, params, tokens, 50.0, each, beside=beside, total=True).units)
    whole = total(tokens)
    for user in range(COHORT):
        without = tokens.copy()
        without[user] = -1
        moved = jax.tree.map(lambda one, other: np.asarray(one) - np.asarray(other), whole, total(without))
        assert squared_units(moved) > 0
        assert within(moved, norm, grid), user


def test_no_user_moves_the_sum_by_more_than_the_clip_norm():
    grid = Grid.finest(COHORT, 0.5, 0.5)
    clipping = Clipping(0.5, grid)
    check_every_user_is_bounded(lambda update, number: clipping(update), 0.5, grid)


def test_the_check_sees_clipping_dropped_for_one_user():
    grid = Grid.finest(COHORT, 0.5, 0.5)
    clipping, loose = Clipping(0.5, grid), Clipping(1.0, grid)

    def faulty(update, number):
        return jax.tree.map(partial(jnp.where, number == 3), loose(update), clipping(update))

    with pytest.raises(AssertionError, match="3"):
        check_every_user_is_bounded(faulty, 0.5, grid)


def test_one_by_one_and_all_at_once_clip_alike():
    updates = {
        "a": np.random.default_rng(0).normal(size=(6, 70)).astype(np.float32),
        "b": np.ones((6, 2, 3), np.float32),
    }
    weights = jnp.asarray([0, 5, 100, 5000, WHOLE, WHOLE])
    clipping = Clipping(0.7, Grid.finest(6, 0.7, 1.0), "per-layer")
    together = jax.jit(jax.vmap(clipping))(updates, weights)
    for user in range(6):
        alone = jax.jit(clipping)(jax.tree.map(lambda leaf, user=user: leaf[user], updates), weights[user])
        for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
            assert np.abs(np.asarray(one, np.int64) - np.asarray(other[user], np.int64)).max() <= 64


def test_what_does_not_clip_is_refused():
    for asked in (
        {"norm": 0.0},
        {"norm": math.inf},
        {"norm": 1e12},
        {"norm": FINE.step / 2},
        {"style": "layers"},
        {"zero_above": 0.0},
        {"layer_norms": (0.5, 0.5)},
        {"style": "per-layer", "layer_norms": (0.8, 0.8)},
    ):
        with pytest.raises(Refused):
            Clipping(**{"norm": 1.0, "grid": FINE, **asked})
    with pytest.raises(Refused, match="2 layer_norms"):
        Clipping(1.0, FINE, "per-layer", layer_norms=(0.5, 0.5))({"a": jnp.zeros(3)})
