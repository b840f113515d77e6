"""Plots: what they show is plain data (`Plot`), drawn as PNG for light and dark paper."""

import io
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reticent.errors import Refused
from reticent.files import write_atomically
from reticent.mechanisms import Mechanism

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

DOTS_PER_INCH = 144
MARKED = 30  # Up to here each point of a line is marked.
ABREAST = 4  # Panels in a row.


@dataclass(frozen=True)
class Theme:
    """The colours of a plot; `lines` in the order in which they are used, told apart by colour-blind people too."""

    paper: str
    ink: str
    faint: str
    lines: tuple[str, ...]


LIGHT = Theme("#ffffff", "#1d2433", "#dfe3ea", ("#2558c7", "#c2570c", "#0b7a5b", "#7a3fc0", "#a8174f", "#5b6472"))
DARK = Theme("#171b24", "#e6e9f0", "#333a48", ("#7fa8ff", "#ffab5e", "#54d1a8", "#c39bff", "#ff86ae", "#a9b2c1"))


@dataclass(frozen=True)
class Curve:
    """One line of a panel; `level` draws it thin and dashed, as something to compare with."""

    name: str
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    level: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes: curves, or bars (height by whole number). `whole`: x is a number of rounds."""

    title: str
    x: str
    y: str = ""
    curves: tuple[Curve, ...] = ()
    bars: dict[int, int] | None = None
    log_x: bool = False
    log_y: bool = False
    percent: bool = False
    whole: bool = True


@dataclass(frozen=True)
class Plot:
    """Panels, four in a row. `name` is the file's; `says` is the plot in a sentence, for those who do not see it."""

    name: str
    says: str
    panels: tuple[Panel, ...]


def png(plot: Plot, theme: Theme = LIGHT) -> bytes:
    """The plot as a PNG file; the same bytes for the same plot."""
    from matplotlib.figure import Figure

    across = min(len(plot.panels), ABREAST)
    down = math.ceil(len(plot.panels) / ABREAST)
    figure = Figure(figsize=(4.8 * across + 0.6, 3.5 * down), layout="constrained", facecolor=theme.paper)
    places = figure.subplots(down, across, squeeze=False).ravel()
    for axes, panel in zip(places, plot.panels, strict=False):
        _draw(axes, panel, theme)
    for axes in places[len(plot.panels) :]:
        axes.set_axis_off()
    content = io.BytesIO()
    with warnings.catch_warnings():
        # A run's name may have letters that the font has not: they become boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(content, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return content.getvalue()


def save(plot: Plot, path: Path) -> None:
    """Draws the plot to a file."""
    if not path.parent.is_dir():
        raise Refused(f"The folder {path.parent} does not exist; create it first.")
    write_atomically(path, png(plot))


def _draw(axes: "Axes", panel: Panel, theme: Theme) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")
    drawn = 0
    for curve in panel.curves:
        if curve.level:
            axes.plot(curve.x, curve.y, color=theme.ink, linewidth=1.1, linestyle=(0, (4, 3)), alpha=0.75)
        else:
            mark = "o" if len(curve.x) <= MARKED else ""
            again, colour = divmod(drawn, len(theme.lines))
            dashes = (0, (1, 1 + again)) if again else "solid"
            axes.plot(
                curve.x, curve.y, color=theme.lines[colour], linewidth=1.9, linestyle=dashes, marker=mark, markersize=4
            )
            drawn += 1
    if panel.bars is not None:
        axes.bar(list(panel.bars), list(panel.bars.values()), color=theme.lines[0], width=0.6)
        axes.set_xlim(0.4, max(panel.bars) + 1.6)
    if panel.whole and not panel.log_x:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axis, is_log in ((axes.xaxis, panel.log_x), (axes.yaxis, panel.log_y)):
        if is_log:
            _plain_ticks(axis)
    if panel.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if len(panel.curves) > 1:
        axes.legend(
            axes.get_lines(), [_label(curve.name) for curve in panel.curves], frameon=False, labelcolor=theme.ink
        )
    axes.set_title(panel.title, color=theme.ink, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel(panel.x, color=theme.ink)
    axes.set_ylabel(panel.y, color=theme.ink)
    axes.set_facecolor(theme.paper)
    axes.tick_params(which="both", colors=theme.ink, labelcolor=theme.ink, length=0)
    axes.grid(True, color=theme.faint, linewidth=0.8)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _plain_ticks(axis: "Axis") -> None:
    """Over a few decades, numbers as people write them, at 1, 2 and 5 of each."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = sorted(axis.get_view_interval())
    if low > 0 and high < 2000 * low:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axis.set_minor_formatter(NullFormatter())


def _short(value: float) -> str:
    """A number on an axis: 0.05, 500, 2,000, 20k, 5M."""
    for size, sign in ((1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if sign == 'k' else size):g}{sign}"
    return f"{value:,.6g}"


def _label(name: str) -> str:
    # A dollar would begin a formula, and a leading underscore hide the name.
    shown = name if len(name) <= 40 else name[:39] + "…"
    return shown.replace("$", r"\$").replace("_", "\u02cd", 1) if shown.startswith("_") else shown.replace("$", r"\$")


def coefficients(mechanisms: dict[str, Mechanism], rounds: int) -> Plot:
    """The first columns of C and of its inverse (BLT, Fig. 8)."""
    columns, inverses = [], []
    for name, mechanism in mechanisms.items():
        columns.append(_positive(name, mechanism.matrix(rounds)[:, 0]))
        inverses.append(Curve(name, range(1, rounds), mechanism.inverse(rounds)[1:rounds, 0]))
    return Plot(
        "coefficients",
        "How far an update reaches into later rounds, and how noise is taken back in them.",
        (
            Panel("C: how far an update reaches", "rounds later", curves=tuple(columns), log_y=True),
            Panel("Inverse of C: how noise is taken back", "rounds later", curves=tuple(inverses), log_x=rounds > 2),
        ),
    )


def noise_in_model(mechanism: Mechanism, rounds: int) -> Plot:
    """The standard deviation of the noise in the model after each round, of that of an entry of Z."""
    curve = Curve(mechanism.kind, range(1, rounds + 1), mechanism.errors(rounds))
    says = (
        "The standard deviation of the noise in the model after each round, as a multiple of that of one row of noise."
    )
    return Plot("noise", says, (Panel("Noise in the model", "rounds", curves=(curve,)),))


def _positive(name: str, values: np.ndarray) -> Curve:
    """The values that a logarithmic axis can show."""
    shown = [place for place, value in enumerate(values) if value > 0 and math.isfinite(value)]
    return Curve(name, shown, [float(values[place]) for place in shown])


def save_coefficients(mechanisms: dict[str, Mechanism], rounds: int, path: Path) -> None:
    """Draws `coefficients` to a file."""
    save(coefficients(mechanisms, rounds), path)
