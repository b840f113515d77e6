"""Release files: one noised sum each, in front of it the ledger line that it will get.

A file is a format line, the ledger line, and the sum as little-endian 32-bit integers. Because the line travels with
the sum, a release that a crash left without its line can be adopted as it stands.
"""

from pathlib import Path

from reticent.errors import Refused
from reticent.ledger.lines import Line, canonical, digest, unsealed

FORMAT = b"reticent release 1"


def release_path(releases: Path, round: int) -> Path:
    """The file of this round in the folder of releases."""
    return releases / f"{round:08d}.release"


def release_rounds(releases: Path) -> list[int]:
    """The rounds whose release files are there, in order."""
    return sorted(int(path.stem) for path in releases.glob("*.release"))


def release_head(line: Line) -> bytes:
    """What stands before the integers."""
    return FORMAT + b"\n" + canonical(line) + b"\n"


def read_release(path: Path) -> tuple[Line, bytes]:
    """The ledger line and the integers of a release file; refuses a damaged one."""
    format, _, rest = path.read_bytes().partition(b"\n")
    content, _, payload = rest.partition(b"\n")
    try:
        if format != FORMAT:
            raise ValueError("it does not begin as one")
        line = unsealed(content)
        if line["release"] != digest(payload):
            raise ValueError("its integers are not those that were released")
    except ValueError as error:
        raise Refused(
            f"The release {path} is damaged ({error}); restore it from a copy. If there is none, delete it and resume: "
            f"the round counts as released, its row of noise as spent, and the model goes on without it."
        ) from None
    return line, payload
