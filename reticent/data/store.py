"""The store: whose text is whose, as flat memory-mapped arrays that are read without copies.

A store is a folder: `header.json` (versions, counts, the tokenizer's digest, where the data and the vocabulary came
from), `tokenizer.json`, and columns: the tokens of all examples of all users end to end, where each example and each
user begin, and the users' ids with an index by hash. A truncated file is found on opening, a flipped bit when the page
that has it is first used; both by the file's name. A store holds private text: keep it as the text itself is kept.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from reticent.data.columns import TOKENIZER, Column, open_columns, read_header
from reticent.data.mixing import hash_id, mix, salt, spread
from reticent.data.tokenizers import Tokenizer, parse_tokenizer
from reticent.data.writer import StoreWriter
from reticent.errors import Refused

__all__ = ["Split", "Store", "StoreWriter"]

_CHUNK_USERS = 1 << 20


class Store:
    """A store, or one part of a split of it; users are numbered from 0 to `users` - 1."""

    def __init__(
        self, path: Path, header: dict[str, Any], columns: dict[str, Column], part: "_Part | None" = None
    ) -> None:
        self.path = path
        self.header = header if part is None else {**header, "split": part.record}
        self._columns = columns
        self._part = part
        self.user_ids = UserIds(columns, None if part is None else part.rows)

    @classmethod
    def open(cls, path: str | Path) -> "Store":
        """Opens a store; refuses one that is incomplete, truncated or of another version, by the file's name."""
        path = Path(path)
        header = read_header(path)
        return cls(path, header, open_columns(path, header))

    @property
    def users(self) -> int:
        """How many users there are. A number read off private data: what an accountant needs is a public estimate."""
        return len(self.user_ids)

    @property
    def digest(self) -> str:
        """Equal for stores of the same content; covers every byte of every file."""
        return self.header["digest"]

    def index(self, user_id: str) -> int:
        """The number of the user with this id; refuses one who is not there."""
        return self.user_ids.find(user_id)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the text was encoded with."""
        path, said = self.path / TOKENIZER, self.header["tokenizer"]
        if not path.is_file():
            raise Refused(f"{path} is missing; restore the store from a copy, or import it anew.")
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != said["sha256"]:
            raise Refused(
                f"{path} is damaged, or not the tokenizer that this store was made with; restore it from a copy, "
                "or import the data anew with the other tokenizer."
            )
        return parse_tokenizer(content, str(path), self.header["vocabulary"])

    def check_tokenizer(self, tokenizer: Tokenizer, name: str = "The tokenizer") -> None:
        """Refuses a tokenizer other than the one that the text was encoded with."""
        said = self.header["tokenizer"]
        if tokenizer.digest != said["digest"]:
            raise Refused(
                f"{name} ({tokenizer.kind}, {tokenizer.size:,} ids, digest {tokenizer.digest[:12]}) does not match "
                f"the store {self.path} ({said['kind']}, {said['size']:,} ids, digest {said['digest'][:12]}); "
                "import the data anew with it, or use the store's own."
            )

    def examples(
        self, user: int, *, max_examples: int | None = None, max_tokens: int | None = None
    ) -> list[np.ndarray]:
        """One user's examples, as views without copies: the first `max_examples`, and `max_tokens` tokens of those."""
        _, starts, lengths = self.locate(np.array([self._check_user(user)]))
        starts, lengths = starts[:max_examples], lengths[:max_examples]
        if max_tokens is not None:
            before = np.cumsum(lengths) - lengths
            lengths = np.minimum(lengths, max_tokens - before)
            starts, lengths = starts[lengths > 0], lengths[lengths > 0]
        tokens = self._columns["tokens"].slice
        return [tokens(start, start + length) for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)]

    def locate(self, users: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All examples of some users: for each its owner's place in `users`, its first token, and its length."""
        rows = self._rows(users)
        first, count = self._example_ranges(rows)
        owners = np.repeat(np.arange(len(rows)), count)
        positions = spread(np.zeros_like(count), count)
        examples = first[owners] + positions
        if self._part is not None:
            keep = self._part.keeps(self._columns["id_hashes"].take(rows)[owners], positions)
            owners, examples = owners[keep], examples[keep]
        starts = self._columns["example_offsets"].take(examples)
        return owners, starts, self._columns["example_offsets"].take(examples + 1) - starts

    def user_keys(self, users: np.ndarray) -> np.ndarray:
        """A fixed 64-bit number of each user, for shuffles that depend on nothing but the user and a seed."""
        return self._columns["id_hashes"].take(self._rows(users))

    def read_tokens(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The tokens of many ranges, end to end."""
        column = self._columns["tokens"]
        column.check(starts, lengths)
        return column.data[spread(starts, lengths)]

    @property
    def examples_per_user(self) -> np.ndarray:
        """How many examples each user has."""
        return self._per_user()[0]

    @property
    def tokens_per_user(self) -> np.ndarray:
        """How many tokens each user has, frames included."""
        return self._per_user()[1]

    def _per_user(self) -> tuple[np.ndarray, np.ndarray]:
        examples, tokens = np.zeros(self.users, np.int64), np.zeros(self.users, np.int64)
        for start in range(0, self.users, _CHUNK_USERS):
            users = np.arange(start, min(start + _CHUNK_USERS, self.users))
            if self._part is None or not self._part.divides_examples:
                first, count = self._example_ranges(self._rows(users))
                offsets = self._columns["example_offsets"]
                examples[users] = count
                tokens[users] = offsets.take(first + count) - offsets.take(first)
            else:
                owners, _, lengths = self.locate(users)
                examples[users] = np.bincount(owners, minlength=len(users))
                tokens[users] = np.bincount(owners, lengths, len(users)).astype(np.int64)
        return examples, tokens

    def split(self, held_out_users: float = 0.0, held_out_examples: float = 0.0, seed: int = 0) -> "Split":
        """Divides the store: users held out whole, and some examples of the others held out.

        About these fractions are held out, decided by a hash of (seed, user id, position): the same whenever it is
        done, and forgetting a user moves nobody else. A user's first example is never held out from training, so a user
        with one example only trains. Each part's header records the split.
        """
        if self._part is not None:
            raise Refused("A part of a split cannot be split again; split the whole store once.")
        for name, value in (("held_out_users", held_out_users), ("held_out_examples", held_out_examples)):
            if not 0 <= value < 1:
                raise Refused(f"{name} is a fraction of at least 0 and less than 1, got {value}.")
        column = self._columns["id_hashes"]
        column.check_all()
        held = below(mix(column.data ^ salt("held-out users", seed)), held_out_users)
        if held_out_users and (held.all() or not held.any()):
            raise Refused(
                f"Holding out {held_out_users:g} of {self.users:,} users leaves one side of the split empty; "
                "choose another fraction or seed."
            )
        record = {"held_out_users": held_out_users, "held_out_examples": held_out_examples, "seed": seed}
        train = np.flatnonzero(~held)

        def part(name: str, rows: np.ndarray, fraction: float, keep_held: bool) -> Store:
            chosen = _Part(rows, {**record, "part": name}, salt("held-out examples", seed), fraction, keep_held)
            return Store(self.path, self.header, self._columns, chosen)

        return Split(
            train=part("train", train, held_out_examples, False),
            held_out_users=part("held-out users", np.flatnonzero(held), 0.0, False),
            held_out_examples=part("held-out examples", train, held_out_examples, True),
        )

    def verify(self) -> None:
        """Reads everything and refuses the store if anything in it is damaged."""
        for column in self._columns.values():
            column.check_all()
        self.tokenizer()

    def _rows(self, users: np.ndarray) -> np.ndarray:
        users = np.asarray(users, np.int64)
        if len(users) and not (users.min() >= 0 and users.max() < self.users):
            raise IndexError(f"Users are numbered 0 to {self.users - 1}.")
        return users if self._part is None else self._part.rows[users]

    def _check_user(self, user: int) -> int:
        if not 0 <= user < self.users:
            raise IndexError(f"Users are numbered 0 to {self.users - 1}, got {user}.")
        return user

    def _example_ranges(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        first = self._columns["user_offsets"].take(rows)
        return first, self._columns["user_offsets"].take(rows + 1) - first


@dataclass(frozen=True)
class Split:
    """The parts of a store. `held_out_examples` has the users of `train`, under the same numbers."""

    train: Store
    held_out_users: Store
    held_out_examples: Store


@dataclass(frozen=True, eq=False)
class _Part:
    rows: np.ndarray
    record: dict[str, Any]
    salt: np.uint64
    fraction: float
    keep_held: bool

    @property
    def divides_examples(self) -> bool:
        return self.fraction > 0 or self.keep_held

    def keeps(self, keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
        held = below(mix(mix(keys ^ self.salt) + positions.astype(np.uint64)), self.fraction) & (positions > 0)
        return held == self.keep_held


def below(numbers: np.ndarray, fraction: float) -> np.ndarray:
    """Whether each 64-bit number, as a fraction of 2^64, is below this one."""
    return (numbers >> np.uint64(11)).astype(np.float64) * 2.0**-53 < fraction


class UserIds(Sequence[str]):
    """The ids of a store's users, read one at a time as they are asked for."""

    def __init__(self, columns: dict[str, Column], rows: np.ndarray | None = None) -> None:
        self._columns = columns
        self._rows = rows

    def __len__(self) -> int:
        return len(self._columns["id_hashes"]) if self._rows is None else len(self._rows)

    @overload
    def __getitem__(self, user: int) -> str: ...

    @overload
    def __getitem__(self, user: slice) -> list[str]: ...

    def __getitem__(self, user: int | slice) -> str | list[str]:
        if isinstance(user, slice):
            return [self[place] for place in range(*user.indices(len(self)))]
        if not -len(self) <= user < len(self):
            raise IndexError(f"Users are numbered 0 to {len(self) - 1}, got {user}.")
        user %= len(self)
        return self._read(user if self._rows is None else int(self._rows[user]))

    def __iter__(self) -> Iterator[str]:
        return (self[user] for user in range(len(self)))

    def __contains__(self, user_id: object) -> bool:
        return isinstance(user_id, str) and self._search(user_id) is not None

    def find(self, user_id: str) -> int:
        """The number of the user with this id, by the index of hashes; refuses one who is not there."""
        found = self._search(user_id)
        if found is None:
            raise Refused(f"There is no user {user_id!r} in this store (ids are compared exactly, case included).")
        return found

    def _search(self, user_id: str) -> int | None:
        wanted, order, hashes = hash_id(user_id), self._columns["id_order"], self._columns["id_hashes"]
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            row = int(order.slice(middle, middle + 1)[0])
            if int(hashes.slice(row, row + 1)[0]) < wanted:
                low = middle + 1
            else:
                high = middle
        if low == len(order):
            return None
        row = int(order.slice(low, low + 1)[0])
        if self._read(row) != user_id:
            return None
        if self._rows is None:
            return row
        place = int(np.searchsorted(self._rows, row))
        return place if place < len(self._rows) and self._rows[place] == row else None

    def _read(self, row: int) -> str:
        start, stop = self._columns["id_offsets"].slice(row, row + 2).tolist()
        return self._columns["id_bytes"].slice(start, stop).tobytes().decode("utf-8")
