"""Federated Learning of Gboard Language Models with Differential Privacy: the guarantees of the trees that trained them."""

import math

from reticent.accounting.gaussian import epsilon_of_gaussian
from reticent.mechanisms import Participation
from reticent.mechanisms.tree import Tree
from reticent.report.plots import Curve, Panel
from reticent.reproduce.printed import printed
from reticent.reproduce.result import Line, Result

NOISE, REPORT_GOAL, DELTA = 7.0, 6500, 1e-10


def rho(rounds: int, separation: int, most: int | None = None, noise: float = NOISE) -> float:
    """The zCDP of the tree, from its exact sensitivity."""
    separation = min(separation, rounds)
    return (Tree().sensitivity(Participation(rounds, separation, most)).value / noise) ** 2 / 2


def table1(fast: bool) -> Result:
    """The next-word models."""
    return Result(
        "Gboard, Table 1: zCDP of the next-word models",
        "The tree at noise multiplier 7, by its exact sensitivity; MinS counts the rounds between two participations.",
        tuple(_zcdp(row) for row in printed("gboard")["tab1"]["rows"]),
    )


def table2(fast: bool) -> Result:
    """The models for candidates."""
    lines = []
    for row in printed("gboard")["tab2"]["rows"]:
        zcdp = _zcdp(row)
        epsilon = epsilon_of_gaussian(zcdp.ours, DELTA)
        lines += [zcdp, Line(f"{row['model']}: epsilon", row["epsilon"], epsilon, row.get("true"), row.get("why", ""))]
    return Result(
        "Gboard, Table 2: zCDP and epsilon of the candidate models",
        "The tree at noise multiplier 7, by its exact sensitivity, and epsilon at delta 1e-10 from the exact rho.",
        tuple(lines),
    )


def figure4(fast: bool) -> Result:
    """What population, rounds, report goal and separation do."""
    goals, populations = (500, 1000, 3000, 6500), (1, 2, 4, 8, 16)
    steps = 8 if fast else 24

    def by_population(goal: int) -> Curve:
        sizes = [round(5e5 * 40 ** (step / steps)) for step in range(steps + 1)]
        return Curve(f"{goal:,} reports", sizes, [_at(size, 2000, goal) for size in sizes])

    def by_rounds(millions: int) -> Curve:
        rounds = [round(4000 * step / steps) for step in range(1, steps + 1)]
        return Curve(f"{millions} million devices", rounds, [_at(millions * 10**6, one, REPORT_GOAL) for one in rounds])

    def by_separation(rounds: int) -> Curve:
        apart = [round(20 * (rounds / 20) ** (step / steps)) for step in range(steps + 1)]
        return Curve(f"{rounds:,} rounds", apart, [rho(rounds, one) for one in apart])

    lines = [
        Line(row["what"], row["separation"], row["population"] // REPORT_GOAL)
        for row in printed("gboard")["fig4"]["rows"]
    ]
    return Result(
        "Gboard, Figure 4: what a larger crowd, fewer rounds and longer rests do for zCDP",
        "The tree, noise multiplier 7 at report goal 6,500 and in proportion elsewhere; the min separation is the "
        "population over the report goal, and a device takes part as often as that lets it.",
        tuple(lines),
        (
            Panel("2,000 rounds", "devices", "rho", tuple(map(by_population, goals)), log_x=True, log_y=True),
            Panel("report goal 6,500", "rounds", "rho", tuple(map(by_rounds, populations)), log_y=True),
            Panel("any number of devices", "min separation", "rho", tuple(map(by_separation, (1000, 2000, 3000))),
                  log_x=True, log_y=True),
        ),
    )  # fmt: skip


def _at(population: int, rounds: int, goal: int) -> float:
    return rho(rounds, max(1, math.floor(population / goal)), noise=NOISE * goal / REPORT_GOAL)


def _zcdp(row: dict) -> Line:
    zcdp = rho(row["rounds"], row["between"] + 1, row["most"])
    return Line(f"{row['model']}: zCDP", row["rho"], zcdp, row.get("true_rho"), row.get("why_rho", ""))
