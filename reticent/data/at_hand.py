"""Stores by the name a run file uses: a directory, or data at hand, which is made when it is first asked for."""

import os
from collections.abc import Callable
from pathlib import Path

from reticent.data.store import Store
from reticent.errors import Refused

AT_HAND = ("crowd", "plays", "changelogs")
PLACE_VARIABLE = "RETICENT_CACHE"
DEFAULT_WORDS = 2000

Progress = Callable[[str, float], None]


def open_store(
    name: str,
    *,
    words: int | None = None,
    people: int | None = None,
    seed: int = 0,
    held_out: bool = False,
    progress: Progress = lambda stage, done: None,
) -> Store:
    """The store that a run file names.

    `crowd`, `plays` and `changelogs` are data at hand, with a vocabulary of `words` words; a directory of such a name is
    written ./crowd. Of the plays, `held_out` takes those that feed neither the crowd nor its vocabulary, otherwise it is
    all the others. What is made is kept (`cache_directory`) and found again.
    """
    if name not in AT_HAND:
        return Store.open(name)
    words = DEFAULT_WORDS if words is None else words
    make, path = _maker(name, words, people, seed, held_out)
    if not path.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path, progress)  # of two runs that begin together, one makes the store and the other is told to wait
    return Store.open(path)


def cache_directory() -> Path:
    """Where data at hand is kept: $RETICENT_CACHE, or the user's cache folder. It may be deleted at any time."""
    chosen = os.environ.get(PLACE_VARIABLE)
    if chosen is None:
        chosen = str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reticent")
    return Path(chosen).expanduser().absolute()


def _maker(
    name: str, words: int, people: int | None, seed: int, held_out: bool
) -> tuple[Callable[[Path, Progress], object], Path]:
    """What makes the store of this name, and where it is kept: a different place for different content."""
    cache = cache_directory()
    if name == "crowd":
        from reticent.data.crowd import PEOPLE, VERSION, make_crowd

        size = PEOPLE if people is None else people
        path = cache / f"crowd-{VERSION}-{size}-people-{words}-words-seed-{seed}"
        return (
            lambda path, progress: make_crowd(
                path, people=size, words=words, seed=seed, progress=lambda done: progress("making a crowd", done)
            ),
            path,
        )
    if people is not None:
        raise Refused(f"The people of {name!r} are those there are; leave data.people out.")
    if name == "plays":
        from reticent.data.plays import PACKAGE, make_plays

        part = "held-out" if held_out else "crowd"
        path = cache / f"plays-{PACKAGE.split('==')[-1]}-{part}-{words}-words-seed-{seed}"
        return lambda path, progress: make_plays(path, part=part, words=words, seed=seed), path
    from reticent.data.changelogs import make_changelogs

    return (
        lambda path, progress: make_changelogs(
            path, words=words, manifest=cache / "changelogs-manifest.json", progress=progress
        ),
        cache / f"changelogs-{words}-words",
    )
