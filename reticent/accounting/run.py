"""From what a run's ledger says (or a run file asks for) to its guarantee: `guarantee_of`, and back: `calibrated`.

The accounting of a run is plain JSON (`reticent.ledger.description`), with these keys:

`rounds`              rounds that were made
`noise_multiplier`    standard deviation of an entry of Z for clip norm 1
`mechanism`           the mechanism's header, or the name of a kind that needs no optimisation
`participation`       the `event` of the sampler (`reticent.population`): deterministic, poisson, fixed or cyclic
`restarts`            rounds before which the mechanism started anew
`unit`                "user" (the default), "device" or "example"
`group_size`          most devices (or examples) of one user, where these take part each by itself: the guarantee is then
                      for the user
`adaptive_clipping`   {"noise_multiplier": sigma_b}: noise, in users, on the count of centred bits (+-1/2) that goes
                      through the same mechanism with the same restarts
`secure_aggregation`  {"inflation": f}: the norm an encoded update can have, over the clip norm
`rounding`            grid * sqrt(dimension) / clip norm, only where a float sum is rounded once
`metrics`             {"noise_multiplier": sigma}: noise on each round's metrics of those trained on, for norm 1
`clipping_estimator`  "fixed" (the default); or "clipped": what is noised is DP-FedAvg's average over at least q W_min,
                      times q W_min, which one user moves by up to 2 clip norms
`composed_with`       guarantees of the same people to add: each as `composition.recorded` reads it
`simulated`           noise and cohorts were drawn from a seed: the guarantee is labelled, it protects nobody

A key that is not here, and what is not proven, is refused.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reticent.accounting.guarantee import Guarantee
from reticent.accounting.matrix import matrix_guarantee
from reticent.errors import Refused
from reticent.mechanisms import KINDS, Mechanism, Participation, make
from reticent.mechanisms.storage import from_header

KEYS = {
    "rounds", "noise_multiplier", "mechanism", "participation", "restarts", "unit", "group_size", "adaptive_clipping",
    "secure_aggregation", "rounding", "metrics", "clipping_estimator", "composed_with", "simulated",
}  # fmt: skip
UNITS = ("user", "device", "example")


def guarantee_of(accounting: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> Guarantee:
    """The guarantee of a run with this accounting; `arrays` are the matrices of its mechanism, where it holds any.

    Refuses what no theorem covers, with the reason.
    """
    unknown = sorted(set(accounting) - KEYS)
    if unknown:
        raise Refused(f"The accountant does not know what {unknown[0]!r} means for privacy, so it states nothing.")
    for key in ("rounds", "noise_multiplier", "mechanism", "participation"):
        if key not in accounting:
            raise Refused(f"The accounting of a run needs {key!r}.")
    unit = accounting.get("unit", "user")
    if unit not in UNITS:
        raise Refused(f"The unit of privacy is one of {', '.join(UNITS)}, not {unit!r}.")
    event = accounting["participation"]
    kind = event.get("kind") if isinstance(event, Mapping) else event
    if kind not in EVENTS:
        raise Refused(f"There is no participation {kind!r}; the accountant knows {', '.join(EVENTS)}.")
    size = accounting.get("group_size", 1)
    if size != 1 and unit == "user":
        # What is drawn and moves by itself is then one of the user's.
        accounting = {**accounting, "unit": "example"}
    guarantee = EVENTS[kind](accounting, mechanism_of(accounting, arrays))
    if size != 1:
        guarantee = guarantee.for_group(size, "user")
    others = accounting.get("composed_with") or ()
    if others:
        from reticent.accounting.composition import composed, recorded

        guarantee = composed([guarantee, *(recorded(other) for other in others)])
    return dataclasses.replace(guarantee, simulated=guarantee.simulated or bool(accounting.get("simulated", False)))


def mechanism_of(accounting: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> Mechanism:
    """The mechanism that an accounting describes, restarts included."""
    described = accounting["mechanism"]
    if isinstance(described, str):
        if KINDS.get(described) is None or described in NEEDS_A_FILE:
            raise Refused(f"The mechanism {described!r} has to be described by its header, not by its kind alone.")
        mechanism = make(described, Participation(accounting["rounds"]))
    else:
        mechanism = from_header(described, dict(arrays or {}), "The run's mechanism")
    restarts = accounting.get("restarts")
    if restarts:
        from reticent.mechanisms.restarted import Restarted

        return Restarted(mechanism, tuple(sorted({0, *restarts})))
    return mechanism


NEEDS_A_FILE = {"banded", "banded-free", "toeplitz", "banded-inverse", "blt", "dense"}


def _deterministic(accounting: Mapping[str, Any], mechanism: Mechanism) -> Guarantee:
    event = accounting["participation"]
    if accounting.get("clipping_estimator", "fixed") != "fixed":
        raise Refused("The clipped estimator is proven for Poisson sampling only; divide by a constant instead.")
    rounds = accounting["rounds"]
    participation = Participation(
        rounds,
        min(event.get("min_separation", 1), rounds),
        event.get("max_participations"),
        bool(event.get("exact", False)),
    )
    return matrix_guarantee(
        mechanism,
        participation,
        accounting["noise_multiplier"],
        unit=accounting.get("unit", "user"),
        **_side(accounting),
    )


def _side(accounting: Mapping[str, Any]) -> dict[str, Any]:
    """What is released or lengthened beside the clipped update."""
    inflation = (accounting.get("secure_aggregation") or {}).get("inflation", 1.0)
    return {
        "clip_norm_inflation": inflation + accounting.get("rounding", 0.0),
        "clip_count_noise": (accounting.get("adaptive_clipping") or {}).get("noise_multiplier"),
        "metrics_noise": (accounting.get("metrics") or {}).get("noise_multiplier"),
    }


def _poisson(accounting: Mapping[str, Any], mechanism: Mechanism) -> Guarantee:
    return _amplified(accounting, mechanism, accounting["participation"]["probability"])


def _fixed(accounting: Mapping[str, Any], mechanism: Mechanism) -> Guarantee:
    event = accounting["participation"]
    return _amplified(accounting, mechanism, _share(event["cohort"], event["population"]), sampling="fixed")


def _cyclic(accounting: Mapping[str, Any], mechanism: Mechanism) -> Guarantee:
    event = accounting["participation"]
    sampling, groups = event["sampling"], event["groups"]
    if accounting.get("group_size", 1) != 1 and groups > 1 and event.get("groups_of") != "users":
        raise Refused(
            "Where one user is in several groups, rounds of different groups are not independent, and no proof covers it; "
            "put users into groups, each with all that it has."
        )
    if sampling == "poisson":
        return _amplified(accounting, mechanism, event["probability"], groups=groups)
    if sampling == "fixed":
        share = _share(event["cohort"], event["smallest_group"])
        return _amplified(accounting, mechanism, share, groups=groups, sampling="fixed")
    if sampling == "shuffle":
        from reticent.accounting.amplified import shuffled_guarantee

        return shuffled_guarantee(
            mechanism,
            accounting["rounds"],
            accounting["noise_multiplier"],
            event["smallest_group"] // event["cohort"],
            groups=groups,
            unit=accounting.get("unit", "user"),
            **_side(accounting),
        )
    raise Refused(f"There is no sampling {sampling!r} within groups; there are poisson, fixed and shuffle.")


def _amplified(accounting: Mapping[str, Any], mechanism: Mechanism, probability: float, **more: Any) -> Guarantee:
    from reticent.accounting.amplified import amplified_guarantee

    return amplified_guarantee(
        mechanism,
        accounting["rounds"],
        accounting["noise_multiplier"],
        probability,
        unit=accounting.get("unit", "user"),
        estimator=accounting.get("clipping_estimator", "fixed"),
        **more,
        **_side(accounting),
    )


def _share(cohort: int, population: int) -> float:
    if not 1 <= cohort <= population:
        raise Refused(f"A cohort of {cohort} cannot be drawn from {population}; lower the report goal.")
    return cohort / population


EVENTS: dict[str, Callable[[Mapping[str, Any], Mechanism], Guarantee]] = {
    "deterministic": _deterministic,
    "poisson": _poisson,
    "fixed": _fixed,
    "cyclic": _cyclic,
}


def prepared(
    accounting: Mapping[str, Any],
    delta: float,
    *,
    epsilon: float | None = None,
    rho: float | None = None,
    arrays: Mapping[str, np.ndarray] | None = None,
) -> tuple[float, Guarantee]:
    """What a run needs to know before its first round: the noise multiplier, and the guarantee of the whole run.

    `accounting` is as in `guarantee_of`. With a target, `epsilon` at `delta` or `rho`, the noise is calibrated to it;
    without one it is the accounting's own `noise_multiplier`. Write the number that comes back into the accounting.
    """
    if epsilon is None and rho is None:
        noise = accounting["noise_multiplier"]
    else:
        noise = calibrated(accounting, delta, epsilon=epsilon, rho=rho, arrays=arrays)
    return noise, guarantee_of({**accounting, "noise_multiplier": noise}, arrays)


def calibrated(
    accounting: Mapping[str, Any],
    delta: float,
    *,
    epsilon: float | None = None,
    rho: float | None = None,
    arrays: Mapping[str, np.ndarray] | None = None,
) -> float:
    """The smallest noise multiplier at which the run keeps to `epsilon` at `delta`, or to `rho`, rounded up.

    `accounting` is as in `guarantee_of`; its noise multiplier, if any, does not matter. Refuses a target that no noise
    reaches, because something else that is released uses it up.
    """
    from reticent.accounting.calibration import smallest_noise

    def guarantee(noise_multiplier: float) -> Guarantee:
        return guarantee_of({**accounting, "noise_multiplier": noise_multiplier}, arrays)

    return smallest_noise(guarantee, delta, epsilon=epsilon, rho=rho)
