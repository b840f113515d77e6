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
    occurred: Annotated[
        bool,
        typer.Option(
            "--occurred", help="With the run's secrets: the worst participation that occurred, for diagnosis."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Checks a run from what it wrote: chain, digests, order, guarantee; with its secrets, noise and participations."""
    from reticent import ledger
    from reticent.ledger.verify import verify as check

    verdict = check(directory, _guarantee_of(directory), noise_of_run(directory), secrets)
    happened = _happened(directory, secrets, verdict) if occurred else None
    if destroy_secrets:
        run, _ = ledger.resume(directory, secrets=secrets)
        with run:
            run.destroy_secrets(verdict)
    if as_json:
        keys = ("holds", "finished", "simulated", "head", "guarantee")
        checks = [vars(one) for one in verdict.checks]
        beside = {} if happened is None else {"occurred": happened}
        print_json({key: getattr(verdict, key) for key in keys} | {"checks": checks} | beside)
    else:
        for one in verdict.checks:
            typer.echo(f"{MARKS[one.holds]:12} {one.name}: {one.detail}")
        typer.echo("The run holds." if verdict.holds else "The run does NOT hold.")
        if happened is not None:
            seen = happened["diagnostic"]
            typer.echo(
                f"Sensitivity {happened['sensitivity']:.6g}, by what was enforced: {happened['sensitivity_reason']}."
            )
            typer.echo(
                f"The worst that occurred has at most {seen['worst_sensitivity']:.6g}, in rounds "
                f"{', '.join(map(str, seen['worst_pattern']))}: {seen['means']}."
            )
    if not verdict.holds:
        raise typer.Exit(1)


def _happened(directory: str, secrets: str | None, verdict: Any) -> dict[str, Any]:
    from reticent.report.participations import what_happened
    from reticent.report.reading import read_run

    return what_happened(read_run(directory, verdict=verdict), secrets).summary()


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
