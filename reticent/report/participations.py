"""How often people took part: only what may be shown.

Under zero-out adjacency neighbouring datasets have the same people in the same rounds, so how many took part how often is
the same for both, and tells nothing of what anybody wrote. Under any other adjacency it is private. Who it was is
never read out of the secrets.
"""

from collections import Counter
from pathlib import Path

from reticent.ledger.description import zero_out
from reticent.ledger.durable import Files
from reticent.ledger.participations import counting
from reticent.ledger.secrets import Secrets, place_of_secrets
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
