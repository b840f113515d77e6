"""Between a client's vector and the words that are summed modulo 2^m: both halves, side by side.

Two codes, with the same things (`cohort`, `length`, `modulus_bits`, `encode`, `decode`, `step`). Both decode to whole
numbers, exactly; `step` is the value of one:

* `Integers`, for updates that are already integers on a common grid: summed as they are, exactly, at no cost in
  privacy.
* `RotatedCode`, for floats (gboard, Alg. 2, with its slips mended): clipped, rotated, rounded at random. Rounding may
  lengthen a vector, so the accountant must use `inflated_clip_norm`.
"""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from reticent.errors import Refused
from reticent.secagg.hadamard import padded_size, rotate, unrotate
from reticent.secagg.masks import MAX_BITS

ALPHA = math.exp(-0.5)
LARGEST_INFLATION = 0.10
_ROUNDING_TRIES = 200
_BLOCK = 1 << 15
# Float32 arithmetic lengthens a vector by less than this leaves room for.
_ROOM = 1 - 2.0**-20


class Code(Protocol):
    """What a secure sum needs to know of its vectors."""

    @property
    def cohort(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def modulus_bits(self) -> int: ...

    @property
    def step(self) -> float: ...

    def encode(self, vector: np.ndarray, coins: bytes | None = None) -> np.ndarray: ...

    def decode(self, total: np.ndarray, count: int) -> np.ndarray: ...


def modulus_bits(largest: int, cohort: int) -> int:
    """Bits of the smallest power of two above 2 * largest * cohort: it tells apart all sums of a whole cohort whose
    entries are between -largest and largest. Refuses what does not fit 32 bits, with the number that would."""
    bits = (2 * largest * cohort).bit_length()
    if bits > MAX_BITS:
        raise Refused(
            f"A sum of {cohort} vectors with entries up to {largest} takes {bits} bits, above the {MAX_BITS} of a "
            f"word: entries up to {(2**MAX_BITS - 1) // (2 * cohort)} would fit."
        )
    return bits


@dataclass(frozen=True)
class Integers:
    """Vectors of `length` integers between -largest and largest, of at most `cohort` clients."""

    length: int
    largest: int
    cohort: int

    def __post_init__(self) -> None:
        if self.length < 1 or self.largest < 1 or self.cohort < 1:
            raise Refused("The length, the largest entry and the cohort of an integer sum are at least 1.")
        modulus_bits(self.largest, self.cohort)

    @property
    def modulus_bits(self) -> int:
        return modulus_bits(self.largest, self.cohort)

    @property
    def step(self) -> float:
        return 1.0

    def encode(self, vector: np.ndarray, coins: bytes | None = None) -> np.ndarray:
        """The client's half, which tosses no coins. Refuses another length, anything but integers, and entries out of
        range."""
        vector = np.asarray(vector)
        if vector.shape != (self.length,) or not np.issubdtype(vector.dtype, np.integer):
            raise Refused(f"A vector of {self.length} integers is due, not {vector.dtype} of shape {vector.shape}.")
        if int(vector.min()) < -self.largest or int(vector.max()) > self.largest:
            raise Refused(f"An entry of the vector is outside -{self.largest}..{self.largest}.")
        return vector.astype(np.int64).astype(np.uint32) & np.uint32((1 << self.modulus_bits) - 1)

    def decode(self, total: np.ndarray, count: int) -> np.ndarray:
        """The server's half: the sum of `count` vectors, as int64."""
        _check_total(total, self.length, count, self.cohort)
        modulus = 1 << self.modulus_bits
        words = total.astype(np.int64)
        return np.where(words >= modulus // 2, words - modulus, words)


def inflated_clip_norm(clip_norm: float, scale: float, dimension: int, alpha: float = ALPHA) -> float:
    """The L2 norm that a vector of norm `clip_norm` can have after conditional rounding at this scale: what a privacy
    accountant must use for the clip norm (gboard, Sec. 2.4, with d the padded dimension)."""
    padded = padded_size(dimension)
    return math.sqrt(_squared_bound(clip_norm, scale, padded, alpha)) / scale


def smallest_scale(clip_norm: float, dimension: int, inflation: float = LARGEST_INFLATION) -> float:
    """The scale at which the norm is inflated by just this fraction; a larger one inflates less."""
    if not (clip_norm > 0 and math.isfinite(clip_norm) and dimension > 0 and inflation > 0):
        raise Refused("The clip norm, the dimension and the inflation are positive.")
    padded = padded_size(dimension)
    # With u = 1 / scale: (d/4 + r sqrt(d)/2) u^2 + r C u - ((1 + inflation)^2 - 1) C^2 = 0, r = sqrt(2 ln(1/alpha)).
    slack = math.sqrt(2 * math.log(1 / ALPHA))
    square = padded / 4 + slack * math.sqrt(padded) / 2
    linear, constant = slack * clip_norm, (inflation * (2 + inflation)) * clip_norm**2
    inverse = (math.sqrt(linear**2 + 4 * square * constant) - linear) / (2 * square)
    return 1 / inverse


def _squared_bound(clip_norm: float, scale: float, padded: int, alpha: float) -> float:
    """gboard, Alg. 2: s^2 C^2 + d/4 + sqrt(2 ln(1/alpha)) (s C + sqrt(d)/2)."""
    slack = math.sqrt(2 * math.log(1 / alpha))
    return (scale * clip_norm) ** 2 + padded / 4 + slack * (scale * clip_norm + math.sqrt(padded) / 2)


@dataclass(frozen=True)
class RotatedCode:
    """Vectors of `dimension` floats, clipped to L2 norm `clip_norm`, of at most `cohort` clients.

    The larger the `scale`, the less the norm is inflated and the more bits are sent. `rotation` is 32 bytes that a
    round's clients and server share and everybody may know; a round draws it anew. Refuses a scale that inflates the
    norm by more than 10% and one whose sums do not fit 32 bits, naming one that would do.
    """

    dimension: int
    clip_norm: float
    scale: float
    cohort: int
    rotation: bytes = field(default_factory=lambda: os.urandom(32), repr=False)

    def __post_init__(self) -> None:
        if self.dimension < 2 or self.cohort < 1 or not self.clip_norm > 0 or not math.isfinite(self.clip_norm):
            raise Refused("The encoding needs a dimension of at least 2, a cohort and a positive clip norm.")
        if not self.scale > 0 or not math.isfinite(self.scale) or len(self.rotation) != 32:
            raise Refused("The encoding's scale is positive and its rotation seed has 32 bytes.")
        if self.inflation > LARGEST_INFLATION * (1 + 1e-12):
            least = _three_digits(smallest_scale(self.clip_norm, self.dimension), math.ceil)
            raise Refused(
                f"A scale of {self.scale:g} inflates the clip norm by {self.inflation:.0%} at {self.dimension} "
                f"parameters, more than {LARGEST_INFLATION:.0%}: a scale of at least {least:g} would do."
            )
        if (2 * self.largest * self.cohort).bit_length() > MAX_BITS:
            largest = (2**MAX_BITS - 1) // (2 * self.cohort)
            most = self.scale * largest / self.largest
            least = smallest_scale(self.clip_norm, self.dimension)
            fits = f"a scale of {_three_digits(most, math.floor):g} would fit"
            remedy = fits if most > least else "a smaller cohort is needed"
            raise Refused(
                f"A scale of {self.scale:g} gives entries up to {self.largest}, whose sum over {self.cohort} clients "
                f"does not fit {MAX_BITS} bits: {remedy}."
            )

    @classmethod
    def plan(cls, dimension: int, clip_norm: float, cohort: int, inflation: float = 0.01) -> "RotatedCode":
        """The code with the smallest scale that inflates the norm by no more than this fraction and whose `step` is a
        power of two, so that decoded sums fall on the grids that releases have."""
        least = smallest_scale(clip_norm, dimension, inflation)
        root = math.sqrt(padded_size(dimension))
        step = 2.0 ** math.floor(math.log2(1 / (least * root)))
        return cls(dimension, clip_norm, 1 / (step * root), cohort)

    @property
    def length(self) -> int:
        """Words that travel: the dimension padded to a power of two."""
        return padded_size(self.dimension)

    @property
    def largest(self) -> int:
        """The bound on one entry: ceil(2 s C ln(d) / sqrt(d))."""
        return math.ceil(2 * self.scale * self.clip_norm * math.log(self.length) / math.sqrt(self.length))

    @property
    def modulus_bits(self) -> int:
        return modulus_bits(self.largest, self.cohort)

    @property
    def inflated_clip_norm(self) -> float:
        return inflated_clip_norm(self.clip_norm, self.scale, self.dimension)

    @property
    def inflation(self) -> float:
        return self.inflated_clip_norm / self.clip_norm - 1

    @property
    def squared_norm_bound(self) -> float:
        """What the squared norm of an encoded vector, before the shift, never exceeds."""
        return _squared_bound(self.clip_norm, self.scale, self.length, ALPHA)

    @property
    def step(self) -> float:
        """The value of one unit of a decoded sum: 1 / (s sqrt(d))."""
        return 1 / (self.scale * math.sqrt(self.length))

    def encode(self, vector: np.ndarray, coins: bytes | None = None) -> np.ndarray:
        """The client's half: rotate, clip, scale, bound, round, shift. Refuses another length and infinite entries.

        `coins`, 32 bytes that are used for one vector of one round, are for simulations that must repeat themselves;
        without them the operating system's. They protect nothing: the norm bound holds however they fall.
        """
        vector = np.asarray(vector)
        if vector.shape != (self.dimension,) or not np.issubdtype(vector.dtype, np.floating):
            raise Refused(f"A vector of {self.dimension} floats is due, not {vector.dtype} of shape {vector.shape}.")
        # A rotation keeps the norm, but for float32's rounding: so the norm is taken where it counts, behind it.
        with np.errstate(over="ignore", invalid="ignore"):
            rotated = rotate(vector, self.rotation)
            norm, peak = _norm_and_peak(rotated)
        if not math.isfinite(norm):
            raise Refused("The vector has an entry that is not finite.")
        factor = self.scale
        if norm > self.clip_norm * _ROOM:
            factor *= self.clip_norm * _ROOM / norm
        if peak * factor > self.largest:
            factor = self.largest / peak
        return self._round(rotated, factor, coins or os.urandom(32))

    def _round(self, rotated: np.ndarray, factor: float, coins: bytes) -> np.ndarray:
        """Conditional stochastic rounding of the vector times a factor: anew until the norm is within its bound
        (probability at least 0.39 each). Shifted by `largest`."""
        times, shift, bound = np.float32(factor), np.int32(self.largest), _below(self.largest)
        draws = uniform_blocks(coins)
        scratch, shifted = np.empty(_BLOCK, np.float32), np.empty(len(rotated), np.int32)
        for _ in range(_ROUNDING_TRIES):
            squared_norm = 0.0
            for block, into in zip(_blocks(rotated), _blocks(shifted), strict=True):
                rounded = np.multiply(block, times, out=scratch[: len(block)])
                # floor(x + u), u uniform in [0, 1): up with the probability of the fraction.
                rounded += next(draws)[: len(block)]
                np.floor(rounded, out=rounded)
                np.clip(rounded, -bound, bound, out=rounded)
                np.add(rounded.astype(np.int32), shift, out=into)
                squared_norm += _squared_norm(rounded)
            if squared_norm <= self.squared_norm_bound:
                return shifted.view(np.uint32)
        raise RuntimeError(
            "conditional rounding found no vector within its norm bound; this has probability below 1e-42"
        )

    def decode(self, total: np.ndarray, count: int) -> np.ndarray:
        """The server's half: the sum of the `count` vectors that arrived, in units of `step`, as int64.

        The rotation without its 1 / sqrt(d) is one of whole numbers, so this is exact: no rounding adds to what one
        client can change. What vectors within their norm bound add up to is far below the 2^53 that float64 can count.
        """
        _check_total(total, self.length, count, self.cohort)
        centred = total.astype(np.float64)
        centred -= count * self.largest
        return unrotate(centred, self.dimension, self.rotation).astype(np.int64)


def uniform_blocks(seed: bytes) -> Iterator[np.ndarray]:
    """Blocks of 2^15 float32 uniform on the multiples of 2^-24 in [0, 1), without end, each good until the next."""
    encryptor = Cipher(algorithms.ChaCha20(seed, bytes(16)), None).encryptor()
    zeros, buffer = bytes(4 * _BLOCK), bytearray(4 * _BLOCK)
    stream, uniform = np.frombuffer(buffer, "<u4"), np.empty(_BLOCK, np.float32)
    while True:
        encryptor.update_into(zeros, buffer)
        np.right_shift(stream, np.uint32(8), out=stream)
        yield np.multiply(stream, np.float32(2**-24), out=uniform, casting="same_kind")


def _below(value: int) -> np.float32:
    """The largest float32 that is not above a whole number."""
    nearest = np.float32(value)
    return nearest if int(nearest) <= value else np.nextafter(nearest, np.float32(0))


def _blocks(vector: np.ndarray) -> Iterator[np.ndarray]:
    """The vector, a block that fits a processor's cache at a time."""
    for start in range(0, len(vector), _BLOCK):
        yield vector[start : start + _BLOCK]


def _norm_and_peak(vector: np.ndarray) -> tuple[float, float]:
    """The L2 norm and the largest magnitude."""
    squared_norm, peak = 0.0, 0.0
    for block in _blocks(vector):
        squared_norm += _squared_norm(block)
        peak = max(peak, float(block.max()), -float(block.min()))
    return math.sqrt(squared_norm), peak


def _squared_norm(block: np.ndarray) -> float:
    """In float64, where squares of integers add up exactly."""
    exact = block.astype(np.float64, copy=False)
    return float(exact @ exact)


def _check_total(total: np.ndarray, length: int, count: int, cohort: int) -> None:
    if total.shape != (length,) or not 1 <= count <= cohort:
        raise Refused(f"A sum of 1 to {cohort} vectors of {length} words is due, not {count} of shape {total.shape}.")


def _three_digits(value: float, towards: Callable[[float], int]) -> float:
    digits = 10.0 ** (math.floor(math.log10(value)) - 2)
    return towards(value / digits) * digits
