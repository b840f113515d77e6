"""`reticent tune group-sizes`: from a run file to sizes, with what reading private data for them costs."""

import dataclasses
from pathlib import Path
from typing import Any

import jax

from reticent.config import RunFile
from reticent.data.store import Store
from reticent.errors import Refused
from reticent.finetune.sizes import (
    MOST_GROUP,
    Split,
    group_sizes_up_to,
    guarantee_of_reading,
    noise_for,
    read,
    record_of,
    sigma_of,
    splits,
)
from reticent.training.finished import params_to_start_from
from reticent.training.setup import Progress, model_of, open_data


def choose(
    run_file: RunFile,
    *,
    public: str | None = None,
    epsilon: float | None = None,
    budget: int | None = None,
    users: int = 1000,
    progress: Progress = lambda stage, done: None,
) -> dict[str, Any]:
    """The table, a recommendation and what it cost, as plain JSON.

    Learns from the store `public`; or from the run's own data, with noise that keeps to `epsilon` at the run's delta, whose
    guarantee is returned to be composed with the run's. Refuses to read private data without either.
    """
    if run_file.run.algorithm not in ("els", "uls"):
        raise Refused(f"Group sizes are for els and uls, not for {run_file.run.algorithm!r}; set run.algorithm.")
    if (public is None) == (epsilon is None):
        raise Refused(
            "Group sizes are learned from data: name public text with --public STORE, or give --epsilon, what reading the "
            "run's own may cost (its guarantee is then composed with the run's)."
        )
    population = run_file.population
    assert population
    if population.size is None:
        raise Refused("Group sizes need population.size, a public estimate of the users there are.")
    sigma, data = sigma_of(run_file), open_data(run_file, progress)
    store = data.train if public is None else Store.open(public)
    tokenizer = data.train.tokenizer()
    store.check_tokenizer(tokenizer, "The tokenizer of the run's data")
    model = model_of(run_file, tokenizer)
    start = run_file.model.checkpoint
    params = (
        model.init(jax.random.key(run_file.run.seed))
        if start is None
        else params_to_start_from(Path(start), model, tokenizer)
    )
    spent = _budget(run_file) if budget is None else budget
    groups = group_sizes_up_to(min(MOST_GROUP, spent))
    noise = None if epsilon is None else noise_for(epsilon, run_file.delta, len(groups))
    progress("measuring gradients", 0.0)
    found = read(model, params, store, run_file, groups, users, noise)
    progress("calibrating the noise", 0.0)
    table = splits(found, sigma, spent, population.size, population.examples)
    guarantee = None if noise is None else guarantee_of_reading(noise, len(groups))
    best_uls, best_els = table[-1]
    best = best_uls if best_els is None or best_uls.predicted <= best_els.predicted else best_els
    return {
        "source": "public" if noise is None else "private",
        "median_examples": found.median_examples,
        "norms": {str(group): found.norm(group) for group in groups},
        "splits": [{"uls": _plain(uls), "els": None if els is None else _plain(els)} for uls, els in table],
        "recommended": _plain(best),
        "keys": _keys(best),
        "guarantee": None if guarantee is None else record_of(guarantee),
        "cost": None if guarantee is None else guarantee.describe(run_file.delta),
        "told": _told(best, best_uls, best_els, found.median_examples, run_file, epsilon, population.size, spent),
    }


def _budget(run_file: RunFile) -> int:
    """The gradients per round that a run file spends."""
    population, most = run_file.population, run_file.data.max_examples_per_user
    assert population
    assert population.size is not None
    assert most is not None
    if population.report_goal is not None:
        drawn = float(population.report_goal)
    else:
        assert population.probability is not None
        drawn = population.probability * population.size / (population.groups or 1)
    if run_file.run.algorithm == "els":
        if population.probability is None:
            return max(1, round(drawn))
        return max(1, round(population.probability * (population.examples or population.size * most)))
    return max(1, round(drawn * most))


def _plain(split: Split) -> dict[str, Any]:
    return {**dataclasses.asdict(split), "predicted": split.predicted}


def _keys(best: Split) -> dict[str, Any]:
    """The keys of the run file that the recommendation sets."""
    return {
        "run.algorithm": best.algorithm,
        "data.max_examples_per_user": best.group,
        "population.sampler": "poisson",
        "population.probability": best.probability,
        "mechanism.kind": "independent",
        "clipping.norm": best.norm,
    }


def _told(
    best: Split,
    uls: Split,
    els: Split | None,
    median: int,
    run_file: RunFile,
    epsilon: float | None,
    users: int,
    budget: int,
) -> list[str]:
    told = [
        f"the median user has about {median} examples: the group size of els",
        f"recommended: {best.algorithm}, groups of {best.group}, probability {best.probability:.6g}, clip norm "
        f"{best.norm:.4g}: " + " ".join(f"--set {key}={value}" for key, value in _keys(best).items()),
    ]
    if els is None:
        told.append("els has no column where the budget is more than all examples it would draw from")
    if uls.budget < budget:
        told.append(
            f"the budget of {budget} is more than {users} users with groups as large as measured can spend: {uls.budget}"
        )
    if epsilon is None:
        told.append("learned from public text: it costs nothing, and is as good as that text is like the private one")
    else:
        told.append(f"reading the run's own data cost epsilon {epsilon:g} at delta {run_file.delta:.3g} of its own")
    return told
