"""`reticent compare`: runs side by side."""

from pathlib import Path
from typing import Annotated, Any

import typer

from reticent.cli.output import print_json, print_table


def compare(
    directories: Annotated[list[str], typer.Argument(help="The runs' directories.", metavar="DIR DIR...")],
    delta: Annotated[
        float | None,
        typer.Option(help="State every epsilon at this delta. (default: each at its own)", show_default=False),
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Where to draw the runs over one another.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compares runs by what their ledgers and metrics say; ranks them by accuracy, unless that would not be fair."""
    from reticent.report import read_run
    from reticent.report.compare import compared, save_overlay

    runs = [read_run(directory) for directory in directories]
    told = compared(runs, delta)
    if png is not None:
        save_overlay(runs, told["ranked"], png)
    if as_json:
        print_json(told | {"png": str(png) if png else None})
        return
    title, rows = _table(told["runs"])
    print_table(title + (", best accuracy first" if told["ranked"] else ""), rows)
    for note in told["notes"]:
        typer.echo(note)
    if png is not None:
        typer.echo(f"Drawn to {png}.")


def _table(runs: list[dict[str, Any]]) -> tuple[str, list[dict[str, str]]]:
    """A title and rows; what is the same for all runs stands in the title."""
    rows, title = [_row(one) for one in runs], f"{len(runs)} runs"
    for column, words in (("delta", "at delta {}"), ("adjacency", "under {} adjacency")):
        values = {row[column] for row in rows}
        if len(values) == 1:
            title += " " + words.format(*values)
            rows = [{key: value for key, value in row.items() if key != column} for row in rows]
    return title, rows


def _row(facts: dict[str, Any]) -> dict[str, str]:
    from rich.markup import escape

    from reticent.report.numbers import percent, plain, upper

    epsilon = {
        "private": upper(facts["epsilon"]),
        "simulated": f"(est. {upper(facts['estimated_epsilon'])})",
        "estimate": "estimate",
        "no privacy": "NO PRIVACY",
        "broken": "BROKEN",
        "nothing released": "–",
    }[facts["standing"]]
    return {
        "run": escape(facts["name"]),
        "mechanism": facts["mechanism"],
        "epsilon": epsilon,
        "delta": upper(facts["delta"]),
        "adjacency": facts["adjacency"] or "unknown",
        "rounds": f"{facts['rounds']}" + ("" if facts["finished"] else f" of {facts['planned_rounds']}"),
        "best top-1": percent(facts["best_top1"]),
        "last loss": plain(facts["last_loss"]),
        "clients/s": plain(facts["clients_per_second"], 3),
    }
