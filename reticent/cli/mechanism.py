"""`reticent mechanism`: make, compare and look at noise mechanisms."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from reticent.cli.output import print_json, print_table
from reticent.errors import Refused
from reticent.mechanisms import KINDS, Mechanism, Participation, Workload, load, make
from reticent.mechanisms.registry import kind_named

app = typer.Typer(help="Make, compare and look at noise mechanisms.", no_args_is_help=True, add_completion=False)

Rounds = Annotated[int, typer.Option(help="Training rounds.", show_default=False)]
MinSeparation = Annotated[int, typer.Option(help="Rounds from one participation of a user to the next, at least.")]
MaxParticipations = Annotated[
    int | None,
    typer.Option(help="Participations of one user, at most. (default: the most that fit)", show_default=False),
]
Objective = Annotated[
    Literal["max", "rms"], typer.Option(help="The loss to minimise: of the worst round, or on average.")
]
Momentum = Annotated[float, typer.Option(help="Momentum of the server optimiser that the error is judged under.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def describe(mechanism: Mechanism, participation: Participation, workload: Workload, seconds: float) -> dict[str, Any]:
    """What `--json` prints of a mechanism under a participation."""
    sensitivity = mechanism.sensitivity(participation)
    max_error = mechanism.max_error(participation.rounds, workload)
    rms_error = mechanism.rms_error(participation.rounds, workload)
    return {
        "kind": mechanism.kind,
        "max_loss": max_error * sensitivity.value,
        "rms_loss": rms_error * sensitivity.value,
        "sensitivity": sensitivity.value,
        "sensitivity_exact": sensitivity.exact,
        "sensitivity_reason": sensitivity.reason,
        "max_error": max_error,
        "rms_error": rms_error,
        "memory_overhead": mechanism.memory(participation.rounds),
        "draws_per_round": mechanism.draws_per_round(participation.rounds),
        "seconds": seconds,
        "rounds": participation.rounds,
        "min_separation": participation.min_separation,
        "max_participations": participation.most,
        "digest": mechanism.digest,
        "parameters": mechanism.parameters(),
    }


def made(
    kind: str, participation: Participation, objective: Literal["max", "rms"], workload: Workload, size: int | None
) -> tuple[Mechanism, float]:
    """A mechanism and the seconds it took to make it."""
    start = time.perf_counter()
    mechanism = make(kind, participation, objective, workload, size)
    return mechanism, time.perf_counter() - start


@app.command()
def optimize(
    kind: Annotated[str, typer.Argument(help="One of: " + ", ".join(KINDS) + ".", metavar="KIND")],
    rounds: Rounds,
    min_separation: MinSeparation = 1,
    max_participations: MaxParticipations = None,
    buffers: Annotated[int | None, typer.Option(help="Model-sized buffers of a BLT, at most.")] = None,
    bands: Annotated[
        int | None, typer.Option(help="Bands of a banded mechanism. (default: the min separation)")
    ] = None,
    objective: Objective = "max",
    momentum: Momentum = 0.0,
    out: Annotated[Path | None, typer.Option(help="Where to save the mechanism.")] = None,
    json: Json = False,
) -> None:
    """Find the best mechanism of a kind, and save it."""
    takes = kind_named(kind).size
    for option, value in (("buffers", buffers), ("bands", bands)):
        if value is not None and option != takes:
            remedy = f"give --{takes} instead" if takes else "leave the option out"
            raise Refused(f"A mechanism of kind {kind} has no {option}; {remedy}.")
    participation, workload = Participation(rounds, min_separation, max_participations), Workload(momentum)
    mechanism, seconds = made(kind, participation, objective, workload, buffers if bands is None else bands)
    result = describe(mechanism, participation, workload, seconds)
    if out is not None:
        mechanism.save(out)
        result["file"] = str(out)
    if json:
        print_json(result)
        return
    print_table(f"{kind}: {participation}", _rows([result]))
    exact = "" if result["sensitivity_exact"] else " (an upper bound)"
    typer.echo(f"Sensitivity{exact}: {result['sensitivity_reason']}.")
    typer.echo(f"Saved to {out}." if out else "Not saved; add --out FILE to keep it.")


@app.command()
def compare(
    rounds: Rounds,
    min_separation: MinSeparation = 1,
    max_participations: MaxParticipations = None,
    kinds: Annotated[
        str,
        typer.Option(
            help="Kinds or files, with commas between; blt:3 has 3 buffers, banded:64 has 64 bands. (default: every kind)",
            show_default=False,
        ),
    ] = "",
    objective: Objective = "max",
    momentum: Momentum = 0.0,
    json: Json = False,
) -> None:
    """Compare the families on one participation: loss, sensitivity, memory, time."""
    participation, workload = Participation(rounds, min_separation, max_participations), Workload(momentum)
    results = []
    for name in [name.strip() for name in kinds.split(",") if name.strip()] or list(KINDS):
        make_it = _named(name, participation, objective, workload)
        try:
            mechanism, seconds = make_it()
            results.append({"name": name} | describe(mechanism, participation, workload, seconds))
        except Refused as error:
            results.append({"name": name, "refused": str(error)})
    if all("refused" in result for result in results):
        raise Refused(results[0]["refused"])
    if json:
        print_json({"participation": str(participation), "objective": objective, "mechanisms": results})
        return
    shown = sorted((r for r in results if "refused" not in r), key=lambda r: r[f"{objective}_loss"])
    print_table(str(participation).capitalize(), _rows(shown))
    for result in results:
        if "refused" in result:
            typer.echo(f"{result['name']}: {result['refused']}")


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A mechanism file, or a kind that needs no optimisation.")],
    rounds: Annotated[int, typer.Option(help="Coefficients to show.")] = 100,
    png: Annotated[Path | None, typer.Option(help="Where to draw the coefficients of C and of its inverse.")] = None,
    json: Json = False,
) -> None:
    """The coefficients of a mechanism, and their plot."""
    mechanism = make(str(file), Participation(rounds)) if str(file) in KINDS and not file.exists() else load(file)
    count = min(rounds, mechanism.max_rounds or rounds)
    column, inverse = mechanism.matrix(count)[:, 0], mechanism.inverse(count)[:, 0]
    if png is not None:
        from reticent.report.plots import save_coefficients

        save_coefficients({mechanism.kind: mechanism}, count, png)
    result = {
        "kind": mechanism.kind,
        "digest": mechanism.digest,
        "memory_overhead": mechanism.memory(count),
        "parameters": mechanism.parameters(),
        "coefficients": column,
        "inverse_coefficients": inverse,
        "png": str(png) if png else None,
    }
    if json:
        print_json(result)
        return
    typer.echo(f"{mechanism.kind}, {mechanism.memory(count)} model-sized buffers, digest {mechanism.digest[:16]}")
    for name, value in mechanism.parameters().items():
        typer.echo(f"{name}: {value}")
    head = min(8, len(column), len(inverse))
    print_table(
        f"First column of C and of its inverse ({head} of {count})",
        [{"round": str(i), "C": f"{column[i]:.6f}", "inverse": f"{inverse[i]:+.6f}"} for i in range(head)],
    )
    if png:
        typer.echo(f"Drawn to {png}.")


def _named(
    name: str, participation: Participation, objective: Literal["max", "rms"], workload: Workload
) -> Callable[[], tuple[Mechanism, float]]:
    """How to get what `compare` was asked for: a file, a kind, or a kind and its size. A word that is none is refused."""
    kind, colon, size = name.partition(":")
    if kind not in KINDS and (Path(name).is_file() or "." in name or "/" in name):
        mechanism = load(name)
        return lambda: (mechanism, 0.0)
    if kind_named(kind) and colon and not size.isdecimal():
        raise Refused(f"After {kind}: comes the number of its buffers or bands, such as {kind}:4; got {name!r}.")
    return lambda: made(kind, participation, objective, workload, int(size) if colon else None)


def _rows(results: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [
        {
            "mechanism": result.get("name", result["kind"]),
            "MaxLoss": f"{result['max_loss']:.4f}",
            "RmsLoss": f"{result['rms_loss']:.4f}",
            "sensitivity": f"{result['sensitivity']:.4f}" + ("" if result["sensitivity_exact"] else " (bound)"),
            "memory": f"{result['memory_overhead']}x",
            "draws": f"{result['draws_per_round']:.3g}",
            "seconds": f"{result['seconds']:.3f}",
        }
        for result in results
    ]
