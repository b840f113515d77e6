"""One process at a time works on a run."""

import fcntl
import json
import os
import socket
import time
from pathlib import Path

from reticent.errors import Refused


class Lock:
    """An exclusive lock on a directory, held until `release` or the end of the process."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / ".lock"
        self.handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self.handle, 4096, 0)
            os.close(self.handle)
            raise Refused(
                f"{directory} is in use by {_described(holder)}; wait until it ends, or end it, before resuming."
            ) from None
        # Only for the message above: the lock is the kernel's, and a stale note locks nobody out.
        note = {"process": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S %z")}
        os.ftruncate(self.handle, 0)
        os.pwrite(self.handle, json.dumps(note).encode(), 0)

    def release(self) -> None:
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


def _described(note: bytes) -> str:
    try:
        holder = json.loads(note)
        return f"process {holder['process']} on {holder['host']} since {holder['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
