"""`reticent sweep`: the same run file with other values, to choose clip norms, learning rates and noise by."""

from pathlib import Path
from typing import Annotated, Any

import typer

from reticent.cli.output import print_json, print_table
from reticent.cli.train import work_of


def sweep(
    run_file: Annotated[str, typer.Argument(help="The run file to begin with.")],
    out: Annotated[str, typer.Option(help="The sweep's directory; with one that is there the sweep goes on.")],
    grids: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            help="A key and its values: --grid clipping.norm=0.3,1,3. All combinations are run. "
            "server.learning_rate=auto begins where the noise suggests.",
        ),
    ] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Override a key for all runs.")] = None,
    public: Annotated[
        bool, typer.Option("--public", help="The store's text is public, and nobody's privacy at stake.")
    ] = False,
    accounted: Annotated[
        float | None,
        typer.Option(
            help="For private text: the mean of a random, secret number of runs, of which only the best is shown; the "
            "choice is paid for in its guarantee."
        ),
    ] = None,
    secrets: Annotated[str | None, typer.Option(help="The folder for secrets directories, as in `train`.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Trains a grid of runs on public or generated text, one after the other, and shows them side by side."""
    from reticent.training import sweep as sweeping

    axes = [sweeping.Axis.of(text) for text in grids or ()]
    found = sweeping.points(run_file, axes, overrides or (), work_of)
    if accounted is not None:
        told = sweeping.accounted(found, out, accounted, work_of=work_of, secrets=secrets)
        print_json(told) if as_json else typer.echo(_of_best(told))
        return
    if not as_json:
        typer.echo(f"{len(found)} runs", err=True)
    rows = sweeping.sweep(found, out, public=public, work_of=work_of, secrets=secrets)
    best, noise = sweeping.best_of(rows), sweeping.noise_for_plan(rows)
    pictures = [str(path) for path in draw(rows, axes, Path(out))]
    if as_json:
        print_json({"runs": rows, "best": best, "noise_for_plan": noise, "pictures": pictures})
        return
    print_table("Sweep", [_shown(row, best) for row in rows])
    if noise is not None:
        goal = noise["report_goal"]
        typer.echo(
            f"The most noise within 2% of the best: noise_multiplier {noise['noise_multiplier']:.4g} at a report goal of "
            f"{goal}, that is {noise['noise_multiplier'] / goal:.4g} for each report; `reticent plan` scales both up."
        )
    for path in pictures:
        typer.echo(f"Picture: {path}")


def draw(rows: list[dict[str, Any]], axes: list[Any], out: Path) -> list[Path]:
    """A picture of top-1 by the first key whose values are numbers, a line for every combination of the others."""
    from reticent.report.plots import Curve, Panel, Plot, save

    known = [row for row in rows if row["top1"] is not None]
    for axis in axes:
        try:
            placed = [(float(row[axis.key]), row) for row in known]
        except ValueError:
            continue
        others = [other.key for other in axes if other.key != axis.key]
        lines: dict[str, list[tuple[float, float]]] = {}
        for x, row in placed:
            name = ", ".join(f"{key.split('.')[1]} {row[key]}" for key in others) or "top-1"
            lines.setdefault(name, []).append((x, row["top1"]))
        if len({x for x, _ in placed}) < 2:
            continue
        curves = tuple(
            Curve(name, [x for x, _ in sorted(points)], [y for _, y in sorted(points)])
            for name, points in lines.items()
        )
        log_x = min(x for x, _ in placed) > 0
        panel = Panel(
            "Top-1 accuracy on held-out users", axis.key, curves=curves, log_x=log_x, percent=True, whole=False
        )
        save(Plot("sweep", "Accuracy by what was varied.", (panel,)), out / "sweep.png")
        return [out / "sweep.png"]
    return []


def _shown(row: dict[str, Any], best: dict[str, Any] | None) -> dict[str, str]:
    numbers = {
        name: value if isinstance(value, str) else "" if value is None else f"{value:.4g}"
        for name, value in row.items()
    }
    numbers["top1"] = "" if row["top1"] is None else f"{row['top1']:.2%}"
    return numbers | {"": "best" if row is best else ""}


def _of_best(told: dict[str, Any]) -> str:
    if told["chosen"] is None:
        return "This time the secret number of runs was such that nothing is published; nothing was."
    return (
        f"Best: {told['chosen']} in {told['directory']}, top-1 {told['top1']:.2%}. For all runs and the choice: epsilon "
        f"{told['epsilon']:.4g} at delta {told['delta']:.4g} (statement.md)."
    )
