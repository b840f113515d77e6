import functools
import hashlib
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from reticent.errors import Refused
from reticent.mechanisms import KINDS, Mechanism, Participation, make
from reticent.mechanisms.restarted import Restarted
from reticent.privacy.gaussian import normal, parted_normal
from reticent.privacy.grid import Grid
from reticent.privacy.keys import row_key, simulation_threefry_key
from reticent.privacy.noise import add_float_noise, add_noise, noise_deviation

ROUNDS = 11
SIGMA = 1.4
CLIP_NORM = 0.5
EVERY_KIND = pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("blt-")])


@functools.cache
def made(kind: str, rounds: int = ROUNDS, restarts: tuple[int, ...] = ()) -> Mechanism:
    mechanism = make(kind, Participation(rounds, min(4, rounds)))
    return Restarted(mechanism, (0, *restarts)) if restarts else mechanism


def grid_for(mechanism: Mechanism, rounds: int = ROUNDS, sigma: float = SIGMA, clip_norm: float = CLIP_NORM) -> Grid:
    return Grid.finest(20, clip_norm, noise_deviation(mechanism, rounds, sigma, clip_norm))


def key_of(round: int, maker=simulation_threefry_key, run: str = "run"):
    return maker(hashlib.sha256(f"{run} {round}".encode()).digest())


def noises(
    mechanism: Mechanism,
    shapes,
    rounds: int = ROUNDS,
    sigma: float = SIGMA,
    maker=simulation_threefry_key,
    run: str = "run",
):
    """The noise of every round, in standard deviations of Z: arrays with a row per round, as the shapes are nested."""
    grid = grid_for(mechanism, rounds, sigma)
    noise = add_noise(mechanism, rounds, sigma, CLIP_NORM, grid)
    zeros = jax.tree.map(
        lambda shape: jnp.zeros(shape, jnp.int32), shapes, is_leaf=lambda shape: isinstance(shape, tuple)
    )
    update = jax.jit(lambda sums, state, key: noise.update(sums, state, key=key), donate_argnums=1)
    state, rows = noise.init(zeros), []
    for round in range(rounds):
        release, state = update(zeros, state, key_of(round, maker, run))
        rows.append(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64) * grid.step / CLIP_NORM, release))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


def source_of(mechanism: Mechanism, rounds: int, units: float, keys, number: int, shape):
    """The Gaussians that `add_noise` makes for the array with this number, in units and double precision, as `Stream.step`
    takes them."""
    draws, inverse = list(mechanism.draws(rounds)), mechanism.inverse(rounds)

    def source(round, draw):
        key = jax.random.fold_in(jax.random.fold_in(keys(round), draw), number)
        if draw:
            return units * np.asarray(normal(key, shape), np.float64).ravel()
        # The first draw enters the row with its weight.
        weight = inverse[round, draws.index((round, 0))]
        drawn = parted_normal(key, shape, np.float32(weight * units))
        return (np.asarray(drawn.whole, np.float64) + np.asarray(drawn.below, np.float64)).ravel() / weight

    return source


@EVERY_KIND
@pytest.mark.parametrize(("maker", "restarts"), [(row_key, ()), (simulation_threefry_key, (3, 9))])
def test_rows_are_those_of_the_stream_with_the_same_gaussians(kind, maker, restarts):
    """`Mechanism.stream`, in NumPy and double precision, is what the accountant's mathematics were tested with."""
    mechanism = made(kind, restarts=restarts)
    units = SIGMA * CLIP_NORM / grid_for(mechanism).step
    shapes = {"a": (130,), "b": (16, 3)}
    rows = noises(mechanism, shapes, maker=maker)
    for number, name in enumerate(shapes):
        source = source_of(mechanism, ROUNDS, units, lambda round: key_of(round, maker), number, shapes[name])
        stream = mechanism.stream(ROUNDS)
        state = stream.init(math.prod(shapes[name]))
        for round in range(ROUNDS):
            expected, state = stream.step(state, round, source)
            np.testing.assert_allclose(rows[name][round].ravel(), expected * SIGMA / units, atol=2e-5)


@pytest.mark.parametrize(
    ("kind", "exponent"), [(kind, 10) for kind in KINDS if not kind.startswith("blt-")] + [("blt", 17), ("tree", 17)]
)
def test_a_release_is_the_exact_noise_rounded_once_after_many_rounds(kind, exponent):
    """x + row = round(x + w), w a row of C^-1 Z in double precision: a post-processing of the exact mechanism, in every
    round. Rounding that was fed back into later rows would show on all of them, by up to a unit and more."""
    rounds, size = 40, 2000
    mechanism = made(kind, rounds, (17,)) if kind in ("tree", "blt") else made(kind, rounds)
    noise = add_noise(mechanism, rounds, 1.0, 1.0, Grid(-exponent))
    update = jax.jit(lambda sums, state, key: noise.update(sums, state, key=key))
    sums = jnp.arange(size, dtype=jnp.int32) - 1000
    state = noise.init(sums)
    stream, source = mechanism.stream(rounds), source_of(mechanism, rounds, 2.0**exponent, key_of, 0, (size,))
    exact = stream.init(size)
    for round in range(rounds):
        release, state = update(sums, state, key_of(round))
        w, exact = stream.step(exact, round, source)
        difference = np.asarray(release, np.int64) - np.floor(np.asarray(sums) + w + 0.5)
        assert np.abs(difference).max() <= 1
        # Where float32's last digit decides: as often as it is large, some 2^-24 of the row.
        assert np.count_nonzero(difference) < 8 + size * 2.0**-22 * w.std(), round


def check_covariance(rows: np.ndarray, mechanism: Mechanism, sigma: float) -> None:
    """Holds the rows' covariance against sigma^2 (C^T C)^-1, entry by entry, at six standard errors."""
    rounds, size = rows.shape
    inverse = mechanism.inverse(rounds)
    expected = sigma**2 * inverse @ inverse.T
    variances = expected.diagonal()
    error = np.sqrt((np.outer(variances, variances) + expected**2) / size)
    assert (np.abs(rows @ rows.T / size - expected) < 6 * error).all()


@EVERY_KIND
def test_the_covariance_is_the_mechanism_s(kind):
    first, second = noises(made(kind, 8), [(20_000,), (20_000,)], 8)
    check_covariance(first, made(kind, 8), SIGMA)
    check_covariance(second, made(kind, 8), SIGMA)
    # Arrays of one round share no noise.
    assert np.abs(np.corrcoef(first, second)[:8, 8:]).max() < 6 / math.sqrt(20_000)


def test_the_covariance_check_sees_halved_noise_and_a_row_used_twice():
    mechanism = made("blt", 8)
    rows = noises(mechanism, (20_000,), 8)
    with pytest.raises(AssertionError):
        check_covariance(noises(mechanism, (20_000,), 8, sigma=SIGMA / 2), mechanism, SIGMA)
    with pytest.raises(AssertionError):
        check_covariance(rows / 2, mechanism, SIGMA)
    # The row of round 2 again in round 5, as with one key for both.
    independent = made("independent", 8)
    twice = noises(independent, (20_000,), 8)
    check_covariance(twice, independent, SIGMA)
    twice[5] = twice[2]
    with pytest.raises(AssertionError):
        check_covariance(twice, independent, SIGMA)


@pytest.mark.parametrize("kind", ["tree", "blt", "banded-inverse"])
def test_another_key_is_another_row_and_a_key_repeats_its_own(kind):
    one, same, other = (noises(made(kind, 3), (2000,), 3, run=run) for run in ("one", "one", "other"))
    np.testing.assert_array_equal(one, same)
    assert np.abs(np.corrcoef(one, other)[:3, 3:]).max() < 6 / math.sqrt(2000)


@EVERY_KIND
def test_a_state_that_was_stored_goes_on_to_the_bit(kind):
    mechanism = made(kind)
    noise = add_noise(mechanism, ROUNDS, SIGMA, CLIP_NORM, grid_for(mechanism))
    zeros = {"a": jnp.zeros(50, jnp.int32), "b": [jnp.zeros((3, 4), jnp.int32)]}
    update = jax.jit(lambda sums, state, key: noise.update(sums, state, key=key))
    state = stored = noise.init(zeros)
    for round in range(ROUNDS):
        leaves = jax.tree.leaves(stored)
        assert all(leaf.dtype in (jnp.int32, jnp.uint32, jnp.float32) for leaf in leaves)
        restored = jax.tree.unflatten(jax.tree.structure(stored), [jnp.asarray(np.asarray(leaf)) for leaf in leaves])
        release, state = update(zeros, state, key_of(round))
        again, stored = update(zeros, restored, key_of(round))
        jax.tree.map(np.testing.assert_array_equal, (release, state), (again, stored))


@EVERY_KIND
def test_what_is_kept_is_what_the_mechanism_promises_and_is_given_away(kind):
    """Donated sums and buffers become the new ones."""
    mechanism, size = made(kind), 2**16
    noise = add_noise(mechanism, ROUNDS, SIGMA, CLIP_NORM, grid_for(mechanism))
    sums = jnp.zeros(size, jnp.int32)
    state = noise.init(sums)
    kept = sum(leaf.size for leaf in jax.tree.leaves(state.buffers))
    promised = mechanism.memory(ROUNDS)
    # The last row of a full tree is not looked at any more.
    assert kept == size * (promised - 1 if kind == "tree-full" else promised)
    assert state.round.nbytes + state.earlier_keys.nbytes <= 4 + 32 * ROUNDS
    update = jax.jit(lambda sums, state, key: noise.update(sums, state, key=key), donate_argnums=(0, 1))
    used = update.lower(sums, state, key_of(0)).compile().memory_analysis()
    assert used.alias_size_in_bytes >= 4 * (size + kept)


def test_a_release_is_the_sum_plus_its_noise_modulo_2_to_the_32():
    mechanism = made("blt")
    grid = grid_for(mechanism)
    noise = add_noise(mechanism, ROUNDS, SIGMA, CLIP_NORM, grid)
    update = jax.jit(lambda sums, state, key: noise.update(sums, state, key=key))
    rng = np.random.default_rng(0)
    sums = rng.integers(-(2**31), 2**31, 5000).astype(np.int32)
    state = other = noise.init(jnp.asarray(sums))
    for round in range(4):
        release, state = update(jnp.asarray(sums), state, key_of(round))
        row, other = update(jnp.zeros(5000, jnp.int32), other, key_of(round))
        expected = (sums.astype(object) + np.asarray(row).astype(object) + 2**31) % 2**32 - 2**31
        assert (np.asarray(release).astype(object) == expected).all()


def test_the_last_bits_of_a_release_tell_nothing():
    """Far below what float32 can say of a number as large: every residue comes equally often, whatever the sum."""
    for kind in ("independent", "blt", "toeplitz", "tree", "banded-inverse"):
        mechanism = made(kind)
        update = jax.jit(add_noise(mechanism, ROUNDS, SIGMA, CLIP_NORM, grid_for(mechanism)).update)
        noise = add_noise(mechanism, ROUNDS, SIGMA, CLIP_NORM, grid_for(mechanism))
        sums = jnp.full(160_000, 16 * 12345, jnp.int32)
        state = noise.init(sums)
        for round in range(4):
            release, state = update(sums, state, key=key_of(round))
            counts = np.bincount(np.asarray(release) % 16, minlength=16)
            assert np.abs(counts - 10_000).max() < 6 * 100, (kind, round)


def test_the_clip_norm_may_change_at_a_restart():
    mechanism = made("blt", restarts=(4,))
    first, second = (0.5, grid_for(mechanism)), (2.0, grid_for(mechanism, clip_norm=2.0))
    zeros = jnp.zeros(200, jnp.int32)
    before, after = (add_noise(mechanism, ROUNDS, SIGMA, *terms) for terms in (first, second))
    state, rows = before.init(zeros), []
    updates = [jax.jit(noise.update) for noise in (before, after)]
    for round in range(ROUNDS):
        clip_norm, grid = first if round < 4 else second
        release, state = updates[round >= 4](zeros, state, key=key_of(round))
        rows.append(np.asarray(release, np.float64) * grid.step / clip_norm)
    np.testing.assert_allclose(np.stack(rows), noises(mechanism, (200,)), atol=1e-6)


def test_no_noise_asked_for_is_none():
    for kind in ("blt", "banded-inverse", "tree", "toeplitz"):
        noise = add_noise(made(kind), ROUNDS, 0.0, CLIP_NORM, Grid.finest(20, CLIP_NORM, 0.0))
        sums = jnp.arange(40, dtype=jnp.int32)
        state, update = noise.init(sums), jax.jit(noise.update)
        for round in range(3):
            release, state = update(sums, state, key=key_of(round))
            np.testing.assert_array_equal(release, sums)


def test_float_sums_get_the_same_noise():
    mechanism = made("blt")
    grid = Grid.finest(1, CLIP_NORM, noise_deviation(mechanism, ROUNDS, SIGMA, CLIP_NORM))
    whole, floats = (
        add_noise(mechanism, ROUNDS, SIGMA, CLIP_NORM, grid),
        add_float_noise(mechanism, ROUNDS, SIGMA, CLIP_NORM),
    )
    gradients = {"a": jnp.linspace(-1, 1, 77), "b": jnp.ones((3, 5), jnp.bfloat16)}
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.int32), gradients)
    state, other = floats.init(gradients), whole.init(zeros)
    noised_floats, noised_zeros = jax.jit(floats.update), jax.jit(whole.update)
    for round in range(3):
        noised, state = noised_floats(gradients, state, key=key_of(round))
        row, other = noised_zeros(zeros, other, key=key_of(round))
        assert noised["b"].dtype == jnp.bfloat16
        np.testing.assert_allclose(noised["a"] - gradients["a"], row["a"] * grid.step, atol=1e-6)


def test_the_deviation_is_that_of_the_largest_row():
    for kind in ("independent", "blt", "banded"):
        mechanism = made(kind)
        rows = noises(mechanism, (30_000,))
        assert noise_deviation(mechanism, ROUNDS, SIGMA, CLIP_NORM) == pytest.approx(
            rows.std(1).max() * CLIP_NORM, rel=0.03
        )


def test_what_noise_is_not_added_to_is_refused():
    mechanism = made("blt")
    grid = grid_for(mechanism)
    with pytest.raises(Refused, match="too fine"):
        add_noise(mechanism, ROUNDS, 100 * SIGMA, CLIP_NORM, grid)
    with pytest.raises(Refused, match="cannot serve"):
        noise_deviation(made("banded"), ROUNDS + 1, SIGMA, CLIP_NORM)
    noise = add_noise(mechanism, ROUNDS, SIGMA, CLIP_NORM, grid)
    with pytest.raises(Refused, match="int32"):
        noise.init(jnp.zeros(3))
    sums = jnp.zeros(3, jnp.int32)
    with pytest.raises(Refused, match="ChaCha20"):
        noise.update(sums, noise.init(sums), key=jax.random.key(0, impl="rbg"))
