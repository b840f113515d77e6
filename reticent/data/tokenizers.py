"""Text to token ids and back: words of a given vocabulary, or any Hugging Face `tokenizers` file.

Every example is framed: begin, the words, end. The ids of a word-level vocabulary are pad 0, begin 1, end 2, unknown 3,
then the words in their order. Which words are in a vocabulary is itself information about the people it was counted
from, so a tokenizer carries its `origin`: where the words come from and, if from private users, under what guarantee.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from reticent.errors import Refused

WORDS_FORMAT = "reticent-words"
PAD, BEGIN, END, UNKNOWN = 0, 1, 2, 3
SPECIALS = ("<pad>", "<begin>", "<end>", "<unknown>")

Split = Literal["words", "spaces"]

# A word with its inner apostrophes and hyphens, or one sign of punctuation.
_WORD = re.compile(r"\w+(?:['’\-]\w+)*|[^\w\s]")


class Tokenizer(Protocol):
    """What a store needs of a tokenizer. `digest` is equal exactly for tokenizers that encode alike."""

    kind: str
    size: int
    digest: str
    pad: int
    begin: int
    end: int
    unknown: int
    origin: dict[str, Any]

    def encode(self, text: str) -> np.ndarray:
        """The framed ids of one text: begin, words, end (so an empty text has two)."""

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The framed ids of many texts, end to end, and the length of each."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without padding and frame."""

    def to_bytes(self) -> bytes:
        """The tokenizer as a file that `load_tokenizer` reads."""


def split_words(text: str, split: Split) -> list[str]:
    """The words of a text: lower-cased with punctuation apart, or what stands between spaces."""
    return text.split() if split == "spaces" else _WORD.findall(text.lower())


class WordTokenizer:
    """Whole words of a fixed vocabulary; all others are `unknown`.

    `split="words"` lower-cases and separates punctuation; `split="spaces"` takes what stands between spaces as it is
    (for text that was tokenised before, as StackOverflow's).
    """

    kind = "words"
    pad, begin, end, unknown = PAD, BEGIN, END, UNKNOWN

    def __init__(self, words: Iterable[str], split: Split = "words", origin: dict[str, Any] | None = None) -> None:
        self.words = tuple(words)
        if split not in ("words", "spaces"):
            raise Refused(f"A vocabulary splits text by 'words' or by 'spaces', not by {split!r}.")
        if not self.words:
            raise Refused("The vocabulary is empty; give it at least one word.")
        self.split = split
        self.origin = origin or {"source": "given"}
        self.size = len(self.words) + len(SPECIALS)
        self._ids = {word: index for index, word in enumerate(self.words, len(SPECIALS))}
        if len(self._ids) != len(self.words):
            seen: set[str] = set()
            double = next(word for word in self.words if word in seen or seen.add(word))  # type: ignore[func-returns-value]
            raise Refused(f"The vocabulary has the word {double!r} twice; leave one.")
        for word in self.words:
            if not word or word.split() != [word]:
                raise Refused(f"The vocabulary has {word!r}, which is no single word; remove it.")
        content = json.dumps([WORDS_FORMAT, self.split, self.words])
        self.digest = hashlib.sha256(content.encode()).hexdigest()

    def encode(self, text: str) -> np.ndarray:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        lookup, flat, lengths = self._ids.get, [], np.empty(len(texts), np.int64)
        for index, text in enumerate(texts):
            ids = [lookup(word, UNKNOWN) for word in split_words(text, self.split)]
            flat.append(BEGIN)
            flat.extend(ids)
            flat.append(END)
            lengths[index] = len(ids) + 2
        return np.array(flat, np.int32), lengths

    def decode(self, ids: Iterable[int]) -> str:
        words = (*SPECIALS, *self.words)
        return " ".join(words[index] for index in map(int, ids) if index >= UNKNOWN)

    def to_bytes(self) -> bytes:
        content = {
            "format": WORDS_FORMAT,
            "version": 1,
            "split": self.split,
            "origin": self.origin,
            "words": self.words,
        }
        return (json.dumps(content, indent=0) + "\n").encode()


# What files call the tokens of a frame, the likeliest first.
_NAMES = {
    "begin": ("[BOS]", "<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[CLS]"),
    "end": ("[EOS]", "</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", "[SEP]"),
    "pad": ("[PAD]", "<pad>", "<|pad|>", "<|padding|>"),
    "unknown": ("[UNK]", "<unk>", "<|unk|>"),
}


class FileTokenizer:
    """Any Hugging Face `tokenizers` JSON file (WordPiece, BPE, Unigram), framed by its own begin and end tokens.

    A file with an end token only (GPT-2's) has it begin examples too; a file without a padding token pads with id 0 (a
    store never holds padding). Truncation, padding and templates of the file are not used.
    """

    kind = "tokenizers"

    def __init__(self, content: bytes, origin: dict[str, Any] | None = None, name: str = "The tokenizer file") -> None:
        try:
            from tokenizers import Tokenizer as Engine
        except ImportError as error:
            raise Refused("Tokenizer files need the `tokenizers` package: pip install 'reticent[train]'.") from error
        try:
            self._engine = Engine.from_str(content.decode())
        except Exception as error:
            raise Refused(f"{name} is not a `tokenizers` JSON file ({error}).") from error
        self._engine.no_truncation()
        self._engine.no_padding()
        self._content = content
        self.origin = origin or {"source": "given"}
        self.size = max(self._engine.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.digest = hashlib.sha256(content).hexdigest()
        found = {role: self._find(names) for role, names in _NAMES.items()}
        if found["end"] is None:
            raise Refused(f"{name} has none of the end tokens {', '.join(_NAMES['end'])}; add one to it.")
        self.end = found["end"]
        self.begin = self.end if found["begin"] is None else found["begin"]
        self.pad = found["pad"] or 0
        # -1: byte-level vocabularies know everything.
        self.unknown = -1 if found["unknown"] is None else found["unknown"]

    def _find(self, names: tuple[str, ...]) -> int | None:
        return next((index for name in names if (index := self._engine.token_to_id(name)) is not None), None)

    def encode(self, text: str) -> np.ndarray:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        flat: list[int] = []
        lengths = np.empty(len(texts), np.int64)
        encodings = self._engine.encode_batch_fast(list(texts), add_special_tokens=False)
        for index, encoding in enumerate(encodings):
            ids = encoding.ids
            flat.append(self.begin)
            flat.extend(ids)
            flat.append(self.end)
            lengths[index] = len(ids) + 2
        return np.array(flat, np.int32), lengths

    def decode(self, ids: Iterable[int]) -> str:
        frame = {self.begin, self.end}
        return self._engine.decode([index for index in map(int, ids) if index >= 0 and index not in frame])

    def to_bytes(self) -> bytes:
        return self._content


def words_of_file(path: str | Path, limit: int | None = None) -> list[str]:
    """The words of a vocabulary file: one a line (what follows a tab, as a count, is not read), at most `limit`."""
    path = Path(path)
    if not path.is_file():
        raise Refused(f"There is no vocabulary file {path}.")
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise Refused(f"The vocabulary file {path} is not UTF-8 ({error}); convert it.") from error
    words = [word for line in lines if (word := line.split("\t")[0].strip())]
    if not words:
        raise Refused(f"The vocabulary file {path} has no words.")
    return words[:limit]


def parse_tokenizer(content: bytes, name: str, origin: dict[str, Any] | None = None) -> Tokenizer:
    """The tokenizer in the bytes of a file: one that `to_bytes` wrote, or a Hugging Face `tokenizers` file."""
    try:
        parsed = json.loads(content)
    except ValueError as error:
        raise Refused(f"{name} is not a tokenizer file ({error}).") from error
    if isinstance(parsed, dict) and parsed.get("format") == WORDS_FORMAT:
        try:
            return WordTokenizer(parsed["words"], parsed["split"], origin or parsed["origin"])
        except (KeyError, TypeError, AttributeError) as error:
            raise Refused(f"{name} is damaged ({error!r}).") from error
    return FileTokenizer(content, origin, name)


def load_tokenizer(path: str | Path, origin: dict[str, Any] | None = None) -> Tokenizer:
    """The tokenizer in a file; a folder means the `tokenizer.json` in it (as in a checkpoint, or in a store)."""
    path = Path(path)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise Refused(f"There is no tokenizer file {path}.")
    return parse_tokenizer(path.read_bytes(), str(path), origin)
