import hashlib
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erfc, ndtri
from scipy.stats import chi2, norm

from reticent.privacy.gaussian import FINEST, SCATTER, normal, of_words, parted_normal, quantile, rounded_normal
from reticent.privacy.keys import row_key, simulation_threefry_key

MAKERS = pytest.mark.parametrize("make", [row_key, simulation_threefry_key])


def key_of(make, what: str):
    return make(hashlib.sha256(what.encode()).digest())


def two_sided(value: float) -> float:
    """The probability that a standard normal is further from zero than this."""
    return float(erfc(value / math.sqrt(2)))


def from_numbers(first, second) -> np.ndarray:
    """The normals of these words, given as integers."""
    words = (jnp.asarray(np.asarray(word, np.int64).astype(np.uint32)) for word in np.broadcast_arrays(first, second))
    return np.asarray(jax.jit(of_words)(*words, FINEST).whole, np.float64) / FINEST


def test_the_quantile_is_within_a_millionth_down_to_2_to_the_minus_65():
    tail = np.float32(2.0 ** -np.linspace(1, 65, 200001))
    exact = -ndtri(tail.astype(np.float64))
    got = np.asarray(jax.jit(quantile)(jnp.asarray(tail)), np.float64)
    assert np.abs(got - exact)[0] < 1e-7
    assert (np.abs(got - exact)[1:] / exact[1:]).max() < 1e-6


def probability_beyond(value: float) -> float:
    """What part of all 2^64 pairs of words makes a normal further from zero than this.

    The 63 bits that are its tail probability, in order, are those for which the quantile is above the value, but for the
    offset of 1/16 at most. Of those below the value plus 1/16, up to a million are tried, all or evenly spaced.
    """
    candidates = two_sided(value - 0.07) * 2**63
    count = min(2**20, int(candidates))
    spaced = [int((step + 0.5) / count * candidates) for step in range(count)]
    first = np.array([place >> 32 for place in spaced])
    second = np.array([place % 2**32 * pow(int(SCATTER), -1, 2**32) % 2**32 for place in spaced])
    return (from_numbers(first, second) > value).mean() * candidates / 2**63


@pytest.mark.parametrize(
    ("value", "error"),
    [(0.1, 1e-5), (1, 1e-5), (2, 2e-5), (3, 1e-4), (4, 3e-4), (5, 3e-4), (6, 5e-4), (7, 5e-4), (8, 1e-3), (8.5, 1e-2)],
)
def test_every_tail_has_its_probability(value, error):
    assert probability_beyond(value) == pytest.approx(two_sided(value), rel=error)


def test_how_far_it_reaches_and_how_fine_it_is():
    assert from_numbers([0, 2**31], 0) == pytest.approx([9.137, -9.137], abs=1e-3)
    # Around zero the second word alone moves it, by a uniform offset.
    assert from_numbers(2**31 - 1, [0, 2**31, 2**32 - 1]) == pytest.approx([1 / 16, 0, -1 / 16], abs=1e-6)


@pytest.mark.parametrize("deviation", [2.0**27, 1.9 * 2.0**27, 1.3 * 2.0**20, 2.0**10, 16.0])
def test_an_offset_is_every_256th_of_a_unit_of_its_width_equally_often(deviation):
    bits = math.frexp(deviation)[1] - 4
    # One step of the second word for every 256th of a unit, all of them or the first million.
    second = (np.arange(min(2 ** (bits + 8), 2**20)) << (32 - bits - 8)).astype(np.uint32)
    drawn = jax.jit(of_words)(jnp.uint32(2**30), jnp.asarray(second), deviation)
    places = 256 * np.asarray(drawn.whole, np.int64) + np.asarray(drawn.rest, np.int64)
    assert set(np.diff(places)) == {-1}
    centre = float(quantile(jnp.float32(0.25))) * deviation * math.sqrt(1 - (2**bits / deviation) ** 2 / 12)
    assert (places[0] + 0.5) / 256 - 2 ** (bits - 1) == pytest.approx(centre, abs=0.01, rel=1e-7)


@MAKERS
@pytest.mark.parametrize("deviation", [0.0, 0.3, 5.0, 16.0, 1000.0, 2.0**17, 1.7 * 2.0**27])
def test_what_is_left_of_a_number_is_within_half_a_unit_and_the_rest_is_what_was_rounded(make, deviation):
    count = 300_000
    drawn = parted_normal(key_of(make, "parted"), (count,), deviation)
    below, whole = np.asarray(drawn.below, np.float64), np.asarray(drawn.whole, np.int64)
    assert np.abs(below).max() < 0.5
    np.testing.assert_array_equal(whole, rounded_normal(key_of(make, "parted"), (count,), deviation))
    real = whole + below
    if deviation == 0:
        assert not whole.any()
        return
    # Unlike the rounded one, the real one has the deviation asked for, and every tail, to the last 256th.
    assert real.var() == pytest.approx(deviation**2, rel=6 * math.sqrt(2 / count) + 1e-5)
    if deviation >= 16:
        # Of a rounded Gaussian nothing can be told by what was left.
        counts = np.bincount(np.asarray(drawn.rest, np.int64) + 128, minlength=256)
        assert ((counts - count / 256) ** 2).sum() / (count / 256) < chi2.isf(1e-9, 255)


@MAKERS
def test_samples_look_normal(make):
    count = 2**22
    sample = np.asarray(normal(key_of(make, "sample"), (count,)), np.float64)
    # Kolmogorov and Smirnov at the 10^-9 level; then moments and tails at six standard errors.
    ordered = norm.cdf(np.sort(sample))
    steps = np.arange(count + 1) / count
    gap = max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max())
    assert gap < math.sqrt(-math.log(0.5e-9) / 2 / count)
    for power, moment, of_double in ((1, 0, 1), (2, 1, 3), (3, 0, 15), (4, 3, 105)):
        error = math.sqrt((of_double - moment**2) / count)
        assert abs((sample**power).mean() - moment) < 6 * error
    for value in (1, 2, 3, 4, 4.5):
        expected = two_sided(value)
        assert abs((np.abs(sample) > value).mean() - expected) < 6 * math.sqrt(expected / count)
    bins = np.histogram(sample, norm.ppf(np.arange(1, 1024) / 1024))[0]
    assert ((bins - count / 1024) ** 2).sum() / (count / 1024) < chi2.isf(1e-9, 1021)


def test_the_far_tail_has_the_shape_of_a_normal_s():
    """Where the leading bits are zero, one time in 2^31, the second word decides alone: what comes is beyond 6.2."""
    count = 2**20
    second = np.random.default_rng(0).integers(0, 2**32, count)
    sample = from_numbers(0, second)
    for value in (6.5, 7.0, 7.5, 7.8):
        expected = two_sided(value) * 2**31
        assert abs((sample > value).mean() - expected) < 6 * math.sqrt(expected / count) + 2e-3 * expected


@MAKERS
@pytest.mark.parametrize("deviation", [0.0, 0.3, 3.0, 15.9, 16.0, 12345.678, 1.7 * 2.0**27])
def test_integers_have_the_deviation_asked_for(make, deviation):
    count = 200_000
    units = np.asarray(rounded_normal(key_of(make, "integers"), (count,), deviation), np.float64)
    # Rounding adds 1/12 to the variance; that of a third is its own.
    variance = deviation**2 + 1 / 12
    if deviation == 0.3:
        variance = sum(
            number**2 * 2 * (norm.cdf((number + 0.5) / 0.3) - norm.cdf((number - 0.5) / 0.3)) for number in (1, 2)
        )
    if deviation == 0:
        assert not units.any()
    else:
        assert units.var() == pytest.approx(variance, rel=6 * math.sqrt(2 / count))
        assert abs(units.mean()) < 6 * math.sqrt(variance / count)


def lowest_bits(units: np.ndarray, deviation: float) -> np.ndarray:
    """How often each value of the last four bits occurs from one deviation to four."""
    return np.bincount(units[np.abs(np.abs(units) / deviation - 2.5) < 1.5] % 16, minlength=16)


def uneven(counts: np.ndarray) -> bool:
    expected = counts.sum() / len(counts)
    return ((counts - expected) ** 2).sum() / expected > chi2.isf(1e-9, len(counts) - 1)


@MAKERS
def test_integers_have_no_gaps(make):
    """A normal in float32 has only every 16th integer at 2^27 units per deviation: its release would show what it hides."""
    key, deviation = key_of(make, "gaps"), 2.0**27
    assert not uneven(lowest_bits(np.asarray(rounded_normal(key, (2**20,), deviation)), deviation))
    in_float32 = np.rint(np.asarray(normal(key, (2**20,)), np.float64) * deviation).astype(np.int64)
    assert uneven(lowest_bits(in_float32, deviation))


def test_arrays_and_keys_are_independent():
    one, two = key_of(row_key, "one"), key_of(row_key, "two")
    samples = [normal(one, (40_000,)), normal(two, (40_000,)), normal(jax.random.fold_in(one, 1), (40_000,))]
    correlations = np.corrcoef(np.stack(samples))
    assert np.abs(correlations - np.eye(3)).max() < 6 / math.sqrt(40_000)
    np.testing.assert_array_equal(samples[0], normal(one, (40_000,)))
