"""`changelogs`: what Debian's maintainers wrote into their packages' changelogs, by author.

Real people, several entries each, public on purpose; still, what is kept of them is what training needs. Authors are
named by a keyed hash whose key is thrown away; e-mail addresses, URLs and bug numbers are removed, and names of authors
and of those thanked are replaced. (A rare name in the middle of a sentence can slip through: the text is personal.)
`linux` is left out: its changelog is a list of other projects' commits.
"""

import hashlib
import re
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reticent.data.tokenizers import WordTokenizer, words_of_file
from reticent.data.writer import StoreWriter
from reticent.errors import Refused

SOMEONE = "someone"

_TITLE = re.compile(r"\S+ \([^)\s]+\)[^;]*;.*=")
_SIGNATURE = re.compile(r" -- (?P<name>.*?)\s*<[^>]*>\s\s?\w{3},\s+\d")
_SECTION = re.compile(r"\s+\[\s*(?P<name>[^\]]+?)\s*\]\s*")
_BULLET = re.compile(r"\s{1,3}\*\s+(?P<text>.*)")
_DETAIL = re.compile(r"\s{2,}(?:[-+*o]\s+)?(?P<text>.*)")
_MACHINE = re.compile(
    r"\b(janitor|build daemon|buildd?|robots?|bot|teams?|group|maintainers?|developers?|packagers?|scripts?)\b", re.I
)
_ADDRESS = re.compile(r"<?\b[\w.+-]+(?:@| at )[\w-]+(?:\.[\w-]+)+>?|<[^<>\s]*@[^<>]*>", re.I)
_URL = re.compile(r"<?\b(?:\w+://|www\.)\S+", re.I)
_BUGS = re.compile(r"\(?\s*\b(?:closes|lp)\s*:\s*(?:(?:bugs?)?\s*#?\s*\d+\b[\s,;]*(?:and\s+)?)*\)?", re.I)
_NUMBER = re.compile(r"#\d{3,}|\b\d{5,}\b")
_CAPITALS = re.compile(r"\w[\w.'’-]*(?: +\w[\w.'’-]*)+")
_THANKED = re.compile(
    r"(?P<before>\b(?i:thanks(?:,| to| go to)?|(?:patch|change|fix|update)(?:e?s)? (?:by|from)|courtesy of|"
    r"translation,? by|(?:reported|suggested|spotted|provided|contributed|sponsored|written|translated|noticed) by)"
    r"[:,]?\s+)"
    r"(?:[^\W\d_a-z][\w.'’-]*)(?: +[^\W\d_a-z][\w.'’-]*){0,3}"
)


@dataclass(frozen=True)
class Entry:
    """One item of a changelog, as written, and who wrote it."""

    author: str
    text: str


def parse_changelog(content: str) -> Iterator[Entry]:
    """The items of one changelog. A section headed `[ Name ]` is that author's, other items are the signer's."""
    items: list[tuple[str | None, list[str]]] = []
    section: str | None = None
    for line in content.splitlines():
        if signature := _SIGNATURE.match(line):
            for author, lines in items:
                text = " ".join(" ".join(lines).split())
                if text:
                    yield Entry(author or signature["name"], text)
            items, section = [], None
        elif _TITLE.match(line):
            items, section = [], None
        elif heading := _SECTION.fullmatch(line):
            section = heading["name"]
        elif bullet := _BULLET.fullmatch(line):
            items.append((section, [bullet["text"]]))
        elif items and (detail := _DETAIL.fullmatch(line)):
            items[-1][1].append(detail["text"])


def anonymise(entries: Iterable[Entry], shortest: int = 3) -> Iterator[tuple[str, str]]:
    """(pseudonym, text) of every item of at least `shortest` words that a person wrote; names do not come back.

    Pseudonyms are the same within one call and differ in the next: their key exists only while this runs.
    """
    kept = [entry for entry in entries if len(entry.author) > 1 and not _MACHINE.search(entry.author)]
    names = {tuple(_plain(entry.author).split()) for entry in kept}
    names = {name for name in names if len(name) > 1}
    key = secrets.token_bytes(32)
    for entry in kept:
        text = scrub(entry.text, names)
        if len(re.findall(r"\w+", text)) >= shortest:
            digest = hashlib.blake2b(_plain(entry.author).encode(), key=key, digest_size=8).hexdigest()
            yield f"author-{digest}", text


def scrub(text: str, names: set[tuple[str, ...]]) -> str:
    """The text without addresses, URLs and bug numbers, and with `someone` for these names and for who is thanked."""
    for pattern in (_URL, _ADDRESS, _BUGS, _NUMBER):
        text = pattern.sub(" ", text)
    text = _CAPITALS.sub(lambda found: _without_names(found.group().split(), names), text)
    text = _THANKED.sub(lambda found: found["before"] + SOMEONE, text)
    text = re.sub(r"\(\s*[,;]?\s*\)|<\s*>", " ", text)
    return re.sub(r"\s+([.,;:!?)])", r"\1", " ".join(text.split()))


def _without_names(words: list[str], names: set[tuple[str, ...]]) -> str:
    plain, result, place = [_plain(word) for word in words], [], 0
    while place < len(words):
        length = next((n for n in (5, 4, 3, 2) if tuple(plain[place : place + n]) in names), 0)
        result.append(SOMEONE if length else words[place])
        place += length or 1
    return " ".join(result)


def _plain(name: str) -> str:
    """A name as it is compared: without nicknames in quotes or brackets, accents, capitals and signs at the ends."""
    name = re.sub(r"\"[^\"]*\"|\([^)]*\)|“[^”]*”", " ", name)
    name = "".join(sign for sign in unicodedata.normalize("NFKD", name.casefold()) if not unicodedata.combining(sign))
    return " ".join(word.strip(".,;:'’-") for word in name.split())


def make_changelogs(
    out: str | Path,
    *,
    packages: int = 2000,
    manifest: str | Path | None = None,
    vocabulary: str | Path | None = None,
    words: int = 10_000,
    progress: Callable[[str, float], None] = lambda stage, done: None,
) -> dict[str, Any]:
    """Fetches changelogs through apt and writes them as a store of authors; returns its counts.

    A `manifest` that exists is fetched again exactly, and one that does not is written. The vocabulary is that of a
    file, or the most frequent words of the archive's package descriptions: public text, and not the authors' own.
    """
    from reticent.data.apt import available, description_words, fetch, read_manifest, write_manifest

    out = Path(out)
    if out.exists():
        raise Refused(f"{out} exists; choose another name, or remove it first.")
    manifest = None if manifest is None else Path(manifest)
    again = manifest is not None and manifest.is_file()
    wanted = read_manifest(manifest) if manifest is not None and again else available(packages)
    if vocabulary is not None:
        origin = {"source": "file", "name": Path(vocabulary).name}
        tokenizer = WordTokenizer(words_of_file(vocabulary, words), origin=origin)
    else:
        origin = {"source": "public text", "text": "package descriptions of a Debian archive"}
        tokenizer = WordTokenizer(description_words(words), origin=origin)
    entries: list[Entry] = []
    fetched = fetch(
        wanted, lambda package, text: entries.extend(parse_changelog(text)), lambda done: progress("fetching", done)
    )
    if manifest is not None and not again:
        write_manifest(manifest, fetched)
    return {"packages": len(fetched), **write_authors(out, tokenizer, entries)}


def write_authors(out: str | Path, tokenizer: WordTokenizer, entries: Iterable[Entry]) -> dict[str, Any]:
    """Writes these entries, with the authors' names taken out, as a store; returns its counts."""
    by_author: dict[str, list[str]] = {}
    for author, text in anonymise(entries):
        by_author.setdefault(author, []).append(text)
    about = {"source": "changelogs", "generated": False, "users": "authors, by a keyed hash whose key is thrown away"}
    words = {author: sum(len(re.findall(r"\w+", text)) for text in texts) for author, texts in by_author.items()}
    with StoreWriter(out, tokenizer, about=about) as writer:
        # In the order of the pseudonyms, so that the order tells nothing of where a person's entries were.
        for author in sorted(by_author):
            tokens, lengths = tokenizer.encode_batch(by_author[author])
            writer.add_users([author], np.array([len(lengths)]), lengths, tokens)
    return {
        "store": str(out),
        "users": writer.users,
        "examples": writer.examples,
        "tokens": writer.tokens,
        "words": sum(words.values()),
        "median_words_per_user": float(np.median(list(words.values()))),
    }
