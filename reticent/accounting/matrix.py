"""Matrix mechanisms under deterministic participation: all rounds together are one Gaussian."""

import math
from collections.abc import Mapping
from typing import Any

from reticent.accounting.guarantee import Guarantee, Unit
from reticent.accounting.losses import Gaussian, check_noise
from reticent.errors import Refused
from reticent.mechanisms import Mechanism, Participation
from reticent.mechanisms.independent import Independent


def matrix_guarantee(
    mechanism: Mechanism,
    participation: Participation,
    noise_multiplier: float,
    *,
    unit: Unit = "user",
    clip_norm_inflation: float = 1.0,
    clip_count_noise: float | None = None,
    metrics_noise: float | None = None,
) -> Guarantee:
    """The guarantee of releasing C X + Z for clip norm 1 and noise of `noise_multiplier`: rho = (sens / sigma)^2 / 2, from
    the mechanism's sensitivity under this participation, which is exact or a proven bound.

    `clip_norm_inflation` is how much longer than the clip norm an update can get before it is summed. `clip_count_noise`
    is the noise, in users, on the count of unclipped updates that goes through the same mechanism (adaptive clipping);
    `metrics_noise` that on a vector of metrics of norm 1 at most, drawn afresh in each round.
    """
    check_noise(noise_multiplier)
    check_inflation(clip_norm_inflation)
    sensitivity = mechanism.sensitivity(participation)
    update = clip_norm_inflation * sensitivity.value / noise_multiplier
    parts = [update, *_side(clip_count_noise, sensitivity.value, "clip_count_noise")]
    if metrics_noise is not None:
        parts.append(_metrics(metrics_noise, participation))
    details: dict[str, Any] = {
        "mechanism": mechanism.kind,
        "rounds": participation.rounds,
        "min_separation": participation.min_separation,
        "max_participations": participation.most,
        "exact_separation": participation.exact,
        "sensitivity_exact": sensitivity.exact,
        "sensitivity_reason": sensitivity.reason,
    }
    if clip_norm_inflation != 1:
        details["clip_norm_inflation"] = clip_norm_inflation
    details |= side_details(clip_count_noise, metrics_noise)
    return Guarantee(
        parts=(Gaussian(math.sqrt(math.fsum(mu**2 for mu in parts))),),
        unit=unit,
        adjacency="zero-out",
        assumptions=(_participation_assumption(participation, unit), *side_assumptions(details)),
        accounting="zCDP of one Gaussian over all rounds, converted to epsilon exactly",
        noise_multiplier=noise_multiplier,
        sensitivity=sensitivity.value,
        details=details,
    )


def _side(clip_count_noise: float | None, sensitivity: float, name: str) -> list[float]:
    # Gboard, Thm. 1: the bit is released centred, at +-1/2, through the same mechanism with the same restarts.
    if clip_count_noise is None:
        return []
    check_noise(clip_count_noise, name)
    return [sensitivity / (2 * clip_count_noise)]


def _metrics(noise: float, participation: Participation) -> float:
    check_noise(noise, "metrics_noise")
    return Independent().sensitivity(participation).value / noise


def side_details(clip_count_noise: float | None, metrics_noise: float | None) -> dict[str, Any]:
    """What is released beside the updates, as plain JSON."""
    given = {"clip_count_noise": clip_count_noise, "metrics_noise": metrics_noise}
    return {name: value for name, value in given.items() if value is not None}


def side_assumptions(details: Mapping[str, Any]) -> tuple[str, ...]:
    """What has to hold of everything that is released."""
    told = ["each update is clipped to the clip norm before it is summed"]
    if "clip_norm_inflation" in details:
        grown = details["clip_norm_inflation"] - 1
        told.append(f"encoding or rounding lengthens an update by at most {grown:.3%} of the clip norm")
    if "clip_count_noise" in details:
        told.append("the clip norm changes only where the mechanism restarts, from counts of centred bits")
    if "metrics_noise" in details:
        told.append("metrics of one round are clipped to norm 1 together before they are summed")
    return (*told, "noise is drawn from a secret, cryptographic source")


def check_inflation(inflation: float) -> None:
    """Refuses a factor that would shorten updates."""
    if not 1 <= inflation < math.inf:
        raise Refused(f"clip_norm_inflation is a factor of at least 1, got {inflation!r}.")


def _participation_assumption(participation: Participation, unit: str) -> str:
    if participation.most == 1:
        return f"each {unit} takes part in at most one round"
    apart = "exactly" if participation.exact else "at least"
    return (
        f"each {unit} takes part in at most {participation.most} of {participation.rounds} rounds, "
        f"{apart} {participation.min_separation} rounds apart"
    )
