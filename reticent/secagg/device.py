"""A client whose every step may run in a new process: its state is a file, 0600, that is erased when the round ends.

The new state is durable before the message that it answers with is handed out. So a step that was interrupted is either
done anew from the old state, whose message nobody has seen, or is over; a second vector is never masked with the same
masks, and no share is given twice. What remains of a run is one number: the last round of which an input was made.
"""

import base64
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

import numpy as np

from reticent.errors import Refused
from reticent.files import sync_directory, write_atomically
from reticent.secagg import client
from reticent.secagg.client import ClientState, Held
from reticent.secagg.keys import Member
from reticent.secagg.roster import Advert, Roster
from reticent.secagg.round import Round
from reticent.secagg.wire import Kind

_SCHEMA = 1


@dataclass(frozen=True)
class Device:
    """One client's rounds of one run, in a directory of its own (0700)."""

    directory: Path
    member: Member

    def join(self, round: Round) -> bytes:
        """The advert for an attempt. An earlier attempt is given up and its secrets erased; a round of which this
        client has made an input is refused."""
        with self._alone():
            state, message = client.join(self.member, round, self.last_input(round.run))
            self._erase()
            self._write(state)
            return message

    def step(self, message: bytes, words: np.ndarray | None = None) -> bytes:
        """The answer to the server's next message; see `client.step`."""
        with self._alone():
            if not self._path.exists():
                raise Refused("There is no round under way here; join one first.")
            state, answer = client.step(self.member, state_from_bytes(self._path.read_bytes()), message, words)
            if state.committed and self.last_input(state.round.run) < state.round.number:
                inputs = {**self._inputs(), state.round.run: state.round.number}
                write_atomically(self._journal, json.dumps(inputs).encode(), 0o600)
            if state.over:
                self._erase()
            else:
                self._write(state)
            return answer

    def leave(self) -> None:
        """Gives up the attempt under way, if any, and erases its secrets."""
        with self._alone():
            self._erase()

    def last_input(self, run: str) -> int:
        """The last round of the run of which this client has made an input, whatever became of it; -1 for none."""
        return self._inputs().get(run, -1)

    @property
    def _path(self) -> Path:
        return self.directory / "attempt.json"

    @property
    def _journal(self) -> Path:
        return self.directory / "inputs.json"

    def _inputs(self) -> dict[str, int]:
        return json.loads(self._journal.read_bytes()) if self._journal.exists() else {}

    def _write(self, state: ClientState) -> None:
        old = self._path.open("r+b") if self._path.exists() else None
        write_atomically(self._path, state_to_bytes(state), 0o600)
        if old:
            _overwrite(old)

    def _erase(self) -> None:
        # With it, what a process that was killed while it wrote has left behind.
        for path in (self._path, *self.directory.glob(f".{self._path.name}.*")):
            if path.exists():
                old = path.open("r+b")
                path.unlink()
                sync_directory(self.directory)
                _overwrite(old)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.directory / "lock").open("w") as lock:
            flock(lock, LOCK_EX)
            yield


def _overwrite(file: Any) -> None:
    """Zeros over a file whose name is gone: the best a file system lets a program do."""
    with file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        file.write(bytes(size))
        file.flush()
        os.fsync(file.fileno())


def state_to_bytes(state: ClientState) -> bytes:
    """The state as JSON, secrets and all: for a 0600 file, never for a log."""
    roster = state.roster
    content = {
        "schema": _SCHEMA,
        "round": _text(state.round.to_bytes()),
        "name": state.name,
        "awaits": state.awaits,
        "secret": _text(state.secret),
        "roster": roster
        and {
            "digest": _text(roster.digest),
            "adverts": [
                [one.name, _text(one.mask_key), _text(one.share_key), _text(one.seed_digest)] for one in roster.adverts
            ],
        },
        "partners": sorted(state.partners),
        "held": [[owner, _text(held.of_seed), _text(held.of_mask_key)] for owner, held in state.held.items()],
        "present": sorted(state.present),
        "survivors": sorted(state.survivors),
    }
    return json.dumps(content).encode()


def state_from_bytes(data: bytes) -> ClientState:
    """The inverse of `state_to_bytes`."""
    content = json.loads(data)
    if content["schema"] != _SCHEMA:
        raise Refused("This attempt was begun by another version of Reticent; leave it and join the next round.")
    roster = content["roster"] and Roster(
        tuple(Advert(name, *map(_bytes, keys)) for name, *keys in content["roster"]["adverts"]),
        _bytes(content["roster"]["digest"]),
    )
    return ClientState(
        round=Round.from_bytes(_bytes(content["round"])),
        name=content["name"],
        awaits=None if content["awaits"] is None else Kind(content["awaits"]),
        secret=_bytes(content["secret"]),
        roster=roster,
        partners=frozenset(content["partners"]),
        held={owner: Held(_bytes(of_seed), _bytes(of_key)) for owner, of_seed, of_key in content["held"]},
        present=frozenset(content["present"]),
        survivors=frozenset(content["survivors"]),
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
