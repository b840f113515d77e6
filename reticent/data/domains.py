"""The base domain of a URL, by which text from the web is divided where nobody's name is known."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from reticent.errors import Refused

if TYPE_CHECKING:
    import pyarrow as pa

# Scheme and user information are not of it, nor are port, path and a leading "www.".
_HOST = (
    r"^(?:[a-z][a-z0-9+.\-]*:)?(?://)?(?:[^/@?#]*@)?(?:www\.)?(?P<domain>[^/:?#@\s]+\.[^/:?#@\s.]+)\.?(?:[:/?#].*)?$"
)


def domains(urls: "pa.Array") -> "pa.Array":
    """The base domain of each URL, lower-case; null where there is none."""
    import pyarrow.compute as pc

    lowered = pc.utf8_lower(pc.utf8_trim_whitespace(urls))
    return pc.struct_field(pc.extract_regex(lowered, pattern="(?s)" + _HOST), "domain")


def domain(url: str) -> str | None:
    """The base domain of one URL."""
    found = re.match(_HOST, url.strip().lower(), re.DOTALL)
    return None if found is None else found["domain"]


def read_domains(path: str | Path) -> frozenset[str]:
    """The domains in a file, one a line (URLs will do); what begins with # is not one."""
    path = Path(path)
    if not path.is_file():
        raise Refused(f"There is no file of domains {path}.")
    lines = [line.strip() for line in path.read_text("utf-8", "replace").splitlines()]
    found = {line: domain(line) for line in lines if line and not line.startswith("#")}
    bad = next((line for line, one in found.items() if one is None), None)
    if bad is not None:
        raise Refused(f"{path} has {bad!r}, which is no domain; write one a line, as in example.org.")
    return frozenset(one for one in found.values() if one is not None)


def listed(url: str, names: frozenset[str]) -> bool:
    """Whether the domain of a URL is one of `names`, or within one of them."""
    own = domain(url)
    if own is None:
        return False
    parts = own.split(".")
    return any(".".join(parts[place:]) in names for place in range(len(parts) - 1))
