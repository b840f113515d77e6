"""`crowd`: a generated population of any size, whose people imitate the roles of `plays`.

It stands in for private text where there is none to be had: people differ in how much they write, in whom they sound
like and in their habits, and nobody is behind them. A model trained on a crowd can be evaluated on the real plays that
fed neither the crowd nor its vocabulary. A crowd is always labelled as generated, in its store's header.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from reticent.data.imitation import Speakers, speak
from reticent.data.plays import HELD_OUT, PACKAGE, Role, part_of, read_roles, vocabulary
from reticent.data.tokenizers import BEGIN, END, UNKNOWN, WordTokenizer, split_words
from reticent.data.writer import StoreWriter
from reticent.errors import Refused

PEOPLE = 50_000
_BATCH = 8192
VERSION = 1


def make_crowd(
    out: str | Path,
    *,
    people: int = PEOPLE,
    words: int = 2000,
    seed: int = 0,
    held_out: int = HELD_OUT,
    source: str | Path | None = None,
    progress: Callable[[float], None] = lambda done: None,
) -> dict[str, Any]:
    """Writes a crowd as a store, and returns its counts. The same seed makes the same people, and a smaller crowd is
    the beginning of a larger one; `words` is the size of the vocabulary, `held_out` the plays that nobody imitates."""
    if people < 1:
        raise Refused(f"A crowd has at least one person, got {people}.")
    roles = read_roles(source)
    imitated = part_of(roles, "crowd", seed, held_out)
    tokenizer = vocabulary(roles, words, seed, held_out)
    speakers, known = _numbered(imitated, tokenizer)
    is_word = np.array([False, False, *(any(sign.isalnum() for sign in word) for word in known)])
    ids = np.array([BEGIN, END, *_ids(known, tokenizer)], np.int32)
    about = {
        "source": "crowd",
        "generated": True,
        "note": "Generated text: nobody wrote it. Its people imitate roles of Shakespeare's plays.",
        "generator": VERSION,
        "people": people,
        "seed": seed,
        "package": PACKAGE,
        "plays": sorted({role.play for role in imitated}),
    }
    count = np.empty(people, np.int64)
    with StoreWriter(out, tokenizer, about=about) as writer:
        for first in range(0, people, _BATCH):
            chosen = np.arange(first, min(first + _BATCH, people))
            said, length = speak(speakers, chosen, seed)
            ends = np.flatnonzero(said == 1)
            last = np.cumsum(length)
            speeches = np.diff(np.searchsorted(ends, last, side="left"), prepend=0)
            count[chosen] = np.add.reduceat(is_word[said], last - length)
            names = [f"person-{number:07d}" for number in chosen.tolist()]
            writer.add_users(names, speeches, np.diff(ends, prepend=-1), ids[said])
            progress((first + len(chosen)) / people)
    return {
        "store": str(out),
        "generated": True,
        "users": writer.users,
        "examples": writer.examples,
        "tokens": writer.tokens,
        "words": int(count.sum()),
        "median_words_per_user": float(np.median(count)),
        "vocabulary": tokenizer.size,
        "plays": about["plays"],
    }


def _numbered(roles: list[Role], tokenizer: WordTokenizer) -> tuple[Speakers, list[str]]:
    """The roles' speeches with all of their words, known to the tokenizer or not, and these words from number 2 on."""
    numbers: dict[str, int] = {}

    def number(speech: str) -> np.ndarray:
        return np.array(
            [0, *(numbers.setdefault(w, len(numbers) + 2) for w in split_words(speech, tokenizer.split)), 1]
        )

    speakers = Speakers.of([[number(speech) for speech in role.speeches] for role in roles])
    return speakers, list(numbers)


def _ids(words: list[str], tokenizer: WordTokenizer) -> list[int]:
    ids = {word: index for index, word in enumerate(tokenizer.words, UNKNOWN + 1)}
    return [ids.get(word, UNKNOWN) for word in words]
