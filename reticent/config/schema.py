"""The run file: every table and key, its unit, its default. One schema, read by planning, training and deployment.

Only keys whose meaning is settled are here. What follows from other keys is not a key: the unit of privacy and the
adjacency follow from the algorithm and the sampler, the divisor of a sum from the report goal.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Algorithm = Literal["fedavg", "fedsgd", "pretrain", "dpsgd", "els", "uls"]
MechanismKind = Literal[
    "independent", "tree", "tree-full", "banded", "banded-free", "toeplitz", "banded-fhu", "banded-inverse", "blt",
    "dense", "blt-100", "blt-400", "blt-1000",
]  # fmt: skip
SamplerKind = Literal[
    "min-separated", "poisson", "fixed", "cyclic-poisson", "cyclic-fixed", "shuffled-epochs", "shuffled-shards"
]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Rounds = Annotated[tuple[Count, ...], Field(strict=False)]


class Table(BaseModel):
    """A table of the run file: immutable, its keys known, its values of the type they state."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Run(Table):
    """[run]"""

    schema_version: Literal[1] = Field(default=1, description="Version of the run file's schema.")
    name: str = Field(default="run", description="What the run is called in reports.")
    algorithm: Algorithm = Field(default="fedavg", description="How a cohort's data becomes an update.")
    secure_aggregation: Literal["off", "encoding", "protocol"] = Field(
        default="off",
        description="How updates are summed: plainly; encoded but summed plainly; or so that nobody sees one alone.",
    )
    encoding_inflation: float | None = Field(
        default=None,
        ge=0,
        le=0.1,
        description="With secure_aggregation: the fraction by which encoding may lengthen the clip norm; more of it sends "
        "fewer bits, 0 sends the release's own integers, 32 bits each, and lengthens nothing. Without it 0.01.",
    )
    tolerated_dropout: Fraction | None = Field(
        default=None,
        description="For 'protocol': the fraction of a cohort that may vanish during a round; without it 0.05.",
    )
    tolerated_corruption: Fraction | None = Field(
        default=None,
        description="For 'protocol': the fraction of a cohort that may collude with the server; without it 0.05.",
    )
    rounds: Count = Field(description="Rounds (for pretrain, dpsgd and els: steps) to make at most.")
    seed: int = Field(default=0, ge=0, description="Seed of initialisation and shuffles; noise never comes from it.")
    simulated_row_seed: int | None = Field(
        default=None,
        ge=0,
        description="Draw noise and cohorts from this seed: the run repeats exactly and protects nobody; its guarantee "
        "is labelled simulated.",
    )
    checkpoint_every: Count = Field(default=10, description="Rounds between checkpoints.")
    keep_releases: bool = Field(default=True, description="Keep releases that a checkpoint has made unnecessary.")
    keep_secrets: bool = Field(
        default=False, description="Keep the secrets when the run is finished and verified, for an audit."
    )


class Data(Table):
    """[data]"""

    store: str = Field(
        description="A store's directory, relative to the current one, or data at hand: crowd, plays, changelogs."
    )
    people: Count | None = Field(default=None, description="For crowd: people to generate.")
    generation_seed: int = Field(default=0, ge=0, description="For crowd: the seed that people are generated from.")
    held_out_users: Fraction = Field(
        default=0.0, description="Fraction of users kept for evaluation, never trained on."
    )
    max_examples_per_user: Count | None = Field(
        default=None, description="Examples of one user in one round at most (for els and uls: the group size)."
    )
    max_examples_per_round: Count | None = Field(
        default=None,
        description="For els with a sampler that is not random: examples of one user under one row of noise at most.",
    )
    max_tokens_per_user: Count | None = Field(default=None, description="Tokens of one user in one round at most.")
    sequence_length: Count = Field(
        default=20, description="Tokens per row; longer examples go on in further rows, each counted as an example."
    )
    packed: bool = Field(
        default=False, description="Join a user's texts end to end before they are cut into rows: less padding."
    )


class Model(Table):
    """[model]"""

    kind: str = Field(
        default="lstm",
        description="A built-in model by name; huggingface where the checkpoint is a directory of that kind.",
    )
    vocabulary: Count | None = Field(
        default=None, description="Words, with the special ones; without it the model's own."
    )
    embedding: Count | None = Field(default=None, description="Width of the embedding; without it the model's own.")
    hidden: Count | None = Field(default=None, description="Hidden units; without it the model's own.")
    layers: Count | None = Field(default=None, description="For transformers: layers; without it the model's own.")
    heads: Count | None = Field(
        default=None, description="For transformers: attention heads; without it the model's own."
    )
    compute_dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="What matrix products run in; parameters and updates are float32."
    )
    checkpointing: bool = Field(
        default=False, description="For transformers: make inner values anew in the backward pass, to need less memory."
    )
    checkpoint: str | None = Field(
        default=None,
        description="Directory to start from: a finished or pretrained run's, or a Hugging Face checkpoint's.",
    )


class Lora(Table):
    """[lora]"""

    rank: Count | None = Field(default=None, description="Rank of each adapter; without it that of lora.adapters.")
    alpha: Positive | None = Field(
        default=None, description="What adapters add is multiplied by alpha / rank; without it by 1."
    )
    targets: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(),
        description="Linear layers with adapters, by the checkpoint's names (q_proj, c_attn), or all-linear; without it "
        "queries and values.",
    )
    adapters: str | None = Field(default=None, description="Directory of PEFT adapters to start from.")


class Population(Table):
    """[population]"""

    size: Count | None = Field(
        default=None,
        description="Users (for dpsgd: examples) there are: a public estimate, never counted off the private data.",
    )
    examples: Count | None = Field(
        default=None,
        description="For els: examples there are, at most the group size of each user, by a public estimate; without it "
        "size times the group size.",
    )
    sampler: SamplerKind = Field(default="min-separated", description="How a round's cohort is chosen.")
    report_goal: Count | None = Field(
        default=None, description="Users whose updates are summed in a round, and what the sum is divided by."
    )
    min_separation: Count | None = Field(
        default=None, description="For min-separated: rounds from one participation of a user to the next at least."
    )
    max_participations: Count | None = Field(
        default=None, description="For min-separated: rounds a user takes part in at most; without it as many as fit."
    )
    probability: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="For poisson and cyclic-poisson: chance of a user (in the group) to be sampled.",
    )
    groups: Count | None = Field(
        default=None, description="For cyclic-poisson and cyclic-fixed: groups that take turns."
    )
    shards: Count | None = Field(
        default=None, description="For shuffled-shards: shards, ordered once, shuffled within."
    )
    accounted_as: Literal["poisson"] | None = Field(
        default=None,
        description="For shuffled-epochs: account shuffled cohorts as if Poisson-sampled, as is often done; the result "
        "is an estimate.",
    )
    simulated_cohort: Count | None = Field(
        default=None,
        description="Users actually simulated of each cohort, the noise scaled to match: the result is an estimate.",
    )


class Mechanism(Table):
    """[mechanism]"""

    kind: MechanismKind = Field(default="blt", description="The noise mechanism.")
    buffers: Count | None = Field(default=None, description="For blt: buffers, as multiples of the model's size.")
    bands: Count | None = Field(default=None, description="For banded and toeplitz kinds: bands.")
    objective: Literal["max", "rms"] = Field(
        default="max", description="The error it is optimised for, over all rounds."
    )
    file: str | None = Field(default=None, description="A saved mechanism to use in place of one made for this run.")
    restarts: Rounds = Field(default=(), description="Rounds before which the mechanism starts anew.")


class Clipping(Table):
    """[clipping]"""

    norm: Positive = Field(description="Clip norm: the largest Euclidean norm of one user's (or example's) update.")
    style: Literal["flat", "per-layer"] = Field(
        default="flat", description="Clip the whole update, or each of its m arrays to norm / sqrt(m)."
    )
    gradients: Literal["auto", "together", "single"] = Field(
        default="auto",
        description="For els, uls and dpsgd: clip gradients without making single ones (together, for models that can), "
        "or one by one.",
    )
    normalised: bool = Field(
        default=False, description="Divide the average by the norm, so that learning rates suit every norm."
    )
    estimator: Literal["fixed", "clipped"] = Field(
        default="fixed",
        description="Divide a sum by a constant, or (poisson only) by the weight sampled, clipped from below.",
    )
    weight_cap: Positive | None = Field(
        default=None,
        description="Examples from which on a user has weight 1, fewer weighing less; without it all weigh 1.",
    )
    min_weight: Positive | None = Field(
        default=None,
        description="For the clipped estimator: the total weight divided by at least, as a fraction of all users'.",
    )
    zero_above: Positive | None = Field(
        default=None, description="Updates with an entry larger than this, in absolute value, count as zero."
    )
    quantile: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Adapt the norm at restarts to this quantile of update norms; norm is the first.",
    )
    later_norms: Annotated[tuple[Positive, ...], Field(strict=False)] = Field(
        default=(), description="For mechanism.restarts: the norm from each restart on; noise is lowered with it."
    )
    quantile_learning_rate: Positive | None = Field(
        default=None, description="For quantile: the rate of the norm's geometric update; without it 0.2."
    )
    quantile_noise: Positive | None = Field(
        default=None,
        description="For quantile: noise standard deviation, in users, of each round's count; without it "
        "report_goal / 20.",
    )


class Client(Table):
    """[client]"""

    epochs: Count = Field(default=1, description="For fedavg: passes over a user's examples in a round.")
    batch_size: Count = Field(default=16, description="Examples per local step (for pretrain: per step).")
    learning_rate: Positive = Field(default=0.5, description="For fedavg: learning rate of a local step of SGD.")
    local_training: bool = Field(
        default=False, description="For uls: a user's update is local training, as for fedavg, not one gradient."
    )
    micro_batch: Count | None = Field(
        default=None,
        description="For els, uls and dpsgd: rows computed at once; without it as many as a trial finds best.",
    )


class Server(Table):
    """[server]"""

    optimizer: str = Field(default="sgd", description="An optax optimiser by name.")
    learning_rate: Positive = Field(default=1.0, description="Its learning rate, on the averaged update.")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="For sgd: momentum.")
    schedule: Literal["constant", "cosine"] = Field(
        default="constant",
        description="The learning rate between warm-up and cool-down: as it is, or falling as half a cosine to 1/20 of it.",
    )
    warm_up: Fraction = Field(
        default=0.0, description="Fraction of the rounds in which the learning rate rises, from 1/20 of it."
    )
    cool_down: Fraction = Field(
        default=0.0, description="Fraction of the rounds, at the end, in which the learning rate falls, to 1/20 of it."
    )


class Privacy(Table):
    """[privacy]"""

    epsilon: Positive | None = Field(
        default=None, description="Target epsilon at delta: the noise is calibrated to it."
    )
    noise_multiplier: NotNegative | None = Field(
        default=None, description="Noise standard deviation per entry of Z for clip norm 1; 0 means no privacy at all."
    )
    delta: float | None = Field(
        default=None, gt=0, lt=1, description="Delta; without it population.size to the power -1.1."
    )
    epsilon_budget: Positive | None = Field(
        default=None,
        description="With noise_multiplier: end the run before the round that would take epsilon above this.",
    )
    composed_with: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="Files of `reticent tune`: what was learned from the same people before, added to the guarantee.",
    )
    random_bits: Literal["chacha20", "threefry"] = Field(
        default="chacha20", description="What noise is made from; threefry (64-bit keys) only with simulated_row_seed."
    )
    accept_vacuous: bool = Field(
        default=False, description="Train although epsilon is above 50, where it promises little."
    )


class Evaluation(Table):
    """[evaluation]"""

    every: Count = Field(default=10, description="Rounds between evaluations.")
    store: str | None = Field(
        default=None, description="A store, or data at hand, to evaluate on; without it the held-out users of [data]."
    )
    users: Count | None = Field(default=None, description="Users evaluated on at most; without it all.")
    training_noise: Positive | None = Field(
        default=None,
        description="Show metrics of the people trained on, with this noise on their sum (standard deviation for a person's "
        "norm of 1), paid for in the guarantee; without it none are shown.",
    )


class Audit(Table):
    """[audit]"""

    canaries: int = Field(
        default=0,
        ge=0,
        description="Simulated users whose update is a random direction of full norm; half send nothing.",
    )
    phrases: int = Field(
        default=0,
        ge=0,
        description="Secret phrases of each kind that simulated users write: once, repeated by one, shared by several.",
    )
    phrase_repeats: Count = Field(default=20, description="Copies of a phrase that is repeated, or shared, per user.")
    phrase_users: Count = Field(default=10, description="Users who write a shared phrase.")
    zero_coordinates: int = Field(
        default=0, ge=0, description="Extra coordinates that no update moves: their releases are pure noise."
    )

    @property
    def declared(self) -> bool:
        """Whether anything is planted."""
        return bool(self.canaries or self.phrases or self.zero_coordinates)


class Deploy(Table):
    """[deploy]"""

    over_selection: float = Field(
        default=1.3, ge=1, le=10, description="Devices that a round begins with, over the report goal: some drop out."
    )
    deadline: Positive = Field(default=600.0, description="Seconds that each step of a round waits for devices.")
    rest_hours: NotNegative = Field(
        default=0.0, description="Hours that a device rests after it took part, beside population.min_separation."
    )


class RunFile(Table):
    """A whole run file. Made by `reticent.config.load`, which also checks what holds between tables."""

    run: Run
    data: Data
    model: Model = Model()
    lora: Lora | None = None
    population: Population | None = None
    mechanism: Mechanism | None = None
    clipping: Clipping | None = None
    client: Client = Client()
    server: Server = Server()
    privacy: Privacy | None = None
    evaluation: Evaluation = Evaluation()
    audit: Audit = Audit()
    deploy: Deploy = Deploy()

    @property
    def private(self) -> bool:
        """Whether the algorithm trains on private data; only pretraining does not."""
        return self.run.algorithm != "pretrain"

    @property
    def delta(self) -> float:
        """The delta of the guarantee: the one given, or N^-1.1 (dpfedavg, Sec. 3)."""
        assert self.privacy is not None
        if self.privacy.delta is not None:
            return self.privacy.delta
        assert self.population is not None
        assert self.population.size is not None
        return self.population.size**-1.1


TABLES: dict[str, type[Table]] = {
    "run": Run,
    "data": Data,
    "model": Model,
    "lora": Lora,
    "population": Population,
    "mechanism": Mechanism,
    "clipping": Clipping,
    "client": Client,
    "server": Server,
    "privacy": Privacy,
    "evaluation": Evaluation,
    "audit": Audit,
    "deploy": Deploy,
}
