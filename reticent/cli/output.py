"""How verbs print: tables for people, one JSON object for programs."""

import json
import math
from typing import Any

import typer


def json_ready(value: Any) -> Any:
    """The value with plain types only; an infinity or NaN becomes null, which JSON has instead."""
    if isinstance(value, dict):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(item) for item in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if hasattr(value, "tolist"):
        return json_ready(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)


def print_json(value: Any) -> None:
    """Prints one JSON object."""
    typer.echo(json.dumps(json_ready(value), indent=2))


def print_table(title: str, rows: list[dict[str, str]]) -> None:
    """Prints a table for people; numbers to the right, the first column to the left."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    for index, name in enumerate(rows[0] if rows else ()):
        table.add_column(name, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row.values())
    Console().print(table)
