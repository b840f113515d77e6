"""The keys of a federation: TLS for the server, and for each device one to log in with and one to sign with.

authority/ca.key                    with which the server's certificate is signed: keep it offline
server/server.{pem,key}, ca.crt     the server's certificate and its key
server/registry.json                the devices' public signing keys
devices/NAME/                       a device's own: login.key, signing.key, registry.json, ca.crt
devices/NAME/login.key.pub          what the server registers
"""

import datetime
import ipaddress
import json
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from reticent.errors import Refused
from reticent.secagg import Member

VALID = datetime.timedelta(days=825)


def make_keys(out: Path, names: Sequence[str], hosts: Sequence[str]) -> None:
    """Makes the keys of a server that is reached at `hosts` and of devices with these names, in the new directory `out`."""
    if out.exists() and any(out.iterdir()):
        raise Refused(f"{out} holds other files; give a new directory with --out.")
    for name in names:
        if not name.replace("-", "").replace("_", "").isalnum() or len(name) > 100:
            raise Refused(f"A device's name has letters, digits, - and _ only, not {name!r}.")
    if len(set(names)) < len(names) or not names or not hosts:
        raise Refused("Give at least one device, each once, and at least one address of the server.")
    for folder in (out, out / "authority", out / "server", out / "devices"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = ec.generate_private_key(ec.SECP384R1())
    certificate = _authority(authority)
    root = certificate.public_bytes(serialization.Encoding.PEM)
    _secret(out / "authority" / "ca.key", _pem(authority))
    (out / "authority" / "ca.crt").write_bytes(root)
    server = ec.generate_private_key(ec.SECP384R1())
    _secret(out / "server" / "server.key", _pem(server))
    signed = _server(server, certificate, authority, hosts)
    (out / "server" / "server.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (out / "server" / "ca.crt").write_bytes(root)
    members = Member.enrol(list(names))
    registry = json.dumps({"devices": {name: key.hex() for name, key in _keys(members).items()}}, indent=1) + "\n"
    (out / "server" / "registry.json").write_text(registry)
    for name, member in members.items():
        folder = out / "devices" / name
        folder.mkdir(mode=0o700)
        login = ec.generate_private_key(ec.SECP384R1())
        openssh = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
        _secret(folder / "login.key", login.private_bytes(*openssh))
        public = login.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        (folder / "login.key.pub").write_bytes(public + b"\n")
        _secret(folder / "signing.key", member.signing_key.hex().encode())
        (folder / "registry.json").write_text(registry)
        (folder / "ca.crt").write_bytes(root)


def _keys(members: dict[str, Member]) -> dict[str, bytes]:
    return dict(next(iter(members.values())).registry)


def _secret(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _builder(subject: str, issuer: x509.Name | None, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer or name)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        _builder("Reticent federation", None, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA384())
    )


def _server(
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
) -> x509.Certificate:
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return (
        _builder(hosts[0], authority.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
