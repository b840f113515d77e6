"""`reticent verify`: check a run from what it wrote."""

import importlib.util
from pathlib import Path
from typing import Annotated, Any

import typer

from reticent.cli.output import print_json

MARKS = {True: "holds ", False: "BROKEN", None: "not checked"}


def verify(
    directory: Annotated[str, typer.Argument(help="The run's directory.")],
    secrets: Annotated[
        str | None, typer.Option(help="The folder its secrets directory is in; without it where `train` puts it.")
    ] = None,
    destroy_secrets: Annotated[
        bool, typer.Option("--destroy-secrets", help="If all holds and the run is finished, delete its secrets.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Checks a run from what it wrote: chain, digests, order, guarantee; with its secrets, noise and participations."""
    from reticent import ledger
    from reticent.ledger.verify import verify as check

    verdict = check(directory, _guarantee_of(directory), noise_of_run(directory), secrets)
    if destroy_secrets:
        run, _ = ledger.resume(directory, secrets=secrets)
        with run:
            run.destroy_secrets(verdict)
    if as_json:
        keys = ("holds", "finished", "simulated", "head", "guarantee")
        checks = [vars(one) for one in verdict.checks]
        print_json({key: getattr(verdict, key) for key in keys} | {"checks": checks})
    else:
        for one in verdict.checks:
            typer.echo(f"{MARKS[one.holds]:12} {one.name}: {one.detail}")
        typer.echo("The run holds." if verdict.holds else "The run does NOT hold.")
    if not verdict.holds:
        raise typer.Exit(1)


def _arrays(directory: str) -> dict[str, Any]:
    """The matrices of the run's mechanism, where it holds any."""
    from reticent.mechanisms.storage import load

    path = Path(directory, "mechanism.npz")
    return load(path).arrays() if path.is_file() else {}


def _guarantee_of(directory: str) -> Any:
    from reticent.accounting.run import guarantee_of

    return lambda accounting, delta: guarantee_of(accounting, _arrays(directory)).describe(delta)


def noise_of_run(directory: str) -> Any:
    """The noise of spent rows, made again: where the extra `train` is installed."""
    if importlib.util.find_spec("jax") is None:
        return None

    def noise(description: dict[str, Any], rows: Any, size: int) -> Any:
        from reticent.privacy.again import noise_of

        return noise_of(description, rows, size, _arrays(directory))

    return noise
