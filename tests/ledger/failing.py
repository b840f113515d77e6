"""File operations that fail on purpose: before they happen, after, halfway, or with the power."""

import errno
import os
from pathlib import Path

from reticent.ledger import Files


class Crash(BaseException):
    """The process is gone: nothing after it runs, but for the release of the locks."""


class FailingFiles(Files):
    """Counts every operation, and fails at one of them.

    `how`: "before" (an error, nothing done), "after" (done, and then the process dies), "halfway" (a write that stops
    in the middle, then the process dies), "full" (half of a write, then ENOSPC, as a full disk gives).
    """

    def __init__(self, at: int | None = None, how: str = "before") -> None:
        self.at = at
        self.how = how
        self.done: list[str] = []

    def _operate(self, name: str, arguments: tuple):
        number = len(self.done)
        self.done.append(name)
        action = ACTIONS[name]
        if number != self.at:
            return action(self, *arguments)
        if self.how == "before":
            raise OSError(errno.EIO, f"injected at {number}, {name}")
        if name == "write" and self.how in ("halfway", "full"):
            content = memoryview(arguments[1]).cast("B")
            action(self, arguments[0], content[: len(content) // 2])
        elif self.how != "full":
            result = action(self, *arguments)
            if name in ("create", "append"):
                os.close(result)
        if self.how == "full":
            raise OSError(errno.ENOSPC, f"No space left on device (injected at {number}, {name})")
        raise Crash(f"at {number}, after {name}")


# The kernel does not crash in these tests, and a disk is slow: what PowerCut loses is what was not asked to be synced.
ACTIONS = {name: getattr(Files, name) for name in Files.PRIMITIVES} | {
    "fsync": lambda self, handle: None,
    "sync_directory": lambda self, path: None,
}


def _overridden(name: str):
    def operate(self, *arguments):
        return self._operate(name, arguments)

    return operate


for _name in Files.PRIMITIVES:
    setattr(FailingFiles, _name, _overridden(_name))


class PowerCut(FailingFiles):
    """Cuts the power after an operation: what was not fsynced is lost.

    The content of files without fsync falls back to half of it; new names, renames and deletions in directories that
    were not fsynced are undone, newest first (`keep_names=True`: they stay, which a file system may do as well).
    """

    def __init__(self, at: int | None = None, keep_names: bool = False) -> None:
        super().__init__(at, "after")
        self.keep_names = keep_names
        self.unsynced: dict[Path, int] = {}  # the size that is durable
        self.synced: set[Path] = set()
        self.undo: list[tuple[Path, object]] = []

    def _operate(self, name: str, arguments: tuple):
        try:
            result = self._tracked(name, arguments)
        except Crash:
            self.lose()
            raise
        return result

    def _tracked(self, name: str, arguments: tuple):
        if name == "rename":
            source, target = arguments
            before = target.read_bytes() if target.is_file() else None
            self.undo.append((target.parent, lambda: _undo_rename(source, target, before)))
            files = [file for file in source.rglob("*") if file.is_file()] if source.is_dir() else [source]
            for file in files:  # what is not durable is no more so under another name
                if file not in self.synced:
                    durable = self.unsynced.pop(file, 0)
                    self.unsynced[target / file.relative_to(source)] = durable
        elif name == "unlink":
            path = arguments[0]
            content, mode = path.read_bytes(), path.stat().st_mode & 0o777
            self.undo.append((path.parent, lambda: (path.write_bytes(content), path.chmod(mode))))
        elif name == "create":
            path = arguments[0]
            self.undo.append((path.parent, lambda: path.unlink(missing_ok=True)))
        elif name == "mkdir":
            path = arguments[0]
            self.undo.append((path.parent, lambda: path.is_dir() and not any(path.iterdir()) and path.rmdir()))
        elif name == "rmdir":
            path = arguments[0]
            self.undo.append((path.parent, lambda: path.mkdir(0o700)))
        elif name == "sync_directory":
            self.undo = [(folder, action) for folder, action in self.undo if folder != arguments[0]]
        elif name == "write":
            path = Path(os.readlink(f"/proc/self/fd/{arguments[0]}"))
            self.unsynced.setdefault(path, os.fstat(arguments[0]).st_size)
            self.synced.discard(path)
        elif name == "fsync":
            path = Path(os.readlink(f"/proc/self/fd/{arguments[0]}"))
            self.unsynced.pop(path, None)
            self.synced.add(path)
        return super()._operate(name, arguments)

    def lose(self) -> None:
        for path, durable in self.unsynced.items():
            if path.exists():
                os.truncate(path, durable + (path.stat().st_size - durable) // 2)
        if not self.keep_names:
            for _, action in reversed(self.undo):
                action()  # type: ignore[operator]


def _undo_rename(source: Path, target: Path, before: bytes | None) -> None:
    if target.exists() and source.parent.is_dir() and not source.exists():
        target.rename(source)
    if before is not None:
        target.write_bytes(before)
