"""`reticent account`: from the noise to the guarantee."""

from pathlib import Path
from typing import Annotated, Any

import typer

from reticent.cli.nouns import BEST_OF, NOUNS, STATEMENT, Of, chosen, command, told, written

app = typer.Typer(help="The guarantee of a training: epsilon, rho, and what they rest on.", no_args_is_help=True)


def _account(
    of: Of, given: dict[str, Any], noise_multiplier: float, best_of: float | None, statement: Path | None
) -> dict[str, Any]:
    delta = given["delta"]
    return told(written(chosen(of, best_of)(noise_multiplier), delta, statement), delta)


OWN = {
    "noise_multiplier": (
        Annotated[
            float,
            typer.Option(help="Standard deviation of an entry of the noise Z, in clip norms.", show_default=False),
        ],
        ...,
    ),
    "best_of": BEST_OF,
    "statement": STATEMENT,
}
for name, noun in NOUNS.items():
    app.command(name)(command(noun, OWN, _account))
