"""The files of a store: flat memory-mapped arrays, each page of which is checked when it is first used."""

import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from reticent.data.mixing import spread
from reticent.errors import Refused

FORMAT = "reticent-store"
VERSION = 1
PAGE = 4096
HEADER = "header.json"
TOKENIZER = "tokenizer.json"

# The columns of a store and their types; `tokens` is as wide as the vocabulary needs.
COLUMNS: dict[str, str] = {
    "tokens": "",
    "example_offsets": "<i8",
    "user_offsets": "<i8",
    "id_bytes": "|u1",
    "id_offsets": "<i8",
    "id_hashes": "<u8",
    "id_order": "<u4",
}


def token_type(vocabulary: int) -> str:
    """The narrowest type that holds the ids of a vocabulary."""
    return "<u2" if vocabulary <= 2**16 else "<u4"


class Column:
    """One flat array on disk, read only. Every 4 KiB page has a CRC-32, compared before the page is first used."""

    def __init__(self, path: Path, dtype: str, checksums: np.ndarray) -> None:
        self.path = path
        self.data = np.asarray(np.memmap(path, dtype, "r")) if path.stat().st_size else np.empty(0, dtype)
        self._bytes = memoryview(self.data).cast("B") if len(self.data) else memoryview(b"")
        self._checksums = checksums
        self._checked = np.zeros(len(checksums), bool)

    def __len__(self) -> int:
        return len(self.data)

    def slice(self, start: int, stop: int) -> np.ndarray:
        """A checked view of [start, stop)."""
        if stop > start:
            width = self.data.itemsize
            self._check_range(start * width // PAGE, (stop * width - 1) // PAGE + 1)
        return self.data[start:stop]

    def take(self, indices: np.ndarray) -> np.ndarray:
        """A checked copy of the entries at these places."""
        width = self.data.itemsize
        self._check_pages(indices * width // PAGE)
        return self.data[indices]

    def check(self, starts: np.ndarray, counts: np.ndarray) -> None:
        """Checks many ranges at once, so that `data` can be read there."""
        width = self.data.itemsize
        starts, counts = starts[counts > 0], counts[counts > 0]
        first = starts * width // PAGE
        self._check_pages(spread(first, ((starts + counts) * width - 1) // PAGE - first + 1))

    def check_all(self) -> None:
        """Checks every page."""
        self._check_range(0, len(self._checked))

    def _check_range(self, first: int, last: int) -> None:
        checked = self._checked[first:last]
        if not checked.all():
            self._compare((np.flatnonzero(~checked) + first).tolist())

    def _check_pages(self, pages: np.ndarray) -> None:
        new = pages[~self._checked[pages]]
        if len(new):
            self._compare(np.unique(new).tolist())

    def _compare(self, pages: list[int]) -> None:
        content, sums = self._bytes, self._checksums
        for page in pages:
            if zlib.crc32(content[page * PAGE : (page + 1) * PAGE]) != sums[page]:
                raise Refused(
                    f"{self.path} is damaged (page {page} does not match its checksum); "
                    "restore the store from a copy, or import it anew."
                )
        self._checked[pages] = True


def page_checksums(path: Path) -> np.ndarray:
    """The CRC-32 of every page of a file."""
    sums: list[int] = []
    with open(path, "rb") as file:
        while block := file.read(256 * PAGE):
            view = memoryview(block)
            sums.extend(zlib.crc32(view[start : start + PAGE]) for start in range(0, len(block), PAGE))
    return np.array(sums, "<u4")


def seal(header: dict[str, Any]) -> dict[str, Any]:
    """The header with its own digest, which is the digest of the store: it covers every file through its checksums."""
    header = {key: value for key, value in header.items() if key != "digest"}
    content = json.dumps(header, sort_keys=True, ensure_ascii=True)
    return {**header, "digest": hashlib.sha256(content.encode()).hexdigest()}


def describe_files(directory: Path, names: dict[str, str], checksums_name: str) -> dict[str, dict[str, Any]]:
    """Writes the checksums of these files and returns what the header says of them all."""
    files: dict[str, dict[str, Any]] = {}
    with open(directory / checksums_name, "wb") as out:
        for column in COLUMNS:
            path = directory / names[column]
            sums = page_checksums(path)
            out.write(sums.tobytes())
            files[column] = {"name": names[column], "bytes": path.stat().st_size}
    path = directory / checksums_name
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    files["checksums"] = {"name": checksums_name, "bytes": path.stat().st_size, "sha256": digest}
    return files


def read_header(directory: Path) -> dict[str, Any]:
    """The header of a store, whole and of this version; a folder that is no store is refused."""
    path = directory / HEADER
    if not path.is_file():
        if (directory.parent / f".{directory.name}.partial").is_dir():
            raise Refused(f"{directory} was not finished being written; run the same import again to complete it.")
        raise Refused(f"There is no store {directory}; make one with `reticent data import SOURCE --out {directory}`.")
    try:
        header = json.loads(path.read_bytes())
        sound = isinstance(header, dict) and header.get("format") == FORMAT
    except ValueError:
        raise Refused(f"{path} is damaged; restore the store from a copy, or import it anew.") from None
    if not sound:
        raise Refused(f"{path} is not the header of a store.")
    if header.get("version") != VERSION:
        raise Refused(
            f"{path} has format version {header.get('version')!r} and this program reads version {VERSION}; "
            "import the data anew with this version."
        )
    if seal(header) != header:
        raise Refused(f"{path} is damaged (it does not match its digest); restore the store from a copy.")
    return header


def open_columns(directory: Path, header: dict[str, Any]) -> dict[str, Column]:
    """The columns of a store, each of the size that the header promises."""
    files = header["files"]
    for entry in files.values():
        path = directory / entry["name"]
        size = path.stat().st_size if path.is_file() else None
        if size != entry["bytes"]:
            found = "is missing" if size is None else f"has {size:,} bytes instead of {entry['bytes']:,}"
            raise Refused(f"{path} {found}; restore the store from a copy, or import it anew.")
    path = directory / files["checksums"]["name"]
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != files["checksums"]["sha256"]:
        raise Refused(f"{path} is damaged; restore the store from a copy, or import it anew.")
    sums, start, columns = np.frombuffer(content, "<u4"), 0, {}
    for column, dtype in COLUMNS.items():
        pages = -(-files[column]["bytes"] // PAGE)
        columns[column] = Column(
            directory / files[column]["name"], dtype or header["token_type"], sums[start : start + pages]
        )
        start += pages
    return columns
