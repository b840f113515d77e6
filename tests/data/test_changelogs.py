"""Changelogs: parsed by author, stripped of who they are, fetched out of packages that the test builds."""

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest

from reticent.data import apt
from reticent.data.changelogs import Entry, anonymise, make_changelogs, parse_changelog, write_authors
from reticent.data.store import Store
from reticent.data.tokenizers import WordTokenizer
from reticent.errors import Refused

CHANGELOG = """thing (1.2-3) unstable; urgency=medium

  [ Jane Q. Roe ]
  * Fix a crash on empty input. Closes: #123456, #23
    - also when it is not empty
  * New upstream version, thanks to Nobody Known <nobody@example.org>!

  [ Debian Janitor ]
  * Trim trailing whitespace.

  [ John Doe ]
  * Update the watch file, see https://example.org/watch?id=7.

 -- John Doe <john@example.org>  Mon, 01 Jan 2024 10:00:00 +0000

thing (1.2-2) unstable; urgency=low

  * Patch from Jané Q. Roe to build on other machines (LP: #1234567).
  * Oops.

 -- John Doe (work) <doe@work.example>  Tue, 02 Feb 2021 10:00:00 +0000
"""


def test_entries_are_their_authors():
    entries = list(parse_changelog(CHANGELOG))
    assert [entry.author for entry in entries] == [
        "Jane Q. Roe",
        "Jane Q. Roe",
        "Debian Janitor",
        "John Doe",
        "John Doe (work)",
        "John Doe (work)",
    ]
    assert entries[0].text == "Fix a crash on empty input. Closes: #123456, #23 also when it is not empty"


def test_nothing_of_who_wrote_it_is_left():
    rows = list(anonymise(parse_changelog(CHANGELOG)))
    assert [text for _, text in rows] == [
        "Fix a crash on empty input. also when it is not empty",
        "New upstream version, thanks to someone!",
        "Update the watch file, see",
        "Patch from someone to build on other machines.",
    ]
    jane, _, john, john_again = (author for author, _ in rows)
    assert john == john_again != jane
    again = [author for author, _ in anonymise(parse_changelog(CHANGELOG))]
    assert set(again).isdisjoint({jane, john})  # another key
    everything = json.dumps(rows).lower()
    for trace in ("jane", "roe", "john", "doe", "nobody", "example", "1234", "janitor"):
        assert trace not in everything


def test_hashes_are_keyed():
    """A pseudonym is no plain hash of a name, which anybody could search for."""
    author = next(anonymise([Entry("Jane Roe", "one two three")]))[0]
    for name in ("Jane Roe", "jane roe"):
        for kind in (hashlib.blake2b, hashlib.sha256, hashlib.md5):
            assert author.removeprefix("author-") not in kind(name.encode()).hexdigest()
        assert author.removeprefix("author-") != hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


def test_a_store_of_authors(tmp_path):
    tokenizer = WordTokenizer(["fix", "a", "crash", "someone"])
    made = write_authors(tmp_path / "store", tokenizer, parse_changelog(CHANGELOG))
    store = Store.open(tmp_path / "store")
    assert (made["users"], made["examples"], store.users) == (2, 4, 2)
    assert sorted(store.user_ids) == list(store.user_ids)
    assert store.header["about"]["source"] == "changelogs"


def build_package(folder: Path, name: str, changelog: str | None) -> Path:
    """A .deb file: an `ar` archive of two tar files."""

    def packed(files):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for path, content in files:
                member = tarfile.TarInfo(path)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return buffer.getvalue()

    control = f"Package: {name}\nVersion: 1.2-3\nArchitecture: all\nMaintainer: x <x@x>\nDescription: x\n".encode()
    files = [(f"./usr/share/doc/{name}/changelog.gz", gzip.compress(b"upstream's own"))]
    if changelog is not None:
        files.append((f"./usr/share/doc/{name}/changelog.Debian.gz", gzip.compress(changelog.encode())))
    path = folder / f"{name}_1.2-3_all.deb"
    with path.open("wb") as file:
        file.write(b"!<arch>\n")
        for member, content in (
            ("debian-binary", b"2.0\n"),
            ("control.tar.gz", packed([("./control", control)])),
            ("data.tar.gz", packed(files)),
        ):
            file.write(f"{member:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode())
            file.write(content + b"\n" * (len(content) % 2))
    return path


needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not here")


@needs_dpkg
def test_the_changelog_of_a_package(tmp_path):
    assert apt.changelog_of(build_package(tmp_path, "thing", CHANGELOG)) == CHANGELOG
    assert apt.changelog_of(build_package(tmp_path, "linked", None)) is None


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """An archive of three packages in place of apt's, which `apt-cache` lists and `apt-get` copies."""
    folder = tmp_path / "archive"
    folder.mkdir()
    paths = {name: build_package(folder, name, CHANGELOG.replace("thing", name)) for name in ("thing", "linux-doc")}
    paths["linked"] = build_package(folder, "linked", None)

    def listing():
        return "\n\n".join(
            f"Package: {name}\nVersion: 1.2-3\nSize: {path.stat().st_size}\nPriority: optional\n"
            f"SHA256: {hashlib.sha256(path.read_bytes()).hexdigest()}\nDescription: fix the {name} of a crash"
            for name, path in paths.items()
        )

    real = apt._run_bytes

    def run(command, where=None):
        if command[0] == "apt-cache":
            return listing().encode()
        if command[0] == "apt-get":
            for name in command[command.index("APT::Sandbox::User=root") + 1 :]:
                shutil.copy(paths[name.split("=")[0]], where)
            return b""
        return real(command, where)

    monkeypatch.setattr(apt, "_run_bytes", run)
    return paths


@needs_dpkg
def test_fetching_by_apt_and_again_by_manifest(archive, tmp_path):
    manifest = tmp_path / "manifest.json"
    made = make_changelogs(tmp_path / "store", manifest=manifest, words=6)
    assert made["packages"] == 1
    assert made["users"] == 2
    listed = json.loads(manifest.read_text())["packages"]
    assert [row["name"] for row in listed] == ["thing"]
    assert listed[0]["changelog_sha256"] == hashlib.sha256(CHANGELOG.encode()).hexdigest()
    origin = Store.open(tmp_path / "store").tokenizer().origin
    assert origin["source"] == "public text"
    again = make_changelogs(tmp_path / "again", manifest=manifest, words=6)
    assert {**again, "store": ""} == {**made, "store": ""}

    build_package(tmp_path / "archive", "thing", CHANGELOG.replace("crash", "spill"))
    with pytest.raises(Refused, match=r"another thing 1\.2-3 than expected"):
        make_changelogs(tmp_path / "third", manifest=manifest, words=6)
    manifest.write_text("{}")
    with pytest.raises(Refused, match="is no manifest"):
        make_changelogs(tmp_path / "third", manifest=manifest, words=6)
    with pytest.raises(Refused, match="exists"):
        make_changelogs(tmp_path / "store", manifest=manifest)


def test_without_apt_it_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Refused, match="changelogs are fetched on Debian"):
        apt.available(10)
