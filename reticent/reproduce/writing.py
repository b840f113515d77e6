"""A reproduction as files: CSV for programs, PNG and Markdown for people."""

import csv
import io
from pathlib import Path

from reticent.files import write_atomically
from reticent.report.plots import png
from reticent.reproduce.result import Line, Result


def write(name: str, result: Result, folder: Path) -> list[Path]:
    """Writes NAME.csv (a figure's curves, or a table's lines), NAME.png and NAME.md into a folder, which is made if it is
    not there, and tells the files."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        ".csv": (_curves(result) if result.panels else _lines(result.lines)).encode(),
        ".png": png(result.plot(name)),
        ".md": markdown(name, result).encode(),
    }
    for ending, content in contents.items():
        write_atomically(folder / (name + ending), content)
    return [folder / (name + ending) for ending in contents]


def markdown(name: str, result: Result) -> str:
    """The title, what was computed, the figure, and each printed value beside ours."""
    parts = [f"# {result.title}", result.setting, f"![{result.title}]({name}.png)"]
    if result.lines:
        rows = table(result.lines)
        head = list(rows[0])
        body = ["| " + " | ".join(row[column] for column in head) + " |" for row in rows]
        parts.append("\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *body]))
    return "\n\n".join(parts) + "\n"


def table(lines: tuple[Line, ...]) -> list[dict[str, str]]:
    """The lines as rows of text, with columns that are used."""
    further = list(dict.fromkeys(name for line in lines for name in line.beside))
    rows = []
    for line in lines:
        row = {
            "what": line.what,
            "paper": "" if line.paper is None else line.paper,
            "ours": number(line.ours),
            "difference": "" if line.difference is None else f"{line.difference:+.2g}",
            **{name: number(line.beside[name]) if name in line.beside else "" for name in further},
            "verdict": line.verdict,
            "why": line.why,
        }
        rows.append(row)
    unused = [column for column in rows[0] if column != "what" and not any(row[column] for row in rows)]
    return [{column: text for column, text in row.items() if column not in unused} for row in rows]


def number(value: float) -> str:
    """A number in five digits."""
    return f"{value:.5g}"


def _lines(lines: tuple[Line, ...]) -> str:
    further = list(dict.fromkeys(name for line in lines for name in line.beside))
    rows = [
        [line.what, line.paper, repr(line.ours), line.difference, line.verdict, line.why]
        + [line.beside.get(name) for name in further]
        for line in lines
    ]
    return _csv([["what", "paper", "ours", "difference", "verdict", "why", *further], *rows])


def _curves(result: Result) -> str:
    rows = [
        [panel.title, curve.name, x, y]
        for panel in result.panels
        for curve in panel.curves
        for x, y in zip(curve.x, curve.y, strict=True)
    ]
    return _csv([["panel", "curve", "x", "y"], *rows])


def _csv(rows: list[list]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
