"""`reticent report`: what a run did, for everybody to read."""

from typing import Annotated

import typer

from reticent.cli.output import print_json


def report(
    directory: Annotated[str, typer.Argument(help="The run's directory; the report is written into it.")],
    secrets: Annotated[
        str | None, typer.Option(help="The folder its secrets directory is in; without it where `train` puts it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Writes report.html, report.md and plots/ into the run's directory, all from its ledger and metrics."""
    from reticent.cli.verify import noise_of_run
    from reticent.report import read_run
    from reticent.report import report as made
    from reticent.report.words import headline

    run = read_run(directory, noise_of=noise_of_run(directory), secrets=secrets)
    written = made(run, secrets).write()
    if as_json:
        print_json(run.facts() | {"files": [str(path) for path in written]})
    else:
        told = headline(run)
        if told.warning:
            typer.echo(told.warning)
        typer.echo(f"{run.label}: {told.privacy}, {told.meaning}.")
        if not run.finished:
            typer.echo(f"Not finished: {run.rounds} of at most {run.planned_rounds} rounds so far.")
        typer.echo(f"Written: {written[0]}, {written[1].name} and {len(written) - 2} plots.")
    if not run.verdict.holds:
        raise typer.Exit(1)
