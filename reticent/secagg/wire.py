"""Messages as bytes.

    client: "RSA1" | kind (1) | digest of the round (32) | length of the name (1) | name | body | Ed25519 signature (64)
    server: "RSA1" | kind (1) | digest of the round (32) | body

Numbers are big-endian; clients are numbered by their place in the roster. A client's signature is over the SHA-256 of
all that precedes it. Parsing is strict: a message is exactly as long as its parts.
"""

import hashlib
import struct
from collections.abc import Collection, Iterable
from enum import IntEnum

from reticent.secagg.faults import SERVER, Fault
from reticent.secagg.keys import SIGNATURE_BYTES, Member, Registry, signed_by

MAGIC = b"RSA1"
_HEAD = len(MAGIC) + 1 + 32
_SIGNED = b"reticent.secagg.1 message "


class Kind(IntEnum):
    """What a message is, by its first byte after the magic; clients and server take turns."""

    ADVERT = 1
    ROSTER = 2
    SHARES = 3
    DELIVERY = 4
    MASKED_INPUT = 5
    SURVIVORS = 6
    AGREEMENT = 7
    QUORUM = 8
    UNMASKING = 9

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


_KINDS = {int(kind): kind for kind in Kind}


def client_message(member: Member, kind: Kind, round_digest: bytes, *body: bytes) -> bytes:
    """A client's signed message."""
    parts = [_head(kind, round_digest, member.name), *body]
    return b"".join([*parts, member.sign(_to_sign(*parts))])


def agreement_signed(name: str, round_digest: bytes, body: bytes, signature: bytes, registry: Registry) -> bool:
    """Whether this client sent an agreement with this body: from its signature alone."""
    return signed_by(registry.get(name), signature, _to_sign(_head(Kind.AGREEMENT, round_digest, name) + body))


def sender(data: bytes) -> str:
    """The name a client's message claims, unverified; "somebody" if it has none."""
    if len(data) <= _HEAD or len(data) < _HEAD + 1 + data[_HEAD]:
        return "somebody"
    return data[_HEAD + 1 : _HEAD + 1 + data[_HEAD]].decode("utf-8", "replace")


def open_client_message(data: bytes, kind: Kind, round_digest: bytes, registry: Registry) -> tuple[str, "Reader"]:
    """(sender, body) of a genuine message of this kind and round; a Fault names whatever is wrong with it."""
    name, body = read_client_message(data, kind, round_digest)
    if name not in registry:
        raise Fault(name, "is not in the registry of clients")
    if not signed_by(registry[name], data[-SIGNATURE_BYTES:], _to_sign(memoryview(data)[:-SIGNATURE_BYTES])):
        raise Fault(name, f"a {kind} in its name is not signed with its registered key (forged or tampered with)")
    return name, body


def read_client_message(data: bytes, kind: Kind, round_digest: bytes) -> tuple[str, "Reader"]:
    """(sender, body) as the message claims them, its signature unread."""
    name = sender(data)
    _check_head(data, kind, round_digest, name)
    start = _HEAD + 1 + data[_HEAD] if len(data) > _HEAD else len(data)
    if len(data) < start + SIGNATURE_BYTES:
        raise Fault(name, f"sent a {kind} that is cut short")
    return name, Reader(memoryview(data)[start:-SIGNATURE_BYTES], name, kind)


def server_message(kind: Kind, round_digest: bytes, *body: bytes) -> bytes:
    """A message of the server, bound to its round; the inverse of `open_server_message`."""
    return b"".join([MAGIC, bytes([kind]), round_digest, *body])


def open_server_message(data: bytes, kind: Kind, round_digest: bytes) -> "Reader":
    """What a message of the server holds; a Fault for one of another kind or round."""
    _check_head(data, kind, round_digest, SERVER)
    return Reader(memoryview(data)[_HEAD:], SERVER, kind)


def kind_of(data: bytes) -> Kind | None:
    """The kind a message claims, if it is one of this protocol."""
    if len(data) < _HEAD or data[: len(MAGIC)] != MAGIC:
        return None
    return _KINDS.get(data[len(MAGIC)])


class Reader:
    """Takes a body apart; a Fault of the sender for one that is too short or too long."""

    def __init__(self, body: memoryview, culprit: str, kind: Kind) -> None:
        self._body = body
        self._at = 0
        self._culprit = culprit
        self._kind = kind

    def take(self, size: int) -> bytes:
        return bytes(self.view(size))

    def view(self, size: int) -> memoryview:
        if self._at + size > len(self._body):
            raise self.fault("is cut short")
        self._at += size
        return self._body[self._at - size : self._at]

    def number(self) -> int:
        return int(struct.unpack(">I", self.view(4))[0])

    def set_of(self, count: int) -> frozenset[int]:
        """A set of clients of a roster, written as bits."""
        bits = int.from_bytes(self.view(-(-count // 8)), "little")
        if bits >> count:
            raise self.fault("names clients that are not in the roster")
        return frozenset(place for place in range(count) if bits >> place & 1)

    @property
    def left(self) -> int:
        return len(self._body) - self._at

    def end(self) -> None:
        if self.left:
            raise self.fault("has something behind its end")

    def fault(self, what: str) -> Fault:
        return Fault(self._culprit, f"the {self._kind} {what}")


def number(value: int) -> bytes:
    """A number below 2^32 in four bytes."""
    return struct.pack(">I", value)


def set_bytes(places: Iterable[int] | Collection[int], count: int) -> bytes:
    """A set of places of a roster as bits; the inverse of `Reader.set_of`."""
    bits = 0
    for place in places:
        bits |= 1 << place
    return bits.to_bytes(-(-count // 8), "little")


def _head(kind: Kind, round_digest: bytes, name: str) -> bytes:
    encoded = name.encode()
    return b"".join([MAGIC, bytes([kind]), round_digest, bytes([len(encoded)]), encoded])


def _to_sign(*parts: bytes | memoryview) -> bytes:
    """For the parts of a message, joined."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return _SIGNED + total.digest()


def _check_head(data: bytes, kind: Kind, round_digest: bytes, culprit: str) -> None:
    found = kind_of(data)
    if found is None:
        raise Fault(culprit, "sent something that is not a message of this protocol")
    if data[len(MAGIC) + 1 : _HEAD] != round_digest:
        raise Fault(culprit, f"sent a {found} of another round or attempt")
    if found != kind:
        raise Fault(culprit, f"sent a {found} where the {kind} is due (replayed or out of order)")
