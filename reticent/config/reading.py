"""Reading run files: TOML, overrides, and errors that name the key."""

import difflib
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from reticent.config.checks import check
from reticent.config.schema import TABLES, RunFile
from reticent.config.toml import to_toml
from reticent.errors import Refused
from reticent.models.kinds import HUGGINGFACE

KEYS = [f"{table}.{key}" for table, model in TABLES.items() for key in model.model_fields]


def load(path: str | Path, overrides: Iterable[str] = ()) -> RunFile:
    """The run file at `path`, with overrides such as `run.rounds=20`, checked as far as it can be without the data."""
    path = Path(path)
    if not path.is_file():
        raise Refused(f"There is no run file {path}.")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refused(f"{path} is not TOML: {error}.") from None
    return parse(content, overrides)


def parse(content: dict[str, Any], overrides: Iterable[str] = ()) -> RunFile:
    """The run file of these tables, checked."""
    content = {name: dict(table) if isinstance(table, dict) else table for name, table in content.items()}
    for override in overrides:
        _override(content, override)
    _name_kind(content)
    try:
        run_file = RunFile.model_validate(content)
    except ValidationError as error:
        raise Refused(_sentence(error)) from None
    check(run_file)
    return run_file


def resolved(run_file: RunFile) -> str:
    """The run file as TOML with every default in its place; reading it gives the same run file."""
    return to_toml(run_file.model_dump(mode="json", exclude_none=True))


def differences(stored: RunFile, given: RunFile) -> list[str]:
    """The keys in which two run files differ, with both values."""
    one, other = stored.model_dump(), given.model_dump()
    found = []
    for key in KEYS:
        table, name = key.split(".")
        values = [(tables[table] or {}).get(name) for tables in (one, other)]
        if values[0] != values[1]:
            found.append(f"{key}: {values[0]!r}, now {values[1]!r}")
    return found


def _name_kind(content: dict[str, Any]) -> None:
    """Says that a checkpoint is a Hugging Face one where only its directory does, so that what is kept of a run says it."""
    table = content.get("model")
    if isinstance(table, dict) and "kind" not in table and isinstance(table.get("checkpoint"), str):
        directory = Path(table["checkpoint"])
        if (directory / "config.json").is_file() and not (directory / "run.toml").is_file():
            table["kind"] = HUGGINGFACE


def _override(content: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or key.count(".") != 1:
        raise Refused(f"An override is written table.key=value, as in run.rounds=20; got {override!r}.")
    table, name = key.split(".")
    if key not in KEYS:
        raise Refused(_unknown(key))
    inner = content.setdefault(table, {})
    if not isinstance(inner, dict):
        raise Refused(f"{table} is a table of the run file, written [{table}].")
    try:
        inner[name] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        inner[name] = text.strip()  # a bare word is a string, as people type it


def _sentence(error: ValidationError) -> str:
    """The problems of a run file in one sentence, each with its key."""
    told = []
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            told.append(_unknown(where).rstrip("."))
        elif problem["type"] == "missing" and "." not in where:
            told.append(f"The run file has no table [{where}]")
        elif problem["type"] == "missing":
            told.append(f"{where} is missing")
        else:
            message = problem["msg"][:1].lower() + problem["msg"][1:]
            told.append(f"{where}: {message}, got {problem['input']!r}")
    return f"{'; '.join(told)}."


def _unknown(key: str) -> str:
    table, _, name = key.partition(".")
    if table in TABLES and name:
        near = difflib.get_close_matches(name, TABLES[table].model_fields, 1, 0.5)
        # A key can also be right and stand in the wrong table.
        found = [f"{table}.{near[0]}"] if near else [other for other in KEYS if other.split(".")[1] == name]
        found = found or difflib.get_close_matches(key, KEYS, 1, 0.0)
        return f"There is no key {key} in a run file; the nearest is {found[0]}."
    near = difflib.get_close_matches(table, TABLES, 1, 0.0)
    return f"There is no table [{table}] in a run file; the nearest is [{near[0]}]."
