"""`reticent config`: what a run file may say, and what one says with every default in its place."""

from typing import Annotated, Any

import typer

from reticent.cli.output import print_json

app = typer.Typer(help="Look at run files: every key, its unit and default; one file with defaults filled in.")


@app.command()
def fields(
    table: Annotated[str | None, typer.Argument(help="Only this table, for example privacy.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Every key of a run file, with its unit and default."""
    from reticent.config.fields import describe

    described = describe(table)
    if as_json:
        print_json(described)
        return
    for name, keys in described.items():
        typer.echo(f"[{name}]")
        for key, field in keys.items():
            typer.echo(f"  {key} ({field['type']}; {_default(field)})\n      {field['description']}")


@app.command()
def show(
    run_file: Annotated[str, typer.Argument(help="A run file.")],
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Override a key: --set run.rounds=20.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Checks a run file and prints it with every default in its place."""
    from reticent.config import load, resolved

    loaded = load(run_file, overrides or ())
    if as_json:
        print_json(loaded.model_dump(mode="json"))
    else:
        typer.echo(resolved(loaded), nl=False)


def _default(field: dict[str, Any]) -> str:
    if field["required"]:
        return "required"
    return "not given" if field["default"] is None else f"default {field['default']!r}"
