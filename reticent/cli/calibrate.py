"""`reticent calibrate`: from the guarantee to the noise."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from reticent.cli.nouns import BEST_OF, NOUNS, STATEMENT, Delta, Of, Rounds, chosen, command, told, written
from reticent.cli.output import print_json, print_table
from reticent.errors import Refused

app = typer.Typer(help="The smallest noise multiplier that keeps to a target epsilon or rho.", no_args_is_help=True)


def _calibrate(
    of: Of,
    given: dict[str, Any],
    epsilon: float | None,
    rho: float | None,
    best_of: float | None,
    statement: Path | None,
) -> dict[str, Any]:
    from reticent.accounting.calibration import smallest_noise

    delta, wanted = given["delta"], chosen(of, best_of)
    noise = smallest_noise(wanted, delta, epsilon=epsilon, rho=rho)
    return told(written(wanted(noise), delta, statement), delta)


OWN = {
    "epsilon": (Annotated[float | None, typer.Option(help="Target epsilon at delta.", show_default=False)], None),
    "rho": (Annotated[float | None, typer.Option(help="Target rho (zCDP) instead.", show_default=False)], None),
    "best_of": BEST_OF,
    "statement": STATEMENT,
}
for name, noun in NOUNS.items():
    app.command(name)(command(noun, OWN, _calibrate))


@app.command()
def bands(
    rounds: Rounds,
    population: Annotated[int, typer.Option(help="Units there are: a public estimate.", show_default=False)],
    batch_size: Annotated[int, typer.Option(help="Units in a round (for poisson: on average).", show_default=False)],
    epsilon: Annotated[float, typer.Option(help="Target epsilon at delta.", show_default=False)],
    delta: Delta,
    kind: Annotated[
        Literal["banded", "banded-free", "toeplitz", "banded-fhu"], typer.Option(help="The banded mechanism.")
    ] = "banded",
    sampling: Annotated[
        Literal["poisson", "fixed"], typer.Option(help="How a round is drawn from its group.")
    ] = "poisson",
    only: Annotated[
        str, typer.Option(help="Numbers of bands to try, with commas between. (default: powers of two, and the most)")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """How many bands, under amplification by sampling: those that leave the least noise in the model."""
    from reticent.accounting.bands import bandings, best_banding

    try:
        wanted = [int(one) for one in only.split(",") if one.strip()] or None
    except ValueError:
        raise Refused(f"--only takes numbers of bands with commas between, such as 1,8,64; got {only!r}.") from None
    found = bandings(rounds, population, batch_size, delta, epsilon, bands=wanted, kind=kind, sampling=sampling)
    best = best_banding(found)
    if json:
        tried = [one.summary() for one in found]
        print_json({"best": best.summary(), "tried": tried, "epsilon": epsilon, "delta": delta})
        return
    rows = [
        {
            "bands": f"{one.bands:,}",
            "probability": f"{one.probability:.4g}",
            "times": f"{one.compositions:,}",
            "noise multiplier": f"{one.noise_multiplier:.5g}",
            "noise in the model": f"{one.error:.5g}",
            "": "best" if one is best else "",
        }
        for one in found
    ]
    print_table(f"{kind}: epsilon {epsilon:g} at delta {delta:g}", rows)
    make = f"reticent mechanism optimize {kind} --rounds {rounds} --min-separation {best.bands} --bands {best.bands}"
    typer.echo(f"Make it with: {make} --objective rms --out FILE")
