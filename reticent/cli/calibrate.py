"""`reticent calibrate`: from the guarantee to the noise."""

from typing import Annotated, Any

import typer

from reticent.cli.nouns import NOUNS, Of, command, told

app = typer.Typer(help="The smallest noise multiplier that keeps to a target epsilon or rho.", no_args_is_help=True)


def _calibrate(of: Of, given: dict[str, Any], epsilon: float | None, rho: float | None) -> dict[str, Any]:
    from reticent.accounting.calibration import smallest_noise

    noise = smallest_noise(of, given["delta"], epsilon=epsilon, rho=rho)
    return told(of(noise), given["delta"])


OWN = {
    "epsilon": (Annotated[float | None, typer.Option(help="Target epsilon at delta.", show_default=False)], None),
    "rho": (Annotated[float | None, typer.Option(help="Target rho (zCDP) instead.", show_default=False)], None),
}
for name, noun in NOUNS.items():
    app.command(name)(command(noun, OWN, _calibrate))
