import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from reticent.errors import Refused
from reticent.privacy import chacha, turns
from reticent.privacy.keys import from_two_words, row_key, simulation_threefry_key

KEY = bytes(range(32))

# RFC 8439: Sec. 2.3.2, then App. A.1: key, nonce, counter, block.
VECTORS = [
    (
        KEY, "000000090000004a00000000", 1,
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    (
        bytes(32), "00" * 12, 0,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        bytes(32), "00" * 12, 1,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    (
        bytes(31) + b"\x01", "00" * 12, 1,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    (
        b"\x00\xff" + bytes(30), "00" * 12, 2,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    (
        bytes(32), "00" * 11 + "02", 0,
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
]  # fmt: skip


def words(content: bytes) -> np.ndarray:
    return np.frombuffer(content, "<u4")


def as_bytes(block: list) -> bytes:
    return np.stack([np.asarray(word) for word in block]).astype("<u4").tobytes()


@pytest.mark.parametrize(("key", "nonce", "counter", "expected"), VECTORS)
@pytest.mark.parametrize("rounds", [chacha._rolled_rounds, chacha._unrolled_rounds])
def test_vectors_of_the_rfc(key, nonce, counter, expected, rounds, monkeypatch):
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda state, **_: rounds(state))
    place = (jnp.uint32(counter), *words(bytes.fromhex(nonce)))
    assert as_bytes(jax.jit(chacha.block)(jnp.asarray(words(key)), *place)).hex() == expected


def test_many_blocks_are_another_implementation_s():
    rng = np.random.default_rng(0)
    key, nonce = rng.bytes(32), rng.bytes(12)
    first = 2**32 - 700
    counters = jnp.arange(first, first + 600, dtype=jnp.uint32)
    block = chacha.block(jnp.asarray(words(key)), counters, *words(nonce))
    ours = np.stack([np.asarray(word) for word in block], 1).astype("<u4").tobytes()
    theirs = (
        Cipher(algorithms.ChaCha20(key, struct.pack("<I", first) + nonce), None).encryptor().update(bytes(600 * 64))
    )
    assert ours == theirs


def reference(key: bytes, purpose: int, within: int, leading: int) -> np.ndarray:
    """A block as the module's words say it is made, by the other implementation."""
    place = struct.pack("<4I", within, leading, 0, purpose)
    return words(Cipher(algorithms.ChaCha20(key, place), None).encryptor().update(bytes(64)))


def test_where_every_word_of_an_array_comes_from():
    vector = np.asarray(jax.random.bits(row_key(KEY), (300,)))
    # A block gives sixteen words, eight apart: entry 200 is the 10th word (9 * 8 = 72 on) of block 8 (128 on).
    for entry in (0, 7, 8, 127, 128, 200, 299):
        block, word = 8 * (entry // 128) + entry % 8, entry % 128 // 8
        assert vector[entry] == reference(KEY, 0, 0, block)[word]
    matrix = np.asarray(jax.random.bits(row_key(KEY), (32, 10)))
    for row, column in ((0, 0), (15, 9), (16, 3), (31, 9)):
        assert matrix[row, column] == reference(KEY, 0, column, row // 16)[row % 16]
    cube = np.asarray(jax.random.bits(row_key(KEY), (3, 5, 16)))
    assert cube[2, 4, 11] == reference(KEY, 0, 4, 2)[11]


def test_derived_keys_are_blocks_of_their_own():
    key = row_key(KEY)
    folded = np.asarray(jax.random.key_data(jax.random.fold_in(key, 2**32 - 5)))
    assert (folded == reference(KEY, 1, 2**32 - 5, 0)[:8]).all()
    parts = np.asarray(jax.random.key_data(jax.random.split(key, (2, 3))))
    assert (parts[1, 2] == reference(KEY, 2, 5, 0)[:8]).all()


@pytest.mark.parametrize(
    "shape", [(), (1,), (0,), (1000,), (17, 300), (300, 17), (3, 3, 16, 8), (5, 1, 260), (7, 2, 9)]
)
def test_no_two_entries_share_bits(shape):
    bits = np.asarray(jax.random.bits(row_key(KEY), (*shape,)))
    assert bits.shape == shape
    assert bits.dtype == np.uint32
    # Fewer than 50,000 words of 32 bits: a repeated block would be 16 repeated words, chance gives one at most.
    assert bits.size - np.unique(bits).size <= 1
    pairs = chacha.from_words(jnp.asarray(words(KEY)), shape, 2, lambda high, low: high ^ low)
    assert pairs.size - np.unique(np.asarray(pairs)).size <= 1


def test_every_bit_of_a_row_key_counts():
    seen = set()
    for bit in range(-1, 256):
        key = bytearray(KEY)
        if bit >= 0:
            key[bit // 8] ^= 1 << bit % 8
        seen.add(np.asarray(jax.random.bits(row_key(bytes(key)), (8,))).tobytes())
    assert len(seen) == 257


@pytest.mark.parametrize("shape", [(5000,), (4099,), (400, 30), (7, 1000, 3)])
def test_turns_change_nothing(shape, monkeypatch):
    def everything():
        keys = [row_key(KEY), simulation_threefry_key(KEY)]
        drawn = [from_two_words(key, shape, lambda one, other: one ^ (other >> 7)) for key in keys]
        counts = [
            chacha.from_words(jax.random.key_data(keys[0]), shape, count, lambda *bits: bits[-1]) for count in (1, 4)
        ]
        return [np.asarray(made) for made in (*drawn, *counts)]

    monkeypatch.setattr(turns, "on_one_processor", lambda: False)
    at_once = everything()
    monkeypatch.setattr(turns, "on_one_processor", lambda: True)
    for size in (128, 384, 1600):
        monkeypatch.setattr(turns, "WORDS_AT_ONCE", size)
        for one, other in zip(at_once, everything(), strict=True):
            np.testing.assert_array_equal(one, other)


def test_jax_draws_from_it_as_from_any_other():
    key = row_key(KEY)
    keys = jax.random.split(key, 5)
    separate = jnp.stack([jax.random.uniform(one, (50,)) for one in keys])
    np.testing.assert_array_equal(jax.vmap(lambda one: jax.random.uniform(one, (50,)))(keys), separate)
    assert sorted(jax.random.permutation(key, 100).tolist()) == list(range(100))
    assert jax.random.bits(key, (9,), jnp.uint8).dtype == jnp.uint8
    with jax.enable_x64(True):
        wide = jax.random.bits(key, (64,), jnp.uint64)
        assert (np.asarray(wide) >> 32).astype(np.uint32).tolist() != np.asarray(wide).astype(np.uint32).tolist()


def test_what_is_no_key_is_refused():
    with pytest.raises(Refused, match="256 bits"):
        jax.random.key(0, impl=chacha.CHACHA20)
    for make in (row_key, simulation_threefry_key):
        with pytest.raises(Refused, match="32 bytes"):
            make(bytes(16))
