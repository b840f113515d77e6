"""Public text without what repeats private text: a model trained on the rest has not seen it before its guarantee begins.

A public row is left out if it, or one of its lines, is nearly the same as a text of a store: the sets of their shingles
(runs of five words) have a Jaccard similarity of at least a threshold, as MinHash estimates it (Broder 1997; NearDup of Lee
et al. 2022). Words are compared in lower case and as the store's tokenizer leaves them. A private text within a longer line
is not found; nor is one of fewer words, unknown ones not counted, than a shingle has.
"""

import gzip
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from reticent.data.domains import listed
from reticent.data.mixing import mix, salt
from reticent.data.store import Store
from reticent.data.tokenizers import Tokenizer, split_words
from reticent.errors import Refused
from reticent.files import sync_directory

PERMUTATIONS = 128
SUFFIXES = (".parquet", ".jsonl", ".json", ".ndjson", ".jsonl.gz", ".json.gz", ".ndjson.gz")
Progress = Callable[[str, float], None]


@dataclass
class Found:
    """What became of public rows: `rows` is the sum of the others."""

    rows: int = 0
    kept: int = 0
    near_duplicates: int = 0
    listed_domains: int = 0


class PrivateTexts:
    """The texts of a store, to be looked up by what is nearly the same. Some 2 KiB of memory for each."""

    def __init__(
        self, store: Store, *, threshold: float = 0.8, shingle: int = 5, progress: Progress = lambda stage, done: None
    ) -> None:
        try:
            from datasketch import MinHash, MinHashLSH
        except ImportError as error:
            raise Refused("Deduplication needs the `datasketch` package: pip install 'reticent[data]'.") from error
        if not 0.1 <= threshold <= 1:
            raise Refused(f"The threshold is a similarity of 0.1 to 1, got {threshold}.")
        if shingle < 1:
            raise Refused(f"A shingle has at least 1 word, got {shingle}.")
        self.threshold, self.shingle = threshold, shingle
        self.tokenizer: Tokenizer = store.tokenizer()
        self._blank = MinHash(num_perm=PERMUTATIONS, seed=1, hashfunc=int)
        # A pair that is missed leaks, one that is found too many is compared again.
        self._index = MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS, weights=(0.1, 0.9))
        self._signatures: list[np.ndarray] = []
        self.too_short = 0
        for user in range(store.users):
            for ids in store.examples(user):
                self._add(self._words(ids))
            if user % 1000 == 0:
                progress("reading the store", user / store.users)

    def __len__(self) -> int:
        return len(self._signatures)

    def _words(self, ids: np.ndarray) -> np.ndarray:
        """A number for each word; none where there are too few to compare."""
        own = self.tokenizer
        if own.kind != "words":
            # Tokens are parts of words and know of upper case.
            words = np.fromiter(map(_number, split_words(own.decode(ids), "words")), np.uint64)
        else:
            words = ids[(ids != own.begin) & (ids != own.end)].astype(np.uint64)
            if np.count_nonzero(words != own.unknown) < self.shingle:
                words = words[:0]
        return words if len(words) >= self.shingle else words[:0]

    def _add(self, words: np.ndarray) -> None:
        if not len(words):
            self.too_short += 1
            return
        own = self._minhash(words)
        self._index.insert(len(self._signatures), own, check_duplication=False)
        self._signatures.append(own.hashvalues)

    def _minhash(self, words: np.ndarray) -> Any:
        count = len(words) - self.shingle + 1
        mixed = np.zeros(count, np.uint64)
        for place in range(self.shingle):
            mixed = mix(mixed + words[place : place + count] + salt("shingle", place))
        made = self._blank.copy()
        made.update_batch((np.unique(mixed) >> np.uint64(32)).tolist())
        return made

    def repeated(self, text: str) -> bool:
        """Whether a text, or one of its lines, is nearly one of these."""
        lines = text.splitlines()
        for piece in [text, *lines] if len(lines) > 1 else [text]:
            # As the store's own texts are: what its tokenizer does not know is the same word in both.
            words = self._words(self.tokenizer.encode(piece))
            if not len(words):
                continue
            own = self._minhash(words)
            for key in self._index.query(own):
                if np.mean(self._signatures[key] == own.hashvalues) >= self.threshold:
                    return True
        return False


@lru_cache(1 << 20)
def _number(word: str) -> int:
    return zlib.crc32(word.encode("utf-8", "surrogatepass"))


def dedup(
    public: str | Path,
    stores: Sequence[Store],
    out: str | Path,
    *,
    text_column: str = "text",
    url_column: str | None = None,
    drop: frozenset[str] = frozenset(),
    threshold: float = 0.8,
    shingle: int = 5,
    progress: Progress = lambda stage, done: None,
) -> dict[str, Any]:
    """Writes the rows of `public` (Parquet or JSON lines: a file, or a folder of them) that repeat nothing of `stores`, and
    whose URL is not of a domain in `drop`, with all their columns, to `out`: files of the same names. Returns the counts."""
    public, out = Path(public), Path(out)
    if drop and url_column is None:
        raise Refused("To leave out domains it has to be known where URLs are; say --url-column.")
    files = _files(public)
    if out.exists():
        raise Refused(f"{out} exists; choose another name, or remove it first.")
    if not out.parent.is_dir():
        raise Refused(f"The folder {out.parent} does not exist; create it first.")
    private = [PrivateTexts(store, threshold=threshold, shingle=shingle, progress=progress) for store in stores]
    found = Found()

    def keeps(text: Any, url: Any) -> bool:
        found.rows += 1
        if drop and isinstance(url, str) and listed(url, drop):
            found.listed_domains += 1
            return False
        if isinstance(text, str) and any(texts.repeated(text) for texts in private):
            found.near_duplicates += 1
            return False
        found.kept += 1
        return True

    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        for number, path in enumerate(files):
            progress("comparing", number / len(files))
            filtered = _parquet if path.suffix == ".parquet" else _json_lines
            filtered(path, partial / path.name, keeps, text_column, url_column)
        if public.is_dir():
            os.rename(partial, out)
        else:
            os.rename(partial / files[0].name, out)
            partial.rmdir()
        sync_directory(out.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return {
        **asdict(found),
        "private_texts": sum(map(len, private)),
        "private_texts_too_short": sum(texts.too_short for texts in private),
        "threshold": threshold,
        "shingle": shingle,
        "written": str(out),
    }


def _files(public: Path) -> list[Path]:
    if not public.exists():
        raise Refused(f"There is no file or folder {public}.")
    entries = sorted(public.iterdir()) if public.is_dir() else [public]
    files = [path for path in entries if path.is_file() and path.name.lower().endswith(SUFFIXES)]
    if not files:
        raise Refused(f"{public} has no file of a kind that is known: {', '.join(SUFFIXES)}.")
    return files


Keeps = Callable[[Any, Any], bool]


def _parquet(path: Path, out: Path, keeps: Keeps, text_column: str, url_column: str | None) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise Refused(f"{path} is not a readable Parquet file ({error}).") from error
    _check_columns(path, file.schema_arrow.names, text_column, url_column)
    with pq.ParquetWriter(out, file.schema_arrow) as writer:
        for batch in file.iter_batches(2048):
            texts = batch.column(text_column).to_pylist()
            urls = [None] * len(texts) if url_column is None else batch.column(url_column).to_pylist()
            mask = [keeps(text, url) for text, url in zip(texts, urls, strict=True)]
            writer.write_batch(batch.filter(pa.array(mask, pa.bool_())))


def _json_lines(path: Path, out: Path, keeps: Keeps, text_column: str, url_column: str | None) -> None:
    checked = False
    with _opened(path, "rb") as lines, _opened(out, "wb") as written:
        for number, line in enumerate(_lines(lines, path), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise Refused(f"{path}, line {number}, is no JSON ({error}); mend or remove it.") from None
            if not isinstance(row, dict):
                raise Refused(f"{path}, line {number}, is no JSON object; write one row a line.")
            if not checked:
                _check_columns(path, list(row), text_column, url_column)
                checked = True
            if keeps(row.get(text_column), None if url_column is None else row.get(url_column)):
                written.write(line if line.endswith(b"\n") else line + b"\n")


def _lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    try:
        yield from file
    except (OSError, EOFError) as error:
        raise Refused(f"{path} could not be read ({error}).") from None


def _opened(path: Path, mode: str) -> Any:
    return gzip.open(path, mode) if path.suffix == ".gz" else open(path, mode)


def _check_columns(path: Path, there: list[str], text_column: str, url_column: str | None) -> None:
    for option, column in (("--text-column", text_column), ("--url-column", url_column)):
        if column is not None and column not in there:
            raise Refused(
                f"{path} has no column {column!r}; name another with {option}: {', '.join(map(repr, there))}."
            )
