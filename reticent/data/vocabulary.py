"""Where a vocabulary comes from: a file, private discovery, or (by a flag that says so) a count that leaks.

Which words are in a vocabulary is information about those it was counted on: a name that one person types is in it or
not. So a vocabulary comes from a file or public text, or is discovered under differential privacy, with a guarantee
that is kept in the tokenizer and in the store's header, to be composed with the run's.
"""

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any

import numpy as np

from reticent.data.importing import Texts, TokenizerMaker, open_duckdb
from reticent.data.tokenizers import Split, Tokenizer, WordTokenizer, load_tokenizer, split_words, words_of_file
from reticent.errors import Refused

if TYPE_CHECKING:
    import pyarrow as pa

# Weights are integers in this unit, so that sums are exact and the noise is rounded to the same grid.
UNIT = 2**20
_BATCH = 1 << 17


@dataclass(frozen=True)
class Discovered:
    """Words in the order of their noisy counts, and the guarantee under which they were found."""

    words: list[str]
    guarantee: dict[str, Any]


def discover(
    words_by_user: Iterable[Iterable[str]],
    *,
    rho: float,
    delta: float,
    words_per_user: int = 100,
    size: int = 10_000,
) -> Discovered:
    """The words that many users share, at most `size` of them, under user-level differential privacy.

    Each user chooses at most `words_per_user` of their distinct words at random, by their own text alone, and gives
    each of the t chosen a weight of 1/sqrt(t). Weights are summed over users, Gaussian noise of standard deviation
    sigma is added to every sum that is not zero, and the words whose noisy sum reaches a threshold T are released, in
    the order of these sums.

    The guarantee: delta-approximate rho-zCDP when one user is added or removed, or their text zeroed out (which here
    is the same), so that with a run of rho' it composes to rho + rho', with this delta added. Proof. Let D' be D with
    one more user, who chose the words W, t = |W|; let S be the words that somebody in D has a weight on.
    (1) The noisy sums of the words of S alone are a Gaussian mechanism: D and D' differ in them by the user's weights
    on W and S, a vector of norm at most sqrt(t (1/sqrt(t))^2) = 1, so rho = 1/(2 sigma^2) in both directions. Taking
    the words that reach T, and their order, is post-processing.
    (2) The words of W outside S cannot be released from D; in D' each has the weight 1/sqrt(t). Let E be the event
    that none of them reaches T in D'. Their noise is independent of that on S, so given E the release from D' is
    distributed as in (1), and P(not E) <= 1 - Phi((T - 1/sqrt(t)) / sigma)^t, its value if all t are outside S.
    (3) T is the largest over t = 1..words_per_user of those T at which this is delta. So the release from D, and the
    release from D' given an event of probability at least 1 - delta, are rho-zCDP close in both directions, which is
    the definition. The choice of words is each user's own and independent of the others', so it changes nothing.
    On the grid (weights rounded down, noise rounded to the nearest, T rounded up and raised by one) norms only shrink,
    and x + round(z) = round(x + z) is post-processing. The noise comes from the operating system's generator.
    """
    if not (0 < rho < math.inf and 0 < delta < 1):
        raise Refused(f"Discovery needs rho above 0 and delta between 0 and 1, got rho {rho} and delta {delta}.")
    if words_per_user < 1 or size < 1:
        raise Refused(f"Discovery needs at least 1 word per user and in all, got {words_per_user} and {size}.")
    sigma = math.sqrt(1 / (2 * rho))
    threshold = discovery_threshold(sigma, delta, words_per_user)
    limit = math.ceil(threshold * UNIT) + 1
    found: list[tuple[int, str]] = []
    for words, sums in _sums(_weights(words_by_user, words_per_user)):
        noisy = sums + np.rint(sigma * UNIT * secure_normals(len(sums))).astype(np.int64)
        found.extend((int(noisy[place]), words[place]) for place in np.flatnonzero(noisy >= limit).tolist())
    found.sort(key=lambda pair: (-pair[0], pair[1]))
    guarantee = {
        "mechanism": "Gaussian histogram with a threshold",
        "unit": "user",
        "adjacency": "add-or-remove",
        "also_holds_for": ["zero-out"],
        "rho": rho,
        "delta": delta,
        "noise_multiplier": sigma,
        "threshold": threshold,
        "words_per_user": words_per_user,
        "size": size,
        "assumptions": ["each user's text is under one user id", "the operating system's random numbers are secret"],
    }
    if not found:
        raise Refused(
            f"No word was shared by enough users to be discovered (at least {threshold:.0f} of them); use a public "
            "vocabulary, a larger rho or delta, or fewer words per user. This attempt was a release: it cost "
            f"rho {rho:g} and delta {delta:g}."
        )
    return Discovered([word for _, word in found[:size]], guarantee)


def discovery_threshold(sigma: float, delta: float, words_per_user: int) -> float:
    """The least T with 1 - Phi((T - 1/sqrt(t)) / sigma)^t <= delta for every t from 1 to words_per_user."""
    from scipy.special import ndtri

    t = np.arange(1, words_per_user + 1)
    each = -np.expm1(np.log1p(-delta) / t)
    return float(np.max(1 / np.sqrt(t) - sigma * ndtri(each)))


def secure_normals(count: int) -> np.ndarray:
    """Standard normals from the operating system's generator, reaching 9.4 sigma (Box and Muller, 64-bit uniforms)."""
    pairs = (count + 1) // 2
    bits = np.frombuffer(os.urandom(16 * pairs), "<u8").reshape(2, pairs)
    radius = np.sqrt(-2 * np.log((bits[0].astype(np.float64) + 1) * 2.0**-64))
    angle = 2 * np.pi * 2.0**-64 * bits[1].astype(np.float64)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def _weights(words_by_user: Iterable[Iterable[str]], words_per_user: int) -> Iterator[tuple[list[str], int]]:
    generator = SystemRandom()
    for user in words_by_user:
        words = list(dict.fromkeys(user))
        if len(words) > words_per_user:
            words = generator.sample(words, words_per_user)
        if words:
            yield words, int(UNIT / math.sqrt(len(words)))


def _sums(weighted: Iterable[tuple[list[str], int]]) -> Iterator[tuple[list[str], np.ndarray]]:
    """The sum of weights of every word, in batches; out of core."""
    import tempfile

    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("word", pa.large_string()), ("weight", pa.int64())])

    def batches() -> "Iterator[pa.RecordBatch]":
        words: list[str] = []
        weights: list[int] = []
        for chosen, weight in weighted:
            words += chosen
            weights += [weight] * len(chosen)
            if len(words) >= _BATCH:
                yield pa.record_batch([pa.array(words, pa.large_string()), pa.array(weights)], schema=schema)
                words, weights = [], []
        yield pa.record_batch([pa.array(words, pa.large_string()), pa.array(weights, pa.int64())], schema=schema)

    with tempfile.TemporaryDirectory() as spill:
        with open_duckdb(spill) as database:
            database.register("incoming", pa.RecordBatchReader.from_batches(schema, batches()))
            result = f"{spill}/sums.parquet".replace("'", "''")
            query = "SELECT word, CAST(sum(weight) AS BIGINT) FROM incoming GROUP BY word"
            database.execute(f"COPY ({query}) TO '{result}' (FORMAT parquet)")
        for batch in pq.ParquetFile(Path(spill) / "sums.parquet").iter_batches(_BATCH):
            yield batch.column(0).to_pylist(), batch.column(1).to_numpy()


def choose(
    *,
    tokenizer: Path | None,
    vocabulary: Path | None,
    discover: dict[str, Any] | None,
    leak: bool,
    size: int,
    split: Split,
) -> tuple[Tokenizer | TokenizerMaker, str]:
    """The one tokenizer, or maker of one, that was asked for, and what to call it when an import is resumed."""
    asked = [
        name
        for name, given in (
            ("--tokenizer", tokenizer is not None),
            ("--vocabulary", vocabulary is not None),
            ("--discover", discover is not None),
            ("--leak-vocabulary", leak),
        )
        if given
    ]
    if len(asked) != 1:
        raise Refused(
            "Say where the tokens come from with one of --tokenizer FILE, --vocabulary FILE (words that tell nothing "
            f"of these users), --discover (privately, from this text); got {' and '.join(asked) or 'none'}."
        )
    if tokenizer is not None:
        chosen = load_tokenizer(tokenizer)
        # Another store's words bring their own origin, and the guarantee that they owe.
        if chosen.kind != "words":
            chosen.origin = {"source": "file", "name": tokenizer.name}
        return chosen, ""
    if vocabulary is not None:
        origin = {"source": "file", "name": vocabulary.name}
        return WordTokenizer(words_of_file(vocabulary, size), split, origin), ""
    if discover is not None:
        parameters = {**discover, "size": size}
        return lambda texts: discovered_tokenizer(texts, split, **parameters), f"discover {split} {parameters}"
    return lambda texts: leaking_tokenizer(texts, split, size), f"leak {split} {size}"


def discovered_tokenizer(texts: Texts, split: Split, **parameters: Any) -> WordTokenizer:
    """A word-level tokenizer whose vocabulary was discovered privately in these texts, which are grouped by user."""
    result = discover(_words_by_user(texts, split), **parameters)
    return WordTokenizer(result.words, split, {"source": "private discovery", "guarantee": result.guarantee})


def leaking_tokenizer(texts: Texts, split: Split, size: int) -> WordTokenizer:
    """A word-level tokenizer of the words that most users have, counted without privacy, and labelled so."""
    counts: list[tuple[int, str]] = []
    for words, sums in _sums((list(dict.fromkeys(words)), 1) for words in _words_by_user(texts, split)):
        counts.extend(zip((-sums).tolist(), words, strict=True))
        if len(counts) > 8 * size:
            counts = sorted(counts)[:size]
    meaning = "counted on these users without privacy: which words are in it is not covered by any guarantee"
    origin = {"source": "leak", "meaning": meaning}
    return WordTokenizer([word for _, word in sorted(counts)[:size]], split, origin)


def _words_by_user(texts: Texts, split: Split) -> Iterator[list[str]]:
    """Each user's distinct words."""
    holder: str | None = None
    words: dict[str, None] = {}
    for users, batch in texts():
        for user, text in zip(users, batch, strict=True):
            if user != holder:
                if holder is not None:
                    yield list(words)
                holder, words = user, {}
            words.update(dict.fromkeys(split_words(text, split)))
    if holder is not None:
        yield list(words)
