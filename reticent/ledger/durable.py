"""Every durable operation of a run, in one place: so that each can be made to fail, and what then happens be tested."""

import os
from pathlib import Path
from typing import ClassVar


class Files:
    """Writes that survive a crash once they return.

    The primitives are the operating system's, one method each; a test replaces any of them. Nothing else in
    `reticent.ledger` writes, renames or deletes.
    """

    PRIMITIVES: ClassVar = (
        "create",
        "append",
        "write",
        "fsync",
        "rename",
        "unlink",
        "rmdir",
        "mkdir",
        "sync_directory",
    )

    def create(self, path: Path, mode: int) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)

    def append(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_APPEND)

    def write(self, handle: int, content: bytes | memoryview) -> None:
        rest = memoryview(content).cast("B")
        while rest:
            rest = rest[os.write(handle, rest) :]

    def fsync(self, handle: int) -> None:
        os.fsync(handle)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def rmdir(self, path: Path) -> None:
        os.rmdir(path)

    def mkdir(self, path: Path, mode: int) -> None:
        os.mkdir(path, mode)

    def sync_directory(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def write_file(
        self, path: Path, *parts: bytes | memoryview, by_way_of: Path, mode: int = 0o644, replace: bool = False
    ) -> None:
        """Writes a file that is whole or absent (or, with `replace`, as it was); it grows in the folder `by_way_of`.

        After a failure nothing new stands at `path`, except where only the folder's own fsync failed.
        """
        if path.exists() and not replace:
            raise FileExistsError(f"{path} is there already")
        unfinished = by_way_of / path.name
        try:
            handle = self.create(unfinished, mode)
            try:
                for part in parts:
                    self.write(handle, part)
                self.fsync(handle)
            finally:
                os.close(handle)
            self.rename(unfinished, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        self.sync_directory(path.parent)

    def append_to_file(self, path: Path, content: bytes) -> None:
        """Adds to the end of a file; a crash can leave a beginning of `content` there."""
        handle = self.append(path)
        try:
            self.write(handle, content)
            self.fsync(handle)
        finally:
            os.close(handle)

    def make_directory(self, path: Path, mode: int = 0o755) -> None:
        """Makes a directory where there is none, and its name durable either way."""
        if not path.is_dir():
            self.mkdir(path, mode)
        self.sync_directory(path.parent)

    def sync_tree(self, path: Path) -> None:
        """Makes durable what somebody else wrote: every file and directory under `path`."""
        for folder, _, names in os.walk(path, topdown=False):
            for name in names:
                handle = os.open(Path(folder, name), os.O_RDONLY)
                try:
                    self.fsync(handle)
                finally:
                    os.close(handle)
            self.sync_directory(Path(folder))

    def empty_directory(self, path: Path) -> None:
        """Deletes everything in a directory."""
        for folder, folders, names in os.walk(path, topdown=False):
            for name in names:
                self.unlink(Path(folder, name))
            for name in folders:
                inner = Path(folder, name)
                self.unlink(inner) if inner.is_symlink() else self.rmdir(inner)
        self.sync_directory(path)

    def remove_tree(self, path: Path, by_way_of: Path) -> None:
        """Deletes a directory so that a crash leaves it whole or gone from its place."""
        self.rename(path, by_way_of / path.name)
        self.sync_directory(path.parent)
        self.empty_directory(by_way_of)
