"""Where text comes from: files and datasets as one stream of (user, text) rows."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reticent.data.cleaning import Counts, clean
from reticent.data.domains import domains
from reticent.data.rowfiles import BATCH_ROWS, in_batches, read_csv, read_jsonl
from reticent.errors import Refused

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIXES = (".parquet", ".csv", ".tsv", ".jsonl", ".ndjson", ".json")

Progress = Callable[[str, float], None]
"""Called with a stage's name and the fraction of it that is done."""


@dataclass(frozen=True)
class Source:
    """What to read: a file, a folder of files of one kind, a Hugging Face dataset folder or name, TFF's SQLite.

    With `by_domain` the user column holds URLs, and the base domain of each is the user.
    """

    location: str
    user_column: str | None
    text_column: str | None
    split: str | None = None
    by_domain: bool = False
    counts: Counts = field(default_factory=Counts, compare=False)

    def fingerprint(self) -> str:
        """Equal when reading would give the same rows: places, sizes and times of the files, and the columns."""
        files = [(str(path.resolve()), (stat := path.stat()).st_size, stat.st_mtime_ns) for path in self._all_files()]
        domains = ["by domain"] if self.by_domain else []
        return json.dumps([self.location, self.user_column, self.text_column, self.split, files, *domains])

    def _all_files(self) -> list[Path]:
        path = Path(self.location)
        if path.is_dir():
            return sorted(entry for entry in path.rglob("*") if entry.is_file())
        return [path] if path.is_file() else []

    def batches(self, progress: Progress) -> "Iterator[pa.RecordBatch]":
        """Cleaned rows as Arrow batches of `user` and `text`; `counts` is complete when they are all read."""
        for users, texts, done in self._raw():
            batch = clean(users, texts, self.counts)
            batch = self._by_domain(batch) if self.by_domain else batch
            progress("reading", done)
            yield batch

    def _by_domain(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """The rows with the base domain of their URL in its place; where there is none, nobody is known."""
        import pyarrow as pa

        found = domains(batch.column("user"))
        kept = found.is_valid()
        lost = batch.num_rows - (kept.sum().as_py() or 0)
        self.counts.kept -= lost
        self.counts.missing_user += lost
        columns = [found.filter(kept).cast(pa.large_string()), batch.column("text").filter(kept)]
        return pa.record_batch(columns, names=["user", "text"])

    def _raw(self) -> "Iterator[tuple[pa.Array, pa.Array, float]]":
        path = Path(self.location)
        if path.is_dir():
            names = {entry.name for entry in path.iterdir()}
            files = sorted(entry for entry in path.iterdir() if _kind(entry) in _SUFFIXES)
            if names & {"state.json", "dataset_dict.json"} or not files:
                yield from self._dataset()
                return
            kinds = {_kind(entry) for entry in files}
            if len(kinds) > 1:
                raise Refused(f"{path} has files of several kinds ({', '.join(sorted(kinds))}); name one file.")
            for place, entry in enumerate(files):
                for users, texts, done in self._file(entry):
                    yield users, texts, (place + done) / len(files)
        elif path.is_file():
            yield from self._file(path)
        elif path.suffix or self.location.startswith((".", "/", "~")):
            raise Refused(f"There is no file or folder {self.location}.")
        else:
            yield from self._dataset()

    def _file(self, path: Path) -> "Iterator[tuple[pa.Array, pa.Array, float]]":
        kind = _kind(path)
        if kind == ".parquet":
            yield from _read_parquet(path, self)
        elif kind in (".csv", ".tsv"):
            yield from in_batches(read_csv(path, self, "\t" if kind == ".tsv" else ","))
        elif kind in (".jsonl", ".ndjson", ".json"):
            yield from in_batches(read_jsonl(path, self))
        elif kind in (".sqlite", ".db"):
            from reticent.data.stackoverflow import read_sqlite

            yield from in_batches(read_sqlite(path, self.text_column, self.split))
        elif kind in (".lzma", ".xz", ".bz2", ".zst", ".zip"):
            raise Refused(f"{path} is compressed; decompress it first (only .gz is read as it is).")
        else:
            raise Refused(f"{path} is of no known kind; use .parquet, .csv, .tsv, .jsonl (or these with .gz), .sqlite.")

    def columns(self, there: list[str]) -> tuple[str, str]:
        """The two columns' names, if both are among those that are there."""
        for option, column in (("--user-column", self.user_column), ("--text-column", self.text_column)):
            if column is None:
                raise Refused(f"Say which column it is with {option}; {self.location} has {_names(there)}.")
            if column not in there:
                raise Refused(f"{self.location} has no column {column!r}; it has {_names(there)}.")
        assert self.user_column is not None
        assert self.text_column is not None
        return self.user_column, self.text_column

    def _dataset(self) -> "Iterator[tuple[pa.Array, pa.Array, float]]":
        try:
            import datasets
        except ImportError as error:
            raise Refused("Datasets need the `datasets` package: pip install 'reticent[data]'.") from error
        path, (name, _, config) = Path(self.location), self.location.partition(":")
        try:
            if path.is_dir() and ((path / "state.json").is_file() or (path / "dataset_dict.json").is_file()):
                data: Any = datasets.load_from_disk(self.location)
            elif path.is_dir():
                data = datasets.load_dataset(self.location, streaming=True)
            else:
                data = datasets.load_dataset(name, config or None, streaming=True)
        except Exception as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise Refused(f"{self.location} could not be read as a dataset: {reason}") from error
        if isinstance(data, dict):
            chosen = self.split or (next(iter(data)) if len(data) == 1 else None)
            if chosen not in data:
                said = f"has no split {chosen!r}" if chosen else "has several splits"
                raise Refused(f"{self.location} {said}; name one with --split: {_names(list(data))}.")
            data = data[chosen]
        user, text = self.columns(list(data.column_names or next(iter(data))))
        total = len(data) if hasattr(data, "__len__") else 0
        done = 0
        for table in data.select_columns([user, text]).with_format("arrow").iter(batch_size=BATCH_ROWS):
            done += table.num_rows
            users, texts = (table.column(column).combine_chunks() for column in (user, text))
            yield _as_text(users, user, self), _as_text(texts, text, self), done / total if total else 0.0


def _kind(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return suffixes[-2] if len(suffixes) > 1 and suffixes[-1] == ".gz" else (suffixes[-1] if suffixes else "")


def _names(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names[:50]) + (" and more" if len(names) > 50 else "")


def _as_text(column: "pa.Array", name: str, source: Source) -> "pa.Array":
    """The column as strings (numbers become their digits), possibly not yet valid Unicode."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_floating(kind):
        column = pc.if_else(pc.is_nan(column), None, column)
    if pa.types.is_null(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return column.cast(pa.large_string())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        kind = pa.binary()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        column = column.cast(pa.large_binary())
        return pa.Array.from_buffers(pa.large_string(), len(column), column.buffers(), column.null_count, column.offset)
    raise Refused(f"The column {name!r} of {source.location} holds {kind}, not text; choose another.")


def rows_at_once(metadata: Any, size: int = 1 << 25) -> int:
    """How many rows of a Parquet file to read at once, so that they take about `size` bytes."""
    whole = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    return max(1, min(BATCH_ROWS, metadata.num_rows * size // max(whole, 1)))


def _read_parquet(path: Path, source: Source) -> "Iterator[tuple[pa.Array, pa.Array, float]]":
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        user, text = source.columns(file.schema_arrow.names)
        done, total = 0, max(file.metadata.num_rows, 1)
        for batch in file.iter_batches(rows_at_once(file.metadata), columns=list(dict.fromkeys([user, text]))):
            done += batch.num_rows
            users, texts = batch.column(user), batch.column(text)
            yield _as_text(users, user, source), _as_text(texts, text, source), done / total
    except (pa.ArrowException, OSError) as error:
        raise Refused(f"{path} is not a readable Parquet file ({error}).") from error
