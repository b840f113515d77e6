"""TensorFlow Federated's StackOverflow database: SQLite with one serialised `tf.train.Example` a row."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from reticent.errors import Refused


def read_sqlite(path: Path, feature: str | None, split: str | None) -> Iterator[tuple[str | None, str | None, float]]:
    """Rows of (client, text) from the table `examples`; the text is the feature `tokens` unless another is named."""
    feature = feature or "tokens"
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            database.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
            columns = [row[1] for row in database.execute("PRAGMA table_info(examples)")]
            if not {"client_id", "split_name", "serialized_example_proto"} <= set(columns):
                raise Refused(
                    f"{path} is not TFF's format: it has no table `examples` with client_id, split_name and "
                    "serialized_example_proto; export it to Parquet or CSV."
                )
            splits = [row[0] for row in database.execute("SELECT DISTINCT split_name FROM examples")]
            split = split or (splits[0] if len(splits) == 1 else None)
            if split not in splits:
                said = f"has no split {split!r}" if split else "has several splits"
                raise Refused(f"{path} {said}; name one with --split: {', '.join(map(repr, sorted(splits)))}.")
            where = "FROM examples WHERE split_name = ?"
            total = max(database.execute(f"SELECT count(*) {where}", (split,)).fetchone()[0], 1)
            rows = database.execute(f"SELECT client_id, serialized_example_proto {where}", (split,))
            for place, (client, serialised) in enumerate(rows):
                yield client, _text(serialised, feature, path, place), (place + 1) / total
    except sqlite3.DatabaseError as error:
        raise Refused(f"{path} is not a readable SQLite database ({error}).") from error


def _text(serialised: bytes, feature: str, path: Path, place: int) -> str | None:
    try:
        features = dict(parse_example(serialised))
    except (IndexError, ValueError) as error:
        raise Refused(f"{path}: example {place} is no tf.train.Example ({error}); the file is damaged.") from error
    if feature not in features:
        raise Refused(f"{path} has no feature {feature!r}; its examples have {', '.join(map(repr, sorted(features)))}.")
    return b" ".join(features[feature]).decode("utf-8", "surrogateescape")


def parse_example(serialised: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """The features of a `tf.train.Example` with their byte strings (none for numbers)."""
    # Example.features = 1; Features.feature = 1, a map of key = 1 and value = 2; Feature.bytes_list = 1;
    # BytesList.value = 1.
    for features in _fields(serialised, 1):
        for entry in _fields(features, 1):
            name = b"".join(_fields(entry, 1)).decode()
            yield name, [value for one in _fields(entry, 2) for group in _fields(one, 1) for value in _fields(group, 1)]


def _fields(message: bytes, wanted: int) -> Iterator[bytes]:
    """The length-delimited fields with this number, of a protocol buffer."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == 2:
            size, place = _varint(message, place)
            if place + size > len(message):
                raise ValueError("a field ends after the message")
            if tag >> 3 == wanted:
                yield message[place : place + size]
            place += size
        elif kind == 0:
            _, place = _varint(message, place)
        elif kind in (1, 5):
            place += 8 if kind == 1 else 4
        else:
            raise ValueError(f"unknown wire type {kind}")


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError("a number without end")
