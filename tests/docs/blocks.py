"""The code blocks of README and docs, page by page."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language ("" where none is named), its text, and the line it begins on."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text()
    return [Block(found[1], found[2], text[: found.start()].count("\n") + 1) for found in FENCE.finditer(text)]


def commands(block: Block) -> list[list[str]]:
    """The `reticent` commands of a block, each as its words; lines ended by a backslash go on."""
    if block.language not in ("", "sh", "bash", "console"):
        return []
    lines = re.sub(r"\\\n\s*", " ", block.text).splitlines()
    lines = [line.removeprefix("$ ") for line in lines]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("reticent ")]
