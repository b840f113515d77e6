"""The schema as data, for help and documentation."""

import difflib
import re
import typing
from typing import Any

from reticent.config.schema import TABLES
from reticent.errors import Refused


def describe(table: str | None = None) -> dict[str, dict[str, dict[str, Any]]]:
    """Every key by table: its type, default, whether it is required, and its description with the unit."""
    if table is not None and table not in TABLES:
        near = difflib.get_close_matches(table, TABLES, 1, 0.0)[0]
        raise Refused(f"There is no table [{table}] in a run file; the nearest is [{near}].")
    return {
        name: {
            key: {
                "type": _type(field.annotation),
                "required": field.is_required(),
                "default": None if field.is_required() else field.default,
                "description": field.description,
            }
            for key, field in model.model_fields.items()
        }
        for name, model in TABLES.items()
        if table in (None, name)
    }


def _type(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return " | ".join(str(value) for value in typing.get_args(annotation))
    arguments = [_type(inner) for inner in typing.get_args(annotation) if inner is not type(None)]
    if typing.get_origin(annotation) is tuple:
        return "list of int"
    if typing.get_origin(annotation) is typing.Annotated:
        return arguments[0]
    return arguments[0] if arguments else re.sub(r"^.*\.", "", getattr(annotation, "__name__", str(annotation)))
