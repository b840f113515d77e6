"""Checkpoints: a state of the run in two halves, one that may be shown and one that may not.

`checkpoints/N` in the run directory holds the model and server state after rounds 0 to N - 1; `checkpoints/N` in the
secrets directory what else must survive: the mechanism's buffers, the sampler's state, participations. Each half is a
directory with a manifest of its files, and either whole or not at its place. The public half comes second, so that
where it is, its secret half is too.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from reticent.errors import Refused
from reticent.ledger.durable import Files
from reticent.ledger.lines import Line, canonical, digest, sealed, unsealed

MANIFEST = "manifest.json"
Writer = Callable[[Path], object]
"""Writes its files into the directory it is given, which is empty."""


@dataclass(frozen=True)
class Checkpoint:
    """A durable state after the first `rounds` rounds. `lines` are ledger lines that the checkpoint itself releases."""

    rounds: int
    public: Path
    secret: Path
    digest: str
    lines: tuple[Line, ...] = ()


def write_half(
    folder: Path, rounds: int, write: Writer, unfinished: Path, mode: int, lines: list[Line], files: Files
) -> str:
    """Writes one half; a crash leaves it whole or absent. Returns its digest."""
    grows = unfinished / f"checkpoint-{rounds:08d}"
    files.mkdir(grows, mode)
    write(grows)
    manifest = sealed({"kind": "checkpoint", "rounds": rounds, "files": digests(grows), "lines": lines})
    files.write_file(grows / MANIFEST, canonical(manifest) + b"\n", by_way_of=unfinished)
    files.sync_tree(grows)
    files.rename(grows, folder / f"{rounds:08d}")
    files.sync_directory(folder)
    return digest(canonical(manifest))


def read_manifest(half: Path) -> dict:
    """The manifest of a half, after checking every file of it against it."""
    try:
        manifest = unsealed((half / MANIFEST).read_bytes().rstrip(b"\n"))
        found = digests(half)
    except (ValueError, OSError) as error:
        raise Refused(f"The checkpoint {half} is damaged ({error}); restore it from a copy.") from None
    for name in sorted(set(found) | set(manifest["files"])):
        if found.get(name) != manifest["files"].get(name):
            raise Refused(f"The file {name} of the checkpoint {half} is damaged; restore the checkpoint from a copy.")
    return manifest


def read_checkpoint(public: Path, secret: Path) -> Checkpoint:
    """A checkpoint of which both halves are whole; refuses any other, naming what is damaged."""
    manifest = read_manifest(public)
    if not secret.is_dir():
        raise Refused(f"The secret half of the checkpoint {public} is not at {secret}; restore it from a copy.")
    read_manifest(secret)
    return Checkpoint(manifest["rounds"], public, secret, digest(canonical(manifest)), tuple(manifest["lines"]))


def rounds_of(folder: Path) -> list[int]:
    """The rounds of the checkpoints in a folder, in order."""
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file under a folder, by its name from there; the manifest itself left out."""
    found = {}
    for inner, _, names in os.walk(folder):
        for name in names:
            path = Path(inner, name)
            relative = path.relative_to(folder).as_posix()
            if relative != MANIFEST:
                with path.open("rb") as file:
                    found[relative] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def checkpoint_body(rounds: int, digest: str) -> dict:
    """The ledger line of a checkpoint; `digest` is that of its public half."""
    return {"kind": "checkpoint", "rounds": rounds, "digest": digest}
