"""BLT, Figures 9 and 10: what the guarantees of Gboard's runs would be with other crowds, rounds and separations.

The utility stays where noise and report goal grow together, and between mechanisms where the noise in the model stays:
BandMF, of which the matrices were not published, gets the noise that gives it the error of the BLT beside it.
"""

from collections.abc import Callable

from reticent.mechanisms import Mechanism, Participation
from reticent.mechanisms.tree import Tree
from reticent.report.plots import Curve, Panel
from reticent.reproduce.made import made
from reticent.reproduce.printed import printed
from reticent.reproduce.result import Result, claim

ROUNDS = 2000


def figure9(fast: bool) -> Result:
    """zCDP by report goal, rounds and separation."""
    at = printed("blt")["fig9"]
    mechanisms = _mechanisms(400)
    steps = 6 if fast else 16
    goals = [round(1000 * 20 ** (step / steps)) for step in range(steps + 1)]
    lengths = [round(500 + 3500 * step / steps) for step in range(steps + 1)]
    apart = [round(50 * 20 ** (step / steps)) for step in range(steps + 1)]
    panels = []
    for locale, population in at["populations"].items():
        by_goal = _curves(mechanisms, goals, _crowd(population))
        panels.append(Panel(f"{locale}: {ROUNDS:,} rounds", "report goal", "rho", by_goal, log_x=True, log_y=True))
    largest = at["populations"]["es-ES"] // at["report_goal"]
    by_rounds = _curves(mechanisms, lengths, lambda rounds: (rounds, largest, at["report_goal"]))
    panels.append(Panel(f"es-ES: report goal {at['report_goal']:,}", "rounds", "rho", by_rounds))
    by_separation = _curves(mechanisms, apart, lambda separation: (ROUNDS, separation, at["report_goal"]))
    panels.append(Panel(f"{ROUNDS:,} rounds", "min separation", "rho", by_separation, log_x=True, log_y=True))
    tree, blt = by_separation[:2]
    gap = max(one / other for one, other in zip(blt.y, tree.y, strict=True))
    smallest = [curve.y[-1] < curve.y[0] for panel in panels[:2] for curve in panel.curves]
    early, planned = (
        _rho(*mechanisms["BLT"], ROUNDS, apart, 6500) / _rho(*mechanisms["BandMF"], ROUNDS, apart, 6500)
        for apart in (200, 400)
    )
    return Result(
        "BLT, Figure 9: zCDP by report goal, rounds and separation",
        f"{_SETTING} A separation of 400 was planned for; the min separation is the population over the report goal.",
        (
            claim("BLT's guarantee stronger than the tree's at every separation", gap < 1, gap),
            claim("a larger report goal gives the stronger guarantee, in spite of its shorter separation",
                  all(smallest), sum(smallest) / len(smallest)),
            claim("BandMF ahead where the separation is as planned, the gap small (25%)", 1 < planned < 1.25, planned),
            claim("and less so, or behind, where it is half of that", early < planned, early),
        ),
        tuple(panels),
    )  # fmt: skip


def figure10(fast: bool) -> Result:
    """zCDP by rounds for three separations."""
    lengths = range(200, 4001, 400 if fast else 100)
    panels, ratios = [], []
    for separation in (100, 400, 1000):
        mechanisms = _mechanisms(separation, banded=separation < 1000 or not fast)
        curves = _curves(mechanisms, lengths, _apart(separation))
        panels.append(Panel(f"separation {separation:,}", "rounds", "rho", curves, log_y=True))
        tree, blt = curves[:2]
        ratios += [one / other for one, other in zip(blt.y, tree.y, strict=True)]
    return Result(
        "BLT, Figure 10: zCDP by rounds",
        f"{_SETTING} Report goal 6,500; BandMF, for 2,000 rounds, ends there."
        + (" Without BandMF for a separation of 1,000, which takes minutes." if fast else ""),
        (claim("BLT's guarantee stronger than the tree's at every length", max(ratios) < 1, max(ratios)),),
        tuple(panels),
    )


_SETTING = (
    "Noise multipliers as in production at report goal 6,500 and in proportion elsewhere; BandMF's such that its error over "
    "2,000 rounds is BLT's. As many participations as fit."
)


def _mechanisms(separation: int, banded: bool = True) -> dict[str, tuple[Mechanism, float]]:
    """Each mechanism with its noise multiplier at report goal 6,500."""
    noise = printed("blt")["fig9"]["noise"]
    blt = made(f"blt-{separation}", 1, 1)
    found: dict[str, tuple[Mechanism, float]] = {
        "tree": (Tree(), noise["tree"]),
        "BLT": (blt, noise[f"blt-{separation}"]),
    }
    if banded:
        band = made("banded", ROUNDS, separation, None, "rms", separation)
        found["BandMF"] = (band, noise[f"blt-{separation}"] * blt.rms_error(ROUNDS) / band.rms_error(ROUNDS))
    return found


def _curves(
    mechanisms: dict[str, tuple[Mechanism, float]], points: list[int] | range, of: Callable[[int], tuple[int, int, int]]
) -> tuple[Curve, ...]:
    """A curve for each mechanism over points, each of which is some (rounds, separation, report goal)."""
    curves = []
    for name, (mechanism, noise) in mechanisms.items():
        reach = [point for point in points if mechanism.max_rounds is None or of(point)[0] <= mechanism.max_rounds]
        curves.append(Curve(name, reach, [_rho(mechanism, noise, *of(point)) for point in reach]))
    return tuple(curves)


def _crowd(population: int) -> Callable[[int], tuple[int, int, int]]:
    return lambda goal: (ROUNDS, population // goal, goal)


def _apart(separation: int) -> Callable[[int], tuple[int, int, int]]:
    return lambda rounds: (rounds, separation, 6500)


def _rho(mechanism: Mechanism, noise: float, rounds: int, separation: int, goal: int) -> float:
    participation = Participation(rounds, max(1, min(separation, rounds)))
    scaled = noise * goal / printed("blt")["fig9"]["report_goal"]
    return (mechanism.sensitivity(participation).value / scaled) ** 2 / 2
