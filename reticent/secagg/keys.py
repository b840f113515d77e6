"""Keys: who a client is (Ed25519, registered), and what two clients share for one attempt (X25519, HKDF,
ChaCha20-Poly1305)."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

Registry = Mapping[str, bytes]
"""Every client's Ed25519 public key (32 bytes) by its name; clients have it from somebody other than the server."""

SIGNATURE_BYTES = 64
KEY_BYTES = 32
_NONCE = bytes(12)


@dataclass(frozen=True)
class Member:
    """One client beyond rounds: its name, its signing key, and the registry of all clients' public keys."""

    name: str
    signing_key: bytes = field(repr=False)
    registry: Registry = field(repr=False)

    @classmethod
    def enrol(cls, names: list[str]) -> dict[str, "Member"]:
        """Fresh members that know each other: for simulations and tests."""
        keys = {name: Ed25519PrivateKey.generate() for name in names}
        registry = {name: key.public_key().public_bytes_raw() for name, key in keys.items()}
        return {name: cls(name, key.private_bytes_raw(), registry) for name, key in keys.items()}

    def sign(self, message: bytes) -> bytes:
        return Ed25519PrivateKey.from_private_bytes(self.signing_key).sign(message)


def signed_by(public_key: bytes | None, signature: bytes, message: bytes) -> bool:
    """Whether the holder of this registered key signed the message."""
    if public_key is None:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def digest(*parts: bytes) -> bytes:
    """SHA-256 of parts that cannot run into each other."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8))
        total.update(part)
    return total.digest()


def derive(secret: bytes, purpose: str, *context: bytes) -> bytes:
    """32 bytes for one purpose and one context only (HKDF-SHA256)."""
    info = b"reticent.secagg.1 " + digest(purpose.encode(), *context)
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def exchange_key(secret: bytes) -> X25519PrivateKey:
    """The X25519 private key of 32 secret bytes; opening it costs as much as using it."""
    return X25519PrivateKey.from_private_bytes(secret)


def public_key(secret: bytes) -> bytes:
    """The X25519 public key of 32 secret bytes."""
    return exchange_key(secret).public_key().public_bytes_raw()


def agree(private_key: X25519PrivateKey, peer_key: bytes) -> bytes | None:
    """The X25519 secret, or None for a peer key that would make it public (a point of small order)."""
    try:
        return private_key.exchange(X25519PublicKey.from_public_bytes(peer_key))
    except ValueError:
        return None


def seal(key: bytes, text: bytes, bound_to: bytes) -> bytes:
    """Authenticated encryption under a key that is used for one text, ever; hence the constant nonce."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, text, bound_to)


def unseal(key: bytes, sealed: bytes, bound_to: bytes) -> bytes | None:
    """The text, or None if one bit of it, of the key or of what it is bound to is not the sender's."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, bound_to)
    except InvalidTag:
        return None
