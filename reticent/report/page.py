"""The report of a run: one HTML file that needs nothing beside it, a Markdown file, and the plots as PNG."""

import base64
import dataclasses
import re
from pathlib import Path
from typing import Any

from reticent import __version__
from reticent.accounting.statement import Section, Statement
from reticent.errors import Refused
from reticent.files import write_atomically
from reticent.ledger.secrets import place_of_secrets
from reticent.ledger.verify import Check
from reticent.report.audit import exposure_plot, read_audit
from reticent.report.curves import epsilon_curve
from reticent.report.figures import figures
from reticent.report.numbers import percent, plain, times, upper
from reticent.report.participations import histogram
from reticent.report.plots import DARK, Plot, png
from reticent.report.reading import Run, number
from reticent.report.words import headline, privacy_statement, verdict, what_was_done

ON_SECRETS = ("secrets", "row keys", "participations", "noise")
MARKS = {True: "holds", False: "BROKEN", None: "not checked"}


@dataclasses.dataclass(frozen=True)
class Report:
    """A report as it will be written: `files` by their names in the run directory."""

    run: Run
    files: dict[str, bytes]

    def write(self) -> list[Path]:
        """Writes the files into the run directory, each whole or not at all."""
        try:
            (self.run.path / "plots").mkdir(exist_ok=True)
            for name, content in self.files.items():
                write_atomically(self.run.path / name, content)
        except OSError as error:
            raise Refused(f"The report cannot be written to {self.run.path} ({error.strerror}); mend that.") from None
        return [self.run.path / name for name in self.files]


def report(run: Run, secrets: str | Path | None = None) -> Report:
    """The report of a run; `secrets` is the folder that its secrets directory is in.

    Everything in it may be shown to anybody: of the secrets it takes only how many people took part how often, where
    that is public.
    """
    epsilons, participations = epsilon_curve(run), histogram(run, secrets)
    counted = participations if isinstance(participations, dict) else None
    audit = read_audit(run)
    plots = [*figures(run, epsilons, counted), *(exposure_plot(run, audit) if audit else [])]
    pictures = {f"plots/{plot.name}.png": png(plot) for plot in plots}
    told: dict[str, Any] = {
        "run": run,
        "facts": run.facts(),
        "headline": headline(run),
        "checks": [(MARKS[check.holds], check.name, _shown(check, run, secrets)) for check in run.verdict.checks],
        "verdict": verdict(run),
        "done": what_was_done(run),
        "participations": participations,
        "epsilons": epsilons,
        "evaluations": run.evaluations,
        "audit": audit,
        "refuted": [one["name"] for one in audit["findings"] if one["verdict"] == "BROKEN"] if audit else [],
        "version": __version__,
    }
    stated = privacy_statement(run, run.name)
    html = _render(
        "report.html",
        told | {"plots": [(plot, _embedded(plot, pictures)) for plot in plots], "statement": stated and stated.html()},
    )
    markdown = _render(
        "report.md",
        told
        | {
            "plots": [(plot, f"plots/{plot.name}.png") for plot in plots],
            "statement": stated and _for_markdown(stated).markdown(),
        },
    )
    return Report(run, {"report.html": html, "report.md": markdown, **pictures})


def _shown(check: Check, run: Run, secrets: str | Path | None) -> str:
    """A check's finding, without what only its owner should see."""
    if check.name in ON_SECRETS and check.holds is False:
        # It may tell the size of a cohort or the norm of a sum.
        return "it was found broken with the run's secrets; `reticent verify` tells how"
    if check.name == "secrets":
        return "the run's secrets were destroyed, or are elsewhere; what needs them is not checked"
    if check.name == "noise" and check.holds is None and not run.finished:
        return "made again when the run is finished, or by `reticent verify`"
    if check.name == "guarantee" and check.holds:
        return "computed anew from the ledger alone" + (", SIMULATED: it protects nobody" if run.simulated else "")
    place = place_of_secrets(run.ledger.first["run"], secrets)
    return check.detail.replace(str(place), "the secrets").replace(f"{run.path}/", "").replace(str(run.path), "the run")


def _embedded(plot: Plot, pictures: dict[str, bytes]) -> tuple[str, str]:
    """The picture as data URIs, for light and for dark paper."""
    light, dark = pictures[f"plots/{plot.name}.png"], png(plot, DARK)
    return _data_uri(light), _data_uri(dark)


def _data_uri(picture: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(picture).decode()


def _render(name: str, told: dict[str, Any]) -> bytes:
    """Fills a template. Every value is escaped for its language; none is trusted."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def escaped(value: Any) -> Any:
        return value if isinstance(value, Markup) else Markup(_escaped_markdown(str(value)))

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=name.endswith(".html"),
        finalize=None if name.endswith(".html") else escaped,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"upper_bound": upper, "percent": percent, "plain": plain, "times": times}
    environment.filters |= {"safe": Markup, "fenced": lambda text: Markup(_fenced(text)), "of": number}
    return environment.get_template(name).render(told).encode()


def _for_markdown(stated: Statement) -> Statement:
    """The statement with all its words escaped."""
    escaped = _escaped_markdown
    sections = tuple(
        Section(one.heading, escaped(one.text), tuple(escaped(item) for item in one.items)) for one in stated.sections
    )
    warning = escaped(stated.warning) if stated.warning else None
    return Statement(escaped(stated.title), escaped(stated.headline), warning, sections)


def _escaped_markdown(text: str) -> str:
    one_line = re.sub(r"\s+", " ", text)
    return re.sub(r"([\\`*_\[\]<>|~&])", r"\\\1", one_line)


def _fenced(text: str) -> str:
    """A code block that its content cannot end."""
    longest = max((len(ticks) for ticks in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}toml\n{text.rstrip()}\n{fence}"
