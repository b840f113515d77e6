"""The samplers by the names that run files use."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from reticent.errors import Refused
from reticent.population.epochs import ShuffledEpochs, ShuffledShards
from reticent.population.sampled import CyclicFixed, CyclicPoisson, FixedSize, Poisson
from reticent.population.sampler import Sampler
from reticent.population.separated import MinSeparated

SAMPLERS: dict[str, type[Sampler]] = {
    sampler.kind: sampler
    for sampler in (MinSeparated, Poisson, FixedSize, CyclicPoisson, CyclicFixed, ShuffledEpochs, ShuffledShards)
}


def make_sampler(kind: str, **parameters: Any) -> Sampler:
    """The sampler of this name; refuses unknown names and parameters, naming those that exist."""
    if kind not in SAMPLERS:
        raise Refused(f"There is no sampler {kind!r}; the samplers are {', '.join(SAMPLERS)}.")
    return SAMPLERS[kind].of(**parameters)


def sampler_of(table: Mapping[str, Any], users: int, rounds: int) -> Sampler:
    """The sampler of a run file's table [population], over this many users; its `size` is the public estimate."""
    given = {name: value for name, value in table.items() if value is not None and name != "simulated_cohort"}
    kind = given.pop("sampler", MinSeparated.kind)
    size = given.pop("size", None)
    if kind in SAMPLERS and "public_population" in {one.name for one in fields(SAMPLERS[kind])}:
        given["public_population"] = size
    return make_sampler(kind, population=users, rounds=rounds, **given)
