"""Erasure: a store without some of its users."""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reticent.data.columns import COLUMNS, Column, open_columns, read_header
from reticent.data.store import Store
from reticent.data.writer import write_id_order, write_store_files
from reticent.errors import Refused
from reticent.files import sync_directory

_BLOCK = 1 << 24


def forget(path: str | Path, users: Sequence[str]) -> dict[str, Any]:
    """Rewrites a store without these users and deletes what was there; returns the counts.

    The new columns are written beside the old ones, the header changes over to them in one atomic step, and the old
    ones are deleted: after a crash the store is the old one or the new one, and a second `forget` removes what is left
    over. A user who is not there is refused, and then nobody is forgotten. The header counts the forgotten; it does not
    name them. Deleting a file does not overwrite the disk, and copies, models and vocabularies made before keep what
    they know.
    """
    path = Path(path)
    read_header(path)
    lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _forget(path, users)
    except BlockingIOError:
        raise Refused(f"Another program is forgetting users of {path}; wait for it to end.") from None
    finally:
        os.close(lock)


def _forget(path: Path, users: Sequence[str]) -> dict[str, Any]:
    header = read_header(path)
    leftovers = _remove_strangers(path, header)
    store = Store(path, header, open_columns(path, header))
    try:
        gone = np.unique([store.index(user) for user in users])
    except Refused as error:
        also = " An interrupted `forget` was completed by removing its old files." if leftovers else ""
        raise Refused(f"{error}{also}") from None
    if len(gone) == store.users:
        raise Refused(f"{path} has no other users; delete the store instead.")
    generation = header.get("generation", 0) + 1
    suffix = f".{generation}"
    columns = open_columns(path, header)
    _, _, lengths = store.locate(gone)
    _copy(path, columns, gone, suffix)
    write_id_order(path / f"id_hashes{suffix}.bin", path / f"id_order{suffix}.bin", lambda user: f"number {user}")
    new_header = {key: value for key, value in header.items() if key not in ("files", "digest", "tokenizer")}
    new_header |= {
        "users": store.users - len(gone),
        "examples": header["examples"] - len(lengths),
        "tokens": header["tokens"] - int(lengths.sum()),
        "generation": generation,
        "forgotten": header.get("forgotten", 0) + len(gone),
    }
    write_store_files(path, store.tokenizer(), new_header, suffix)
    _remove_strangers(path, read_header(path))
    return {
        "store": str(path),
        "forgotten": len(gone),
        "examples": len(lengths),
        "users_left": new_header["users"],
    }


def _copy(path: Path, columns: dict[str, Column], gone: np.ndarray, suffix: str) -> None:
    """Writes all columns but the index without the users in `gone`, in blocks."""
    users = len(columns["id_hashes"])
    # The users who stay, as ranges [first, last).
    firsts, lasts = np.append(0, gone + 1), np.append(gone, users)
    firsts, lasts = firsts[firsts < lasts], lasts[firsts < lasts]
    user_offsets, example_offsets, id_offsets = (
        columns[name] for name in ("user_offsets", "example_offsets", "id_offsets")
    )
    examples = user_offsets.take(firsts), user_offsets.take(lasts)
    _copy_ranges(columns["id_hashes"], firsts, lasts, path / f"id_hashes{suffix}.bin")
    _copy_offsets(user_offsets, firsts, lasts, path / f"user_offsets{suffix}.bin")
    _copy_offsets(id_offsets, firsts, lasts, path / f"id_offsets{suffix}.bin")
    _copy_ranges(columns["id_bytes"], id_offsets.take(firsts), id_offsets.take(lasts), path / f"id_bytes{suffix}.bin")
    _copy_offsets(example_offsets, *examples, path / f"example_offsets{suffix}.bin")
    tokens = example_offsets.take(examples[0]), example_offsets.take(examples[1])
    _copy_ranges(columns["tokens"], *tokens, path / f"tokens{suffix}.bin")


def _copy_ranges(column: Column, firsts: np.ndarray, lasts: np.ndarray, path: Path) -> None:
    with open(path, "wb") as file:
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            for start in range(first, last, _BLOCK):
                file.write(column.slice(start, min(start + _BLOCK, last)).tobytes())


def _copy_offsets(column: Column, firsts: np.ndarray, lasts: np.ndarray, path: Path) -> None:
    """Copies the offsets of ranges of items, moved to where the items now are."""
    with open(path, "wb") as file:
        file.write(np.zeros(1, "<i8").tobytes())
        end = 0
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            begin = int(column.slice(first, first + 1)[0])
            for start in range(first, last, _BLOCK):
                offsets = column.slice(start + 1, min(start + _BLOCK, last) + 1)
                file.write((offsets - begin + end).astype("<i8").tobytes())
            end += int(column.slice(last, last + 1)[0]) - begin


def _remove_strangers(path: Path, header: dict[str, Any]) -> bool:
    """Deletes columns that the header does not name: what an interrupted `forget` left."""
    named = {entry["name"] for entry in header["files"].values()}
    strangers = [
        entry
        for entry in path.glob("*.bin")
        if entry.name not in named and entry.name.split(".")[0] in (*COLUMNS, "checksums")
    ]
    for entry in strangers:
        entry.unlink()
    sync_directory(path)
    return bool(strangers)
