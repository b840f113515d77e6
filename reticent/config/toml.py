"""Writing TOML: tables of plain values, which is all that a run file has."""

import json
import re
from typing import Any


def to_toml(tables: dict[str, dict[str, Any]]) -> str:
    """The tables as TOML; `tomllib` reads the same values back. None is left out: TOML has none."""
    parts = []
    for table, values in tables.items():
        lines = [f"{_key(key)} = {_value(value)}" for key, value in values.items() if value is not None]
        parts.append("\n".join([f"[{_key(table)}]", *lines]) + "\n")
    return "\n".join(parts)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _text(key)


def _text(value: str) -> str:
    # JSON's escapes are TOML's, but for the one control character that JSON leaves alone.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    raise TypeError(f"A run file holds no {type(value).__name__}.")
