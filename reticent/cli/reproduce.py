"""`reticent reproduce`: the papers' tables and figures, with the paper's value, ours, and the difference."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from reticent.cli.output import print_json, print_table


def reproduce(
    name: Annotated[
        str, typer.Argument(help="A table or figure such as blt-tab1; `list`; or `all`.", metavar="NAME|list|all")
    ],
    out: Annotated[Path, typer.Option(help="Where to write NAME.csv, NAME.png and NAME.md.")] = Path("reproduced"),
    fast: Annotated[bool, typer.Option("--fast", help="Fewer points, without what takes minutes.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """The papers' tables and figures: the paper's value, ours, the difference. Exit code 1 if one is unexplained."""
    from reticent.reproduce.items import ITEMS, item_named
    from reticent.reproduce.writing import table, write

    if name == "list":
        found = [
            {"name": one, "seconds_fast": item.fast, "seconds": item.slow, "what": item.what}
            for one, item in ITEMS.items()
        ]
        if json:
            print_json({"items": found})
            return
        typer.echo(f"{'name':<14}{'seconds':>8}{'--fast':>8}  what it shows")
        for row in found:
            typer.echo(f"{row['name']:<14}{row['seconds']:>8}{row['seconds_fast']:>8}  {row['what']}")
        return
    made: list[dict[str, Any]] = []
    differing = 0
    for one in list(ITEMS) if name == "all" else [name]:
        item = item_named(one)
        if not json:
            about = item.fast if fast else item.slow
            typer.echo(f"{one}: about {about} s" if about >= 10 else one, err=True)
        start = time.perf_counter()
        result = item.make(fast)
        files = [str(file) for file in write(one, result, out)]
        seconds = time.perf_counter() - start
        differing += len(result.differing)
        told = {"name": one, "seconds": seconds, "files": files, "differing": len(result.differing)}
        made.append(told | result.summary())
        if json:
            continue
        if name == "all":
            verdict = f"{len(result.differing)} differ" if result.differing else "nothing differs unexplained"
            typer.echo(f"  {result.title}: {verdict} ({seconds:.0f} s)")
            continue
        if result.lines:
            print_table(result.title, table(result.lines))
        typer.echo(result.setting)
        typer.echo("Wrote " + ", ".join(files) + ".")
    if json:
        print_json({"items": made, "differing": differing})
    elif name == "all":
        typer.echo(f"{len(made)} tables and figures in {out}.")
    if differing:
        typer.echo(f"{differing} values differ from the paper's and nothing explains it.", err=True)
        sys.exit(1)
