"""Amplification by sampling: random cohorts, alone (DP-FedAvg, DP-SGD, ELS, ULS) or with a banded mechanism."""

import dataclasses
import math
from typing import Any, Literal

import numpy as np

from reticent.accounting.guarantee import Guarantee, Unit
from reticent.accounting.losses import Gaussian, Part, check_noise
from reticent.accounting.matrix import check_inflation, side_assumptions, side_details
from reticent.accounting.sampled import FixedSize, Poisson
from reticent.accounting.shuffled import Shuffled
from reticent.errors import Refused
from reticent.mechanisms import Mechanism
from reticent.mechanisms.independent import Independent

ESTIMATORS = {"fixed": 1.0, "clipped": 2.0}
"""How many clip norms one unit moves the released vector by (DP-FedAvg, Lemma 1): a sum divided by a constant; or the
average over at least q W_min, times q W_min."""


def amplified_guarantee(
    mechanism: Mechanism,
    rounds: int,
    noise_multiplier: float,
    probability: float,
    *,
    groups: int = 1,
    sampling: Literal["poisson", "fixed"] = "poisson",
    unit: Unit = "user",
    estimator: str = "fixed",
    clip_norm_inflation: float = 1.0,
    clip_count_noise: float | None = None,
    metrics_noise: float | None = None,
) -> Guarantee:
    """The guarantee of a banded mechanism under random cohorts (BandMF, Thms. 4 and 5): round i takes units of group
    i mod `groups` only, each with `probability` (or a subset of fixed size, which a unit of the smallest group is in with
    this probability). It is that of ceil(rounds / groups) sampled Gaussians of multiplier sigma / kappa, kappa being the
    largest column norm: Poisson under add-or-remove, fixed size under replace-one, at sigma / (2 kappa).

    Refuses a mechanism with more bands than groups, whose rounds of one group overlap. The noise beside the updates is as
    in `matrix_guarantee`; what is released of one round shares its sampling.
    """
    check_noise(noise_multiplier)
    check_inflation(clip_norm_inflation)
    check_probability(probability)
    mechanism.check(rounds)
    if groups < 1:
        raise Refused(f"groups must be at least 1, got {groups!r}.")
    if estimator not in ESTIMATORS:
        raise Refused(f"There is no estimator {estimator!r}; there are {', '.join(ESTIMATORS)}.")
    if estimator == "clipped" and (sampling != "poisson" or groups > 1 or not isinstance(mechanism, Independent)):
        raise Refused(
            "The clipped estimator is proven for Poisson sampling with independent noise only; divide by a constant instead."
        )
    bands = bands_of(mechanism, rounds)
    if bands > groups:
        raise Refused(
            f"A {mechanism.kind} mechanism of {bands} bands is not amplified by sampling from {groups} group"
            f"{'s' if groups > 1 else ''}: the noise of a group's rounds overlaps. Use {bands} groups, or {groups} bands."
        )
    kappa = 1.0 if isinstance(mechanism, Independent) else float(mechanism.column_norms(rounds).max())
    moved = ESTIMATORS[estimator] * clip_norm_inflation * kappa / noise_multiplier
    beside = []
    if clip_count_noise is not None:
        check_noise(clip_count_noise, "clip_count_noise")
        beside.append(kappa / (2 * clip_count_noise))
    if metrics_noise is not None:
        check_noise(metrics_noise, "metrics_noise")
        beside.append(1 / metrics_noise)
    noise = 1 / math.sqrt(moved**2 + sum(mu**2 for mu in beside))
    times = math.ceil(rounds / groups)
    details: dict[str, Any] = {
        "mechanism": mechanism.kind,
        "rounds": rounds,
        "sampling": sampling,
        "probability": probability,
        "groups": groups,
        "bands": bands,
        "compositions": times,
        "effective_noise_multiplier": noise if sampling == "poisson" else noise / 2,
    }
    if clip_norm_inflation != 1:
        details["clip_norm_inflation"] = clip_norm_inflation
    if estimator != "fixed":
        details["clipping_estimator"] = estimator
    details |= side_details(clip_count_noise, metrics_noise)
    grouped = f" from group i mod {groups} in round i" if groups > 1 else " in every round"
    told = [f"each {unit} is drawn with probability {probability:.6g}{grouped}, independently of all else"]
    if sampling == "fixed":
        told = [
            f"the cohort is a uniformly random subset of fixed size, drawn anew{grouped}, which a {unit} is in with "
            f"probability {probability:.6g} at most"
        ]
    if groups > 1:
        told.append("groups were made without looking at anybody's data")
    told.append("who was drawn stays secret" + (", and so does how many were" if sampling == "poisson" else ""))
    told.append(
        "the average of clipped updates divides by the sampled weight, clipped from below"
        if estimator == "clipped"
        else "the sum is divided by a constant chosen in advance"
    )
    return Guarantee(
        parts=(_part(sampling, noise, probability, times),),
        unit=unit,
        adjacency="add-or-remove" if sampling == "poisson" else "replace-one",
        assumptions=(*told, *side_assumptions(details)),
        accounting="privacy loss distribution of "
        + f"{times} {'Poisson-sampled' if sampling == 'poisson' else 'fixed-size sampled'} Gaussians"
        + (", by BandMF Thm. 5" if groups > 1 else ""),
        noise_multiplier=noise_multiplier,
        sensitivity=(1.0 if sampling == "poisson" else 2.0) * ESTIMATORS[estimator] * kappa,
        # Who contributes nothing and who is not there leave the same sum.
        also_holds_for=("zero-out",) if sampling == "poisson" else (),
        details=details,
    )


def sampled_guarantee(probability: float, rounds: int, noise_multiplier: float, **more: Any) -> Guarantee:
    """Independent noise and Poisson sampling: DP-FedAvg and DP-FedSGD, DP-SGD, ULS (ULDP, Thm. 2)."""
    return amplified_guarantee(Independent(), rounds, noise_multiplier, probability, **more)


def shuffled_guarantee(
    mechanism: Mechanism,
    rounds: int,
    noise_multiplier: float,
    slots: int,
    *,
    groups: int = 1,
    unit: Unit = "user",
    **beside: Any,
) -> Guarantee:
    """The guarantee of a banded mechanism when everybody is shuffled once into `groups` that take turns, `slots` rounds of
    a group making an epoch, all epochs in the same order (BandMF, Cor. F.1), under replace-one.

    Amplified for one epoch at most; for more it is that of so many Gaussians, without the shuffle.
    """
    if slots < 1:
        raise Refused("A group does not fill one cohort; use fewer groups or a smaller cohort.")
    fixed = amplified_guarantee(
        mechanism, rounds, noise_multiplier, 1.0, groups=groups, sampling="fixed", unit=unit, **beside
    )
    noise = fixed.details["effective_noise_multiplier"] * 2
    epochs = math.ceil(rounds / (groups * slots))
    one = epochs == 1
    told = [f"people are shuffled once into {groups * slots} cohorts, which take turns, and the order stays secret"]
    return dataclasses.replace(
        fixed,
        parts=(Shuffled(noise, slots) if one else Gaussian(2 * math.sqrt(epochs) / noise),),
        accounting="one shuffle, by clones (BandMF Cor. F.1)"
        if one
        else f"zCDP of one Gaussian, {epochs} participations: the shuffle is accounted within one epoch only",
        assumptions=(*told, *side_assumptions(fixed.details)),
        details={**fixed.details, "sampling": "shuffle", "probability": 1 / slots, "compositions": epochs},
    )


def els_guarantee(probability: float, rounds: int, group_size: int, noise_multiplier: float, **more: Any) -> Guarantee:
    """DP-SGD with example-level sampling and at most `group_size` examples of a user, for the user, exactly (ULDP,
    Thm. 1). `probability` is an example's."""
    of_example = sampled_guarantee(probability, rounds, noise_multiplier, unit="example", **more)
    return of_example.for_group(group_size, "user")


def bands_of(mechanism: Mechanism, rounds: int) -> int:
    """The bands of C; refuses a mechanism that is not banded."""
    base: Any = getattr(mechanism, "base", mechanism)
    if isinstance(base, Independent):
        return 1
    if base.kind in ("toeplitz", "banded-fhu"):
        return int(np.flatnonzero(base.coefficients(rounds))[-1]) + 1
    if base.kind in ("banded", "banded-free"):
        return min(base.bands, rounds)
    raise Refused(
        f"A {base.kind} mechanism is not banded, so sampling does not amplify it; use independent noise, a banded "
        "mechanism, or participation with a min separation."
    )


def check_probability(probability: float) -> None:
    """Refuses what is no sampling probability."""
    if not 0 < probability <= 1:
        raise Refused(f"The sampling probability must be above 0 and at most 1, got {probability!r}.")


def _part(sampling: str, noise: float, probability: float, times: int) -> Part:
    if probability == 1:
        return Gaussian((1 if sampling == "poisson" else 2) * math.sqrt(times) / noise)
    return (Poisson if sampling == "poisson" else FixedSize)(noise, probability, times)
