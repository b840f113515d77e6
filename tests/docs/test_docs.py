"""The documentation is true: its links lead somewhere, its commands exist, its Python runs."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from reticent.cli.main import VERBS, load_verb
from tests.docs import made
from tests.docs.blocks import FENCE, PAGES, ROOT, blocks, commands

by_name = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@by_name
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        other = page.parent / name if name else page
        assert other.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(other), f"{page.name} links to {target}"


def test_every_page_is_in_the_guide() -> None:
    told = set(re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert told == {page.name for page in (ROOT / "docs").glob("*.md")}


@by_name
def test_commands_are_what_reticent_takes(page: Path) -> None:
    for block in blocks(page):
        for words in commands(block):
            check_command(words, f"{page.name}:{block.line}: reticent {' '.join(words)}")


def check_command(words: list[str], where: str) -> None:
    if words[0].startswith("-"):
        return
    assert words[0] in VERBS, where
    command, words = load_verb(words[0]), words[1:]
    while isinstance(command, click.Group):
        if not words or words[0] == "--help":
            return
        assert words[0] in command.commands, where
        command, words = command.commands[words[0]], words[1:]
    if "--help" in words:
        return
    try:
        command.make_context(command.name, list(words))
    except click.UsageError as error:
        if "does not exist" not in error.format_message():
            raise AssertionError(f"{where}: {error.format_message()}") from None


def test_a_command_that_is_not_there_is_noticed() -> None:
    for words in (["trian"], ["mechanism", "compair"], ["report", "DIR", "--no-such"], ["verify"]):
        with pytest.raises(AssertionError):
            check_command(words, "")


@by_name
def test_python_compiles(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, f"{page.name}:{block.line}", "exec")


@pytest.mark.full
@pytest.mark.timeout(3600)
@by_name
def test_every_example_runs_as_printed(page: Path, tmp_path: Path) -> None:
    """Each page in a folder of its own, its blocks in order; Python blocks of a page share their names."""
    if page.name in made.ELSEWHERE:
        pytest.skip(made.ELSEWHERE[page.name])
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    made.make(page.name, tmp_path)
    script = []
    for number, block in enumerate(blocks(page)):
        if block.language == "python":
            script.append(block.text)
            (tmp_path / f"block{number}.py").write_text("\n".join([made.BEFORE.get(page.name, ""), *script]))
            run([sys.executable, f"block{number}.py"], tmp_path, f"{page.name}:{block.line}")
        for words in commands(block):
            run([sys.executable, "-m", "reticent", *words], tmp_path, f"{page.name}:{block.line} {' '.join(words)}")


def run(arguments: list[str], folder: Path, where: str) -> None:
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, env=made.environment(folder))
    assert done.returncode == 0, f"{where}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
