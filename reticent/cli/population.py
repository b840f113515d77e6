"""`reticent population`: who would take part, played before a launch."""

from typing import Annotated

import typer

from reticent.cli.output import print_json

app = typer.Typer(help="Who takes part: play a population of devices before a launch.", no_args_is_help=True)


@app.callback()
def _verbs() -> None:
    return None


@app.command()
def simulate(
    population: Annotated[int, typer.Option(help="Devices, by a public estimate.")],
    report_goal: Annotated[int, typer.Option(help="Reports that a round waits for.")],
    timer_hours: Annotated[list[float], typer.Option(help="Hours a device rests; repeat it to compare timers.")],
    rounds: Annotated[int, typer.Option(help="Rounds to play.")] = 2000,
    over_selection: Annotated[float, typer.Option(help="Devices invited, as a multiple of the report goal.")] = 1.1,
    dropout: Annotated[float, typer.Option(help="Share of invited devices that never report.")] = 0.06,
    check_ins_per_day: Annotated[float, typer.Option(help="How often an idle device checks in, on average.")] = 4.0,
    report_minutes: Annotated[float, typer.Option(help="Median minutes from invitation to report.")] = 2.0,
    max_days: Annotated[float, typer.Option(help="Give up after this many days.")] = 730.0,
    seed: Annotated[int, typer.Option(help="The same seed plays the same devices.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plays every device for each timer, and shows the separation, participations and rounds per day it would give."""
    from dataclasses import asdict

    from reticent.population.availability import Devices, Rounds, simulate

    devices = Devices(population, check_ins_per_day, dropout=dropout, report_minutes=report_minutes)
    observed = [
        simulate(devices, Rounds(rounds, report_goal, hours, over_selection, max_days=max_days), seed)
        for hours in timer_hours
    ]
    if json:
        print_json({"devices": asdict(devices), "timers": [one.summary() for one in observed]})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{population:,} devices, {report_goal:,} reports a round",
        caption="apart: the fewest rounds between two of one device, and its limit; times: the most of one device",
    )
    columns = ("timer h", "rounds", "days", "a day", "apart", "limit", "median", "times", "wait min")
    for column in columns:
        table.add_column(column, justify="right")
    for one in observed:
        median = one.separation_percentiles.get("p50")
        table.add_row(
            f"{one.plan.timer_hours:g}",
            f"{one.rounds:,}" + ("" if one.finished else f" of {rounds:,}"),
            f"{one.days:.1f}",
            f"{one.rounds_per_day['mean']:.1f}",
            "none twice" if one.min_separation is None else f"{one.min_separation:,}",
            f"{one.largest_separation:,}",
            "" if median is None else f"{median:,.0f}",
            f"{one.max_participations:,}",
            f"{one.waiting_minutes['p50']:.1f}",
        )
    Console().print(table)
