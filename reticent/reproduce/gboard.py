"""Federated Learning of Gboard Language Models with Differential Privacy: the guarantees of the trees that trained them."""

from dataclasses import replace

from reticent.accounting.gaussian import epsilon_of_gaussian
from reticent.accounting.launch import Launch, Ratio, plan
from reticent.mechanisms import Participation
from reticent.mechanisms.tree import Tree
from reticent.report import launches
from reticent.reproduce.printed import printed
from reticent.reproduce.result import Line, Result

NOISE, REPORT_GOAL, DELTA = 7.0, 6500, 1e-10


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
    launch = Launch(
        population=4_210_000, rounds=2000, report_goals=(500, 1000, 3000, REPORT_GOAL), ratios=(Ratio(NOISE, REPORT_GOAL),),
        mechanisms=("tree",), delta=DELTA, over_selection=1.0,
    )  # fmt: skip
    lines = [
        Line(
            row["what"],
            row["separation"],
            replace(launch, population=row["population"]).largest_separation(REPORT_GOAL),
        )
        for row in printed("gboard")["fig4"]["rows"]
    ]
    return Result(
        "Gboard, Figure 4: what a larger crowd, fewer rounds and longer rests do for zCDP",
        "As `reticent plan` draws it: the tree, 4.21 million devices and 2,000 rounds unless varied, noise multiplier 7 at "
        "report goal 6,500 and in proportion elsewhere; the min separation is the population over the report goal, and a "
        "device takes part as often as that lets it.",
        tuple(lines),
        launches.report_goals(plan(launch)).panels,
    )


def _zcdp(row: dict) -> Line:
    participation = Participation(row["rounds"], row["between"] + 1, row["most"])
    zcdp = (Tree().sensitivity(participation).value / NOISE) ** 2 / 2
    return Line(f"{row['model']}: zCDP", row["rho"], zcdp, row.get("true_rho"), row.get("why_rho", ""))
