"""What a report says of a run's privacy, in words."""

import dataclasses

from reticent.accounting.statement import SETTINGS, Statement, statement
from reticent.report.numbers import count, plain, upper
from reticent.report.reading import Run


@dataclasses.dataclass(frozen=True)
class Headline:
    """What stands on top: the privacy of the run in a few words, what they mean, and a warning, if there is need."""

    privacy: str
    meaning: str
    warning: str = ""


def headline(run: Run) -> Headline:
    """The headline of a run. An epsilon stands in it only where a guarantee may be stated; an estimate is called one."""
    so_far = "" if run.finished else " so far"
    at = f"at delta {upper(run.delta)}"
    match run.standing:
        case "private":
            return Headline(
                f"epsilon {upper(run.epsilon())}{so_far}", f"{at}, for each {run.unit}, under {run.adjacency} adjacency"
            )
        case "simulated":
            return Headline(
                "none: an estimate",
                f"with secret noise: epsilon {upper(run.estimated_epsilon())}{so_far} {at}, for each {run.unit}, under "
                f"{run.adjacency} adjacency",
                "SIMULATED RUN. Its noise was drawn from a seed and can be drawn again: it protects nobody. Every figure "
                "here is an estimate of what a real run would give.",
            )
        case "estimate":
            return Headline(
                "none: an estimate",
                "no guarantee is stated of an estimate",
                f"ESTIMATE ({run.description['estimate']}). It protects nobody. Every figure here is an estimate of what a "
                "real run would give.",
            )
        case "nothing released":
            return Headline("nothing released yet", "no round was made")
        case "broken":
            return Headline(
                "none is stated",
                "the run does not verify",
                "THIS RUN DOES NOT VERIFY. No guarantee is stated, and nothing here should be relied on.",
            )
        case "no privacy":
            why = "No noise was added" if run.accounting["noise_multiplier"] == 0 else "No epsilon holds at this delta"
            return Headline(
                "NO PRIVACY",
                "epsilon is infinite",
                f"NO PRIVACY. {why}: the model may repeat what any one person wrote.",
            )


def privacy_statement(run: Run, name: str) -> Statement | None:
    """The privacy statement of a run under this name; None where there is no guarantee to state."""
    if run.guarantee is None:
        return None
    setting = run.settings.get("run", {}).get("secure_aggregation", "off")
    not_covered = list(run.description.get("not_covered", ()))
    if run.evaluations:
        not_covered.append("the accuracies in this report, measured on held-out users who were never trained on")
    if run.settings.get("model", {}).get("checkpoint") and "composed_with" not in run.accounting:
        not_covered.append("what the checkpoint that training began with was trained on")
    return statement(
        run.guarantee,
        delta=run.delta,
        name=name if run.finished else f"{name}, unfinished, after {run.rounds} rounds",
        secure_aggregation=setting if setting in SETTINGS else "off",
        ledger=run.ledger.head,
        public_data=run.description.get("public_data"),
        also_covered=tuple(run.description.get("also_covered", ())),
        not_covered=tuple(not_covered),
    )


def verdict(run: Run) -> str:
    """The verdict of the verification in a few words."""
    if not run.verdict.holds:
        return "does NOT hold"
    left_out = [check.name for check in run.verdict.checks if check.holds is None]
    return "holds" + (f"; not checked: {', '.join(left_out)}" if left_out else "")


def what_was_done(run: Run) -> list[tuple[str, str]]:
    """What was enforced, and what occurred, as the ledger has it: names and values."""
    rows = [
        ("rounds", f"{run.rounds} of at most {run.planned_rounds}" + ("" if run.finished else ", NOT FINISHED")),
        ("mechanism", run.mechanism_kind),
        ("noise multiplier", plain(run.accounting["noise_multiplier"])),
        ("clip norm at the start", plain(run.description["clip_norm"])),
        ("participation", run.accounting["participation"]["kind"]),
    ]
    if run.accounting.get("restarts"):
        rows.append(("restarts before rounds", ", ".join(str(made) for made in run.accounting["restarts"])))
    finish = run.ledger.finished
    if finish and finish["min_separation"] is not None:
        rows += [
            ("least separation enforced", f"{finish['min_separation']} rounds"),
            ("most participations enforced", count(finish["max_participations"])),
            ("largest participation that occurred", count(finish["largest_participation"])),
            ("smallest separation that occurred", count(finish["smallest_separation"])),
        ]
    burnt = len(run.ledger.of_kind("burnt"))
    return [*rows, ("rows of noise spent without a release", str(burnt))] if burnt else rows
