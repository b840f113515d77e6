"""Who takes part: cohorts, timers, availability."""

from reticent.population.epochs import ShuffledEpochs, ShuffledShards
from reticent.population.registry import SAMPLERS, make_sampler, sampler_of
from reticent.population.sampled import CyclicFixed, CyclicPoisson, FixedSize, Poisson
from reticent.population.sampler import Sampler, SamplerState
from reticent.population.separated import MinSeparated
from reticent.population.table import ParticipationTable

__all__ = [
    "SAMPLERS",
    "CyclicFixed",
    "CyclicPoisson",
    "FixedSize",
    "MinSeparated",
    "ParticipationTable",
    "Poisson",
    "Sampler",
    "SamplerState",
    "ShuffledEpochs",
    "ShuffledShards",
    "make_sampler",
    "sampler_of",
]
