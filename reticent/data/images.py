"""Images as a store: every image a user by itself, its values and then its label one row of ids.

An id is 4 more than the value (0 to 255) or the label that it stands for, as the first four are taken. So samplers,
ledger and evaluation serve images as they serve text, with data.sequence_length the number of values: 64 for the
digits, 3,072 for CIFAR-10.
"""

import gzip
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reticent.data.tokenizers import UNKNOWN, WordTokenizer
from reticent.data.writer import StoreWriter
from reticent.errors import Refused

FIRST = UNKNOWN + 1
DIGITS_FILE = Path("datasets", "data", "digits.csv.gz")
CIFAR_PARTS = {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]}
CIFAR_VALUES = 3072
_AT_ONCE = 4096


def make_digits(out: str | Path, *, source: str | Path | None = None) -> dict[str, Any]:
    """Writes the 1,797 handwritten digits of 8 by 8 values (0 to 16) that come with scikit-learn; `source` is their file,
    digits.csv.gz, where it is not installed."""
    if source is None:
        found = importlib.util.find_spec("sklearn")
        if found is None or not found.submodule_search_locations:
            raise Refused("The digits come with scikit-learn, which is not installed: pip install scikit-learn.")
        source = Path(found.submodule_search_locations[0]) / DIGITS_FILE
    try:
        with gzip.open(source, "rt") as file:
            rows = np.loadtxt(file, delimiter=",", dtype=np.int64, ndmin=2)
    except (OSError, ValueError) as error:
        raise Refused(f"{source} is not scikit-learn's digits.csv.gz ({error}); reinstall scikit-learn.") from None
    if rows.shape[1] != 65 or rows.min() < 0 or rows[:, :-1].max() > 16 or rows[:, -1].max() > 9:
        raise Refused(f"{source} holds no digits of 64 values and a label; reinstall scikit-learn.")
    return _write(out, iter([rows]), {"source": "digits", "from": "scikit-learn"})


def make_cifar10(out: str | Path, directory: str | Path, *, part: str = "train") -> dict[str, Any]:
    """Writes CIFAR-10, of a folder with its binary version (data_batch_1.bin to 5 and test_batch.bin); `part` is train or
    test."""
    if part not in CIFAR_PARTS:
        raise Refused(f"CIFAR-10 has the parts {', '.join(CIFAR_PARTS)}, not {part!r}.")
    directory = Path(directory)
    if not any((directory / name).is_file() for names in CIFAR_PARTS.values() for name in names):
        directory = directory / "cifar-10-batches-bin"
    missing = [name for name in CIFAR_PARTS[part] if not (directory / name).is_file()]
    if missing:
        raise Refused(
            f"{directory} has no {missing[0]}; give the folder of CIFAR-10's binary version (cifar-10-binary.tar.gz)."
        )

    def batches() -> Iterator[np.ndarray]:
        for name in CIFAR_PARTS[part]:
            content = np.fromfile(directory / name, np.uint8)
            if len(content) % (CIFAR_VALUES + 1):
                raise Refused(f"{directory / name} is cut short; unpack cifar-10-binary.tar.gz anew.")
            rows = content.reshape(-1, CIFAR_VALUES + 1).astype(np.int64)
            if rows[:, 0].max(initial=0) > 9:
                raise Refused(f"{directory / name} holds no CIFAR-10: a label above 9.")
            yield np.concatenate([rows[:, 1:], rows[:, :1]], axis=1)

    return _write(out, batches(), {"source": "cifar-10", "part": part})


def _write(out: str | Path, parts: Iterator[np.ndarray], about: dict[str, Any]) -> dict[str, Any]:
    tokenizer = WordTokenizer([str(value) for value in range(256)], origin={"source": "given", "meaning": "values"})
    length = 0
    with StoreWriter(out, tokenizer, about={**about, "images": True, "generated": False}) as writer:
        for rows in parts:
            for first in range(0, len(rows), _AT_ONCE):
                some = rows[first : first + _AT_ONCE]
                length = some.shape[1]
                names = [f"image-{writer.users + number:06d}" for number in range(len(some))]
                ids = (some + FIRST).astype(np.int32).ravel()
                writer.add_users(names, np.ones(len(some), np.int64), np.full(len(some), length), ids)
    return {"store": str(out), "images": writer.users, "values": length - 1, "sequence_length": length - 1}
