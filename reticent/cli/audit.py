"""`reticent audit`: try to break a run's claim."""

from typing import Annotated

import typer

from reticent.cli.output import print_json


def audit(
    directory: Annotated[
        str, typer.Argument(help="The run's directory; audit.json and the report are written into it.")
    ],
    secrets: Annotated[
        str | None, typer.Option(help="The folder its secrets directory is in; without it where `train` puts it.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the lower bound on epsilon.")] = 0.95,
    beside: Annotated[
        str | None, typer.Option(help="Another audited run, whose exposures are plotted beside this one's.")
    ] = None,
    people: Annotated[
        bool,
        typer.Option("--people", help="Also attack the people trained on. Not private: printed here, written nowhere."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Attacks a run with what it planted ([audit] in its run file) and what it wrote; ends with 1 if its claim breaks."""
    from reticent.audit import audit as attack
    from reticent.report import report

    made = attack(directory, secrets=secrets, confidence=confidence, beside=beside, people=people)
    written = report(made.run, secrets).write()
    if as_json:
        print_json(made.content | {"holds": made.holds, **made.private})
    else:
        for one in made.content["findings"]:
            typer.echo(f"{one['verdict']:11} {one['name']}: {one['detail']}")
        for attacked in made.private.values():
            low, high = attacked["interval"]
            typer.echo(
                f"FOR YOU ONLY: {attacked['members']} people trained on, against as many held out: area under the curve "
                f"{attacked['auc']:.3f} (95% interval {low:.3f} to {high:.3f}). No noise covers this figure."
            )
        typer.echo(
            "Nothing was found that the run's claim does not allow." if made.holds else "The claim does NOT stand."
        )
        typer.echo(f"Report: {written[0]}")
    if not made.holds:
        raise typer.Exit(1)
