"""How many bands under amplification: fewer amplify more, more cancel more noise (BandMF, App. F.4)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from reticent.accounting.amplified import amplified_guarantee, bands_of
from reticent.accounting.calibration import smallest_noise
from reticent.accounting.guarantee import Guarantee
from reticent.errors import Refused
from reticent.mechanisms import Mechanism, Participation, make

BANDED = ("banded", "banded-free", "toeplitz", "banded-fhu")


@dataclass(frozen=True)
class Banding:
    """One number of bands: the noise that the target needs with it, and what that leaves in the model.

    `error` is the root mean square of the noise in the model over the rounds, in clip norms, before the division by the
    batch size: sigma(b) sqrt(L(b) / n). The smallest is best.
    """

    bands: int
    probability: float
    compositions: int
    noise_multiplier: float
    rms_error: float

    @property
    def error(self) -> float:
        return self.noise_multiplier * self.rms_error

    def summary(self) -> dict[str, Any]:
        """Everything, as plain JSON."""
        return {**vars(self), "error": self.error}


def bandings(
    rounds: int,
    population: int,
    batch_size: int,
    delta: float,
    epsilon: float,
    *,
    bands: Iterable[int] | None = None,
    kind: str = "banded",
    sampling: Literal["poisson", "fixed"] = "poisson",
) -> list[Banding]:
    """Every number of bands that is asked for, or powers of two and the most that there can be, as many groups taking turns.

    Refuses numbers of bands whose groups do not fill a batch.
    """
    most = most_bands(rounds, population, batch_size)
    wanted = sorted(set(bands)) if bands is not None else [*_powers(most), most]
    if kind not in BANDED:
        raise Refused(f"Bands are chosen for mechanisms that have them: {', '.join(BANDED)}; not {kind!r}.")
    if not wanted or wanted[0] < 1 or wanted[-1] > most:
        raise Refused(
            f"With {population:,} units, batches of {batch_size:,} and {rounds:,} rounds there can be 1 to {most:,} bands, "
            f"got {', '.join(str(one) for one in wanted) or 'none'}."
        )
    return [
        _banding(rounds, population, batch_size, delta, epsilon, one, kind, sampling) for one in dict.fromkeys(wanted)
    ]


def best_banding(found: Iterable[Banding]) -> Banding:
    """The one that leaves the least noise in the model; of equals the one with fewer bands."""
    return min(found, key=lambda one: (one.error, one.bands))


def most_bands(rounds: int, population: int, batch_size: int) -> int:
    """The most bands that rounds and groups allow: a group has to fill a batch."""
    for name, value in (("rounds", rounds), ("population", population), ("batch_size", batch_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise Refused(f"{name} must be a whole number of at least 1, got {value!r}.")
    if batch_size > population:
        raise Refused(f"A batch of {batch_size:,} is more than the population of {population:,}; lower --batch-size.")
    return min(population // batch_size, rounds)


def _powers(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length()) if 2**power < most]


def _banding(
    rounds: int,
    population: int,
    batch_size: int,
    delta: float,
    epsilon: float,
    bands: int,
    kind: str,
    sampling: Literal["poisson", "fixed"],
) -> Banding:
    mechanism: Mechanism = make(kind, Participation(rounds, bands), "rms", size=bands)
    assert bands_of(mechanism, rounds) <= bands
    probability = batch_size / (population // bands)

    def guarantee(noise: float) -> Guarantee:
        return amplified_guarantee(mechanism, rounds, noise, probability, groups=bands, sampling=sampling)

    noise = smallest_noise(guarantee, delta, epsilon=epsilon)
    return Banding(bands, probability, -(-rounds // bands), noise, mechanism.rms_error(rounds))
