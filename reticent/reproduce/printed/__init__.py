"""What the papers printed, as data: one file for each paper."""

import tomllib
from importlib import resources
from typing import Any


def printed(paper: str) -> dict[str, Any]:
    """The printed values of a paper, by table and figure."""
    return tomllib.loads(resources.files(__name__).joinpath(f"{paper}.toml").read_text(encoding="utf-8"))
