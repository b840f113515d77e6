"""What a reproduction is: printed values beside ours, and a figure's curves."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reticent.report.plots import Curve, Panel, Plot

AGREES, EXPLAINED, DIFFERS, SHOWN = "agrees", "explained", "differs", ""


@dataclass(frozen=True)
class Line:
    """One value of ours beside the paper's, as it is printed: its digits say how near ours has to be.

    A slip of the paper is told by `true`, what it should have printed, in as many digits as are known, and `why`; ours is
    then held to that. `within` is for values that a paper gives in words; `shown` for what no two machines share, such as
    seconds. `beside` are further values of ours.
    """

    what: str
    paper: str | None
    ours: float
    true: str | None = None
    why: str = ""
    within: float | None = None
    shown: bool = False
    beside: Mapping[str, float] = field(default_factory=dict)

    @property
    def printed(self) -> float | None:
        """The paper's value as a number."""
        return None if self.paper is None else float(self.paper)

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        if self.printed is None or math.isinf(self.printed):
            return None
        return self.ours - self.printed

    @property
    def verdict(self) -> str:
        """Whether ours is what the paper printed, or what it should have."""
        if self.paper is None or self.shown:
            return SHOWN
        if self.true is None or _meets(self.ours, self.paper, self.within):
            return AGREES if _meets(self.ours, self.paper, self.within) else DIFFERS
        return EXPLAINED if _meets(self.ours, self.true, self.within) else DIFFERS


@dataclass(frozen=True)
class Result:
    """A table or a figure made anew. `setting` says in a sentence or two what was computed; `panels` are the figure."""

    title: str
    setting: str
    lines: tuple[Line, ...] = ()
    panels: tuple[Panel, ...] = ()

    @property
    def differing(self) -> tuple[Line, ...]:
        """The lines that nothing explains."""
        return tuple(line for line in self.lines if line.verdict == DIFFERS)

    def plot(self, name: str) -> Plot:
        """The figure, or the printed values beside ours for a table."""
        return Plot(name, self.setting, self.panels or (_beside(self.title.partition(":")[0], self.lines),))

    def summary(self) -> dict[str, Any]:
        """Everything, as plain JSON."""
        return {
            "title": self.title,
            "setting": self.setting,
            "lines": [vars(line) | {"difference": line.difference, "verdict": line.verdict} for line in self.lines],
            "curves": [
                {"panel": panel.title, "curve": curve.name, "x": list(curve.x), "y": list(curve.y)}
                for panel in self.panels
                for curve in panel.curves
            ],
        }


def claim(what: str, holds: bool, number: float) -> Line:
    """What a paper says in words of a figure: that it holds is compared, 1 for yes; our number for it is beside."""
    return Line(f"{what} (1: it is so)", "1", float(holds), beside={"number": float(number)})


def last_digit(printed: str) -> float:
    """The worth of one unit of the last digit of a printed number: 0.01 for 4.63, 0.0001 for 1.40e-2."""
    mantissa, _, exponent = printed.lower().partition("e")
    return 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def _meets(ours: float, printed: str, within: float | None) -> bool:
    value = float(printed)
    if math.isinf(value):
        return ours == value
    # Half a digit for rounding, and a hair for values that lie on the edge of it.
    return abs(ours - value) <= (0.5001 * last_digit(printed) if within is None else within)


def _beside(title: str, lines: tuple[Line, ...]) -> Panel:
    kept = [
        (place, line.ours / line.printed)
        for place, line in enumerate(lines, 1)
        if line.printed and math.isfinite(line.printed) and math.isfinite(line.ours)
    ]
    places, ratios = [place for place, _ in kept], [ratio for _, ratio in kept]
    apart = bool(ratios) and max(ratios) > 10 * min(ratios) > 0
    curves = (Curve("the paper's", places, [1.0] * len(places), level=True), Curve("ours over it", places, ratios))
    return Panel(title, "line of the table", curves=curves, log_y=apart)
