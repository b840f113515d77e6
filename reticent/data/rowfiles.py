"""CSV and JSONL, a row at a time in bounded memory, whatever is in them."""

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from reticent.data.cleaning import MAX_TEXT_BYTES, Counts
from reticent.errors import Refused

if TYPE_CHECKING:
    import pyarrow as pa

    from reticent.data.sources import Source

BATCH_ROWS = 20_000

Row = tuple[str | None, str | None, float]


def in_batches(rows: Iterator[Row]) -> "Iterator[tuple[pa.Array, pa.Array, float]]":
    """Rows of Python strings as Arrow; bytes that were no UTF-8 stand in them as surrogates and go back to bytes."""
    import pyarrow as pa

    users: list[str | None] = []
    texts: list[str | None] = []
    size, done = 0, 0.0

    def column(values: list[str | None]) -> pa.Array:
        try:
            return pa.array(values, pa.large_string())
        except (UnicodeEncodeError, pa.ArrowInvalid):
            raw = pa.array([None if value is None else _to_bytes(value) for value in values], pa.large_binary())
            return pa.Array.from_buffers(pa.large_string(), len(raw), raw.buffers(), raw.null_count, raw.offset)

    for user, text, done in rows:
        users.append(user)
        texts.append(text)
        size += len(text or "")
        if len(users) >= BATCH_ROWS or size >= MAX_TEXT_BYTES:
            yield column(users), column(texts), done
            users, texts, size = [], [], 0
    if users:
        yield column(users), column(texts), done


def _to_bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        # A lone surrogate that JSON spelt out: its three bytes are invalid UTF-8, which is what it is.
        return text.encode("utf-8", "surrogatepass")


class _Lines:
    """The lines of a file as text, in bounded memory: a line above the limit is left out, and counted.

    Bytes that are no UTF-8 become surrogates. For CSV a limit inside quotes would leave the rest without its beginning,
    so there it is refused.
    """

    def __init__(self, path: Path, counts: Counts, quoted: bool) -> None:
        self.path, self.counts, self.quoted = path, counts, quoted
        self.total = max(path.stat().st_size, 1)
        self.compressed = path.suffix.lower() == ".gz"
        self.read = 0
        self._open_quote = False

    def __iter__(self) -> Iterator[str]:
        with open(self.path, "rb") as raw:
            file: IO[bytes] = gzip.GzipFile(fileobj=raw) if self.compressed else raw  # type: ignore[assignment]
            number = 0
            while line := file.readline(MAX_TEXT_BYTES):
                number += 1
                self.read = raw.tell() if self.compressed else self.read + len(line)
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                quotes = line.count(b'"') if self.quoted else 0
                whole = line.endswith(b"\n") or len(line) < MAX_TEXT_BYTES
                while not line.endswith(b"\n") and (rest := file.readline(MAX_TEXT_BYTES)):
                    self.read += 0 if self.compressed else len(rest)
                    quotes += rest.count(b'"') if self.quoted else 0
                    whole, line = False, rest
                if not whole and (self._open_quote or quotes % 2):
                    raise Refused(
                        f"{self.path}, line {number}: a quoted field is above {MAX_TEXT_BYTES >> 20} MiB; "
                        "is a closing quote missing?"
                    )
                self._open_quote ^= bool(quotes % 2)
                if whole:
                    yield line.decode("utf-8", "surrogateescape")
                else:
                    self.counts.rows += 1
                    self.counts.too_long += 1

    @property
    def done(self) -> float:
        return min(self.read / self.total, 1.0)


def read_csv(path: Path, source: "Source", delimiter: str) -> Iterator[Row]:
    """Rows of a CSV file with a header."""
    lines = _Lines(path, source.counts, quoted=True)
    csv.field_size_limit(2 * MAX_TEXT_BYTES)
    reader = csv.reader(iter(lines), delimiter=delimiter)
    try:
        header = next(reader, [])
        user, text = (header.index(column) for column in source.columns(header))
        width = len(header)
        for row in reader:
            if len(row) == width:
                yield row[user], row[text], lines.done
            elif row:
                source.counts.rows += 1
                source.counts.malformed += 1
    except csv.Error as error:
        raise Refused(f"{path}, line {reader.line_num}: {error}; is a closing quote missing?") from error
    except (OSError, EOFError) as error:
        raise Refused(f"{path} could not be read ({error}).") from error


def read_jsonl(path: Path, source: "Source") -> Iterator[Row]:
    """Rows of a file with one JSON object a line."""
    lines, counts = _Lines(path, source.counts, quoted=False), source.counts
    checked = False
    try:
        for line in lines:
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                counts.rows += 1
                counts.malformed += 1
                continue
            if not checked:
                # Later rows may lack a column (its value is then missing); the first says which there are.
                source.columns(list(row))
                checked = True
            user, text = row.get(source.user_column), row.get(source.text_column)
            if isinstance(user, (bool, list, dict)) or isinstance(text, (bool, list, dict)):
                counts.rows += 1
                counts.malformed += 1
            else:
                yield _plain(user), _plain(text), lines.done
    except (OSError, EOFError) as error:
        raise Refused(f"{path} could not be read ({error}).") from error
    if not checked and source.counts.rows:
        raise Refused(f"{path} has no JSON object on a line of its own; write one row a line.")


def _plain(value: Any) -> str | None:
    if isinstance(value, float) and value != value:
        return None
    return value if value is None or isinstance(value, str) else str(value)
