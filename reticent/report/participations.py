"""How often people took part: only what may be shown; and, for the run's owner, the worst that occurred.

Under zero-out adjacency neighbouring datasets have the same people in the same rounds, so how many took part how often is
the same for both, and tells nothing of what anybody wrote. Under any other adjacency it is private. Who it was is
never read out of the secrets.
"""

from collections import Counter
from pathlib import Path

from reticent.accounting.observed import Happened, happened
from reticent.accounting.run import mechanism_of
from reticent.errors import Refused
from reticent.ledger.description import enforced, zero_out
from reticent.ledger.durable import Files
from reticent.ledger.participations import counting
from reticent.ledger.secrets import Secrets, place_of_secrets
from reticent.mechanisms import Participation
from reticent.report.reading import Run


def histogram(run: Run, secrets: str | Path | None = None) -> dict[int, int] | str:
    """The number of people by the number of rounds they took part in, from one on; or, in a sentence, why it is not
    shown."""
    if run.adjacency != "zero-out" or not zero_out(run.description):
        return f"How often a {run.unit} took part is not shown: where sampling is random, that is private."
    if not run.verdict.holds:
        return f"How often a {run.unit} took part is not shown: the run does not verify."
    run_id = run.ledger.first["run"]
    place = place_of_secrets(run_id, secrets)
    if not place.is_dir():
        return f"How often a {run.unit} took part is not shown: the run's secrets were destroyed, or are elsewhere."
    taken: Counter[int] = Counter()
    for intent in counting(Secrets.open(place, run_id, Files()).intents(), run.ledger.lines):
        if not intent.integers:
            return f"How often a {run.unit} took part is not shown: cohorts are not lists of user numbers."
        taken.update(member for member in intent.members if member >= 0)  # simulated users are nobody
    return dict(sorted(Counter(taken.values()).items()))


def what_happened(run: Run, secrets: str | Path | None = None) -> Happened:
    """What the enforced participation supports, and the worst pattern that occurred, from the run's secrets: for the eyes
    of the run's owner, since it is somebody's.

    Refuses runs of random cohorts, and runs whose secrets are gone.
    """
    if not zero_out(run.description):
        raise Refused("What occurred is looked at where participation is deterministic; here sampling is random.")
    run_id = run.ledger.first["run"]
    place = place_of_secrets(run_id, secrets)
    if not place.is_dir():
        raise Refused("The run's secrets were destroyed, or are elsewhere: who took part when is not known any more.")
    taken: dict[int, list[int]] = {}
    for intent in counting(Secrets.open(place, run_id, Files()).intents(), run.ledger.lines):
        if not intent.integers:
            raise Refused("Cohorts are not lists of user numbers, so that nothing can be counted.")
        for member in intent.members:
            if member >= 0:
                taken.setdefault(member, []).append(intent.round)
    rounds = run.ledger.rounds
    schema = enforced(run.description, rounds)
    exact = bool(run.accounting["participation"].get("exact", False))
    apart = min(schema["min_separation"] or 1, rounds)
    participation = Participation(rounds, apart, schema["max_participations"], exact)
    return happened(mechanism_of({**run.accounting, "rounds": rounds}, run.arrays), participation, taken.values())
