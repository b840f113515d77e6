"""From a run file to terms, and on the server back to a setup: what was tuned in simulation, held to on devices."""

import dataclasses
from typing import Any

from reticent.config import RunFile, parse, resolved
from reticent.deploy.terms import Terms
from reticent.errors import Refused
from reticent.training.setup import Progress, Setup, prepare

TOLD = (
    "how many devices were asked, answered and dropped out in each round, and how long it took, which tells something of "
    "how much text they hold"
)
SEVERAL = "the other devices of a person with more than one"


def make_terms(run_file: RunFile, progress: Progress = lambda stage, done: None) -> Terms:
    """The terms of a run on devices. Its store is the one it was tuned on: for its vocabulary, and for evaluation.

    Refuses what devices cannot keep to, with what to change.
    """
    _check(run_file)
    setup = _on_devices(prepare(run_file, progress=progress))
    terms = Terms(resolved(run_file), dict(setup.description), setup.mechanism.arrays())
    terms.round("0", 0, 0, bytes(16))  # refuses a cohort that no secure sum is safe for
    return terms


def setup_of(terms: Terms, progress: Progress = lambda stage, done: None) -> Setup:
    """The server's setup under these terms."""
    run_file = parse(terms.settings)
    setup = _on_devices(prepare(run_file, stored=terms.description, arrays=terms.arrays, progress=progress))
    for key, value in terms.description.items():
        if key != "accounting" and setup.description.get(key) != value:
            raise Refused(
                f"The run's store or this program is another than the terms were made with ({key} differs); use the store "
                "and the version of then, or make new terms."
            )
    return dataclasses.replace(setup, description=terms.description)


def _check(run_file: RunFile) -> None:
    run, population, clipping = run_file.run, run_file.population, run_file.clipping
    if run.algorithm not in ("fedavg", "fedsgd") or not population or not clipping:
        raise Refused(f"Devices train with algorithm 'fedavg' or 'fedsgd', not {run.algorithm!r}.")
    wanted: list[tuple[bool, str]] = [
        (
            run.secure_aggregation == "protocol",
            "Devices send nothing that the server could look into: set run.secure_aggregation = 'protocol'.",
        ),
        (
            population.sampler == "min-separated",
            f"Devices keep timers: set population.sampler = 'min-separated' in place of {population.sampler!r}.",
        ),
        (
            population.simulated_cohort is None and run.simulated_row_seed is None,
            "A run on devices is no simulation; leave out population.simulated_cohort and run.simulated_row_seed.",
        ),
        (
            clipping.estimator == "fixed" and clipping.quantile is None,
            "The sum of devices' updates is all that the server gets; set clipping.estimator = 'fixed' and leave out "
            "clipping.quantile.",
        ),
        (
            not (run_file.audit.canaries or run_file.audit.phrases or run_file.audit.zero_coordinates),
            "Audits insert what is not on devices; leave the table [audit] out.",
        ),
    ]
    for holds, remedy in wanted:
        if not holds:
            raise Refused(remedy)


def _on_devices(setup: Setup) -> Setup:
    """The setup, stated for the unit that devices can enforce."""
    description: dict[str, Any] = dict(setup.description)
    accounting = dict(description["accounting"])
    left_out = [*description.get("not_covered", ()), TOLD]
    if "composed_with" not in accounting:
        accounting["unit"] = "device"
    else:
        # What it is composed with is stated for people, so the whole is, for those with one device.
        left_out.append(SEVERAL)
    description |= {"accounting": accounting, "not_covered": left_out}
    return dataclasses.replace(setup, description=description)
