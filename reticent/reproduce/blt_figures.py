"""A Hassle-free Algorithm for Strong Differential Privacy in Federated Learning Systems: figures."""

import time
from collections.abc import Iterable, Mapping

import numpy as np

from reticent.mechanisms import Mechanism, Participation
from reticent.mechanisms.tree import TreeFull
from reticent.report import plots
from reticent.report.plots import Curve, Panel
from reticent.reproduce.made import made
from reticent.reproduce.printed import printed
from reticent.reproduce.result import Line, Result, claim

ROUNDS, SEPARATION = 2000, 400


def figure1(fast: bool) -> Result:
    """RmsLoss by the separation that came about."""
    return _by_separation_at_two_and_five("BLT, Figure 1: RmsLoss where the separation is not as planned", "rms", fast)


def figure12(fast: bool) -> Result:
    """MaxLoss by the separation that came about."""
    return _by_separation_at_two_and_five("BLT, Figure 12: MaxLoss where the separation is not as planned", "max", fast)


def figure3(fast: bool) -> Result:
    """Seconds that optimising takes."""
    sizes = (500, 1000) if fast else (500, 1000, 2000, 4000)
    banded = [_seconds("banded", rounds, SEPARATION) for rounds in sizes]
    many = (500, 1000, 2000, 4000, 10**4, 10**5, 10**6)
    blts = [_seconds("blt", rounds, 4) for rounds in many]
    panel = Panel("Seconds to optimise", "rounds", "seconds", (
        Curve("BandMF, 400 bands", sizes, banded), Curve("BLT, 4 buffers", many, blts)), log_x=True, log_y=True)  # fmt: skip
    return Result(
        "BLT, Figure 3: seconds to optimise a mechanism",
        "A separation of 400, as many participations as fit, on this machine's processor; the paper's are of a V100 GPU and "
        "end at a few thousand rounds. Seconds of other machines are not compared.",
        panels=(panel,),
    )


def figure4(fast: bool) -> Result:
    """RmsLoss by separation for three participations."""
    points = [50, 100, 200, 300, 400, 500, 667, 800, 900, 999]
    blts = {f"BLT(b={b})": made("blt", ROUNDS, b, 3) for b in (200, 400, 800)}
    mechanisms = {**blts, **_banded(fast)}
    losses = _losses(mechanisms, [Participation(ROUNDS, b, 3) for b in points], "rms")
    reference = losses["BLT(b=400)"]
    at_end = losses["BandMF(b=400)"][-1] / reference[-1]
    early = losses["BandMF(b=400)"][0] / reference[0]
    near = losses["BandMF(b=400)"][points.index(400)] / reference[points.index(400)]
    return Result(
        "BLT, Figure 4: RmsLoss for three participations",
        "n = 2000, at most 3 participations, all mechanisms for RmsLoss.",
        (
            claim("BandMF(b=400) ahead of BLT(b=400) at its own separation", near < 1, near),
            claim("BLT(b=400) ahead where participations are dense, at 50", early > 1, early),
            claim("BandMF significantly worse at 999", at_end > 1.02, at_end),
        ),
        (_relative(points, losses, "BLT(b=400)"), _absolute(points, losses, "RmsLoss")),
    )


def figure5(fast: bool) -> Result:
    """RmsLoss by separation with as many participations as fit."""
    points = [40, 50, 80, 100, 125, 200, 250, 400, 500, 1000]
    blts = {f"BLT(b={b})": made("blt", ROUNDS, b) for b in (100, 400, 1000)}
    mechanisms = {**blts, **_banded(fast)}
    losses = _losses(mechanisms, [Participation(ROUNDS, b) for b in points], "rms")
    ratios = [band / blt for band, blt in zip(losses["BandMF(b=400)"], losses["BLT(b=400)"], strict=True)]
    return Result(
        "BLT, Figure 5: RmsLoss with as many participations as fit",
        "n = 2000 and separations that divide it, all mechanisms for RmsLoss.",
        (
            claim(
                "BandMF(b=400) slightly ahead at 400", 0.9 < ratios[points.index(400)] < 1, ratios[points.index(400)]
            ),
            claim("BandMF(b=400) degrades faster below it, at 40", ratios[0] > ratios[points.index(400)], ratios[0]),
        ),
        (_relative(points, losses, "BLT(b=400)"), _absolute(points, losses, "RmsLoss")),
    )


def figure6(fast: bool) -> Result:
    """RmsLoss by the rounds that were run."""
    points = range(400, ROUNDS + 1, 200 if fast else 100)
    mechanisms: dict[str, Mechanism] = {
        f"BLT(n={n}, d={d})": made("blt", n, SEPARATION, None, "rms", d) for n in (800, ROUNDS) for d in (1, 2, 5)
    }
    mechanisms |= {f"BandMF(n={n})": made("banded", n, SEPARATION, None, "rms", SEPARATION) for n in (800, ROUNDS)}
    losses = _losses(mechanisms, [Participation(n, SEPARATION) for n in points], "rms")
    best = f"BandMF(n={ROUNDS})"
    relative = [
        max(one / band for one, band in zip(losses[f"BLT(n={ROUNDS}, d={d})"], losses[best], strict=True))
        for d in (1, 2, 5)
    ]
    apart = max(
        abs(two / five - 1) for two, five in zip(losses["BLT(n=2000, d=2)"], losses["BLT(n=2000, d=5)"], strict=True)
    )
    memory = (SEPARATION, mechanisms["BLT(n=2000, d=2)"].memory(ROUNDS))
    shown = {name: losses[name] for name in losses if "d=1" not in name}
    text = printed("blt")["fig6"]
    return Result(
        "BLT, Figure 6: RmsLoss where the run is longer or shorter than planned",
        "A separation of 400 and as many participations as fit; BandMF runs only as long as it was optimised for.",
        (
            claim(f"d = 1 is not sufficient: relative RmsLoss above {text['one_buffer']}",
                   relative[0] > float(text["one_buffer"]), relative[0]),
            claim("d = 2 and d = 5 almost equivalent, within 1.5%", apart < 0.015, 1 + apart),
            Line("memory, BandMF over BLT(d=2)", text["savings"], memory[0] / memory[1]),
        ),
        (_relative(points, shown, best, "rounds", log_x=False), _absolute(points, shown, "RmsLoss", "rounds", log_x=False)),
    )  # fmt: skip


def figure7(fast: bool) -> Result:
    """BLT beside the banded Toeplitz mechanisms."""
    points = [*range(50, 500, 50 if fast else 25), 499]
    mechanisms: dict[str, Mechanism] = {
        "BLT(k=5)": made("blt", ROUNDS, SEPARATION, 5),
        **{f"BandToep(b={b})": made("toeplitz", ROUNDS, b, 5, "rms", b) for b in (200, 400)},
        **{f"BandFHU(b={b})": made("banded-fhu", ROUNDS, b, 5, "rms", b) for b in (200, 400)},
    }
    losses = _losses(mechanisms, [Participation(ROUNDS, b, 5) for b in points], "rms")
    worst = max(
        blt / min(losses[name][place] for name in losses)
        for place, (point, blt) in enumerate(zip(points, losses["BLT(k=5)"], strict=True))
    )
    return Result(
        "BLT, Figure 7: BLT beside BandToep and BandFHU",
        "n = 2000, at most 5 participations, optimised for a separation of 400.",
        (claim("BLT comparable or better everywhere: within 7% of the best", worst < 1.07, worst),),
        (_relative(points, losses, "BLT(k=5)", log_x=False),),
    )


def figure8(fast: bool) -> Result:
    """The coefficients of the production BLTs."""
    kinds = ("blt-100", "blt-400", "blt-1000")
    plot = plots.coefficients({kind: made(kind, 1, 1) for kind in kinds}, 400 if fast else 2000)
    late = [float(made(kind, 1, 1).matrix(301)[300, 0]) for kind in kinds]
    return Result(
        "BLT, Figure 8: coefficients of the production BLTs",
        "The parameters of Appendix F.",
        (
            claim("those for a separation of 100 decay faster than for 400 and 1,000",
                   late[0] < min(late[1:]), late[0]),
        ),
        plot.panels,
    )  # fmt: skip


def _by_separation_at_two_and_five(title: str, loss: str, fast: bool) -> Result:
    blts = {
        f"BLT(k={k}, {name})": made("blt", ROUNDS, SEPARATION, k, objective)
        for k in (2, 5)
        for name, objective in (("mean", "rms"), ("max", "max"))
    }
    mechanisms = {**blts, **_banded(fast), "TreeAgg-Full": TreeFull(ROUNDS)}
    panels, lines = [], []
    for most, points in ((2, range(50, 1000, 50 if fast else 25)), (5, range(50, 500, 25))):
        losses = _losses(mechanisms, [Participation(ROUNDS, b, most) for b in points], loss)
        panels.append(
            _absolute(points, losses, loss.capitalize() + "Loss", title=f"at most {most} participations", log_x=False)
        )
    if loss == "rms":
        text = printed("blt")["fig1"]
        low, high = _crossings(mechanisms["BLT(k=2, mean)"], mechanisms["BandMF(b=400)"])
        lines = [
            Line("BLT(k=2, mean) ahead of BandMF(b=400) below", ours=low, **text["below"]),
            Line("and above", ours=high, **text["above"]),
        ]
    setting = "n = 2000; BLTs optimised for k participations 400 apart, BandMF for RmsLoss with b bands."
    if fast:
        setting += " Without 800 bands, which take minutes."
    return Result(title, setting, tuple(lines), tuple(panels))


def _crossings(blt: Mechanism, band: Mechanism) -> tuple[int, int]:
    """Between which separations the second has the smaller RmsLoss, for two participations."""
    points = range(300, 1000, 5)
    ahead = [
        band.rms_error(ROUNDS) * band.sensitivity(Participation(ROUNDS, b, 2)).value
        < blt.rms_error(ROUNDS) * blt.sensitivity(Participation(ROUNDS, b, 2)).value
        for b in points
    ]
    places = np.flatnonzero(ahead)
    return (points[places[0]], points[places[-1]]) if len(places) else (0, 0)


def _banded(fast: bool) -> dict[str, Mechanism]:
    bands = (200, 400) if fast else (200, 400, 800)
    return {f"BandMF(b={b})": made("banded", ROUNDS, b, None, "rms", b) for b in bands}


def _losses(
    mechanisms: Mapping[str, Mechanism], participations: Iterable[Participation], loss: str
) -> dict[str, list[float]]:
    """The loss of each under each participation; NaN where a mechanism does not run for so long."""
    found: dict[str, list[float]] = {name: [] for name in mechanisms}
    errors: dict[tuple[str, int], float] = {}
    for participation in participations:
        rounds = participation.rounds
        for name, mechanism in mechanisms.items():
            if mechanism.max_rounds is not None and rounds > mechanism.max_rounds:
                found[name].append(float("nan"))
                continue
            if (name, rounds) not in errors:
                errors[name, rounds] = mechanism.rms_error(rounds) if loss == "rms" else mechanism.max_error(rounds)
            found[name].append(errors[name, rounds] * mechanism.sensitivity(participation).value)
    return found


def _absolute(
    points: Iterable[int], losses: Mapping[str, list[float]], loss: str, x: str = "min separation", *,
    title: str = "", log_x: bool = True,
) -> Panel:  # fmt: skip
    curves = tuple(Curve(name, list(points), values, level="Tree" in name) for name, values in losses.items())
    return Panel(title or loss, x, loss, curves, log_x=log_x)


def _relative(
    points: Iterable[int], losses: Mapping[str, list[float]], to: str, x: str = "min separation", *, log_x: bool = True
) -> Panel:
    curves = tuple(
        Curve(name, list(points), [value / base for value, base in zip(values, losses[to], strict=True)])
        for name, values in losses.items()
    )
    return Panel(f"relative to {to}", x, "RmsLoss, relative", curves, log_x=log_x)


def _seconds(kind: str, rounds: int, size: int) -> float:
    start = time.perf_counter()
    made.__wrapped__(kind, rounds, SEPARATION, None, "rms", size)
    return time.perf_counter() - start
