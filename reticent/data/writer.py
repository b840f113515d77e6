"""Writing a store: user after user, out of core, under its final name only when it is whole."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from reticent.data.columns import COLUMNS, FORMAT, HEADER, TOKENIZER, VERSION, describe_files, seal, token_type
from reticent.data.mixing import hash_id
from reticent.data.tokenizers import Tokenizer
from reticent.errors import Refused
from reticent.files import sync_directory, write_atomically

_PROGRESS = "progress.json"
_FLUSH_TOKENS = 1 << 20
_CHECKPOINT_TOKENS = 1 << 25


def partial_path(path: str | Path) -> Path:
    """Where a store is while it is being written."""
    path = Path(path)
    return path.parent / f".{path.name}.partial"


class StoreWriter:
    """Writes a store: `with StoreWriter(path, tokenizer) as writer: writer.add_user(user_id, examples)`.

    Memory does not grow with the store, except for 20 bytes per user at the end. Each example is the ids that the
    tokenizer gave, frame included. `about` is what the header tells of where the data came from (plain JSON; it may
    still be added to until the end). A user is given once; a user given twice, or without an example, is refused.

    With `resume`, a text that names the input, what was written before a crash is kept: `writer.users` users are in
    already, `about` is as it was when the last of them was added, and the caller goes on with the next one. Without it
    an interrupted store is begun anew.
    """

    def __init__(
        self, path: str | Path, tokenizer: Tokenizer, *, about: dict[str, Any] | None = None, resume: str | None = None
    ) -> None:
        self.path = Path(path)
        self.tokenizer = tokenizer
        self.about = about if about is not None else {}
        self.users = self.examples = self.tokens = self._id_bytes = 0
        self._resume = resume
        self._partial = partial_path(self.path)
        self._dtype = token_type(tokenizer.size)
        self._files: dict[str, BinaryIO] = {}
        self._pending: dict[str, list[np.ndarray | bytes]] = {}
        self._pending_tokens = self._since_checkpoint = 0
        self._lock: BinaryIO | None = None

    def __enter__(self) -> "StoreWriter":
        if self.path.exists():
            raise Refused(f"{self.path} exists; choose another name, or remove it first.")
        if not self.path.parent.is_dir():
            raise Refused(f"The folder {self.path.parent} does not exist; create it first.")
        self._partial.mkdir(exist_ok=True)
        self._lock = open(self._partial / "lock", "wb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise Refused(f"Another program is writing {self.path}; wait for it to end.") from None
        self._begin()
        return self

    def _begin(self) -> None:
        done = self._read_progress()
        if done is None:
            for entry in self._partial.iterdir():
                if entry.name not in ("lock", "staging"):
                    entry.unlink()
        else:
            self.users, self.examples, self.tokens, self._id_bytes = (
                done[key] for key in ("users", "examples", "tokens", "id_bytes")
            )
            self.about = done["about"]
        for column, size in self._sizes().items():
            file = (self._partial / f"{column}.bin").open("r+b" if done else "w+b")
            file.truncate(size)
            file.seek(size)
            self._files[column] = file
            self._pending[column] = []
        if done is None:
            for column in ("example_offsets", "user_offsets", "id_offsets"):
                self._pending[column].append(np.zeros(1, "<i8"))
            self.checkpoint()

    def _sizes(self) -> dict[str, int]:
        if not (self._partial / _PROGRESS).is_file():
            return dict.fromkeys((name for name in COLUMNS if name != "id_order"), 0)
        return {
            "tokens": self.tokens * np.dtype(self._dtype).itemsize,
            "example_offsets": 8 * (self.examples + 1),
            "user_offsets": 8 * (self.users + 1),
            "id_bytes": self._id_bytes,
            "id_offsets": 8 * (self.users + 1),
            "id_hashes": 8 * self.users,
        }

    def _key(self) -> dict[str, Any]:
        return {"resume": self._resume, "tokenizer": self.tokenizer.digest, "version": VERSION}

    def _read_progress(self) -> dict[str, Any] | None:
        path = self._partial / _PROGRESS
        if self._resume is None or not path.is_file():
            return None
        progress = json.loads(path.read_bytes())
        return progress if progress["key"] == self._key() else None

    def add_user(self, user_id: str, examples: Iterable[np.ndarray]) -> None:
        """Adds one user and all examples of theirs, in order."""
        arrays = [np.asarray(example) for example in examples]
        lengths = np.array([array.size for array in arrays], np.int64)
        tokens = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
        self.add_users([user_id], np.array([len(arrays)]), lengths, tokens)

    def add_users(self, user_ids: Sequence[str], examples: np.ndarray, lengths: np.ndarray, tokens: np.ndarray) -> None:
        """Adds many users at once: examples per user, tokens per example, and all tokens end to end."""
        examples, lengths = np.asarray(examples, np.int64), np.asarray(lengths, np.int64)
        if len(examples) != len(user_ids) or examples.sum() != len(lengths) or lengths.sum() != len(tokens):
            raise ValueError("The counts of users, examples and tokens do not agree.")
        if not len(user_ids):
            return
        if examples.min() < 1:
            raise Refused(f"The user {user_ids[int(examples.argmin())]!r} has no example; leave out such users.")
        if lengths.min() < 1:
            raise Refused("An example without a token cannot be stored; leave it out.")
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.tokenizer.size:
            raise Refused(
                f"A token id is {low if low < 0 else high}, and the tokenizer has ids 0 to {self.tokenizer.size - 1}; "
                "encode the text with the tokenizer of this store."
            )
        if not all(user_ids):
            raise Refused("A user id is empty; every user needs one.")
        try:
            encoded = [user.encode("utf-8") for user in user_ids]
        except UnicodeEncodeError as error:
            raise Refused(f"The user id {error.object!r} is not valid Unicode; give one that is.") from None
        sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
        add = {name: pending.append for name, pending in self._pending.items()}
        add["tokens"](np.asarray(tokens, self._dtype))
        add["example_offsets"]((self.tokens + np.cumsum(lengths)).astype("<i8"))
        add["user_offsets"]((self.examples + np.cumsum(examples)).astype("<i8"))
        add["id_bytes"](b"".join(encoded))
        add["id_offsets"]((self._id_bytes + np.cumsum(sizes)).astype("<i8"))
        add["id_hashes"](np.fromiter(map(hash_id, user_ids), "<u8", len(user_ids)))
        self.users += len(user_ids)
        self.examples += len(lengths)
        self.tokens += len(tokens)
        self._id_bytes += int(sizes.sum())
        self._pending_tokens += len(tokens) + 16 * len(user_ids)
        self._since_checkpoint += len(tokens)
        if self._resume is not None and self._since_checkpoint >= _CHECKPOINT_TOKENS:
            self.checkpoint()
        elif self._pending_tokens >= _FLUSH_TOKENS:
            self._flush()

    def _flush(self) -> None:
        for column, pending in self._pending.items():
            self._files[column].write(b"".join(pending))
            pending.clear()
        self._pending_tokens = 0

    def checkpoint(self) -> None:
        """Makes what was written so far durable: a later writer with the same `resume` goes on from here."""
        self._flush()
        for file in self._files.values():
            file.flush()
            if self._resume is not None:
                os.fsync(file.fileno())
        progress = {
            "key": self._key(),
            "about": self.about,
            "users": self.users,
            "examples": self.examples,
            "tokens": self.tokens,
            "id_bytes": self._id_bytes,
        }
        write_atomically(self._partial / _PROGRESS, json.dumps(progress).encode())
        self._since_checkpoint = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        except BaseException:
            kind = RuntimeError
            raise
        finally:
            with contextlib.suppress(OSError):
                for file in self._files.values():
                    file.close()
            if kind is not None and self._resume is None:
                shutil.rmtree(self._partial, ignore_errors=True)
            if self._lock is not None:
                self._lock.close()

    def _finish(self) -> None:
        if not self.users:
            raise Refused(f"There is no user to write to {self.path}.")
        self._flush()
        for file in self._files.values():
            file.close()
        write_id_order(self._partial / "id_hashes.bin", self._partial / "id_order.bin", self._user_id)
        write_store_files(self._partial, self.tokenizer, self._header())
        (self._partial / _PROGRESS).unlink(missing_ok=True)
        (self._partial / "lock").unlink(missing_ok=True)
        shutil.rmtree(self._partial / "staging", ignore_errors=True)
        sync_directory(self._partial)
        try:
            os.rename(self._partial, self.path)
        except OSError as error:
            raise Refused(
                f"{self.path} appeared while it was being written ({error}); remove it and begin again."
            ) from error
        sync_directory(self.path.parent)

    def _user_id(self, index: int) -> str:
        offsets = np.memmap(self._partial / "id_offsets.bin", "<i8", "r")
        return bytes(
            np.memmap(self._partial / "id_bytes.bin", "|u1", "r")[offsets[index] : offsets[index + 1]]
        ).decode()

    def _header(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "users": self.users,
            "examples": self.examples,
            "tokens": self.tokens,
            "token_type": self._dtype,
            "about": self.about,
        }


def write_id_order(hashes_path: Path, order_path: Path, user_id: Any) -> None:
    """Writes the users in the order of their ids' hashes, by which an id is found; refuses an id given twice."""
    hashes = np.fromfile(hashes_path, "<u8")
    if len(hashes) >= 2**32:
        raise Refused("A store holds at most 4,294,967,295 users; divide the data into several stores.")
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    for place in np.flatnonzero(ordered[1:] == ordered[:-1]).tolist():
        first, second = user_id(int(order[place])), user_id(int(order[place + 1]))
        if first == second:
            raise Refused(f"The user {first!r} was added twice; give all examples of a user at once.")
        # Two ids of one 64-bit hash: a chance of 3e-6 among ten million.
        raise Refused(f"The users {first!r} and {second!r} have the same hash; rename one of them.")
    order.astype("<u4").tofile(order_path)


def write_store_files(directory: Path, tokenizer: Tokenizer, header: dict[str, Any], generation: str = "") -> None:
    """Completes a folder of columns into a store: tokenizer, checksums and, last and atomically, the header."""
    names = {column: f"{column}{generation}.bin" for column in COLUMNS}
    content = tokenizer.to_bytes()
    write_atomically(directory / TOKENIZER, content)
    files = describe_files(directory, names, f"checksums{generation}.bin")
    for entry in files.values():
        handle = os.open(directory / entry["name"], os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    described = {key: getattr(tokenizer, key) for key in ("kind", "digest", "size", "pad", "begin", "end", "unknown")}
    described["sha256"] = hashlib.sha256(content).hexdigest()
    header = seal({**header, "tokenizer": described, "vocabulary": tokenizer.origin, "files": files})
    write_atomically(directory / HEADER, (json.dumps(header, indent=1) + "\n").encode())
