"""`metrics.jsonl`: what may be shown of a run's course, one JSON object to a line.

Not part of the ledger: lines are not chained, and a crash may lose the last. They never run ahead of what was released.
"""

import json
from pathlib import Path
from typing import Any

from reticent.ledger.durable import Files
from reticent.ledger.lines import SCHEMA

Record = dict[str, Any]


class Metrics:
    """The metrics of a run: `rounds` of a record is the number of rounds the model had taken."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self.files = files
        self.held: list[Record] = []

    def hold(self, rounds: int, values: Record) -> None:
        """Takes a record to be written when its rounds have been released."""
        self.held.append({"schema": SCHEMA, "rounds": rounds, **values})

    def write(self, released: int) -> None:
        """Writes the held records of rounds that have been released."""
        due = [record for record in self.held if record["rounds"] <= released]
        if due:
            if not self.path.exists():
                self.path.touch()
            self.files.append_to_file(self.path, b"".join(json.dumps(record).encode() + b"\n" for record in due))
            self.held = [record for record in self.held if record["rounds"] > released]

    def recover(self, unfinished: Path) -> None:
        """Drops the beginning of a record that a crash left at the end of the file."""
        content = self.path.read_bytes() if self.path.is_file() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            self.files.write_file(self.path, whole, by_way_of=unfinished, replace=True)

    def read(self) -> list[Record]:
        """The records in the file, in order."""
        if not self.path.is_file():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines()]
