"""`reticent account`: from the noise to the guarantee."""

from typing import Annotated, Any

import typer

from reticent.cli.nouns import NOUNS, Of, command, told

app = typer.Typer(help="The guarantee of a training: epsilon, rho, and what they rest on.", no_args_is_help=True)


def _account(of: Of, given: dict[str, Any], noise_multiplier: float) -> dict[str, Any]:
    return told(of(noise_multiplier), given["delta"])


OWN = {
    "noise_multiplier": (
        Annotated[
            float,
            typer.Option(help="Standard deviation of an entry of the noise Z, in clip norms.", show_default=False),
        ],
        ...,
    )
}
for name, noun in NOUNS.items():
    app.command(name)(command(noun, OWN, _account))
