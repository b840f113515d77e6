"""What the first ledger line says of a run, as plain JSON.

`accounting`        what `reticent.accounting.run.guarantee_of` takes, whole: noise multiplier, rounds (the most that
                    will be made), the mechanism's header, participation or sampling, restarts, what it is composed with
`mechanism_digest`  the digest of the mechanism
`delta`             at which epsilon is stated
`clip_norm`         of round 0
`grid`              the value of one unit of a release's integers, in round 0
`audit`             only where something was planted: `zero_coordinates`, the entries in front of each release that are
                    noise alone, and what decides the number of `simulated_users`, whose numbers in intents are negative
`clip_norms`        only where the clip norm changes at restarts: how (`reticent.ledger.clip_norms`)
`metrics`           only where each release ends in noised metrics: how many entries they are, and the value of their unit
`estimate`          only where noise or cohorts are not those of a real run: the reason; no guarantee is stated then

Training adds what else it wants to find unchanged on resume. The ledger itself reads only what is named here.
"""

import json
import math
from typing import Any

from reticent.errors import Refused
from reticent.ledger.clip_norms import bit_worth, is_adaptive
from reticent.ledger.lines import canonical


def check_description(description: dict[str, Any]) -> None:
    """Refuses a description without what every run must state."""
    try:
        canonical(description)
    except (TypeError, ValueError) as error:
        raise Refused(f"The description of a run must be plain JSON ({error}).") from None
    for key in ("accounting", "delta", "mechanism_digest", "clip_norm", "grid"):
        if key not in description:
            raise Refused(f"The description of a run needs {key!r}.")
    for key in ("rounds", "noise_multiplier", "participation"):
        if key not in description["accounting"]:
            raise Refused(f"The accounting of a run needs {key!r}.")
    if "audit" in description and not _sound(description["audit"]):
        raise Refused("The description's 'audit' must say what was planted, in whole numbers of at least 0.")
    rounds = most_rounds(description)
    if not isinstance(rounds, int) or rounds < 1:
        raise Refused(f"rounds must be a whole number of at least 1, got {rounds!r}.")
    for key in ("clip_norm", "grid"):
        if not (math.isfinite(description[key]) and description[key] > 0):
            raise Refused(f"{key} must be positive and finite, got {description[key]!r}.")


def _sound(audit: Any) -> bool:
    keys = ("canaries", "phrases", "phrase_users", "zero_coordinates")
    return isinstance(audit, dict) and all(isinstance(audit.get(key), int) and audit[key] >= 0 for key in keys)


def most_rounds(description: dict[str, Any]) -> int:
    """The rounds that will be made at most."""
    return description["accounting"]["rounds"]


def longest_contribution(description: dict[str, Any]) -> float:
    """The norm that one user's part of a sum can have, over the clip norm: encoding and rounding may lengthen it, a bit
    about the clip norm goes beside it."""
    accounting = description["accounting"]
    inflation = (accounting.get("secure_aggregation") or {}).get("inflation", 1.0)
    bit = bit_worth(accounting, 1.0) if is_adaptive(description) else 0.0
    return math.hypot(inflation + accounting.get("rounding", 0.0), bit)


def metrics_entries(description: dict[str, Any]) -> int:
    """How many entries at the end of a release are metrics."""
    return description.get("metrics", {}).get("entries", 0)


def zero_coordinates(description: dict[str, Any]) -> int:
    """Entries in front of each release to which nothing but noise was added."""
    return description.get("audit", {}).get("zero_coordinates", 0)


def simulated_users(description: dict[str, Any]) -> int:
    """Users that an audit planted among the people: canaries, and writers of three kinds of phrases."""
    audit = description.get("audit")
    return audit["canaries"] + audit["phrases"] * (2 + audit["phrase_users"]) if audit else 0


def zero_out(description: dict[str, Any]) -> bool:
    """Whether participation is deterministic, hence adjacency zero-out: only then may participations be stated."""
    return description["accounting"]["participation"]["kind"] == "deterministic"


def enforced(description: dict[str, Any], rounds: int) -> dict[str, int | None]:
    """The schema a run of this many rounds kept: what the description promised, cut to the rounds that were. Without a
    separation and a maximum (None) where participation is random."""
    if not zero_out(description):
        return {"rounds": rounds, "min_separation": None, "max_participations": None}
    participation = description["accounting"]["participation"]
    min_separation = participation.get("min_separation", 1)
    fit = math.ceil(rounds / min_separation)
    most = participation.get("max_participations")
    return {
        "rounds": rounds,
        "min_separation": min_separation,
        "max_participations": fit if most is None else min(most, fit),
    }


def accounting_of(description: dict[str, Any], rounds: int, simulated: bool) -> dict[str, Any]:
    """The accounting of a run as it was: of the rounds that were made."""
    accounting = {**description["accounting"], "rounds": rounds, "simulated": simulated}
    if zero_out(description):
        kept = enforced(description, rounds)
        accounting["participation"] = {
            **accounting["participation"],
            "max_participations": kept["max_participations"],
        }
    return accounting


def plain(value: Any) -> Any:
    """The value as it comes back from the ledger."""
    return json.loads(canonical(value))


def difference(stored: Any, given: Any, name: str = "") -> str | None:
    """The first place where two descriptions differ, in words; None where they are equal."""
    if isinstance(stored, dict) and isinstance(given, dict):
        for key in sorted({*stored, *given}):
            found = difference(stored.get(key), given.get(key), f"{name}.{key}" if name else key)
            if found:
                return found
        return None
    return None if stored == given else f"{name} was {_short(stored)} and is now {_short(given)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
