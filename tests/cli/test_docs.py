"""The examples of the guides print what they are said to print."""

import re
from pathlib import Path

import pytest

from reticent.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = [
    (name, command, printed)
    for name in ("plan.md", "accounting.md")
    for command, printed in re.findall(r"```\n\$ reticent ([^\n]*)\n(.*?)```", (DOCS / name).read_text(), re.S)
    if printed and not printed.startswith("$")
]


@pytest.mark.parametrize(("name", "command", "printed"), EXAMPLES, ids=[one[1][:40] for one in EXAMPLES])
def test_an_example_prints_what_it_says(capsys, monkeypatch, name: str, command: str, printed: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stopped:
        main(command.split())
    assert not stopped.value.code
    shown = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
    # Three dots stand for lines that are left out.
    for part in printed.split("...\n"):
        assert part.strip("\n") in shown, name


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 7


def test_the_python_example_runs(capsys) -> None:
    [code] = re.findall(r"```python\n(.*?)```", (DOCS / "accounting.md").read_text(), re.S)
    exec(compile(code, "accounting.md", "exec"), {})
    assert "best of a Poisson number of runs with mean 10" in capsys.readouterr().out


def every_option() -> list[tuple[str, str]]:
    import click

    from reticent.cli.main import VERBS, load_verb

    found = []
    waiting: list[tuple[str, click.Command]] = [(verb, load_verb(verb)) for verb in VERBS]
    while waiting:
        name, command = waiting.pop()
        waiting += [(f"{name} {noun}", inner) for noun, inner in getattr(command, "commands", {}).items()]
        found += [(f"{name} {one.name}", getattr(one, "help", "") or "") for one in command.params]
    return found


def test_no_help_is_taken_for_markup() -> None:
    # Square brackets with words in them are styles to the library that prints help, and would not be seen.
    assert len(every_option()) > 100
    assert [name for name, told in every_option() if re.search(r"\[[a-z]", told)] == []
