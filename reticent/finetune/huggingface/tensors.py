"""Arrays in safetensors files, read and written piece by piece, so that a checkpoint is in memory once."""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from reticent.errors import Refused

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
_TYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F64": np.float64}
_PIECE = 1 << 20


@dataclass(frozen=True)
class Stored:
    """An array of a file, not read yet."""

    path: Path
    name: str
    dtype: Any
    shape: tuple[int, ...]
    start: int

    def rows(self) -> Iterator[tuple[int, np.ndarray]]:
        """Its rows (an array of one axis is one row) some at a time, each piece with the number of its first."""
        height, width = (
            (1, math.prod(self.shape)) if len(self.shape) < 2 else (self.shape[0], math.prod(self.shape[1:]))
        )
        at_once = max(1, _PIECE // max(width, 1))
        with open(self.path, "rb") as file:
            file.seek(self.start)
            for first in range(0, height, at_once):
                count = min(at_once, height - first) * width
                yield first, np.fromfile(file, self.dtype, count).reshape(-1, width)


def open_tensors(directory: Path) -> dict[str, Stored]:
    """All arrays of a checkpoint by name. Refuses a missing or truncated shard by its name, and other formats."""
    index = directory / INDEX
    if index.is_file():
        try:
            listed = json.loads(index.read_bytes())["weight_map"]
            names = sorted(set(listed.values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused(f"{index} is damaged ({error!r}); restore it.") from None
        missing = [name for name in names if not (directory / name).is_file()]
        if missing:
            raise Refused(
                f"{directory} lacks {', '.join(missing)} of its {len(names)} shards; fetch the checkpoint again."
            )
        found = {name: stored for shard in names for name, stored in read_header(directory / shard).items()}
        lost = sorted(name for name, shard in listed.items() if name not in found or found[name].path.name != shard)
        if lost:
            raise Refused(f"{directory / listed[lost[0]]} lacks {lost[0]}, which {INDEX} says it has; fetch it again.")
        return found
    if (directory / SINGLE).is_file():
        return read_header(directory / SINGLE)
    other = sorted(path.name for path in directory.glob("*.bin"))
    if other:
        raise Refused(
            f"{directory} has its weights as {other[0]}, a format that runs code when it is read; save it as safetensors "
            "with transformers (save_pretrained)."
        )
    raise Refused(f"{directory} has no {SINGLE}; give the directory of a whole Hugging Face checkpoint.")


def read_header(path: Path) -> dict[str, Stored]:
    """The arrays of one file, of exactly the size that its header promises."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        content = file.read(length) if 2 <= length <= size - 8 else b""
    found, end = {}, 0
    try:
        header = json.loads(content)
        for name, said in header.items():
            if name == "__metadata__":
                continue
            start, stop = said["data_offsets"]
            dtype, shape = _TYPES.get(said["dtype"]), tuple(map(int, said["shape"]))
            if dtype is not None and stop - start != math.prod(shape) * np.dtype(dtype).itemsize:
                raise ValueError(name)
            found[name] = Stored(path, name, dtype or said["dtype"], shape, 8 + length + start)
            end = max(end, stop)
    except (ValueError, AttributeError, KeyError, TypeError):
        raise Refused(f"{path} is no safetensors file, or a damaged one; fetch it again.") from None
    whole = [stored for stored in found.values() if isinstance(stored.dtype, str)]
    if whole:
        raise Refused(
            f"{path} has {whole[0].name} as {whole[0].dtype}, not as floating point; give the checkpoint before it was "
            "quantised."
        )
    if 8 + length + end != size:
        raise Refused(f"{path} has {size:,} bytes instead of {8 + length + end:,}; fetch it again.")
    return found


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An empty array that a CPU device can use where it is, without a copy."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def write_tensors(directory: Path, arrays: Iterator[tuple[str, np.ndarray]], sizes: dict[str, int], most: int) -> None:
    """Writes arrays (float32, in the order of `sizes`, their bytes by name) into shards of at most about `most` bytes."""
    from safetensors.numpy import save_file

    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > most:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        held = dict(next(arrays) for _ in names)
        assert list(held) == names
        save_file(held, directory / file, {"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    if len(shards) > 1:
        said = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        (directory / INDEX).write_text(json.dumps(said, indent=1) + "\n")


def digest_of(paths: list[Path]) -> str:
    """One digest of the contents of files."""
    whole = hashlib.sha256()
    for path in sorted(paths):
        with open(path, "rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()
