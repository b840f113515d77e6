"""Masks against known answers, sharing, packing."""

import hashlib
import hmac
import os
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.secagg import keys, shamir
from reticent.secagg.masks import expand, key_stream, with_masks
from reticent.secagg.packing import pack, packed_size, unpack


def chacha_block(key, counter):
    """RFC 8439, 2.3, written out, nonce zero."""
    state = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter, 0, 0, 0]
    mixed = list(state)

    def quarter(a, b, c, d):
        for left, right, target, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            mixed[left] = (mixed[left] + mixed[right]) % 2**32
            value = mixed[target] ^ mixed[left]
            mixed[target] = (value << turn | value >> (32 - turn)) % 2**32

    for _ in range(10):
        for column in range(4):
            quarter(column, 4 + column, 8 + column, 12 + column)
        for column in range(4):
            quarter(column, 4 + (column + 1) % 4, 8 + (column + 2) % 4, 12 + (column + 3) % 4)
    return struct.pack("<16I", *((one + other) % 2**32 for one, other in zip(mixed, state, strict=True)))


def test_key_stream_of_the_standard():
    # RFC 8439, A.1, test vectors 1 and 2.
    assert key_stream(bytes(32), 128).hex() == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )


def test_masks_have_known_answers():
    seed = bytes(range(32))
    stream = b"".join(chacha_block(seed, counter) for counter in range(4))
    assert key_stream(seed, 256) == stream
    four = np.frombuffer(stream, "<u4")
    two = np.frombuffer(stream, "<u2")
    np.testing.assert_array_equal(expand(seed, 50, 32), four[:50])
    np.testing.assert_array_equal(expand(seed, 50, 20), four[:50] % 2**20)
    np.testing.assert_array_equal(expand(seed, 50, 16), two[:50])
    np.testing.assert_array_equal(expand(seed, 50, 9), two[:50] % 2**9)
    assert expand(seed, 4, 20).tolist() == [0xBFD39, 0x9C5D9, 0x3BD8D, 0xADCB8]


def test_derived_keys_have_known_answers():
    # HKDF-SHA256 (RFC 5869) written out.
    secret, context = bytes(range(32)), b"context"
    parts = hashlib.sha256(b"".join(len(part).to_bytes(8) + part for part in (b"pair mask", context))).digest()
    extracted = hmac.digest(bytes(32), secret, "sha256")
    expected = hmac.digest(extracted, b"reticent.secagg.1 " + parts + b"\x01", "sha256")
    assert keys.derive(secret, "pair mask", context) == expected
    assert keys.derive(secret, "pair mask", b"contexu") != expected
    assert keys.derive(secret, "pair masl", context) != expected


def test_masks_cancel_across_chunks():
    seeds = [os.urandom(32) for _ in range(3)]
    for bits in (7, 16, 17, 32):
        words = np.arange(100_003, dtype=np.uint32) & np.uint32(2**bits - 1)
        masked = with_masks(words, [(seed, 1) for seed in seeds], bits)
        assert int(masked.max()) < 2**bits
        assert np.mean(masked == words) < 2 / 2**bits + 0.001
        masked = with_masks(masked, [(seed, -1) for seed in reversed(seeds)], bits)
        np.testing.assert_array_equal(masked, words)


def test_seeds_have_256_bits():
    with pytest.raises(ValueError, match="32 bytes"):
        key_stream(bytes(4), 8)
    with pytest.raises(ValueError, match="32 bytes"):
        with_masks(np.zeros(3, np.uint32), [(bytes(4), 1)], 8)


@given(st.integers(1, 200), st.integers(1, 32), st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None)
def test_packing_round_trips(length, bits, random):
    words = np.array([random.getrandbits(bits) for _ in range(length)], np.uint32)
    data = pack(words, bits)
    assert len(data) == packed_size(length, bits) <= length * bits / 8 + 4 * bits
    np.testing.assert_array_equal(unpack(data, length, bits), words)
    for wrong in (data[:-1], data + b"\0"):
        with pytest.raises(ValueError, match="bytes where"):
            unpack(wrong, length, bits)


def test_nothing_hides_behind_the_last_word():
    data = bytearray(pack(np.zeros(33, np.uint32), 5))
    data[-1] |= 0x80
    with pytest.raises(ValueError, match="behind the last"):
        unpack(bytes(data), 33, 5)


def is_probable_prime(number):
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
        power = pow(base, odd, number)
        if power not in (1, number - 1) and all(pow(power, 2**turn, number) != number - 1 for turn in range(twos)):
            return False
    return True


def test_the_field_is_a_field_that_holds_a_secret():
    assert is_probable_prime(shamir.PRIME)
    assert shamir.PRIME > 2**256


def opens_as(shares, secret):
    try:
        return shamir.open_secret(shares) == secret
    except ValueError:
        return False


@given(st.binary(min_size=32, max_size=32), st.integers(1, 12), st.integers(0, 6), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_any_threshold_shares_open_the_secret(secret, threshold, more, random):
    points = random.sample(range(1, 2000), threshold + more)
    randomness = os.urandom((threshold - 1) * shamir.COEFFICIENT_BYTES)
    dealt = dict(zip(points, shamir.deal(secret, threshold, points, randomness), strict=True))
    chosen = random.sample(points, threshold)
    assert shamir.open_secret({point: dealt[point] for point in chosen}) == secret
    if threshold > 1:
        assert not opens_as({point: dealt[point] for point in chosen[1:]}, secret)


def test_fewer_shares_than_the_threshold_fit_every_secret():
    """t - 1 shares are consistent with any other secret: there is a polynomial through both."""
    points, randomness = [1, 2, 3], os.urandom(2 * shamir.COEFFICIENT_BYTES)
    dealt = shamir.deal(os.urandom(32), 3, points, randomness)
    other = os.urandom(32)
    seen = {1: dealt[0], 2: dealt[1]}
    # The third share that makes the other secret: from f(0), f(1), f(2) to f(3) = f(0) - 3 f(1) + 3 f(2).
    values = [int.from_bytes(other), int.from_bytes(seen[1]), int.from_bytes(seen[2])]
    third = (values[0] - 3 * values[1] + 3 * values[2]) % shamir.PRIME
    assert shamir.open_secret({**seen, 3: third.to_bytes(33)}) == other


def test_a_share_off_by_one_gives_another_secret():
    secret = bytes(32)
    dealt = shamir.deal(secret, 2, [1, 2], os.urandom(48))
    wrong = (int.from_bytes(dealt[1]) + 1) % shamir.PRIME
    assert opens_as({1: dealt[0], 2: dealt[1]}, secret)
    assert not opens_as({1: dealt[0], 2: wrong.to_bytes(33)}, secret)


@pytest.mark.parametrize("points", [[0, 1, 2], [1, 2, 2], [1], [-1, 1, 2]])
def test_no_share_is_dealt_at_zero_where_the_secret_is_nor_twice(points):
    with pytest.raises(ValueError, match="distinct and positive"):
        shamir.deal(os.urandom(32), 2, points, os.urandom(48))


@pytest.mark.parametrize("shares", [{}, {1: b"short"}, {1: b"\xff" * 33}])
def test_what_is_not_a_share(shares):
    with pytest.raises(ValueError, match="not a set of shares"):
        shamir.open_secret(shares)
