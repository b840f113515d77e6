"""Debian changelogs by way of apt: downloaded with their packages, checked, and listed in a manifest.

The manifest has the version and the SHA-256 of every package, and of the changelog in it, so that the same text can be
fetched again; apt itself checks what it downloads against the archive's signatures.
"""

import gzip
import hashlib
import io
import json
import re
import subprocess
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from reticent.data.tokenizers import split_words
from reticent.errors import Refused
from reticent.files import write_atomically

_LARGEST = 4 * 2**20
_AT_ONCE = 20
_LEFT_OUT = re.compile(r"linux(-|$)")
_CHANGELOG = re.compile(r"(\./)?usr/share/doc/[^/]+/changelog(\.Debian)?(\.gz)?")


@dataclass(frozen=True)
class Package:
    """One package as the archive lists it; `changelog_sha256` is known once it was fetched."""

    name: str
    source: str
    version: str
    sha256: str
    changelog_sha256: str = ""


def available(limit: int) -> list[Package]:
    """One small package per source that apt knows of, for the `limit` sources that the most packages depend on: those
    have the longest history, and the most hands in it."""
    listed = list(_paragraphs(_run(["apt-cache", "dumpavail"])))
    if not listed:
        raise Refused("apt knows of no packages; run `apt-get update` first.")
    sources = {fields["Package"]: fields.get("Source", fields["Package"]).split()[0] for fields in listed}
    dependents: Counter[str] = Counter()
    for fields in listed:
        names = re.findall(r"(?:^|[,|])\s*([\w.+-]+)", fields.get("Depends", ""))
        dependents.update({sources[name] for name in names if name in sources} - {sources[fields["Package"]]})
    smallest: dict[str, tuple[int, Package]] = {}
    for fields in listed:
        source, size = sources[fields["Package"]], int(fields.get("Size", "0"))
        if not 0 < size <= _LARGEST or _LEFT_OUT.match(source) or "SHA256" not in fields:
            continue
        if source not in smallest or size < smallest[source][0]:
            smallest[source] = (size, Package(fields["Package"], source, fields["Version"], fields["SHA256"]))
    ordered = sorted(smallest, key=lambda source: (-dependents[source], source))
    return [smallest[source][1] for source in ordered[:limit]]


def description_words(size: int) -> list[str]:
    """The most frequent words of the short descriptions of all packages that apt knows of, at most `size`."""
    counts = Counter(
        word
        for fields in _paragraphs(_run(["apt-cache", "dumpavail"]))
        for word in split_words(fields.get("Description", ""), "words")
    )
    if not counts:
        raise Refused("apt knows of no packages; run `apt-get update` first.")
    return [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:size]]


def _paragraphs(text: str) -> Iterator[dict[str, str]]:
    for paragraph in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.split("\n") if re.match(r"[\w-]+: ", line))
        if "Package" in fields and "Version" in fields:
            yield fields


def fetch(
    packages: list[Package], keep: Callable[[Package, str], None], progress: Callable[[float], None] = lambda done: None
) -> list[Package]:
    """Downloads packages, gives each changelog to `keep`, and returns those that had one, with their digests.

    A package that the manifest names is refused where it, or its changelog, is not the one that the manifest describes.
    """
    found = []
    for first in range(0, len(packages), _AT_ONCE):
        batch = packages[first : first + _AT_ONCE]
        with tempfile.TemporaryDirectory() as folder:
            names = [f"{package.name}={package.version}" for package in batch]
            _run(["apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", *names], folder)
            files = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in Path(folder).glob("*.deb")}
            for package in batch:
                if package.sha256 not in files:
                    raise Refused(
                        f"apt downloaded another {package.name} {package.version} than expected (SHA-256 "
                        f"{package.sha256[:12]}...); run `apt-get update`, or make a new manifest."
                    )
                content = changelog_of(files[package.sha256])
                if content is None:
                    continue
                digest = hashlib.sha256(content.encode()).hexdigest()
                if package.changelog_sha256 not in ("", digest):
                    raise Refused(
                        f"The changelog of {package.name} is not the one in the manifest; make a new manifest."
                    )
                described = Package(package.name, package.source, package.version, package.sha256, digest)
                found.append(described)
                keep(described, content)
        progress(min(first + _AT_ONCE, len(packages)) / len(packages))
    return found


def changelog_of(package: Path) -> str | None:
    """The Debian changelog in a .deb file; None where it has none of its own (a link to another package's)."""
    unpacked = _run_bytes(["dpkg-deb", "--fsys-tarfile", str(package)])
    best: tuple[bool, str] | None = None
    with tarfile.open(fileobj=io.BytesIO(unpacked)) as files:
        for member in files:
            if member.isfile() and (match := _CHANGELOG.fullmatch(member.name)):
                file = files.extractfile(member)
                assert file is not None
                content = file.read()
                text = (gzip.decompress(content) if match[3] else content).decode("utf-8", "replace")
                # A native package's changelog has no `.Debian`; another's plain one is upstream's.
                best = max(best or (False, ""), (bool(match[2]), text))
    if best is None or not re.match(r"\S+ \([^)]+\)[^;]*;", best[1]):
        return None
    return best[1]


def write_manifest(path: Path, packages: list[Package]) -> None:
    """Writes a manifest that `read_manifest` reads."""
    rows = [asdict(package) for package in packages]
    write_atomically(path, (json.dumps({"format": "reticent-changelogs", "packages": rows}, indent=1) + "\n").encode())


def read_manifest(path: Path) -> list[Package]:
    """The packages of a manifest."""
    try:
        parsed = json.loads(path.read_bytes())
        if parsed["format"] != "reticent-changelogs":
            raise ValueError(parsed["format"])
        return [Package(**row) for row in parsed["packages"]]
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(f"{path} is no manifest of changelogs ({error}); name a new file to have one written.") from error


def _run(command: list[str], folder: str | None = None) -> str:
    return _run_bytes(command, folder).decode("utf-8", "replace")


def _run_bytes(command: list[str], folder: str | None = None) -> bytes:
    try:
        return subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout
    except FileNotFoundError as error:
        raise Refused(
            f"`{command[0]}` is not here: changelogs are fetched on Debian, or a system based on it."
        ) from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace").strip().splitlines()
        raise Refused(f"`{' '.join(command[:2])}` failed: {said[-1] if said else error.returncode}.") from error
