"""Several guarantees of the same people together, and guarantees as plain JSON, to be composed later."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from reticent.accounting.guarantee import NEIGHBOURS, Guarantee
from reticent.accounting.losses import Gaussian, Part, check_noise
from reticent.accounting.renyi import Moments, Renyi
from reticent.accounting.sampled import FixedSize, Poisson
from reticent.accounting.shuffled import Shuffled
from reticent.errors import Refused


def composed(guarantees: Sequence[Guarantee]) -> Guarantee:
    """All that was released of the same people: a private vocabulary and a training, or two trainings one may join.

    Parts compose, deltas that are a part's own add. Stated under the first one's unit and adjacency; refused where
    another is for another unit, or does not hold under that adjacency.
    """
    if not guarantees:
        raise Refused("There is nothing to compose; give at least one guarantee.")
    first = guarantees[0]
    others = []
    for other in guarantees[1:]:
        if other.unit != first.unit:
            raise Refused(
                f"A guarantee for a {first.unit} does not compose with one for a {other.unit}; state both for the same, "
                "by group privacy."
            )
        others.append(other.as_adjacency(first.adjacency))
    if not others:
        return first
    if any(one.group != first.group for one in others):
        raise Refused("Guarantees with generic group bounds of different sizes do not compose; group them alike.")
    together = (first, *others)
    return dataclasses.replace(
        first,
        parts=tuple(part for one in together for part in one.parts),
        extra_delta=math.fsum(one.extra_delta for one in together),
        assumptions=tuple(dict.fromkeys(told for one in together for told in one.assumptions)),
        accounting="; composed with ".join(one.accounting for one in together),
        also_holds_for=tuple(
            adjacency for adjacency in first.also_holds_for if all(adjacency in one.also_holds_for for one in others)
        ),
        simulated=any(one.simulated for one in together),
        details={**first.details, "composed_of": [one.accounting for one in together]},
    )


def record(guarantee: Guarantee) -> dict[str, Any]:
    """The guarantee as plain JSON; `recorded` reads it back, number for number."""
    return {
        "kind": "guarantee",
        "parts": [part.describe() for part in guarantee.parts],
        "unit": guarantee.unit,
        "adjacency": guarantee.adjacency,
        "also_holds_for": list(guarantee.also_holds_for),
        "assumptions": list(guarantee.assumptions),
        "accounting": guarantee.accounting,
        "extra_delta": guarantee.extra_delta,
        "group": guarantee.group,
        "simulated": guarantee.simulated,
    }


def recorded(stored: Mapping[str, Any]) -> Guarantee:
    """The guarantee in what `record` wrote, in a discovered vocabulary's `guarantee`, or in a noised estimate's `event`."""
    try:
        if stored.get("kind") == "guarantee":
            return Guarantee(
                parts=tuple(_part(one) for one in stored["parts"]),
                unit=stored["unit"],
                adjacency=_adjacency(stored["adjacency"]),
                also_holds_for=tuple(stored["also_holds_for"]),
                assumptions=tuple(stored["assumptions"]),
                accounting=stored["accounting"],
                extra_delta=stored["extra_delta"],
                group=stored["group"],
                simulated=stored["simulated"],
            )
        if "rho" in stored:
            return Guarantee(
                parts=(Gaussian(math.sqrt(2 * stored["rho"])),),
                unit=stored.get("unit", "user"),
                adjacency=_adjacency(stored["adjacency"]),
                also_holds_for=tuple(stored.get("also_holds_for", ())),
                assumptions=tuple(stored.get("assumptions", ())),
                accounting=f"{stored.get('mechanism', 'Gaussian noise')}, one Gaussian and a delta of its own",
                extra_delta=stored.get("delta", 0.0),
            )
        if stored.get("kind") == "gaussian":
            check_noise(stored["noise_multiplier"])
            return Guarantee(
                parts=(Gaussian(1 / stored["noise_multiplier"]),),
                unit="user",
                adjacency=_adjacency(stored["adjacency"]),
                also_holds_for=("zero-out",) if stored["adjacency"] == "add-or-remove" else (),
                accounting="a count with Gaussian noise",
            )
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"This guarantee to compose with is not whole ({error!r}); record it anew.") from error
    raise Refused("A guarantee to compose with is one that was recorded, or has a rho and an adjacency.")


def _part(stored: Mapping[str, Any]) -> Part:
    kind = stored["kind"]
    values = {name: value for name, value in stored.items() if name != "kind"}
    if kind == "gaussian":
        return Gaussian(math.sqrt(2 * values["rho"]))
    if kind == "poisson":
        return Poisson(**values)
    if kind == "fixed":
        return FixedSize(**values)
    if kind == "shuffled":
        return Shuffled(**values)
    if kind == "moments":
        release = _part(values["release"])
        assert isinstance(release, Poisson)
        return Moments(release)
    if kind == "renyi":
        runs = values["runs"]
        of = tuple(_part(part) for part in values["parts"])
        return Renyi(of, None if runs is None else (runs[0], math.inf if runs[1] is None else runs[1]))
    raise Refused(f"There are no releases of kind {kind!r}.")


def _adjacency(name: str) -> Any:
    if name not in NEIGHBOURS:
        raise Refused(f"There is no adjacency {name!r}; there are {', '.join(NEIGHBOURS)}.")
    return name
