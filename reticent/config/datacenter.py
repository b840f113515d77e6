"""What must hold of run files for `els`, `uls` and `dpsgd`, and of their keys elsewhere."""

from collections.abc import Iterator

from reticent.config.schema import RunFile

ALGORITHMS = ("els", "uls", "dpsgd")
OF_EXAMPLES = ("els", "dpsgd")
POISSON = ("poisson", "cyclic-poisson")


def problems(run_file: RunFile) -> Iterator[str]:
    """What cannot be, each with its remedy."""
    algorithm, population = run_file.run.algorithm, run_file.population
    clipping, client, data = run_file.clipping, run_file.client, run_file.data
    yield from _elsewhere(run_file)
    if algorithm not in ALGORITHMS:
        return
    if clipping and clipping.quantile is not None:
        yield f"clipping.quantile adapts the norm of devices' rounds, not of {algorithm!r}; leave it out."
    if clipping and clipping.later_norms:
        yield f"clipping.later_norms is for devices' rounds, not for {algorithm!r}; leave it out."
    if run_file.evaluation.training_noise is not None:
        yield f"evaluation.training_noise is for devices' rounds, not for {algorithm!r}; leave it out."
    if algorithm in OF_EXAMPLES:
        if clipping and clipping.weight_cap is not None:
            yield f"clipping.weight_cap weighs users, and {algorithm!r} sums examples; leave it out."
        if data.max_tokens_per_user is not None:
            yield f"data.max_tokens_per_user caps a user's round, and {algorithm!r} draws examples; leave it out."
        if population and population.simulated_cohort is not None:
            yield f"population.simulated_cohort stands for users, and {algorithm!r} draws examples; leave it out."
    if clipping and clipping.gradients == "together":
        for what, used in (
            ("style 'per-layer'", clipping.style == "per-layer"),
            ("clipping.zero_above", clipping.zero_above is not None),
            ("the clipped estimator", clipping.estimator == "clipped"),
            ("client.local_training", client.local_training),
        ):
            if used:
                yield f"clipping.gradients 'together' never makes a single update, which {what} needs; use 'single'."
    if population and population.accounted_as:
        if population.sampler != "shuffled-epochs":
            yield "population.accounted_as is for the sampler 'shuffled-epochs'; the others are accounted as what they are."
        if population.size is None:
            yield "population.accounted_as needs population.size, for the probability to account with."
    if algorithm == "els" and population:
        yield from _els(run_file)


def _els(run_file: RunFile) -> Iterator[str]:
    population, stated = run_file.population, run_file.data.max_examples_per_round
    assert population
    if population.sampler in ("fixed", "cyclic-fixed"):
        yield (
            f"For several examples of one user the sampler {population.sampler!r} has no proof; use 'poisson', or "
            "'cyclic-poisson' with a banded mechanism."
        )
    random = population.sampler in POISSON or population.accounted_as is not None
    if not random and stated is None:
        yield (
            f"With the sampler {population.sampler!r} els needs data.max_examples_per_round, a stated bound on a user's "
            "examples under one row of noise; give it, or use the sampler 'poisson'."
        )
    if random and stated is not None:
        yield "data.max_examples_per_round is for samplers that are not random; leave it out."
    if (
        stated is not None
        and run_file.data.max_examples_per_user is not None
        and stated > run_file.data.max_examples_per_user
    ):
        yield "data.max_examples_per_round is more than data.max_examples_per_user; lower it."


def _elsewhere(run_file: RunFile) -> Iterator[str]:
    algorithm, population = run_file.run.algorithm, run_file.population
    if algorithm != "uls" and run_file.client.local_training:
        yield f"client.local_training is for uls; {algorithm!r} does what it does without it."
    if algorithm != "els":
        if population and population.examples is not None:
            yield "population.examples is for els; leave it out."
        if run_file.data.max_examples_per_round is not None:
            yield "data.max_examples_per_round is for els; leave it out."
    if algorithm not in ALGORITHMS:
        if run_file.client.micro_batch is not None:
            yield "client.micro_batch is for els, uls and dpsgd; leave it out."
        if population and population.accounted_as is not None:
            yield "population.accounted_as is for els, uls and dpsgd; leave it out."
        if run_file.clipping and run_file.clipping.gradients != "auto":
            yield "clipping.gradients is for els, uls and dpsgd; leave it out."
