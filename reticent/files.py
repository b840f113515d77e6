"""Files that are either whole or absent, whatever happens while they are written."""

import os
import tempfile
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Makes the names in a directory durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Writes a file durably: a reader, now or after a crash, sees all of `content` or the file as it was before."""
    path = Path(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
