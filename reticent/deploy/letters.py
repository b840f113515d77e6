"""What travels between the server and a device, as bytes inside Flower's messages.

    a letter  (server to device): JSON head, a newline, a body; beside it, with a delivery, the model's parameters
    an answer (device to server): one byte, then a secure-aggregation message, or a word that says why not

The words are few and tell nothing of what a device holds or does: a device that rests, one whose budget is spent and one
with too little text all say `no`.
"""

import json
from dataclasses import dataclass, field
from typing import Any

VERSION = 1
INVITE, STEP, DELIVERY = "invite", "step", "delivery"
KINDS = (INVITE, STEP, DELIVERY)

NO, OTHER_TERMS, OTHER_VERSION = "no", "other terms", "other version"
WORDS = (NO, OTHER_TERMS, OTHER_VERSION)
_YES, _WORD = b"\x01", b"\x00"


@dataclass(frozen=True)
class Letter:
    """From the server. `run` is the ledger's id of the run. An invitation says which round, and under which terms;
    a step carries a secure-aggregation message, a delivery one more and the model."""

    kind: str
    run: str
    round: int
    terms: str = ""
    attempt: int = 0
    nonce: bytes = b""
    body: bytes = field(default=b"", repr=False)

    def to_bytes(self) -> bytes:
        head: dict[str, Any] = {"version": VERSION, "kind": self.kind, "run": self.run, "round": self.round}
        if self.kind == INVITE:
            head |= {"terms": self.terms, "attempt": self.attempt, "nonce": self.nonce.hex()}
        return json.dumps(head).encode() + b"\n" + self.body


class Unreadable(ValueError):
    """Not a letter that this version writes."""


class AnotherVersion(Unreadable):
    """A letter of another version of this program."""


def read_letter(content: bytes) -> Letter:
    """The letter in these bytes; Unreadable for anything else."""
    line, _, body = content.partition(b"\n")
    try:
        head = json.loads(line)
        if head["version"] != VERSION:
            raise AnotherVersion(f"a letter of version {head['version']}, where this program reads {VERSION}")
        letter = Letter(
            head["kind"],
            head["run"],
            head["round"],
            head.get("terms", ""),
            head.get("attempt", 0),
            bytes.fromhex(head.get("nonce", "")),
            body,
        )
    except AnotherVersion:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Unreadable("not a letter") from error
    numbers = (letter.round, letter.attempt)
    if letter.kind not in KINDS or any(type(one) is not int or not 0 <= one < 2**31 for one in numbers):
        raise Unreadable("not a letter")
    if not (isinstance(letter.run, str) and letter.run.isalnum() and len(letter.run) <= 64):
        raise Unreadable("not a letter")
    return letter


def yes(message: bytes) -> bytes:
    """The answer that carries a secure-aggregation message."""
    return _YES + message


def no(word: str = NO) -> bytes:
    """The answer of a device that does not take part."""
    return _WORD + word.encode()


def read_answer(content: bytes) -> bytes | str:
    """The secure-aggregation message in an answer, or the word for why there is none; Unreadable for anything else."""
    if content[:1] == _YES and len(content) > 1:
        return content[1:]
    if content[:1] == _WORD and len(content) < 32:
        for word in WORDS:
            if content[1:] == word.encode():
                return word
    raise Unreadable("not an answer")
