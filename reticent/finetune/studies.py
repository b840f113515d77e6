"""The two studies of ULDP in which ELS and ULS are compared without a language model: noise variances (App. C, Figs. 2
and 6), and the mean of a synthetic population (App. E, Fig. 7)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from reticent.accounting.run import calibrated

Progress = Callable[[str, float], None]


@lru_cache(maxsize=4096)
def sigma(rounds: int, probability: float, group: int, epsilon: float, delta: float) -> float:
    """The noise multiplier of ELS with this group size (of ULS with 1), for independent noise (ULDP, Thms. 1 and 2)."""
    accounting: dict[str, Any] = {
        "rounds": rounds,
        "mechanism": "independent",
        "participation": {"kind": "poisson", "probability": probability},
        "group_size": group,
    }
    return calibrated(accounting, delta, epsilon=epsilon)


@dataclass(frozen=True)
class Variances:
    """One point of ULDP, Fig. 6: the variance of an entry's noise, in ELS; in ULS where a user's gradients all point
    the same way; and in ULS where they are orthogonal."""

    epsilon: float
    cohort: int
    budget: int
    group: int
    els: float
    uls_alike: float
    uls_diverse: float


def variance_study(
    epsilons: Iterable[float] = (1.0, 4.0, 16.0),
    cohorts: Iterable[int] = (32, 64, 128),
    *,
    users: int = 1024,
    examples: int = 32,
    rounds: int = 1000,
    delta: float = 1e-6,
    lipschitz: float = 10.0,
    progress: Progress = lambda stage, done: None,
) -> list[Variances]:
    """ULDP, App. C: the same budget B of gradients spent by ELS on B examples, and by ULS on M users with B / M examples of
    each, for all B / M that are powers of two up to `examples`."""
    points = [
        (epsilon, cohort, 2**power)
        for epsilon in epsilons
        for cohort in cohorts
        for power in range(examples.bit_length())
    ]
    found = []
    for done, (epsilon, cohort, group) in enumerate(points):
        progress("calibrating", done / len(points))
        budget = cohort * group
        els = sigma(rounds, budget / (examples * users), examples, epsilon, delta) * lipschitz / budget
        uls = sigma(rounds, cohort / users, 1, epsilon, delta) * lipschitz / cohort
        found.append(Variances(epsilon, cohort, budget, group, els**2, uls**2, uls**2 / group))
    return found


@dataclass(frozen=True)
class MeanSetting:
    """ULDP, App. E: what is varied is epsilon, the budget per round, and the deviation within a user."""

    epsilon: float = 1.0
    budget: int = 64
    within: float = 1.0
    between: float = 1.0
    users: int = 256
    examples: int = 16
    dimension: int = 32
    rounds: int = 256
    delta: float = 1e-6


@dataclass(frozen=True)
class MeanResult:
    """The mean squared distance to the population's mean after training, of the best learning rate and clip norm; `error`
    is its standard error over the trials."""

    setting: MeanSetting
    algorithm: str
    group: int
    loss: float
    error: float
    learning_rate: float
    clip_norm: float


RATES = (0.03, 0.1, 0.3)
NORMS = (1.0, 3.0, 10.0)
VARIED = {
    "epsilon": (0.25, 1.0, 4.0, 16.0),
    "budget": (16, 64, 256),
    "within": (0.25, 1.0, 4.0),
}


def mean_settings() -> list[MeanSetting]:
    """The defaults, and one thing varied at a time (Fig. 7a, b, c)."""
    settings = [MeanSetting()]
    for name, values in VARIED.items():
        settings += [MeanSetting(**{name: value}) for value in values]  # type: ignore[arg-type]
    return list(dict.fromkeys(settings))


def mean_study(
    settings: Iterable[MeanSetting] | None = None,
    *,
    groups: Iterable[int] = (1, 4, 16),
    trials: int = 32,
    rates: Iterable[float] = RATES,
    norms: Iterable[float] = NORMS,
    seed: int = 0,
    progress: Progress = lambda stage, done: None,
) -> list[MeanResult]:
    """ULDP, App. E: the population's mean by SGD on the squared distance, with ELS (all examples of every user), and
    with ULS for each group size that the budget allows. Every setting of learning rate and clip norm is tried, and the
    best told."""
    settings = mean_settings() if settings is None else list(settings)
    tasks: list[tuple[MeanSetting, str, int]] = []
    for setting in settings:
        tasks.append((setting, "els", setting.examples))
        tasks += [(setting, "uls", group) for group in groups if group <= min(setting.budget, setting.examples)]
    grid = np.array([(rate, norm) for rate in rates for norm in norms], np.float32)
    found = []
    for done, (setting, algorithm, group) in enumerate(tasks):
        progress("estimating means", done / len(tasks))
        losses = _losses(setting, algorithm, group, grid, trials, seed)
        means = losses.mean(1)
        best = int(np.nanargmin(np.where(np.isfinite(means), means, np.inf)))
        error = float(losses[best].std(ddof=1) / np.sqrt(trials)) if trials > 1 else float("nan")
        rate, norm = grid[best].tolist()
        found.append(MeanResult(setting, algorithm, group, float(means[best]), error, rate, norm))
    return found


def _losses(setting: MeanSetting, algorithm: str, group: int, grid: np.ndarray, trials: int, seed: int) -> np.ndarray:
    """float64[settings of the grid, trials]: the loss above the best there is, |theta - mu|^2 / 2."""
    els = algorithm == "els"
    drawn = setting.budget if els else setting.budget / group
    chance = drawn / (setting.users * setting.examples if els else setting.users)
    if chance > 1:
        return np.full((len(grid), trials), np.inf)
    noise = sigma(setting.rounds, chance, group if els else 1, setting.epsilon, setting.delta)
    run = _els if els else _uls
    keys = jax.random.split(jax.random.key(seed), trials)
    found = [
        run(keys, float(rate), float(norm), noise, setting.within, setting.between, drawn, _shape(setting, group))
        for rate, norm in grid
    ]
    return np.asarray(found, np.float64)


Shape = tuple[int, int, int, int, int]


def _shape(setting: MeanSetting, group: int) -> Shape:
    return setting.users, setting.examples, setting.dimension, setting.rounds, group


def _trial(step: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """A whole run of `step`, over trials: jitted once for each shape."""

    def one(
        key: jax.Array, rate: Any, norm: Any, noise: Any, within: Any, between: Any, drawn: Any, shape: Shape
    ) -> jax.Array:
        users, examples, dimension, rounds, group = shape
        keys = jax.random.split(key, 4)
        mean = jax.random.normal(keys[0], (dimension,))
        own = mean + between * jax.random.normal(keys[1], (users, 1, dimension))
        data = own + within * jax.random.normal(keys[2], (users, examples, dimension))

        def body(theta: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
            some, noisy = jax.random.split(key)
            total = step(some, theta, data, norm, drawn, group)
            total = total + norm * noise * jax.random.normal(noisy, theta.shape)
            return theta - rate * total / drawn, None

        theta, _ = jax.lax.scan(body, jnp.zeros(dimension), jax.random.split(keys[3], rounds))
        return jnp.square(theta - mean).sum() / 2

    def over_trials(keys: jax.Array, *rest: Any) -> jax.Array:
        return jax.lax.map(lambda key: one(key, *rest), keys)

    return jax.jit(over_trials, static_argnums=7)


def _clip(slopes: jax.Array, norm: Any) -> jax.Array:
    """Rows of gradients, clipped: those of |theta - x|^2 / 2 are theta - x."""
    length = jnp.sqrt(jnp.square(slopes).sum(-1, keepdims=True))
    return slopes * jnp.minimum(1.0, norm / jnp.maximum(length, 1e-30))


def _els_step(key: jax.Array, theta: jax.Array, data: jax.Array, norm: Any, drawn: Any, group: int) -> jax.Array:
    users, examples, dimension = data.shape
    there = jax.random.bernoulli(key, drawn / (users * examples), (users * examples, 1))
    return (there * _clip(theta - data.reshape(-1, dimension), norm)).sum(0)


def _uls_step(key: jax.Array, theta: jax.Array, data: jax.Array, norm: Any, drawn: Any, group: int) -> jax.Array:
    users, examples, _ = data.shape
    who, which = jax.random.split(key)
    there = jax.random.bernoulli(who, drawn / users, (users, 1))
    # The examples of a user are alike by symmetry: a run of them from a random place on, around the end.
    begins = jax.random.randint(which, (users, 1), 0, examples)
    chosen = (begins + jnp.arange(group)) % examples
    slopes = theta - jnp.take_along_axis(data, chosen[..., None], axis=1).mean(1)
    return (there * _clip(slopes, norm)).sum(0)


_els, _uls = _trial(_els_step), _trial(_uls_step)
