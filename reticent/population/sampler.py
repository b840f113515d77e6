"""The one interface of all samplers: who takes part in a round, and what that can be accounted as."""

import abc
import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Self

import numpy as np

from reticent.errors import Refused
from reticent.mechanisms.participation import Participation
from reticent.population.keystream import Keystream, secret_key, simulation_key

COHORT, ORDER = 0, 1
"""The purposes that a sampler's key serves: drawing a round, and ordering the people before the first."""


@dataclass(frozen=True)
class SamplerState:
    """Where a sampler stands between two rounds. It tells who took part when, so it is a secret of the run.

    `arrays` are part of a saved state; `derived` are made again from the key. A state is used once: `cohort` may update
    its arrays in place and hands back the state to go on with.
    """

    key: bytes = field(repr=False)
    round: int
    simulated: bool
    arrays: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    derived: dict[str, Any] = field(default_factory=dict, repr=False)

    def stream(self, purpose: int = COHORT) -> Keystream:
        return Keystream(self.key, purpose, self.round if purpose == COHORT else 0)


@dataclass(frozen=True)
class Sampler(abc.ABC):
    """Chooses each round's cohort among users 0 .. population - 1, over `rounds` rounds.

    `event` is what the accountant is told (`participation` in `reticent.accounting.run`): what one user can do at most,
    under zero-out adjacency, or with which probability a user is there, for amplification by sampling. It holds only
    what the sampler was given; nothing is counted off data.
    """

    population: int
    rounds: int

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        whole("population", self.population)
        whole("rounds", self.rounds)

    @property
    def participation(self) -> Participation | None:
        """What one user can do over the run; None where it is random."""
        return None

    @property
    @abc.abstractmethod
    def event(self) -> dict[str, Any]:
        """Who is in a round, as plain JSON for the accountant."""

    @property
    @abc.abstractmethod
    def expected_cohort(self) -> float:
        """The constant that a sum over the cohort is divided by: chosen in advance, never counted."""

    def start(self, seed: int | None = None) -> SamplerState:
        """The state before round 0. Without a seed the key comes from the operating system, as privacy needs; with one
        the cohorts repeat, and the state says `simulated`."""
        key = secret_key() if seed is None else simulation_key(seed)
        state = SamplerState(key, 0, seed is not None)
        return self._prepared(state, self._arrays(state))

    def cohort(self, state: SamplerState, round: int) -> tuple[np.ndarray, SamplerState]:
        """The users of `round`, each once, and the state after it. Rounds come in order from 0."""
        if round != state.round:
            raise Refused(f"This sampler's next round is {state.round}, not {round}: rounds are drawn in order.")
        if round >= self.rounds:
            raise Refused(f"This sampler was made for {self.rounds} rounds; round {round} is past its end.")
        users = self._draw(state)
        return users, SamplerState(state.key, round + 1, state.simulated, state.arrays, state.derived)

    def to_bytes(self, state: SamplerState) -> bytes:
        """The state as bytes, for the secrets directory; `from_bytes` goes on bit for bit."""
        header = {
            "schema": 1,
            "sampler": self.digest,
            "key": state.key.hex(),
            "round": state.round,
            "simulated": state.simulated,
            "arrays": {name: [array.dtype.str, len(array)] for name, array in state.arrays.items()},
        }
        return b"\n".join([json.dumps(header).encode(), b"".join(array.tobytes() for array in state.arrays.values())])

    def from_bytes(self, content: bytes) -> SamplerState:
        """The state that `to_bytes` wrote; refuses one of another sampler or one that is cut short."""
        line, _, body = content.partition(b"\n")
        try:
            header = json.loads(line)
            if header["sampler"] != self.digest:
                raise Refused(
                    f"This state belongs to another sampler than {self}; resume with the sampler that wrote it."
                )
            arrays, offset = {}, 0
            for name, (dtype, length) in header["arrays"].items():
                arrays[name] = np.frombuffer(body, np.dtype(dtype), length, offset).copy()
                offset += arrays[name].nbytes
            if offset != len(body):
                raise ValueError("length")
            state = SamplerState(bytes.fromhex(header["key"]), int(header["round"]), bool(header["simulated"]))
        except Refused:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise Refused("This sampler state is damaged; restore the secrets directory's copy of it.") from error
        return self._prepared(state, arrays)

    @property
    def digest(self) -> str:
        """A SHA-256 of kind and parameters."""
        return hashlib.sha256(json.dumps({"kind": self.kind, **asdict(self)}, sort_keys=True).encode()).hexdigest()

    @abc.abstractmethod
    def _draw(self, state: SamplerState) -> np.ndarray:
        """The users of round `state.round`."""

    def _arrays(self, state: SamplerState) -> dict[str, np.ndarray]:
        """What has to be saved beside the key, before round 0."""
        return {}

    def _derived(self, state: SamplerState) -> dict[str, Any]:
        """What is made again from the key."""
        return {}

    def _prepared(self, state: SamplerState, arrays: dict[str, np.ndarray]) -> SamplerState:
        return SamplerState(state.key, state.round, state.simulated, arrays, self._derived(state))

    @classmethod
    def of(cls, **parameters: Any) -> Self:
        """The sampler of these parameters; refuses unknown and missing names."""
        names = [one.name for one in fields(cls)]
        unknown = sorted(set(parameters) - set(names))
        if unknown:
            raise Refused(f"The {cls.kind} sampler has no {unknown[0]!r}; it takes {', '.join(names)}.")
        try:
            return cls(**parameters)
        except TypeError as error:
            raise Refused(
                f"The {cls.kind} sampler needs more than {', '.join(parameters)}; it takes {', '.join(names)}."
            ) from error


def whole(name: str, value: int, least: int = 1) -> None:
    """Refuses what is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise Refused(f"{name} must be a whole number of at least {least}, got {value!r}.")


def check_probability(probability: float) -> None:
    """Refuses what is no sampling probability."""
    if not 0 < probability <= 1:
        raise Refused(f"probability must be above 0 and at most 1, got {probability!r}.")


def index_type(population: int) -> type[np.signedinteger]:
    """The smallest integers that number these users."""
    return np.int32 if population <= np.iinfo(np.int32).max else np.int64


def deterministic(participation: Participation) -> dict[str, Any]:
    """The event of deterministic participation."""
    return {
        "kind": "deterministic",
        "min_separation": participation.min_separation,
        "max_participations": participation.most,
        "exact": participation.exact,
    }
