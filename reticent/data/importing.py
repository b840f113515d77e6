"""Text with a user column into a store: read, group by user, encode, write; out of core, and resumable.

DuckDB groups: the rows go through its external sort, by user and then in the order they were read, into a file beside
the store. Encoding then streams through that file. Interrupted, the same import goes on from the sorted file and the
last checkpoint of the store; a vocabulary that was discovered under privacy is kept, not drawn again.
"""

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reticent.data.mixing import spread
from reticent.data.sources import Progress, Source, rows_at_once
from reticent.data.store import Store
from reticent.data.tokenizers import Tokenizer, parse_tokenizer
from reticent.data.writer import StoreWriter, partial_path
from reticent.errors import Refused
from reticent.files import write_atomically

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

MEMORY = "384MB"
# DuckDB's sort merges some 100,000 rows at once, however wide: rows of this many bytes stay within its memory.
_PIECE = 512

Texts = Callable[[], Iterator[tuple[list[str], list[str]]]]
"""The rows, grouped by user, in batches of (users, texts); can be called again to begin anew."""

TokenizerMaker = Callable[[Texts], Tokenizer]
"""What makes a tokenizer out of the imported text itself: private discovery, or a count that leaks."""


def open_duckdb(spill: str | Path) -> "duckdb.DuckDBPyConnection":
    """DuckDB with two threads, little memory and the rest on disk; it prints nothing, as it would in a notebook."""
    try:
        import duckdb
    except ImportError as error:
        raise Refused("Importing needs the `duckdb` package: pip install 'reticent[data]'.") from error
    database = duckdb.connect(config={"memory_limit": MEMORY, "threads": 2, "temp_directory": str(spill)})
    database.execute("SET enable_progress_bar = false")
    # Order is by what a statement says; keeping that of the input besides would cost memory.
    database.execute("SET preserve_insertion_order = false")
    return database


def import_store(
    source: Source,
    out: str | Path,
    tokenizer: Tokenizer | TokenizerMaker,
    *,
    recipe: str = "",
    progress: Progress = lambda stage, done: None,
) -> dict[str, Any]:
    """Imports a source into a new store and returns the summary, which the store's header keeps as well.

    `tokenizer` is one, or a function that makes one out of the text, which `recipe` then describes (a resumed import
    uses what an interrupted one of the same recipe made). Nothing is dropped without being counted in the summary.
    """
    out = Path(out)
    if out.exists():
        raise Refused(f"{out} exists; choose another name, or remove it first.")
    if not out.parent.is_dir():
        raise Refused(f"The folder {out.parent} does not exist; create it first.")
    staging = partial_path(out) / "staging"
    staging.mkdir(parents=True, exist_ok=True)
    with _locked(staging / "lock", out):
        try:
            key = source.fingerprint()
            counts = _sort(source, staging, key, progress)
            if callable(tokenizer):
                tokenizer = _make_tokenizer(tokenizer, staging, key + recipe)
            _encode(source, out, staging, tokenizer, key, counts, progress)
        except Refused:
            # No second try of the same will do better, and text is not left lying about.
            shutil.rmtree(staging.parent)
            raise
    return Store.open(out).header["about"]["import"]


@contextmanager
def _locked(path: Path, out: Path) -> Iterator[None]:
    with open(path, "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Refused(f"Another program is writing {out}; wait for it to end.") from None
        yield


def _sort(source: Source, staging: Path, key: str, progress: Progress) -> dict[str, int]:
    """Writes the rows by user into `staging/sorted.parquet`, unless they are there; returns their counts."""
    done, result = staging / "sorted.json", staging / "sorted.parquet"
    if done.is_file():
        said = json.loads(done.read_bytes())
        if said["key"] == key:
            return said["counts"]
    for old in ("sorted.json", "tokenizer.json", "tokenizer-key"):
        (staging / old).unlink(missing_ok=True)
    import pyarrow as pa

    schema = pa.schema(
        [("user", pa.large_string()), ("place", pa.int64()), ("piece", pa.int32()), ("text", pa.large_binary())]
    )
    failure: list[BaseException] = []

    def pieces() -> "Iterator[pa.RecordBatch]":
        place = 0
        try:
            for batch in source.batches(progress):
                yield pa.record_batch(_pieces(batch, place), schema=schema)
                place += batch.num_rows
        except BaseException as error:
            failure.append(error)
            raise

    spill = staging / "spill"
    spill.mkdir(exist_ok=True)
    with open_duckdb(spill) as database:
        import duckdb

        incoming = pa.RecordBatchReader.from_batches(schema, pieces())
        try:
            database.register("incoming", incoming)
            database.execute(
                f'COPY (SELECT * FROM incoming ORDER BY "user", place, piece) TO {_quoted(result)} '
                "(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 8192)"
            )
        except duckdb.Error as error:
            if failure:
                raise failure[0] from error
            raise Refused(f"{source.location} could not be sorted by user: {error}") from error
    counts = asdict(source.counts)
    if not counts["kept"]:
        raise Refused(f"{source.location} has no row to import: {describe(counts)}.")
    write_atomically(done, json.dumps({"key": key, "counts": counts}).encode())
    return counts


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def describe(counts: dict[str, int]) -> str:
    """The counts of an import as words."""
    shown = {"rows": counts["rows"], **{name: number for name, number in counts.items() if number and name != "rows"}}
    return ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in shown.items())


def _pieces(batch: "pa.RecordBatch", first: int) -> "list[pa.Array]":
    """The rows with a number each, long texts in pieces, so that what DuckDB sorts is never wide."""
    import pyarrow as pa
    import pyarrow.compute as pc

    users, texts = batch.column("user").cast(pa.large_string()), batch.column("text").cast(pa.large_binary())
    places = np.arange(first, first + batch.num_rows)
    if not batch.num_rows or pc.max(pc.binary_length(texts)).as_py() <= _PIECE:
        return [users, pa.array(places), pa.array(np.zeros(len(places), np.int32)), texts]
    cut = [[text[at : at + _PIECE] for at in range(0, len(text), _PIECE)] for text in texts.to_pylist()]
    counts = np.array([len(parts) for parts in cut])
    return [
        users.take(pa.array(np.repeat(np.arange(len(cut)), counts))),
        pa.array(np.repeat(places, counts)),
        pa.array(spread(np.zeros_like(counts), counts).astype(np.int32)),
        pa.array([part for parts in cut for part in parts], pa.large_binary()),
    ]


def _rows(staging: Path, progress: Progress, stage: str) -> Iterator[tuple[list[str], list[str]]]:
    """The sorted rows, long texts whole again."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(staging / "sorted.parquet")
    done, last = 0, ("", -1, -1)
    # The last row waits here for further pieces of it.
    user, parts = "", [b""]
    for batch in file.iter_batches(rows_at_once(file.metadata, 1 << 23)):
        columns = batch.to_pydict()
        # What is said of users rests on this order: it is looked at, not believed.
        for key in zip(columns["user"], columns["place"], columns["piece"], strict=True):
            if key <= last:
                raise RuntimeError("The rows did not come back in the order of their users.")
            last = key
        users, texts = [], []
        for name, piece, text in zip(columns["user"], columns["piece"], columns["text"], strict=True):
            if piece:
                parts.append(text)
                continue
            users.append(user)
            texts.append(b"".join(parts).decode())
            user, parts = name, [text]
        if not done:
            users, texts = users[1:], texts[1:]
        done += batch.num_rows
        if users:
            yield users, texts
        progress(stage, done / file.metadata.num_rows)
    yield [user], [b"".join(parts).decode()]


def _make_tokenizer(make: TokenizerMaker, staging: Path, key: str) -> Tokenizer:
    path, key_path = staging / "tokenizer.json", staging / "tokenizer-key"
    if not (path.is_file() and key_path.is_file() and key_path.read_text() == key):
        tokenizer = make(lambda: _rows(staging, lambda stage, done: None, ""))
        key_path.unlink(missing_ok=True)
        write_atomically(path, tokenizer.to_bytes())
        write_atomically(key_path, key.encode())
    return parse_tokenizer(path.read_bytes(), str(path))


def _encode(
    source: Source, out: Path, staging: Path, tokenizer: Tokenizer, key: str, read: dict[str, int], progress: Progress
) -> None:
    about: dict[str, Any] = {
        "source": source.location,
        "user_column": source.user_column,
        "text_column": source.text_column,
        **({"users_are": "base domains of URLs"} if source.by_domain else {}),
    }
    with StoreWriter(out, tokenizer, about=about, resume=key) as writer:
        summary: dict[str, Any] = writer.about.setdefault(
            "import",
            {**read, "without_tokens": 0, "users_without_text": 0, "users_with_one_word": 0, "unknown_tokens": 0},
        )
        for users, examples, lengths, tokens, empty in _by_user(
            staging, tokenizer, writer.about.get("last_user"), progress
        ):
            writer.about["last_user"] = users[-1]
            summary["without_tokens"] += int(empty.sum())
            summary["users_without_text"] += int((examples == 0).sum())
            words = np.add.reduceat(np.append(lengths - 2, 0), np.cumsum(examples) - examples)
            summary["users_with_one_word"] += int((words[examples > 0] == 1).sum())
            summary["unknown_tokens"] += int((tokens == tokenizer.unknown).sum())
            some = examples > 0
            writer.add_users(
                [user for user, kept in zip(users, some, strict=True) if kept], examples[some], lengths, tokens
            )
        writer.about.pop("last_user")
        if not writer.users:
            raise Refused(f"{source.location} has no text that the tokenizer makes a token of.")
        summary["users"], summary["examples"], summary["tokens"] = writer.users, writer.examples, writer.tokens
        summary["users_differing_in_case"] = _differing_in_case(staging)


_Block = tuple[list[str], np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _by_user(staging: Path, tokenizer: Tokenizer, after: str | None, progress: Progress) -> Iterator[_Block]:
    """Whole users: their ids, examples each, and of all examples lengths and tokens; and texts without a token each."""
    # The last user of a batch may go on in the next: their pieces wait here.
    held: list[tuple[np.ndarray, np.ndarray]] = []
    holder: str | None = None
    held_empty = 0
    for users, texts in _rows(staging, progress, "encoding"):
        if after is not None:
            # Compared as bytes, as DuckDB sorted them.
            limit = after.encode()
            skip = next((place for place, user in enumerate(users) if user.encode() > limit), len(users))
            users, texts = users[skip:], texts[skip:]
            if not users:
                continue
            after = None
        tokens, lengths = tokenizer.encode_batch(texts)
        kept = lengths > 2
        if not kept.all():
            tokens, lengths = tokens[np.repeat(kept, lengths)], lengths[kept]
        names, starts = _runs(users)
        rows = np.diff(np.append(starts, len(users)))
        examples = np.add.reduceat(kept.astype(np.int64), starts)
        empty = rows - examples
        if holder is not None and names[0] != holder:
            yield _join([holder], held, np.array([held_empty]))
            held, held_empty = [], 0
        cut_examples = int(examples[:-1].sum())
        cut_tokens = int(lengths[:cut_examples].sum())
        if len(names) > 1:
            first = int(examples[0])
            first_tokens = int(lengths[:first].sum())
            held.append((lengths[:first], tokens[:first_tokens]))
            yield _join([names[0]], held, np.array([held_empty + empty[0]]))
            held, held_empty = [], 0
            if len(names) > 2:
                yield (
                    names[1:-1],
                    examples[1:-1],
                    lengths[first:cut_examples],
                    tokens[first_tokens:cut_tokens],
                    empty[1:-1],
                )
        held.append((lengths[cut_examples:], tokens[cut_tokens:]))
        held_empty += int(empty[-1])
        holder = names[-1]
    if holder is not None:
        yield _join([holder], held, np.array([held_empty]))


def _join(names: list[str], pieces: list[tuple[np.ndarray, np.ndarray]], empty: np.ndarray) -> _Block:
    lengths = np.concatenate([lengths for lengths, _ in pieces])
    return names, np.array([len(lengths)]), lengths, np.concatenate([tokens for _, tokens in pieces]), empty


def _runs(users: list[str]) -> tuple[list[str], np.ndarray]:
    """The distinct users of a sorted list, and where each begins."""
    starts = [place for place, user in enumerate(users) if place == 0 or user != users[place - 1]]
    return [users[start] for start in starts], np.array(starts)


def _differing_in_case(staging: Path) -> int:
    """How many users have an id that another has in other case: two people, or one who is protected as two."""
    sorted_rows = _quoted(staging / "sorted.parquet")
    with open_duckdb(staging / "spill") as database:
        row = database.execute(
            f'SELECT coalesce(sum(n), 0) FROM (SELECT count(DISTINCT "user") AS n FROM {sorted_rows} '
            'GROUP BY lower("user") HAVING count(DISTINCT "user") > 1)'
        ).fetchone()
    return int(row[0]) if row else 0
