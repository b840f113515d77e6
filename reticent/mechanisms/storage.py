"""Mechanisms as files: JSON, or `.npz` (never pickled) where there is a matrix."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from reticent.errors import Refused
from reticent.files import write_atomically
from reticent.mechanisms.base import Mechanism

FORMAT = "reticent-mechanism"
VERSION = 1


def to_header(mechanism: Mechanism) -> dict[str, Any]:
    """The mechanism without its matrices, as plain JSON."""
    return {"format": FORMAT, "version": VERSION, "kind": mechanism.kind, "parameters": mechanism.parameters()}


def from_header(header: Any, arrays: dict[str, np.ndarray], name: str) -> Mechanism:
    """The mechanism that `to_header` described; `name` is what an error calls it."""
    from reticent.mechanisms.registry import mechanism_class

    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise Refused(f"{name} is not a mechanism file; make one with `reticent mechanism optimize KIND --out FILE`.")
    if header.get("version") != VERSION:
        raise Refused(
            f"{name} has format version {header.get('version')!r} and this program reads version {VERSION}; "
            "optimise the mechanism anew with this version."
        )
    try:
        return mechanism_class(str(header.get("kind"))).from_parameters(header["parameters"], arrays)
    except Refused as error:
        raise Refused(f"{name}: {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Refused(f"{name} is damaged ({error!r}); optimise the mechanism anew.") from error


def save(mechanism: Mechanism, path: Path) -> None:
    """Writes the mechanism to one file, atomically."""
    header, arrays = to_header(mechanism), mechanism.arrays()
    if not path.parent.is_dir():
        raise Refused(f"The folder {path.parent} does not exist; create it first.")
    if not arrays:
        write_atomically(path, (json.dumps(header, indent=2) + "\n").encode())
        return
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, header=np.array(json.dumps(header)), **arrays)  # type: ignore[arg-type]
    write_atomically(path, buffer.getvalue())


def load(path: str | Path) -> Mechanism:
    """The mechanism in a file; anything else is one clear error."""
    path = Path(path)
    if not path.is_file():
        raise Refused(
            f"There is no mechanism file {path}; make one with `reticent mechanism optimize KIND --out FILE`."
        )
    content = path.read_bytes()
    try:
        if zipfile.is_zipfile(io.BytesIO(content)):
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            header = json.loads(str(arrays.pop("header")))
        else:
            header, arrays = json.loads(content), {}
    except Exception as error:
        raise Refused(f"{path} is damaged or no mechanism file ({error}); optimise the mechanism anew.") from error
    return from_header(header, arrays, str(path))
