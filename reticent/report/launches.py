"""The curves of a launch: what the report goal, the rounds, the separation and the population do to the guarantee
(Gboard, Fig. 4; BLT, Figs. 9 and 10)."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from reticent.accounting.launch import Launch, Plan, guarantee_for, noise_for, participation_of
from reticent.errors import Refused
from reticent.mechanisms import Mechanism
from reticent.report.plots import Curve, Panel, Plot, save

POINTS = 24
SEPARATIONS = (100, 400, 1000)


def draw(plan: Plan, folder: Path) -> list[Path]:
    """Draws all curves into a folder, which is made if it is not there, and tells the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for plot in (report_goals(plan), mechanisms(plan), rounds(plan)):
        save(plot, folder / f"{plot.name}.png")
        files.append(folder / f"{plot.name}.png")
    return files


def report_goals(plan: Plan) -> Plot:
    """rho by population, by rounds and by separation, a line for each report goal (Gboard, Fig. 4)."""
    launch, name = plan.launch, plan.recommended.row.mechanism
    goals = sorted({row.report_goal for row in plan.rows if row.why_not is None})

    def lines(of: Callable[[int], Curve]) -> tuple[Curve, ...]:
        return tuple(curve for curve in map(of, goals) if len(curve.x))

    return Plot(
        "report-goals",
        f"rho with {name}, by population, rounds and min separation, for each report goal at the same utility.",
        (
            _panel(
                "By population", "devices",
                lines(lambda goal: _by_population(launch, name, _made(plan, name, goal), goal, f"{goal:,} reports")),
                log_x=True,
            ),
            _panel(
                "By rounds", "rounds",
                lines(lambda goal: _by_rounds(launch, name, _made(plan, name, goal), goal, f"{goal:,} reports")),
            ),
            _panel(
                "By min separation", "rounds apart",
                lines(lambda goal: _by_separation(launch, name, _made(plan, name, goal), goal, f"{goal:,} reports")),
                log_x=True,
            ),
        ),
    )  # fmt: skip


def mechanisms(plan: Plan) -> Plot:
    """rho by report goal, by rounds and by separation, a line for each mechanism (BLT, Fig. 9)."""
    launch, goal = plan.launch, plan.recommended.row.report_goal
    names = _names(plan)

    def lines(of: Callable[[str], Curve]) -> tuple[Curve, ...]:
        return tuple(curve for curve in map(of, names) if len(curve.x))

    return Plot(
        "mechanisms",
        "rho by report goal, rounds and min separation, for each mechanism at the same utility.",
        (
            _panel(
                "By report goal", "reports a round",
                lines(lambda name: _by_goal(launch, name, _made(plan, name, goal))), log_x=True,
            ),
            _panel(
                f"By rounds, {goal:,} reports", "rounds",
                lines(lambda name: _by_rounds(launch, name, _made(plan, name, goal), goal, name)),
            ),
            _panel(
                f"By min separation, {goal:,} reports", "rounds apart",
                lines(lambda name: _by_separation(launch, name, _made(plan, name, goal), goal, name)), log_x=True,
            ),
        ),
    )  # fmt: skip


def rounds(plan: Plan) -> Plot:
    """rho by rounds at a fixed separation and report goal, a line for each mechanism (BLT, Fig. 10)."""
    goal = plan.recommended.row.report_goal
    panels = []
    for separation in SEPARATIONS:
        # The population is what such a separation takes.
        enough = max(plan.launch.population, separation * plan.launch.invited(goal))
        launch = dataclasses.replace(
            plan.launch, population=enough, min_separation=separation, timer_rounds=None, max_participations=None
        )
        curves = [_by_rounds(launch, name, _made(plan, name, goal), goal, name) for name in _names(plan)]
        panels.append(_panel(f"{separation} rounds apart", "rounds", tuple(curve for curve in curves if len(curve.x))))
    return Plot("rounds", "rho by rounds at fixed separations, for each mechanism at the same noise.", tuple(panels))


def _by_population(launch: Launch, name: str, mechanism: Mechanism, goal: int, label: str) -> Curve:
    free = dataclasses.replace(launch, min_separation=None, timer_rounds=None, max_participations=None)
    counts = np.unique(np.geomspace(launch.population / 10, launch.population * 10, POINTS).astype(int))
    noise = noise_for(launch, name, mechanism, goal)
    return _curve(
        label, counts, lambda count: _rho(dataclasses.replace(free, population=count), mechanism, goal, noise)
    )


def _by_rounds(launch: Launch, name: str, mechanism: Mechanism, goal: int, label: str) -> Curve:
    # The noise stays that of the plan's rounds: more rounds are more of the same training.
    noise = noise_for(launch, name, mechanism, goal)
    made = np.unique(np.linspace(launch.rounds / 10, 2 * launch.rounds, POINTS).astype(int))
    return _curve(
        label, made[made >= 1], lambda count: _rho(dataclasses.replace(launch, rounds=count), mechanism, goal, noise)
    )


def _by_separation(launch: Launch, name: str, mechanism: Mechanism, goal: int, label: str) -> Curve:
    largest = min(launch.largest_separation(goal), launch.rounds)
    apart = np.unique(np.geomspace(max(largest / 20, 1), max(largest, 1), POINTS).astype(int))
    noise = noise_for(launch, name, mechanism, goal)
    free = dataclasses.replace(launch, max_participations=None, timer_rounds=None)
    return _curve(label, apart, lambda one: _rho(dataclasses.replace(free, min_separation=one), mechanism, goal, noise))


def _by_goal(launch: Launch, name: str, mechanism: Mechanism) -> Curve:
    most = int(launch.population / launch.over_selection)
    goals = np.unique(
        np.geomspace(max(min(launch.report_goals) / 4, 1), min(2 * max(launch.report_goals), most), POINTS)
    )
    free = dataclasses.replace(launch, min_separation=None, timer_rounds=None, max_participations=None)
    return _curve(
        name,
        np.unique(goals.astype(int)),
        lambda goal: _rho(free, mechanism, goal, noise_for(launch, name, mechanism, goal)),
    )


def _rho(launch: Launch, mechanism: Mechanism, goal: int, noise: float) -> float | None:
    return guarantee_for(launch, mechanism, participation_of(launch, goal), noise).rho


def _curve(label: str, values: Iterable[int], rho: Callable[[int], float | None]) -> Curve:
    """The points that can be; a mechanism or a population may not reach as far as the axis."""
    x, y = [], []
    for value in map(int, values):
        try:
            found = rho(value)
        except Refused:
            continue
        if found is not None:
            x.append(value)
            y.append(found)
    return Curve(label, x, y)


def _panel(title: str, x: str, curves: Sequence[Curve], log_x: bool = False) -> Panel:
    return Panel(title, x, "rho (zCDP)", tuple(curves), log_x=log_x, log_y=True)


def _names(plan: Plan) -> list[str]:
    return list(dict.fromkeys(row.mechanism for row in plan.rows if row.why_not is None))


def _made(plan: Plan, name: str, goal: int) -> Mechanism:
    """The mechanism that the plan made for this goal, or for another where it has none for this one."""
    rows = [row for row in plan.rows if row.mechanism == name and row.made is not None]
    found = next((row for row in rows if row.report_goal == goal), rows[0]).made
    assert found is not None
    return found
