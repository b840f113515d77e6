"""The two codes: exact inverses, norm bounds that hold, refusals that name what would do."""

import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard

from reticent.errors import Refused
from reticent.secagg import Integers, RotatedCode, encoded_sum, inflated_clip_norm, smallest_scale
from reticent.secagg.hadamard import flip_signs, rotate, unrotate, walsh_hadamard


@pytest.mark.parametrize("bits", range(11))
def test_walsh_hadamard_is_the_matrix(bits):
    vector = np.random.default_rng(bits).standard_normal(1 << bits)
    matrix = hadamard(1 << bits) if bits else np.ones((1, 1))
    np.testing.assert_allclose(walsh_hadamard(vector), matrix @ vector / math.sqrt(1 << bits), atol=1e-12)


def test_walsh_hadamard_refuses_other_sizes():
    with pytest.raises(ValueError, match="power of two"):
        walsh_hadamard(np.zeros(12))


def test_rotation_keeps_lengths_and_comes_back():
    vector, seed = np.random.default_rng(0).standard_normal(777), os.urandom(32)
    rotated = rotate(vector, seed)
    assert len(rotated) == 1024
    assert np.linalg.norm(rotated) == pytest.approx(np.linalg.norm(vector), rel=1e-6)
    np.testing.assert_allclose(unrotate(rotated.astype(np.float64), 777, seed) / 32, vector, atol=1e-6)
    for dtype in (np.float32, np.float64):
        signs, others = np.ones(777, dtype), np.ones(777, dtype)
        flip_signs(signs, seed)
        flip_signs(others, os.urandom(32))
        assert abs(signs.sum()) < 6 * np.sqrt(777)
        assert set(signs.tolist()) == {-1, 1}
        assert (signs != others).any()


def test_the_rotation_spreads_a_single_coordinate():
    spike = np.zeros(4096)
    spike[7] = 1.0
    assert np.abs(rotate(spike, os.urandom(32))).max() == pytest.approx(1 / 64)


def code(dimension=1000, cohort=20, inflation=0.01, clip_norm=0.7):
    return RotatedCode(dimension, clip_norm, smallest_scale(clip_norm, dimension, inflation), cohort)


@pytest.mark.parametrize("norm", [0.0, 1e-6, 0.3, 0.7, 40.0])
@pytest.mark.parametrize("shape", ["dense", "spike", "walsh"])
def test_norm_bound_is_never_exceeded(norm, shape):
    one = code(inflation=0.1)
    rng = np.random.default_rng(1)
    if shape == "dense":
        vector = rng.standard_normal(one.dimension)
    elif shape == "spike":
        vector = np.zeros(one.dimension)
        vector[3] = 1
    else:
        # What the rotation turns into one spike: the worst that a client can do to the entry bound.
        vector = walsh_hadamard(np.eye(1, one.length, 5)[0])[: one.dimension]
        flip_signs(vector, one.rotation)
    vector = (vector * (norm / np.linalg.norm(vector))).astype(np.float32)
    for _ in range(40):
        words = one.encode(vector)
        centred = words.astype(np.int64) - one.largest
        assert int((centred**2).sum()) <= one.squared_norm_bound
        assert math.sqrt(int((centred**2).sum())) / one.scale <= one.inflated_clip_norm
        assert np.abs(centred).max() <= one.largest
        assert int(words.max()) * one.cohort < 2**one.modulus_bits


def rounded(one, values):
    return one._round(values, 1.0, os.urandom(32)).astype(np.int64) - one.largest


def test_rounding_is_conditional():
    """At a bound in the thick of the distribution, unconditional rounding would exceed it: ours tries again."""
    one = code(dimension=4096, inflation=0.1)
    values = np.full(4096, 0.5, np.float32)
    plain = np.random.default_rng(0).integers(0, 2, (200, 4096)).sum(axis=1)
    limit = float(np.quantile(plain, 0.4))

    class Tight(RotatedCode):
        squared_norm_bound = limit

    tight = Tight(4096, one.clip_norm, one.scale, 5)
    assert (plain > limit).mean() > 0.5
    assert all((rounded(tight, values) ** 2).sum() <= limit for _ in range(20))


def test_rounding_is_unbiased_and_reaches_only_the_neighbours():
    one = code(dimension=1 << 14, inflation=0.02)
    values = np.full(1 << 14, 1.25, np.float32)
    many = np.stack([rounded(one, values) for _ in range(20)])
    assert set(np.unique(many)) == {1, 2}
    assert abs(many.mean() - 1.25) < 6 * math.sqrt(0.25 * 0.75 / many.size)
    assert rounded(one, np.full(1 << 14, -2.0, np.float32)).tolist() == [-2] * (1 << 14)


@given(st.integers(2, 300), st.integers(1, 12), st.integers(0, 2**32 - 1), st.sampled_from([0.001, 0.02, 0.1]))
@settings(max_examples=40, deadline=None)
def test_the_decoded_sum_is_within_the_rounding_bound(dimension, count, seed, inflation):
    rng = np.random.default_rng(seed)
    one = code(dimension, 12, inflation, clip_norm=2.0)
    vectors = [rng.standard_normal(dimension).astype(np.float32) for _ in range(count)]
    vectors = [vector * np.float32(min(1, 1.99 / np.linalg.norm(vector))) for vector in vectors]
    # An entry moves by less than one step each; the entry bound may shorten a vector, as its own test allows.
    if any(np.abs(rotate(vector * one.scale, one.rotation)).max() > one.largest for vector in vectors):
        return
    error = np.linalg.norm(encoded_sum(vectors, one) * one.step - np.sum(vectors, axis=0, dtype=np.float64))
    assert error <= count * math.sqrt(one.length) / one.scale * 1.001


def test_the_decoded_sum_has_the_variance_of_rounding():
    one = code(dimension=1 << 12, cohort=50, inflation=0.05, clip_norm=1.0)
    rng = np.random.default_rng(5)
    vectors = [(rng.standard_normal(1 << 12) / 70).astype(np.float32) for _ in range(50)]
    error = encoded_sum(vectors, one) * one.step - np.sum(vectors, axis=0, dtype=np.float64)
    # A step of 1/s, rounded at random, has variance at most 1/4 s^2, and 1/6 s^2 for a spread-out fraction.
    assert 0.9 / 6 < float(np.mean(error**2)) * one.scale**2 / 50 < 1.1 / 4


def test_a_whole_cohort_at_the_bound_does_not_wrap():
    one = code(dimension=64, cohort=37, inflation=0.1)
    total = np.full(one.length, 2 * one.largest * 37, np.uint64)
    assert int(total[0]) < 2**one.modulus_bits <= 2 * (2 * one.largest * 37 + 1)
    decoded = one.decode(total.astype(np.uint32), 37)
    np.testing.assert_array_equal(decoded, unrotate(np.full(one.length, 37.0 * one.largest), 64, one.rotation))


def test_decoding_subtracts_the_shift_of_those_that_arrived():
    one = code(dimension=128, cohort=30)
    zeros = [np.zeros(128, np.float32)] * 11
    np.testing.assert_array_equal(encoded_sum(zeros, one), np.zeros(128))


def test_inflated_norm_is_the_papers():
    clip, scale, dimension, padded = 1.3, 800.0, 100_000, 131_072
    slack = math.sqrt(2 * math.log(1 / math.exp(-0.5)))
    expected = clip**2 + padded / (4 * scale**2) + slack * (clip / scale + math.sqrt(padded) / (2 * scale**2))
    assert inflated_clip_norm(clip, scale, dimension) == pytest.approx(math.sqrt(expected), rel=1e-14)


@pytest.mark.parametrize("inflation", [0.001, 0.01, 0.1])
def test_smallest_scale_inverts_the_inflation(inflation):
    scale = smallest_scale(0.4, 5000, inflation)
    assert inflated_clip_norm(0.4, scale, 5000) == pytest.approx(0.4 * (1 + inflation), rel=1e-12)


def test_too_small_a_scale_is_refused_with_one_that_works():
    with pytest.raises(Refused, match="inflates the clip norm") as refusal:
        RotatedCode(10_000, 1.0, 30.0, 100)
    RotatedCode(10_000, 1.0, float(str(refusal.value).split("at least ")[1].split(" ")[0]), 100)


@pytest.mark.parametrize("cohort", [900, 5000, 7001])
def test_too_small_a_modulus_is_refused_with_a_number_that_works(cohort):
    with pytest.raises(Refused, match="does not fit 32 bits") as refusal:
        RotatedCode(3000, 1.0, 1e8, cohort)
    RotatedCode(3000, 1.0, float(str(refusal.value).split("a scale of ")[-1].split(" ")[0]), cohort)
    with pytest.raises(Refused, match="above the 32 of a word") as refusal:
        Integers(10, 2**24, 1000)
    Integers(10, int(str(refusal.value).split("up to ")[-1].split(" ")[0]), 1000)


@pytest.mark.parametrize(("dimension", "scale"), [(2, 2e8), (4096, 1e6), (4096, 3e7), (4096, 1e8)])
def test_no_float32_rounding_takes_a_vector_past_its_bounds(dimension, scale):
    """At fine scales, where a float32 cannot count the steps any more, a vector of just the clip norm still fits."""
    one = RotatedCode(dimension, 1.0, scale, 1)
    rng = np.random.default_rng(3)
    walsh = walsh_hadamard(np.eye(1, one.length, 1)[0])[:dimension]
    flip_signs(walsh, one.rotation)
    for vector in (rng.standard_normal(dimension), np.ones(dimension), walsh):
        for dtype in (np.float32, np.float64):
            centred = one.encode((vector / np.linalg.norm(vector)).astype(dtype)).astype(np.int64) - one.largest
            assert float((centred.astype(float) ** 2).sum()) <= one.squared_norm_bound
            assert np.abs(centred).max() <= one.largest


def test_coins_decide_the_rounding_and_nothing_else():
    one, vector = code(), np.random.default_rng(0).standard_normal(1000)
    coins = os.urandom(32)
    np.testing.assert_array_equal(one.encode(vector, coins), one.encode(vector, coins))
    for other in (os.urandom(32), None):
        moved = one.encode(vector, coins).astype(np.int64) - one.encode(vector, other)
        assert set(np.unique(moved)) == {-1, 0, 1}


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_bad_vectors_are_refused(bad):
    one = code(dimension=8)
    with pytest.raises(Refused, match="not finite"):
        one.encode(np.array([bad] + [0.0] * 7))
    with pytest.raises(Refused, match="8 floats"):
        one.encode(np.zeros(7))
    with pytest.raises(Refused, match="8 floats"):
        one.encode(np.zeros(8, np.int32))
    with pytest.raises(Refused, match="1 to 20 vectors"):
        one.decode(np.zeros(8, np.uint32), 21)
    with pytest.raises(Refused, match="nothing to sum"):
        encoded_sum([], one)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 10**7), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_integers_sum_exactly(length, count, largest, seed):
    rng = np.random.default_rng(seed)
    one = Integers(length, largest, 9)
    vectors = [rng.integers(-largest, largest, length, endpoint=True).astype(np.int32) for _ in range(count)]
    vectors[0][:] = rng.choice([-largest, largest])
    np.testing.assert_array_equal(encoded_sum(vectors, one), np.sum(vectors, axis=0, dtype=np.int64))


def test_integers_refuse_what_they_cannot_hold():
    one = Integers(3, 10, 5)
    for vector, reason in (([1, 2], "3 integers"), ([1.0, 2, 3], "3 integers"), ([0, -11, 0], "outside -10..10")):
        with pytest.raises(Refused, match=reason):
            one.encode(np.array(vector))
