"""Everything that is decided before the first round, and refused before it: data, model, people, noise, guarantee."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reticent.accounting.composition import recorded
from reticent.accounting.guarantee import Guarantee
from reticent.accounting.run import calibrated, guarantee_of
from reticent.accounting.run import mechanism_of as mechanism_of_accounting
from reticent.config import RunFile
from reticent.config.checks import RANDOM_SIZES
from reticent.data.at_hand import open_store
from reticent.data.store import Store
from reticent.data.tokenizers import Tokenizer
from reticent.errors import Refused
from reticent.ledger import release_point
from reticent.ledger.clip_norms import bit_worth
from reticent.mechanisms import Mechanism, Participation, load, make
from reticent.mechanisms.storage import to_header
from reticent.models import Model
from reticent.models import make as make_model
from reticent.models.kinds import HUGGINGFACE
from reticent.population import Sampler, SamplerState
from reticent.privacy.clipping import Clipping
from reticent.privacy.grid import Grid
from reticent.privacy.measures import Measures
from reticent.privacy.noise import noise_deviation
from reticent.privacy.weighting import ClippedDenominator, FixedDenominator
from reticent.training.evaluation import HeldOut, held_out
from reticent.training.planted import Planted
from reticent.training.secure import Aggregation, aggregation_of
from reticent.training.work import Work, WorkOf, federated

VACUOUS = 50.0
# Gboard, Alg. 1.
COUNT_NOISE, NORM_RATE = 1 / 20, 0.2
Progress = Callable[[str, float], None]
Estimator = FixedDenominator | ClippedDenominator


@dataclass(frozen=True)
class Data:
    """The text: who is trained on, and who is evaluated on (None: nobody)."""

    train: Store
    people: HeldOut | None


@dataclass(frozen=True)
class Terms:
    """What goes with a clip norm: how updates are clipped, and the grid on which they are summed."""

    clipping: Clipping
    grid: Grid


@dataclass(frozen=True)
class Setup:
    """A run that can begin. `mechanism` has its restarts; `rounds` are those that will be made, fewer than planned where
    an epsilon budget ends the run before; `guarantee` is that of these rounds, None where no noise is added."""

    run_file: RunFile
    data: Data
    model: Model
    sampler: Sampler
    mechanism: Mechanism
    noise_multiplier: float
    grid: Grid
    clipping: Clipping
    estimator: Estimator
    rounds: int
    guarantee: Guarantee | None
    description: Mapping[str, Any]
    planted: Planted
    work: Work
    aggregation: Aggregation | None = None
    measures: Measures | None = None

    def terms(self, norm: float) -> Terms:
        """Those of the rounds that are clipped to `norm`."""
        if norm == self.clipping.norm:
            return Terms(self.clipping, self.grid)
        grid = _grid(self.description["accounting"], self.mechanism, self.work.largest, norm, norm)
        return Terms(dataclasses.replace(self.clipping, norm=norm, grid=grid), grid)

    @property
    def estimate(self) -> bool:
        """Whether nothing of this run may be stated as a guarantee."""
        return "estimate" in self.description or self.run_file.run.simulated_row_seed is not None

    @property
    def size(self) -> int:
        """Entries of a release: those that nobody moves come first, then the model's. (What is released beside the update
        comes after them.)"""
        return self.planted.zero_coordinates + self.model.parameters

    def cohort(self, state: SamplerState, round: int) -> tuple[np.ndarray, SamplerState]:
        """The members of a round, simulated users with negative numbers, and the sampler's state after it."""
        members, state = self.sampler.cohort(state, round)
        if not self.planted.users:
            return members, state
        return self.planted.numbered(members, self.data.train.users), state

    @property
    def release_at(self) -> Any:
        return release_point(self.size)

    def guarantee_after(self, rounds: int) -> Guarantee | None:
        """The guarantee of the first `rounds` rounds; None where no noise is added."""
        return _guarantee({**self.description["accounting"], "rounds": rounds}, self.mechanism.arrays())

    def facts(self) -> dict[str, Any]:
        """What is told before the first round; all of it may be shown."""
        delta, stated = self.description["delta"], self.guarantee
        return {
            "name": self.run_file.run.name,
            "algorithm": self.run_file.run.algorithm,
            "rounds": self.rounds,
            "planned_rounds": self.run_file.run.rounds,
            "model": self.model.kind,
            "parameters": self.model.parameters,
            "mechanism": self.mechanism.kind,
            "noise_multiplier": self.noise_multiplier,
            "clip_norm": self.description["clip_norm"],
            "report_goal": self.work.denominator,
            "participation": self.description["accounting"]["participation"],
            "estimate": self.estimate,
            "guarantee": None if stated is None else stated.describe(delta),
            "delta": delta,
        }


def prepare(
    run_file: RunFile,
    *,
    model: Model | None = None,
    work_of: WorkOf = federated,
    stored: Mapping[str, Any] | None = None,
    arrays: Mapping[str, np.ndarray] | None = None,
    progress: Progress = lambda stage, done: None,
) -> Setup:
    """Opens, checks and calibrates what a run file asks for.

    `model` is used in place of one of the built-in kinds; `work_of` is the algorithm. On resume, `stored` is the description
    the run began with and `arrays` the matrices of its mechanism: mechanism and noise are then those, not made anew.
    """
    assert run_file.population
    assert run_file.mechanism
    assert run_file.clipping
    assert run_file.privacy
    data = open_data(run_file, progress)
    model = model_of(run_file, data.train.tokenizer()) if model is None else model
    rounds = run_file.run.rounds
    planted = Planted.declared(run_file) if stored is None else Planted.of(stored)
    work = work_of(run_file, data, model, planted, stored)
    sampler = work.sampler
    if stored is None:
        progress("optimising the mechanism", 0.0)
        base = _mechanism(run_file, sampler)
        mechanism_header, digest = to_header(base), base.digest
    else:
        mechanism_header, digest = stored["accounting"]["mechanism"], stored["mechanism_digest"]
    held = base.arrays() if stored is None else dict(arrays or {})
    accounting: dict[str, Any] = {
        "rounds": rounds,
        "mechanism": mechanism_header,
        **work.accounting,
    }
    if run_file.mechanism.restarts:
        accounting["restarts"] = list(run_file.mechanism.restarts)
    estimator = _estimator(run_file, work)
    if isinstance(estimator, ClippedDenominator):
        accounting["clipping_estimator"] = "clipped"
    owed, more = _owed(run_file, data)
    if owed:
        accounting["composed_with"] = owed
    mechanism = mechanism_of_accounting(accounting, held)
    mechanism.check(rounds)
    delta, norm = run_file.delta, run_file.clipping.norm
    largest = work.largest
    aggregation = aggregation_of(run_file, model.parameters, largest)
    cohort, goal = run_file.population.simulated_cohort, run_file.population.report_goal
    scaled = 1.0 if cohort is None or goal is None else cohort / goal

    changing, paid = _clip_norms(run_file, work.denominator, scaled)
    accounting |= paid

    def grid_of(noise: float) -> Grid:
        longest = norm if aggregation is None else aggregation.inflated_clip_norm
        return _grid({**accounting, "noise_multiplier": noise}, mechanism, largest, norm, longest)

    def beside(grid: Grid) -> dict[str, Any]:
        """What estimator and encoding have the accountant know, which depends on the grid."""
        told = estimator.accounting(model.parameters, norm, grid) | work.rounding(model.parameters, norm, grid)
        return told if aggregation is None else told | aggregation.on(grid).accounting()

    progress("calibrating the noise", 0.0)
    if stored:
        noise = stored["accounting"]["noise_multiplier"]
    else:
        finest = grid_of(0.0)
        noise = _noise(run_file, accounting | beside(finest), held) * scaled
        # More noise may need a coarser grid, whose rounding needs more noise: a step or two of the grid at most.
        while beside(grid_of(noise)) != beside(finest):
            finest = grid_of(noise)
            noise = _noise(run_file, accounting | beside(finest), held) * scaled
    if scaled != 1:
        for name in ("adaptive_clipping", "metrics"):
            if name in accounting:
                accounting[name] = {"noise_multiplier": accounting[name]["noise_multiplier"] * scaled}
    grid = grid_of(noise)
    accounting |= beside(grid) | {"noise_multiplier": noise}
    description: dict[str, Any] = {
        "delta": delta,
        "mechanism_digest": digest,
        "clip_norm": norm,
        **changing,
        **more,
        **work.description,
    }
    if scaled != 1:
        description["estimate"] = f"{cohort} people stand for a cohort of {goal}, the noise scaled to match"
    if aggregation is not None:
        description["secure_aggregation"] = aggregation.described(aggregation.on(grid))
    measures = None
    if run_file.evaluation.training_noise is not None:
        measures = Measures.of(accounting["metrics"]["noise_multiplier"], model.vocabulary, largest)
        description["metrics"] = measures.described
    clipping = Clipping(norm, grid, run_file.clipping.style, run_file.clipping.zero_above, measures=measures)
    if run_file.privacy.random_bits != "chacha20":
        description["random_bits"] = run_file.privacy.random_bits
    description |= {
        "accounting": accounting,
        "grid": grid.step,
        "report_goal": work.denominator,
        "model": {
            "kind": model.kind,
            "parameters": model.parameters,
            "vocabulary": model.vocabulary,
            **({} if model.source is None else {"checkpoint": model.source}),
        },
        "tokenizer": data.train.header["tokenizer"]["digest"],
        **planted.described,
    }
    made = _rounds_within_budget(run_file, accounting, held)
    guarantee = _guarantee({**accounting, "rounds": made}, held)
    _check_worth(run_file, guarantee, delta)
    return Setup(
        run_file,
        data,
        model,
        sampler,
        mechanism,
        noise,
        grid,
        clipping,
        estimator,
        made,
        guarantee,
        description,
        planted,
        work,
        aggregation,
        measures,
    )


def open_data(run_file: RunFile, progress: Progress = lambda stage, done: None) -> Data:
    """The stores of a run file. Refuses evaluation people whose text was encoded with another vocabulary."""
    table, evaluation = run_file.data, run_file.evaluation
    words = None if run_file.model.vocabulary is None else run_file.model.vocabulary - 4
    store = open_store(table.store, words=words, people=table.people, seed=table.generation_seed, progress=progress)
    train, people = store, None
    if table.held_out_users:
        split = store.split(held_out_users=table.held_out_users, seed=run_file.run.seed)
        train, people = split.train, split.held_out_users
    if evaluation.store is not None:
        words = store.header["tokenizer"]["size"] - 4
        people = open_store(evaluation.store, words=words, seed=table.generation_seed, held_out=True, progress=progress)
        people.check_tokenizer(train.tokenizer(), f"The tokenizer of data.store {table.store!r}")
    return Data(train, None if people is None else held_out(people, evaluation.users, table.sequence_length))


def model_of(run_file: RunFile, tokenizer: Tokenizer) -> Model:
    """The model of a run file: a built-in one over the ids of a tokenizer, or that of a Hugging Face checkpoint."""
    table = run_file.model
    if table.vocabulary not in (None, tokenizer.size):
        raise Refused(
            f"model.vocabulary is {table.vocabulary:,} and the text has {tokenizer.size:,} ids (special ones included); "
            f"leave model.vocabulary out, or give {tokenizer.size}."
        )
    if table.kind == HUGGINGFACE:
        lora = {} if run_file.lora is None else run_file.lora.model_dump()
        return make_model(
            table.kind,
            compute_dtype=table.compute_dtype,
            unknown=tokenizer.unknown if tokenizer.unknown >= 0 else None,
            checkpointing=table.checkpointing,
            checkpoint={"directory": table.checkpoint, "tokenizer": tokenizer, **lora},
        )
    return make_model(
        table.kind,
        vocabulary=tokenizer.size,
        embedding=table.embedding,
        hidden=table.hidden,
        layers=table.layers,
        heads=table.heads,
        compute_dtype=table.compute_dtype,
        checkpointing=table.checkpointing,
        unknown=tokenizer.unknown if tokenizer.unknown >= 0 else None,
    )


def _clip_norms(run_file: RunFile, cohort: float, scaled: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the description says of a clip norm that changes; and what is released beside updates and paid for.

    A cohort that stands for a larger one has its bits' and metrics' noise scaled only after the calibration, by `scaled`.
    """
    assert run_file.clipping
    clipping, paid = run_file.clipping, {}
    if run_file.evaluation.training_noise is not None:
        paid["metrics"] = {"noise_multiplier": run_file.evaluation.training_noise}
    if clipping.later_norms:
        return {"clip_norms": {"kind": "scheduled", "norms": list(clipping.later_norms)}}, paid
    if clipping.quantile is None:
        return {}, paid
    noise = cohort / scaled * COUNT_NOISE if clipping.quantile_noise is None else clipping.quantile_noise
    paid["adaptive_clipping"] = {"noise_multiplier": noise}
    rule = {"kind": "adaptive", "quantile": clipping.quantile, "cohort": cohort}
    rate = NORM_RATE if clipping.quantile_learning_rate is None else clipping.quantile_learning_rate
    return {"clip_norms": {**rule, "learning_rate": rate}}, paid


def _grid(accounting: Mapping[str, Any], mechanism: Mechanism, cohort: int, clip_norm: float, longest: float) -> Grid:
    """The finest grid with room for a cohort's sum, of updates of norm `longest` and of bits, and its noise."""
    noise = accounting["noise_multiplier"]
    if "adaptive_clipping" in accounting:
        longest = max(longest, bit_worth(accounting, clip_norm))
    return Grid.finest(cohort, longest, noise_deviation(mechanism, accounting["rounds"], noise, clip_norm))


def _estimator(run_file: RunFile, work: Work) -> Estimator:
    """How a sum becomes an average: over the expected cohort, or over the weight there is, from the least allowed on."""
    assert run_file.clipping
    if run_file.clipping.estimator == "fixed":
        return FixedDenominator(work.denominator)
    assert run_file.clipping.min_weight is not None
    return ClippedDenominator(run_file.clipping.min_weight * work.denominator, work.largest)


def _mechanism(run_file: RunFile, sampler: Sampler) -> Mechanism:
    """The mechanism of a run file without its restarts, optimised for what one user can do."""
    table = run_file.mechanism
    assert table
    if table.file is not None:
        return load(table.file)
    rounds = run_file.run.rounds
    groups = getattr(sampler, "groups", 1)
    participation = sampler.participation or Participation(rounds, min(groups, rounds))
    if table.restarts:
        # Each block begins anew: it is made for the longest.
        ends = [*table.restarts, rounds]
        longest = max(end - start for start, end in zip([0, *table.restarts], ends, strict=True))
        participation = participation.within(longest, participation.most)
    return make(table.kind, participation, table.objective, size=table.buffers or table.bands)


def _noise(run_file: RunFile, accounting: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> float:
    assert run_file.privacy
    if run_file.privacy.epsilon is None:
        assert run_file.privacy.noise_multiplier is not None
        return run_file.privacy.noise_multiplier
    return calibrated(accounting, run_file.delta, epsilon=run_file.privacy.epsilon, arrays=arrays)


def _guarantee(accounting: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Guarantee | None:
    return guarantee_of(accounting, arrays) if accounting["noise_multiplier"] else None


def _rounds_within_budget(run_file: RunFile, accounting: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> int:
    """The most rounds whose guarantee keeps to the epsilon budget."""
    assert run_file.privacy
    budget, rounds = run_file.privacy.epsilon_budget, run_file.run.rounds
    if budget is None:
        return rounds

    def epsilon(made: int) -> float:
        found = _guarantee({**accounting, "rounds": made}, arrays)
        return math.inf if found is None else found.epsilon(run_file.delta)

    low, high = 0, rounds + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if epsilon(middle) <= budget else (low, middle)
    if low == 0:
        raise Refused(
            f"One round alone has epsilon {epsilon(1):.4g}, above privacy.epsilon_budget {budget:g}; raise "
            "privacy.noise_multiplier."
        )
    return low


def _check_worth(run_file: RunFile, guarantee: Guarantee | None, delta: float) -> None:
    assert run_file.privacy
    if guarantee is None or run_file.privacy.accept_vacuous:
        return
    epsilon = guarantee.epsilon(delta)
    if epsilon > VACUOUS:
        raise Refused(
            f"The guarantee of this run would be epsilon {epsilon:.4g} at delta {delta:.3g}, which promises next to "
            f"nothing; give more noise, or say privacy.accept_vacuous = true."
        )


def _owed(run_file: RunFile, data: Data) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What else was released of the same people, to compose with, and what a statement has to name."""
    owed: list[dict[str, Any]] = []
    covered: list[str] = []
    left_out: list[str] = []
    told: dict[str, Any] = {}
    origin = data.train.header["vocabulary"]
    if "guarantee" in origin:
        owed.append(origin["guarantee"])
        covered.append("the vocabulary, which was discovered under differential privacy on the same people")
    elif origin["source"] == "leak":
        left_out.append(f"the vocabulary: {origin['meaning']}")
    if run_file.population and run_file.population.sampler not in RANDOM_SIZES:
        left_out.append("how long rounds took, which tells something of how much the people in them wrote")
    for name in run_file.privacy.composed_with if run_file.privacy else ():
        owed.append(_recorded(Path(name)))
        covered.append(f"what was learned of the same people before training ({Path(name).name})")
    adapters = None if run_file.lora is None else run_file.lora.adapters
    public = []
    for begun_with in (run_file.model.checkpoint, adapters):
        if begun_with is None:
            continue
        from reticent.training.finished import provenance

        before = provenance(Path(begun_with))
        owed.extend(before.owed)
        if before.owed:
            covered.append("the training of the checkpoint it began with, as if on the same people")
        if before.public_data is not None:
            public.append(before.public_data)
    if public:
        told["public_data"] = "; ".join(public)
    if covered:
        told["also_covered"] = covered
    if left_out:
        told["not_covered"] = left_out
    return owed, told


def _recorded(path: Path) -> dict[str, Any]:
    """The guarantee in a file of `reticent tune`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["guarantee"]
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError):
        raise Refused(
            f"privacy.composed_with names {path}, which holds no guarantee to compose with; give a file that "
            "`reticent tune` wrote with --out."
        ) from None
    recorded(found)
    return found
