"""The ledger's lines: canonical JSON, each with its own hash and the hash of the line before it.

Kinds of lines, in the order in which a run writes them:

- `run`, the first: the run's id, where row keys come from, the digest of the run file, and the description from which
  the guarantee is computed;
- `release`: one row of noise was spent on one sum, which left the process; with the digest of what left;
- `burnt`: a row was spent and the model took nothing for it;
- `checkpoint`: a state of the model was stored, with its digest;
- `finish`, the last: what was enforced, and what happened.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reticent.errors import Refused

SCHEMA = 1
NOTHING_BEFORE = "0" * 64
KINDS = ("run", "release", "burnt", "checkpoint", "finish")

Line = dict[str, Any]


def canonical(value: Any) -> bytes:
    """The one way to write a value as JSON; refuses infinities and NaN, which JSON does not have."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def digest(content: bytes | memoryview) -> str:
    """The SHA-256 of these bytes, in hexadecimal: the one digest that ledgers use."""
    return hashlib.sha256(content).hexdigest()


def sealed(body: dict[str, Any]) -> Line:
    """The body with its schema version and its own hash."""
    line = {"schema": SCHEMA, **body}
    return {**line, "hash": digest(canonical(line))}


def unsealed(content: bytes) -> Line:
    """Reads what `sealed` made; raises ValueError, with what is wrong, for anything else."""
    line = json.loads(content)
    if not isinstance(line, dict):
        raise ValueError("not a JSON object")
    if line.get("schema") != SCHEMA:
        raise ValueError(f"schema version {line.get('schema')!r}, where this package reads version {SCHEMA}")
    body = {key: value for key, value in line.items() if key != "hash"}
    if line.get("hash") != digest(canonical(body)):
        raise ValueError("its hash is not that of its content")
    if canonical(line) != content:
        raise ValueError("not written in the canonical way")
    return line


@dataclass(frozen=True)
class Ledger:
    """The lines of a ledger, each intact and in the chain, and what a crash left of a line after them."""

    lines: tuple[Line, ...]
    torn: bytes = b""

    @property
    def head(self) -> str:
        """The hash of the last line."""
        return self.lines[-1]["hash"]

    @property
    def first(self) -> Line:
        return self.lines[0]

    @property
    def finished(self) -> Line | None:
        return self.lines[-1] if self.lines[-1]["kind"] == "finish" else None

    def of_kind(self, kind: str) -> list[Line]:
        return [line for line in self.lines if line["kind"] == kind]

    @property
    def rounds(self) -> int:
        """The number of rows spent: rounds 0 to this, not included, were released or burnt."""
        spent = [line["round"] for line in self.lines if line["kind"] in ("release", "burnt")]
        return max(spent) + 1 if spent else 0

    def with_line(self, body: dict[str, Any]) -> "Ledger":
        return Ledger((*self.lines, sealed({**body, "previous": self.head})))

    def content(self) -> bytes:
        return b"".join(canonical(line) + b"\n" for line in self.lines)


def read_ledger(path: Path) -> Ledger:
    """Reads and checks a ledger; a damaged line is refused with its number.

    Only the end of the file after the last newline may be incomplete: that is what a crash leaves, it is returned as
    `torn`, and the caller must find out which line it was to become.
    """
    *complete, torn = path.read_bytes().split(b"\n")
    lines: list[Line] = []
    for number, content in enumerate(complete, start=1):
        try:
            line = unsealed(content)
            check_line(line, lines)
        except ValueError as error:
            raise Refused(
                f"Line {number} of {path} is damaged ({error}); restore the ledger from a copy: without every line of "
                f"it a run can neither go on nor be reported."
            ) from None
        lines.append(line)
    if not lines:
        raise Refused(f"Line 1 of {path} is damaged (it is not complete); restore the ledger from a copy.")
    return Ledger(tuple(lines), torn)


def check_line(line: Line, before: list[Line]) -> None:
    """Raises ValueError where a line cannot follow the lines before it."""
    if line["previous"] != (before[-1]["hash"] if before else NOTHING_BEFORE):
        raise ValueError("it does not continue the line before it")
    if line["kind"] not in KINDS:
        raise ValueError(f"a line of unknown kind {line['kind']!r}")
    if (line["kind"] == "run") != (not before):
        raise ValueError("the first line, and only the first, describes the run")
    if before and before[-1]["kind"] == "finish":
        raise ValueError("it comes after the end of the run")
