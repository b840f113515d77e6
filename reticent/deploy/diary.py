"""What a device remembers of its participations: a small SQLite file that survives restarts, and power cuts.

A participation is in it before the update that it stands for leaves the device, whether that is then used or not; checking
and writing are one transaction, so that two processes of a device cannot both take part.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reticent.deploy.terms import Terms
from reticent.errors import Refused

_TABLES = """
CREATE TABLE IF NOT EXISTS runs (
    run TEXT PRIMARY KEY, name TEXT NOT NULL, terms TEXT NOT NULL, accounting TEXT NOT NULL, arrays TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS participations (
    run TEXT NOT NULL, round INTEGER NOT NULL, attempt INTEGER NOT NULL, at REAL NOT NULL, PRIMARY KEY (run, round)
);
CREATE TABLE IF NOT EXISTS refusals (
    at REAL NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL, why TEXT NOT NULL
);
PRAGMA user_version = 1;
"""
KEPT_REFUSALS = 1000

Affordable = Callable[[list["Taken"]], None]
"""Refuses what a device would have spent with these runs."""


@dataclass(frozen=True)
class Taken:
    """A run that a device has taken part in, so many times; from `accounting` and `arrays` follows what that cost."""

    run: str
    name: str
    accounting: dict[str, Any]
    arrays: str
    times: int


class Diary:
    """The diary in a file. `clock` gives seconds since 1970."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.clock = clock

    def check(self, terms: Terms, run: str, round: int, affordable: Affordable) -> None:
        """Refuses a round that this device may not take part in now, whatever the server asks, with the reason."""
        with self._open() as database:
            self._check(database, terms, run, round, affordable)

    def take_part(self, terms: Terms, run: str, round: int, attempt: int, affordable: Affordable) -> None:
        """Checks as `check` does, and writes down that this device takes part; durable when it returns."""
        with self._open() as database:
            self._check(database, terms, run, round, affordable)
            arrays = json.dumps(terms.content["arrays"])
            database.execute(
                "INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?)",
                (run, terms.name, terms.digest, json.dumps(terms.accounting), arrays),
            )
            database.execute("INSERT INTO participations VALUES (?, ?, ?, ?)", (run, round, attempt, self.clock()))

    def refused(self, run: str, round: int, why: str) -> None:
        """Writes down why a round was refused, for whoever holds the device; nobody else is told."""
        with self._open() as database:
            database.execute("INSERT INTO refusals VALUES (?, ?, ?, ?)", (self.clock(), run, round, why))
            database.execute(
                "DELETE FROM refusals WHERE rowid <= (SELECT MAX(rowid) FROM refusals) - ?", (KEPT_REFUSALS,)
            )

    def rounds(self, run: str) -> list[int]:
        """The rounds of a run that this device has taken part in."""
        with self._open() as database:
            found = database.execute("SELECT round FROM participations WHERE run = ? ORDER BY round", (run,))
            return [round for (round,) in found]

    def runs(self) -> list[Taken]:
        """All that this device has taken part in."""
        with self._open() as database:
            return _taken(database)

    def refusals(self) -> list[str]:
        """Why rounds were refused, the oldest first."""
        with self._open() as database:
            return [why for (why,) in database.execute("SELECT why FROM refusals ORDER BY rowid")]

    def _check(self, database: sqlite3.Connection, terms: Terms, run: str, round: int, affordable: Affordable) -> None:
        if not 0 <= round < terms.rounds:
            raise Refused(f"The run {terms.name!r} has {terms.rounds} rounds; there is no round {round}.")
        known = database.execute("SELECT terms FROM runs WHERE run = ?", (run,)).fetchone()
        if known and known[0] != terms.digest:
            raise Refused(f"The run {run} was begun under other terms than {terms.digest[:12]}.")
        counted = "SELECT COUNT(*), MAX(round) FROM participations WHERE run = ?"
        times, last = database.execute(counted, (run,)).fetchone()
        # Whatever the server calls a run: the hours are those since the last under the same terms.
        latest = "SELECT MAX(at) FROM participations JOIN runs USING (run) WHERE terms = ?"
        (at,) = database.execute(latest, (terms.digest,)).fetchone()
        if times and round - last < terms.min_separation:
            raise Refused(
                f"This device took part in round {last}, and rests until round {last + terms.min_separation}; "
                f"it was asked for round {round}."
            )
        if times >= terms.max_participations:
            raise Refused(f"This device has taken part {times} times, as often as the run {terms.name!r} may ask it.")
        # A clock that was set back makes the device rest for longer, never shorter.
        if at is not None and terms.rest_hours and self.clock() - at < 3600 * terms.rest_hours:
            raise Refused(f"This device rests for {terms.rest_hours:g} hours after each round, and they are not over.")
        others = [one for one in _taken(database) if one.run != run]
        arrays = json.dumps(terms.content["arrays"])
        affordable([*others, Taken(run, terms.name, terms.accounting, arrays, times + 1)])

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        fresh = not self.path.exists()
        database = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        try:
            if fresh:
                self.path.chmod(0o600)
            # EXTRA also syncs the folder when the journal goes: a commit is on the disk when it returns.
            database.execute("PRAGMA synchronous = EXTRA")
            if database.execute("PRAGMA user_version").fetchone()[0] == 0:
                database.executescript(f"BEGIN IMMEDIATE;{_TABLES}COMMIT;")
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
            except BaseException:
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise Refused(
                f"The diary {self.path} cannot be used ({error}): without it this device cannot know when it took part "
                "last, and takes part in nothing."
            ) from None
        finally:
            database.close()


def _taken(database: sqlite3.Connection) -> list[Taken]:
    found = database.execute(
        "SELECT runs.run, name, accounting, arrays, COUNT(*) FROM runs JOIN participations USING (run) GROUP BY runs.run"
    )
    return [Taken(run, name, json.loads(told), arrays, times) for run, name, told, arrays, times in found]
