"""Who took part when: read from the intents, which are secret, to state what may be stated."""

from collections.abc import Iterable
from dataclasses import dataclass

from reticent.errors import Refused
from reticent.ledger.lines import Line
from reticent.ledger.secrets import Intent


@dataclass(frozen=True)
class Occurred:
    """The largest number of participations of one user, and the smallest separation of two of one user's (None where
    nobody took part twice)."""

    largest: int
    smallest_separation: int | None
    closest_rounds: tuple[int, int] | None


def counting(intents: Iterable[Intent], lines: Iterable[Line]) -> Iterable[Intent]:
    """The intents whose cohorts count as having taken part.

    Those whose row was spent; and, where updates leave devices before the release does, those of abandoned attempts.
    """
    spent = {(line["round"], line["attempt"]) for line in lines if line["kind"] in ("release", "burnt")}
    return (intent for intent in intents if intent.exposed or (intent.round, intent.attempt) in spent)


def occurred(intents: Iterable[Intent]) -> Occurred:
    """What happened over intents that come by round; a user twice in one round has separation 0."""
    last: dict[int, int] = {}
    count: dict[int, int] = {}
    closest: tuple[int, int] | None = None
    for intent in intents:
        for user in intent.members:
            before = last.get(user)
            if before is not None and (closest is None or intent.round - before < closest[1] - closest[0]):
                closest = (before, intent.round)
            last[user] = intent.round
            count[user] = count.get(user, 0) + 1
    return Occurred(max(count.values(), default=0), closest and closest[1] - closest[0], closest)


def of_simulated(intents: Iterable[Intent], users: int) -> list[list[int]]:
    """The rounds in which each of so many simulated users took part: -1, -2, ... in intents, here in this order. They are
    nobody, so it may be shown."""
    rounds: list[list[int]] = [[] for _ in range(users)]
    for intent in intents:
        for member in intent.members:
            if -users <= member < 0:
                rounds[-1 - member].append(intent.round)
    return rounds


def check(what: Occurred, schema: dict) -> None:
    """Refuses to state a schema that was not kept."""
    min_separation, most = schema["min_separation"], schema["max_participations"]
    if min_separation is not None and what.closest_rounds and what.smallest_separation < min_separation:  # type: ignore[operator]
        first, second = what.closest_rounds
        raise Refused(
            f"A user took part in rounds {first} and {second}, closer than the separation of {min_separation} that was "
            f"to be kept; the guarantee of this run does not hold and is not stated."
        )
    if most is not None and what.largest > most:
        raise Refused(
            f"A user took part {what.largest} times, where at most {most} were to be; the guarantee of this run does "
            f"not hold and is not stated."
        )
