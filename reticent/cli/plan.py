"""`reticent plan`: mechanism, report goal, noise and epsilon of a launch, before a device is touched."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from reticent.cli.output import print_json, print_table
from reticent.errors import Refused

if TYPE_CHECKING:
    from reticent.accounting.checklist import Progress
    from reticent.accounting.launch import Plan, Ratio, Row
    from reticent.accounting.timers import Played

TIMERS = (24.0, 48.0, 72.0, 96.0, 144.0)


def plan(
    population: Annotated[
        list[int], typer.Option(help="Devices there are, by a public estimate; repeat it for several.")
    ],
    rounds: Annotated[list[int], typer.Option(help="Training rounds: one for all populations, or one for each.")],
    report_goal: Annotated[
        str | None,
        typer.Option(
            help="Reports per round: 6500, or 500,1000,6500, or 500:16000 (doubling). (default: 500:16000)",
            show_default=False,
        ),
    ] = None,
    ratio: Annotated[
        list[str] | None,
        typer.Option(
            help="Noise multiplier and report goal that a small simulation did well with, and its mechanism: 0.54:500:tree; "
            "repeat it for other mechanisms. (default: 7:6500:tree, Gboard's)",
            show_default=False,
        ),
    ] = None,
    mechanisms: Annotated[
        str, typer.Option(help="Kinds or files, with commas between; kinds that need it are optimised.")
    ] = "tree,blt-100,blt-400,blt-1000",
    epsilon: Annotated[float | None, typer.Option(help="Target epsilon at delta.", show_default=False)] = None,
    rho: Annotated[float | None, typer.Option(help="Target rho (zCDP) instead.", show_default=False)] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="Delta, a probability. (default: the population to the power -1.1)", show_default=False),
    ] = None,
    min_separation: Annotated[
        int | None,
        typer.Option(
            help="Rounds from one participation of a device to the next. (default: the most that the population allows)",
            show_default=False,
        ),
    ] = None,
    max_participations: Annotated[
        int | None,
        typer.Option(help="Rounds a device takes part in, at most. (default: the most that fit)", show_default=False),
    ] = None,
    timer_hours: Annotated[
        list[float] | None,
        typer.Option(
            help="Hours a device rests; with --rounds-per-day, or with --simulate (repeat it to compare).",
            show_default=False,
        ),
    ] = None,
    rounds_per_day: Annotated[
        float | None, typer.Option(help="Rounds made in a day in an earlier training.", show_default=False)
    ] = None,
    over_selection: Annotated[
        float, typer.Option(help="Devices invited, as a multiple of the report goal; 1 as in the papers' figures.")
    ] = 1.1,
    devices_per_user: Annotated[int, typer.Option(help="Devices of one user, at most.")] = 1,
    objective: Annotated[
        Literal["max", "rms"],
        typer.Option(help="The noise in the model that stays the same between mechanisms: at worst, or on average."),
    ] = "max",
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="A model pretrained on public text is there.")
    ] = False,
    clip_norm: Annotated[
        float | None, typer.Option(help="The clip norm, if it is known from small cohorts.", show_default=False)
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Play every device of the recommended launch with each timer.")
    ] = False,
    check_ins_per_day: Annotated[float, typer.Option(help="Played: check-ins of an idle device a day.")] = 4.0,
    dropout: Annotated[float, typer.Option(help="Played: share of invited devices that never report.")] = 0.06,
    report_minutes: Annotated[float, typer.Option(help="Played: median minutes from invitation to report.")] = 2.0,
    max_days: Annotated[float, typer.Option(help="Played: give up after this many days.")] = 730.0,
    seed: Annotated[int, typer.Option(help="Played: the same seed plays the same devices.")] = 0,
    plots: Annotated[
        Path | None, typer.Option(help="A folder to draw the curves of epsilon and rho into (PNG).", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Which mechanism, how much noise, how many reports a round, and what epsilon one will be able to state."""
    from reticent.accounting.checklist import Progress
    from reticent.accounting.launch import Launch
    from reticent.accounting.launch import plan as planned

    if len(rounds) not in (1, len(population)):
        raise Refused(f"--rounds was given {len(rounds)} times: give it once, or once for each of the populations.")
    if clip_norm is not None and not clip_norm > 0:
        raise Refused(f"--clip-norm must be above 0, got {clip_norm!r}.")
    timer = _timer_rounds(timer_hours or [], rounds_per_day, simulate)
    ratios = tuple(_ratio(one) for one in ratio or ("7:6500:tree",))
    names = tuple(one.strip() for one in mechanisms.split(",") if one.strip())
    plans = []
    for count, made in zip(population, rounds * (len(population) // len(rounds)), strict=True):
        goals = _goals(report_goal, count, over_selection, ratios[0].report_goal)
        launch = Launch(
            count, made, goals, ratios, names, delta, epsilon, rho, min_separation, timer, max_participations,
            over_selection, devices_per_user, objective,
        )  # fmt: skip
        plans.append(planned(launch))
    progress = Progress(pretrained, bool(ratio), timer is not None or min_separation is not None, clip_norm)
    played: list[list[Played]] = []
    if simulate:
        from reticent.accounting.timers import play
        from reticent.population.availability import Devices

        for one in plans:
            devices = Devices(one.launch.population, check_ins_per_day, dropout=dropout, report_minutes=report_minutes)
            played.append(play(one, devices, timer_hours or TIMERS, max_days=max_days, seed=seed))
    drawn = _drawn(plans, plots) if plots is not None else []
    if json:
        print_json({"plans": [_told(one, progress, timers) for one, timers in _beside(plans, played)], "plots": drawn})
        return
    if len(plans) > 1:
        print_table("Recommended; --json has every row", [_brief(one) for one in plans])
    else:
        _show(plans[0], clip_norm)
    for timers in played:
        _show_timers(timers)
    if len(plans) == 1:
        _show_steps(plans[0], progress)
    for file in drawn:
        typer.echo(f"Drawn to {file}.")


def _beside(plans: "list[Plan]", played: "list[list[Played]]") -> "list[tuple[Plan, list[Played]]]":
    return list(zip(plans, played or [[] for _ in plans], strict=True))


def _told(one: "Plan", progress: "Progress", timers: "list[Played]") -> dict[str, Any]:
    from reticent.accounting.checklist import checklist
    from reticent.accounting.launch import run_file

    launch = one.launch
    told = {
        "population": launch.population,
        "rounds": launch.rounds,
        "target": launch.target,
        "over_selection": launch.over_selection,
        "rows": [row.summary() for row in one.rows],
        "recommended": {
            **one.recommended.guarantee.describe(launch.stated_delta),
            **one.recommended.summary(),
        },
        "run_file": run_file(one, progress.clip_norm),
        "steps": [step.summary() for step in checklist(one, progress)],
    }
    if timers:
        from reticent.accounting.timers import best_timer

        told["timers"] = [timer.summary() for timer in timers]
        told["best_timer_hours"] = best_timer(timers).timer_hours
    return told


def _show(one: "Plan", clip_norm: float | None) -> None:
    from reticent.accounting.launch import run_file
    from reticent.accounting.rounding import upper

    launch, best = one.launch, one.recommended
    title = f"{launch.population:,} devices, {launch.rounds:,} rounds, delta {upper(launch.stated_delta)}"
    rows = [_row(row, best.row) for row in one.rows if row.why_not is None]
    print_table(title, rows)
    for row in one.rows:
        if row.why_not is not None:
            typer.echo(f"{row.mechanism} at {row.report_goal:,} reports cannot be: {row.why_not}")
    told = best.guarantee.describe(launch.stated_delta)
    typer.echo(
        f"Recommended: {best.row.mechanism} at {best.row.report_goal:,} reports with noise multiplier "
        f"{best.noise_multiplier:.6g}: {best.why}."
    )
    typer.echo(
        f"Then epsilon {upper(told['epsilon'])}, rho {upper(told['rho'])} for one {told['unit']} under "
        f"{told['adjacency']}, assuming that"
    )
    for assumption in told["assumptions"]:
        typer.echo(f"  - {assumption}")
    typer.echo("In the run file:")
    for table, keys in run_file(one, clip_norm).items():
        typer.echo(f"  [{table}]  " + ", ".join(f"{key} = {_toml(value)}" for key, value in keys.items()))


def _row(row: "Row", best: "Row") -> dict[str, str]:
    from reticent.accounting.rounding import upper

    return {
        "mechanism": row.mechanism,
        "goal": f"{row.report_goal:,}",
        "apart": f"{row.min_separation:,}",
        "times": f"{row.max_participations:,}",
        "noise": f"{row.noise_multiplier:.4g}",
        "rate": f"{row.learning_rate:.3g}",
        "rho": upper(row.rho, 3),
        "epsilon": upper(row.epsilon, 3),
        "": "best" if row is best else "ok" if row.meets else "no" if row.meets is False else "",
    }


def _brief(one: "Plan") -> dict[str, str]:
    from reticent.accounting.rounding import upper

    launch, best = one.launch, one.recommended
    return {
        "devices": _short(launch.population),
        "rounds": f"{launch.rounds:,}",
        "mechanism": best.row.mechanism,
        "goal": f"{best.row.report_goal:,}",
        "apart": f"{best.row.min_separation:,}",
        "times": f"{best.row.max_participations:,}",
        "noise": f"{best.noise_multiplier:.4g}" + ("" if best.extra_noise == 1 else f" ({best.extra_noise:.3g}x)"),
        "epsilon": upper(best.guarantee.epsilon(launch.stated_delta), 3),
    }


def _show_timers(timers: "list[Played]") -> None:
    from reticent.accounting.rounding import upper
    from reticent.accounting.timers import best_timer

    rows = []
    for one in timers:
        seen = one.observed
        rows.append(
            {
                "timer h": f"{one.timer_hours:g}",
                "rounds": f"{seen.rounds:,}" + ("" if seen.finished else f" of {seen.plan.rounds:,}"),
                "days": f"{seen.days:.1f}",
                "a day": f"{seen.rounds_per_day['mean']:.1f}",
                "apart": "none twice" if seen.min_separation is None else f"{seen.min_separation:,}",
                "limit": f"{seen.largest_separation:,}",
                "times": f"{seen.max_participations:,}",
                "epsilon if so": upper(one.epsilon, 3),
            }
        )
    print_table(f"Timers, played: {timers[0].observed.devices.population:,} devices", rows)
    best = best_timer(timers)
    seen = best.observed
    nearer = "; a longer one may come nearer to the limit"
    longest = (
        best.timer_hours == timers[-1].timer_hours and 2 * (seen.min_separation or math.inf) < seen.largest_separation
    )
    typer.echo(f"Of these timers take {best.timer_hours:g} h{nearer if longest else ''}.")
    typer.echo("Real devices differ, so this is an estimate; plan again with the separation it gave: --min-separation.")


def _show_steps(one: "Plan", progress: "Progress") -> None:
    from reticent.accounting.checklist import checklist

    typer.echo("Where you are:")
    marks = {"done": "[x]", "now": "[>]", "later": "[ ]", "open": "[ ]"}
    for step in checklist(one, progress):
        typer.echo(
            f"  {marks[step.state]} {step.number}. {step.what}" + (": " + step.advice if step.state != "done" else "")
        )


def _drawn(plans: "list[Plan]", folder: Path) -> list[str]:
    from reticent.report.launches import draw

    if folder.exists() and not folder.is_dir():
        raise Refused(f"{folder} is a file; give a folder for the plots.")
    found = []
    for one in plans:
        place = folder if len(plans) == 1 else folder / str(one.launch.population)
        found += [str(path) for path in draw(one, place)]
    return found


def _timer_rounds(hours: list[float], rounds_per_day: float | None, simulate: bool) -> int | None:
    if rounds_per_day is None:
        if hours and not simulate:
            raise Refused(
                "--timer-hours alone does not tell how many rounds a device rests: add --rounds-per-day from an earlier "
                "training, or --simulate."
            )
        return None
    if not 0 < rounds_per_day < float("inf"):
        raise Refused(f"--rounds-per-day must be above 0, got {rounds_per_day!r}.")
    if len(hours) != 1:
        raise Refused("--rounds-per-day goes with one --timer-hours.")
    if not 0 < hours[0] < float("inf"):
        raise Refused(f"--timer-hours must be above 0, got {hours[0]!r}.")
    return max(int(hours[0] / 24 * rounds_per_day + 1e-9), 1)


def _ratio(text: str) -> "Ratio":
    from reticent.accounting.launch import Ratio

    noise, _, rest = text.partition(":")
    goal, _, mechanism = rest.partition(":")
    try:
        return Ratio(float(noise), int(goal), mechanism or "tree")
    except Refused:
        raise
    except ValueError:
        raise Refused(
            f"--ratio is noise multiplier, report goal and mechanism, such as 7:6500:tree; got {text!r}."
        ) from None


def _goals(text: str | None, population: int, over_selection: float, known: int) -> tuple[int, ...]:
    """The report goals asked for; without any, doubling from 500 as far as the population goes."""
    if text is None:
        usual = [500 * 2**power for power in range(6)]
        fitting = [goal for goal in sorted({*usual, known}) if goal * over_selection <= population]
        return tuple(fitting) or (max(int(population / over_selection / 10), 1),)
    try:
        if ":" in text:
            least, most = (int(one) for one in text.split(":"))
            if not 1 <= least <= most:
                raise ValueError
            doubling = [least * 2**power for power in range((most // least).bit_length())]
            return tuple(sorted({*doubling, most}))
        return tuple(int(one) for one in text.split(",") if one.strip())
    except ValueError:
        raise Refused(
            f"--report-goal is a number, several with commas between, or a range such as 500:16000; got {text!r}."
        ) from None


def _short(count: int) -> str:
    return f"{count / 1e6:.4g}M" if count >= 1e6 else f"{count / 1e3:.4g}k" if count >= 1e4 else f"{count:,}"


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
