"""What must hold between the keys of a run file, as far as it can be known without the data."""

from collections.abc import Iterator

from reticent.config import datacenter
from reticent.config.schema import Clipping, Mechanism, Population, Privacy, RunFile
from reticent.errors import Refused
from reticent.mechanisms.participation import Participation
from reticent.models import KINDS
from reticent.models.kinds import HUGGINGFACE

PRIVATE_TABLES = ("population", "mechanism", "clipping", "privacy")
SAMPLER_NEEDS = {
    "min-separated": {"report_goal", "min_separation"},
    "poisson": {"probability", "size"},
    "fixed": {"report_goal", "size"},
    "cyclic-poisson": {"groups", "probability", "size"},
    "cyclic-fixed": {"groups", "report_goal", "size"},
    "shuffled-epochs": {"report_goal"},
    "shuffled-shards": {"report_goal", "shards"},
}
# Where the size of a cohort is random.
RANDOM_SIZES = ("poisson", "cyclic-poisson")
SAMPLER_ALLOWS = {"min-separated": {"max_participations"}}
SIZED = {
    "buffers": {"blt"},
    "bands": {"banded", "banded-free", "toeplitz", "banded-fhu", "banded-inverse"},
}


def check(run_file: RunFile) -> None:
    """Refuses a run file with the first thing that cannot be, and its remedy."""
    for problem in problems(run_file):
        raise Refused(problem)


def problems(run_file: RunFile) -> Iterator[str]:
    """What does not hold between the tables of a run file, each as one sentence."""
    yield from _tables(run_file)
    yield from _model(run_file)
    yield from _server(run_file)
    yield from _audit(run_file)
    yield from _secure_aggregation(run_file)
    yield from datacenter.problems(run_file)
    population, mechanism, clipping, privacy = (getattr(run_file, name) for name in PRIVATE_TABLES)
    if population and mechanism and clipping and privacy:
        yield from _population(population, run_file.run.rounds, run_file.run.algorithm)
        yield from _mechanism(mechanism, run_file.run.rounds)
        yield from _clipping(clipping, mechanism, population)
        yield from _privacy(privacy, population, run_file.run.simulated_row_seed is not None)


def _tables(run_file: RunFile) -> Iterator[str]:
    algorithm = run_file.run.algorithm
    for name in PRIVATE_TABLES:
        given = getattr(run_file, name) is not None
        if run_file.private and not given:
            yield f"The run file has no table [{name}], which algorithm {algorithm!r} needs; add it."
        if not run_file.private and given:
            yield f"Algorithm 'pretrain' trains on public text, without privacy; leave the table [{name}] out."
    if algorithm in ("els", "uls") and run_file.data.max_examples_per_user is None:
        yield f"Algorithm {algorithm!r} needs data.max_examples_per_user, its group size."
    if not run_file.private and run_file.evaluation.training_noise is not None:
        yield "evaluation.training_noise is for people trained on privately; leave it out, pretraining shows its loss."
    if run_file.data.people is not None and run_file.data.store != "crowd":
        yield "data.people is for the generated store 'crowd'; leave it out."


def _model(run_file: RunFile) -> Iterator[str]:
    model = run_file.model
    if model.kind not in KINDS:
        yield f"There is no model.kind {model.kind!r}; there are {', '.join(KINDS)}."
        return
    for key in ("vocabulary", "embedding", "hidden", "layers", "heads"):
        if getattr(model, key) is not None and key not in KINDS[model.kind].sizes:
            yield f"A model of kind {model.kind!r} takes no model.{key}; leave it out."
    if model.checkpointing and not model.kind.startswith(("transformer", HUGGINGFACE)):
        yield f"A model of kind {model.kind!r} has no gradient checkpointing; leave model.checkpointing out."
    if model.kind == HUGGINGFACE and model.checkpoint is None:
        yield "The model kind 'huggingface' needs model.checkpoint, the directory of one."
    lora = run_file.lora
    if lora is not None and model.kind != HUGGINGFACE:
        yield f"Adapters are for Hugging Face checkpoints, not for a model of kind {model.kind!r}; leave [lora] out."
    if lora is not None and lora.rank is None and lora.adapters is None:
        yield "The table [lora] needs rank, or adapters to start from."
    if lora is not None and lora.adapters is not None and (lora.alpha is not None or lora.targets):
        yield "Adapters to start from have their own alpha and targets; leave lora.alpha and lora.targets out."


def _audit(run_file: RunFile) -> Iterator[str]:
    audit, algorithm = run_file.audit, run_file.run.algorithm
    if audit.declared and algorithm not in ("fedavg", "fedsgd"):
        yield f"What [audit] plants are users of rounds, which {algorithm!r} has none of; leave the table out."
    changing = run_file.clipping and (run_file.clipping.quantile is not None or run_file.clipping.later_norms)
    if audit.declared and (changing or run_file.evaluation.training_noise is not None):
        yield (
            "[audit] attacks runs of one clip norm without training metrics; leave the table out, or clipping.quantile, "
            "clipping.later_norms and evaluation.training_noise."
        )
    users = audit.canaries or audit.phrases
    sampler = run_file.population.sampler if run_file.population else None
    if users and sampler in ("fixed", "cyclic-fixed"):
        # Who knows where the canaries were knows that the others were likelier to be drawn than is accounted for.
        yield (
            f"The sampler {sampler!r} draws a fixed number of users, among whom [audit] cannot plant any without making "
            "people likelier to be drawn; use 'poisson', or zero_coordinates alone."
        )
    if run_file.audit.canaries and run_file.clipping and run_file.clipping.quantile is not None:
        yield (
            "Canaries of [audit] are as long as one clip norm, and clipping.quantile adapts it; leave one of the two out, "
            "or plant phrases and zero_coordinates alone."
        )
    if users and run_file.run.secure_aggregation != "off":
        yield (
            "[audit] plants canaries and phrases in plain sums only; set run.secure_aggregation to 'off', or plant "
            "zero_coordinates alone."
        )


def _server(run_file: RunFile) -> Iterator[str]:
    server = run_file.server
    if server.warm_up + server.cool_down > 1:
        yield "server.warm_up and server.cool_down together are more than all rounds; make them smaller."


def _secure_aggregation(run_file: RunFile) -> Iterator[str]:
    run, setting = run_file.run, run_file.run.secure_aggregation
    if setting == "off":
        if run.encoding_inflation is not None:
            yield "run.encoding_inflation is of no use with secure_aggregation 'off'; leave it out."
    elif run.algorithm not in ("fedavg", "fedsgd"):
        yield f"Secure aggregation sums the updates of devices, which {run.algorithm!r} has none of; set it to 'off'."
    if setting != "protocol":
        for key in ("tolerated_dropout", "tolerated_corruption"):
            if getattr(run, key) is not None:
                yield f"run.{key} is of no use without secure_aggregation 'protocol'; leave it out."
    elif run_file.population and run_file.population.sampler in RANDOM_SIZES:
        yield (
            f"The protocol needs cohorts of a known size, which the sampler {run_file.population.sampler!r} does not draw; "
            "use another sampler, or secure_aggregation 'encoding'."
        )
    if setting != "off" and run_file.clipping and run_file.clipping.estimator == "clipped":
        yield "The clipped estimator needs the sum of weights beside that of updates; use 'fixed' with secure aggregation."
    if setting != "off" and run_file.clipping and run_file.clipping.quantile is not None:
        yield "clipping.quantile counts bits beside the updates, which secure_aggregation does not sum; set it to 'off'."
    if setting != "off" and run_file.clipping and run_file.clipping.later_norms:
        yield "Secure aggregation encodes for one clip norm; leave clipping.later_norms out, or set it to 'off'."
    if setting != "off" and run_file.evaluation.training_noise is not None:
        yield "evaluation.training_noise needs sums that secure_aggregation does not make; set it to 'off'."


def _population(population: Population, rounds: int, algorithm: str) -> Iterator[str]:
    sampler = population.sampler
    for key in sorted(SAMPLER_NEEDS[sampler]):
        if getattr(population, key) is None:
            yield f"The sampler {sampler!r} needs population.{key}."
    optional = {"size", "sampler", "simulated_cohort", "examples", "accounted_as"} | SAMPLER_ALLOWS.get(sampler, set())
    for key in sorted(type(population).model_fields.keys() - SAMPLER_NEEDS[sampler] - optional):
        if getattr(population, key) is not None:
            yield f"The sampler {sampler!r} does not use population.{key}; leave it out or choose another sampler."
    size, goal = population.size, population.report_goal
    if algorithm == "els" and population.accounted_as:
        size = population.examples  # what is shuffled then are examples
    if size and goal and goal > size:
        yield f"population.report_goal {goal} is above the population of {size}; lower it."
    if population.min_separation is not None:
        try:
            Participation(rounds, population.min_separation, population.max_participations)
        except Refused as error:
            yield f"population: {error}"
        if size and goal and goal * population.min_separation > size:
            yield (
                f"{size} users cannot give {goal} a round {population.min_separation} rounds apart; the largest "
                f"population.min_separation they can give is {size // goal}."
            )
    if population.simulated_cohort is not None and goal is not None and population.simulated_cohort >= goal:
        yield f"population.simulated_cohort must be smaller than the report goal of {goal}; lower it or leave it out."


def _mechanism(mechanism: Mechanism, rounds: int) -> Iterator[str]:
    for key, kinds in SIZED.items():
        size = getattr(mechanism, key)
        if size is not None and (mechanism.kind not in kinds or mechanism.file is not None):
            what = "A mechanism from a file" if mechanism.file else f"A mechanism of kind {mechanism.kind!r}"
            yield f"{what} takes no mechanism.{key}; leave it out."
        if size is not None and size > rounds:
            yield f"mechanism.{key} {size} is more than the {rounds} rounds; lower it."
    restarts = mechanism.restarts
    if list(restarts) != sorted(set(restarts)) or (restarts and restarts[-1] >= rounds):
        yield f"mechanism.restarts must rise from one to the next and stay below {rounds} rounds; got {[*restarts]}."


def _clipping(clipping: Clipping, mechanism: Mechanism, population: Population) -> Iterator[str]:
    if clipping.quantile is not None and not mechanism.restarts:
        yield (
            "clipping.quantile adapts the norm where the mechanism restarts, and this one never does; give "
            "mechanism.restarts."
        )
    for key in ("quantile_learning_rate", "quantile_noise"):
        if clipping.quantile is None and getattr(clipping, key) is not None:
            yield f"clipping.{key} is of no use without clipping.quantile; give that too."
    if clipping.quantile is not None and clipping.style == "per-layer":
        yield "clipping.quantile adapts one norm; use style 'flat' with it."
    if clipping.later_norms and clipping.quantile is not None:
        yield "clipping.later_norms says what clipping.quantile would find out; leave one of them out."
    if clipping.later_norms and len(clipping.later_norms) != len(mechanism.restarts):
        yield (
            f"clipping.later_norms has {len(clipping.later_norms)} norms for {len(mechanism.restarts)} mechanism.restarts; "
            "give one for each."
        )
    if (clipping.later_norms or clipping.quantile is not None) and clipping.estimator == "clipped":
        yield "The clipped estimator is accounted for one clip norm; use the estimator 'fixed' where it changes."
    if clipping.estimator == "clipped" and population.sampler != "poisson":
        yield "The clipped estimator is proven for the sampler 'poisson' only; use that, or the estimator 'fixed'."
    if (clipping.estimator == "clipped") != (clipping.min_weight is not None):
        yield "clipping.min_weight belongs to the estimator 'clipped', which needs it."


def _privacy(privacy: Privacy, population: Population, simulated: bool) -> Iterator[str]:
    if (privacy.epsilon is None) == (privacy.noise_multiplier is None):
        yield "The table [privacy] needs exactly one of epsilon, a target, and noise_multiplier, the noise itself."
    if privacy.epsilon_budget is not None and privacy.noise_multiplier is None:
        yield "privacy.epsilon_budget goes with privacy.noise_multiplier; with a target epsilon it is not needed."
    if privacy.delta is None and population.size is None:
        yield "Without privacy.delta the population's size decides it; give privacy.delta or population.size."
    if privacy.random_bits == "threefry" and not simulated:
        yield "privacy.random_bits 'threefry' is for simulation; use 'chacha20', or give run.simulated_row_seed."
