"""What the pages take for granted: the files they name, made small."""

import os
from pathlib import Path

from tests.docs.blocks import ROOT

# Pages whose examples another test runs, or that need what is not here.
ELSEWHERE: dict[str, str] = {
    "CONTRIBUTING.md": "its commands are make's",
    "migration.md": "its commands have placeholders",
}

# What a page's Python finds defined.
BEFORE = {
    "data.md": "import numpy as np\ncohort, round = np.arange(1), 0\n",
}


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "RETICENT_SECRETS": str(folder / "secrets"),
        "JAX_PLATFORMS": "cpu",
    }


def make(page: str, folder: Path) -> None:
    """Makes what this page names, in the folder that its examples run in."""
    if page == "data.md":
        import pyarrow
        import pyarrow.parquet

        authors = [f"author-{number}" for number in range(120, 130) for _ in range(4)]
        texts = [f"the quick brown fox jumps over {number} lazy dogs" for number in range(len(authors))]
        pyarrow.parquet.write_table(pyarrow.table({"author": authors, "body": texts}), folder / "posts.parquet")
        (folder / "words.txt").write_text("the\nquick\nbrown\nfox\njumps\nover\nlazy\ndogs\n")
