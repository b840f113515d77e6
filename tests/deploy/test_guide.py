"""docs/deploy.md, followed word by word: what it prints is run, in two terminals, to a finished federation."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def blocks(section: str) -> list[str]:
    """The commands of a section of the guide, block by block."""
    text = (ROOT / "docs" / "deploy.md").read_text()
    part = text.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"```\n(.*?)```", part, re.S)


def terminal(commands: str, folder: Path, name: str) -> subprocess.Popen:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "RETICENT_SECRETS": str(folder / "secrets")}
    with (folder / f"{name}.log").open("w") as log:
        return subprocess.Popen(
            ["bash", "-ec", commands], cwd=folder, env=variables, stdout=log, stderr=log, start_new_session=True
        )


def run(commands: str, folder: Path, name: str) -> str:
    assert terminal(commands, folder, name).wait(timeout=1800) == 0, (folder / f"{name}.log").read_text()
    return (folder / f"{name}.log").read_text()


def test_the_guide_names_what_there_is():
    """Every verb and option that the guide prints exists."""
    from reticent.cli.main import load_verb

    verbs = load_verb("deploy").commands
    printed = "\n".join(blocks("Try it, on one machine") + blocks("Two terminals"))
    used = re.findall(r"reticent deploy (\w+)([^\n|]*)", printed)
    assert {"new", "keys", "device", "serve", "start", "up"} <= {verb for verb, _ in used}
    for verb, rest in used:
        options = {option for parameter in verbs[verb].params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= options
    assert (ROOT / "examples" / "devices.toml").is_file()


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_two_terminals(tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    people = next(line for line in blocks("Try it, on one machine")[0].splitlines() if "data make crowd" in line)
    run(people, tmp_path, "people")
    first, second, after = blocks("Two terminals")
    # The keys are the first terminal's, and the second begins with them: whoever follows waits for its prompt.
    making, serving = first.rsplit("reticent deploy serve", 1)
    run(making, tmp_path, "making")
    server = terminal(f"reticent deploy serve{serving}", tmp_path, "first")
    devices = terminal(second, tmp_path, "second")
    try:
        code = server.wait(timeout=6000)
    finally:
        os.killpg(devices.pid, signal.SIGINT)
        devices.wait(timeout=120)
    told = (tmp_path / "first.log").read_text()
    assert code == 0, told + (tmp_path / "second.log").read_text()
    assert "finished after 6 rounds, verified" in told
    assert "Stopped." in (tmp_path / "second.log").read_text()
    assert "rounds" in run(after, tmp_path, "after")
    assert (tmp_path / "runs" / "devices" / "report.html").is_file()
