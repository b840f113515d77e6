"""The privacy statement: a guarantee in words, complete enough to be checked (Gboard, App. A; BandMF, App. K.1)."""

import html
import math
from dataclasses import dataclass
from typing import Literal

from reticent.accounting.guarantee import NEIGHBOURS, Guarantee
from reticent.accounting.rounding import upper
from reticent.errors import Refused

SETTINGS = {
    "off": "Central: updates reach the server one by one, which clips, sums and adds noise, and is trusted to do so and "
    "to keep the noise secret.",
    "encoding": "Central: updates are encoded for secure aggregation but summed by the server, which sees each of them "
    "and is trusted to add noise and to keep it secret.",
    "protocol": "Central, with secure aggregation: the server learns sums of updates only. It adds the noise, and is "
    "trusted to do so and to keep it secret.",
}
TUNING = (
    "the choice of hyper-parameters, architecture and data, as far as other runs on the same people's data led to it"
)
SELECTION = "the choice of a checkpoint, or between models, by evaluation on private data or by live tests"


@dataclass(frozen=True)
class Section:
    """A heading and what is said under it: `text`, then `items` as a list."""

    heading: str
    text: str
    items: tuple[str, ...] = ()


@dataclass(frozen=True)
class Statement:
    """A privacy statement, ready to print. `headline` is the formal statement in one sentence; `warning` what makes it
    no promise to anybody, if anything does."""

    title: str
    headline: str
    warning: str | None
    sections: tuple[Section, ...]

    def markdown(self) -> str:
        """As Markdown, beginning with a heading of the second level."""
        lines = [f"## {self.title}", ""]
        if self.warning:
            lines += [f"> **{self.warning}**", ""]
        lines += [f"**{self.headline}**", ""]
        for section in self.sections:
            lines += [f"### {section.heading}", ""]
            lines += [section.text, ""] if section.text else []
            lines += [f"- {item}" for item in section.items] + [""] if section.items else []
        return "\n".join(lines)

    def html(self) -> str:
        """As an HTML fragment: one <section class="privacy-statement">, without styles or scripts."""
        parts = ['<section class="privacy-statement">', f"<h2>{html.escape(self.title)}</h2>"]
        if self.warning:
            parts.append(f'<p class="warning"><strong>{html.escape(self.warning)}</strong></p>')
        parts.append(f'<p class="headline"><strong>{html.escape(self.headline)}</strong></p>')
        for section in self.sections:
            parts.append(f"<h3>{html.escape(section.heading)}</h3>")
            parts += [f"<p>{html.escape(section.text)}</p>"] if section.text else []
            if section.items:
                listed = "".join(f"<li>{html.escape(item)}</li>" for item in section.items)
                parts.append(f"<ul>{listed}</ul>")
        return "\n".join([*parts, "</section>"]) + "\n"


def statement(
    guarantee: Guarantee,
    *,
    delta: float,
    name: str = "this model",
    secure_aggregation: Literal["off", "encoding", "protocol"] = "off",
    public_data: str | None = None,
    ledger: str | None = None,
    also_covered: tuple[str, ...] = (),
    not_covered: tuple[str, ...] = (),
) -> Statement:
    """The privacy statement of a guarantee at `delta`.

    `name` is what was trained; `public_data` what it was pretrained on, in words; `ledger` the hash of the last line of
    the run's ledger, by which others can check it. `also_covered` and `not_covered` are releases beside the model that
    are in the guarantee (a private vocabulary) or are not (metrics of held-out users). That tuning and the choice of a
    checkpoint are not covered is always said, unless the guarantee pays for choosing among runs (`tuning.tuned`).
    """
    if secure_aggregation not in SETTINGS:
        raise Refused(f"secure_aggregation is one of {', '.join(SETTINGS)}, not {secure_aggregation!r}.")
    epsilon = guarantee.epsilon(delta)
    unit = guarantee.unit
    tuned = guarantee.details.get("runs_to_choose_from")
    left_out = (*((SELECTION,) if tuned else (TUNING, SELECTION)), *not_covered)
    covered = [f"all that training read of each {unit} who follows the protocol, over one whole run"]
    if tuned:
        covered = [f"all runs that the best was chosen from ({tuned}), whole, and that choice"]
    covered += also_covered
    if public_data:
        covered.append(f"not needed for {public_data}, which is public")
    formal = _formal(guarantee, delta, epsilon)
    return Statement(
        title=f"Privacy statement of {name}",
        headline=formal,
        warning=_warning(guarantee, epsilon),
        sections=(
            Section("DP setting", SETTINGS[secure_aggregation]),
            Section("Data accesses covered", "", tuple(_sentence(item) for item in covered)),
            Section(
                "Final mechanism output",
                "The guarantee is for the noised sums of all rounds together, published as they are made: for every "
                "intermediate model therefore, for the final one, and for whatever is computed from them without "
                "looking at the data again.",
            ),
            Section("Unit of privacy", _unit(guarantee)),
            Section(
                "Adjacency", _sentence(f"{guarantee.adjacency}: {NEIGHBOURS[guarantee.adjacency].format(unit=unit)}")
            ),
            Section("Accounting", _sentence(guarantee.accounting)),
            Section("Assumptions", "", tuple(_sentence(item) for item in guarantee.assumptions)),
            Section("Formal statement", formal, _numbers(guarantee)),
            Section("Not covered", "", tuple(_sentence(item) for item in left_out)),
            *((Section("To check it", f"The last line of the run's ledger has the hash {ledger}."),) if ledger else ()),
        ),
    )


def _formal(guarantee: Guarantee, delta: float, epsilon: float) -> str:
    promise = f"(epsilon = {upper(epsilon)}, delta = {upper(delta)})-DP"
    if not math.isfinite(epsilon):
        promise = f"no epsilon at delta = {upper(delta)}"
    if guarantee.rho is not None:
        promise = f"{upper(guarantee.rho)}-zCDP and {promise}"
    return f"Training satisfies {promise}, for one {guarantee.unit} under {guarantee.adjacency} adjacency."


def _warning(guarantee: Guarantee, epsilon: float) -> str | None:
    if guarantee.simulated:
        return "Simulated: noise or cohorts come from a seed, so this run protects nobody."
    if not math.isfinite(epsilon):
        return "Nothing is promised at this delta: a part of what was released uses more than it by itself."
    if epsilon > 50:
        return "An epsilon this large promises little: what one contributed may be read off the model."
    return None


def _unit(guarantee: Guarantee) -> str:
    meant = {
        "user": "A user: all that one person contributed, however much, in all rounds and from all devices counted in "
        "the assumptions.",
        "device": "A device: all that it holds, however much. For a user with one device this is the user; for one with "
        "several, the guarantee for as many devices as may take part follows by group privacy and is weaker.",
        "example": "A single example: a user who contributed several is protected less than this says.",
    }
    return meant[guarantee.unit]


def _numbers(guarantee: Guarantee) -> tuple[str, ...]:
    found = []
    if guarantee.noise_multiplier is not None:
        found.append(f"noise multiplier {guarantee.noise_multiplier:.6g}, in clip norms per entry of Z")
    if guarantee.sensitivity is not None:
        found.append(f"sensitivity {guarantee.sensitivity:.6g}, in clip norms")
    return tuple(_sentence(item) for item in found)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".") if text else text
