"""The number of bands under amplification: BandMF, App. F.4 and Table 3."""

import math

import pytest

from reticent.accounting.amplified import amplified_guarantee
from reticent.accounting.bands import BANDED, bandings, best_banding, most_bands
from reticent.accounting.losses import epsilon_of
from reticent.accounting.sampled import Poisson
from reticent.errors import Refused
from reticent.mechanisms import Participation, make

EPOCHS = [2**power for power in range(11)]
# bandmf, Table 3: n = 1024, delta = 1e-6; the best number of bands by epsilon (rows) and epochs (columns).
TABLE_3 = {
    2**-5: [2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    2**-4: [4, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    2**-3: [8, 4, 2, 1, 1, 1, 1, 1, 1, 1, 1],
    2**-2: [8, 4, 4, 2, 1, 1, 1, 1, 1, 1, 1],
    0.5: [16, 8, 4, 4, 2, 1, 1, 1, 1, 1, 1],
    1.0: [32, 16, 8, 4, 2, 2, 1, 1, 1, 1, 1],
    2.0: [64, 32, 16, 8, 4, 2, 2, 1, 1, 1, 1],
    4.0: [128, 64, 32, 16, 8, 4, 2, 2, 1, 1, 1],
    8.0: [1024, 512, 256, 32, 16, 8, 4, 2, 2, 1, 1],
    16.0: [1024, 512, 256, 128, 64, 32, 8, 4, 4, 2, 1],
}


def best(epsilon: float, epochs: int, bands: list[int], kind: str = "banded") -> int:
    # 1,024 records and batches of `epochs` make that many epochs of 1,024 rounds.
    return best_banding(bandings(1024, 1024, epochs, 1e-6, epsilon, bands=bands, kind=kind)).bands


@pytest.mark.parametrize(("epsilon", "epochs"), [(0.125, 2), (1.0, 16), (2.0, 64), (4.0, 128), (16.0, 512)])
def test_table_3_where_bands_are_few(epsilon: float, epochs: int) -> None:
    due = TABLE_3[epsilon][EPOCHS.index(epochs)]
    near = [one for one in (due // 4, due // 2, due, 2 * due, 4 * due) if 1 <= one <= 1024 // epochs]
    assert best(epsilon, epochs, near) == due


@pytest.mark.full
@pytest.mark.parametrize("epsilon", TABLE_3)
def test_table_3(epsilon: float) -> None:
    for epochs, due in zip(EPOCHS, TABLE_3[epsilon], strict=True):
        bands = [2**power for power in range(11) if 2**power <= 1024 // epochs]
        found = bandings(1024, 1024, epochs, 1e-6, epsilon, bands=bands, kind="toeplitz")
        errors = {one.bands: one.error for one in found}
        # Toeplitz matrices are a percent or two from the best banded ones: near a tie either may be printed.
        assert errors[due] <= 1.03 * min(errors.values()), (epochs, errors)


def test_a_banding_is_the_calibrated_amplified_mechanism() -> None:
    [found] = bandings(64, 5_000, 40, 1e-6, 2.0, bands=[4])
    assert (found.bands, found.probability, found.compositions) == (4, 40 / 1250, 16)
    mechanism = make("banded", Participation(64, 4), "rms", size=4)
    guarantee = amplified_guarantee(mechanism, 64, found.noise_multiplier, 40 / 1250, groups=4)
    assert guarantee.epsilon(1e-6) == pytest.approx(2.0, rel=1e-4)
    assert found.rms_error == mechanism.rms_error(64)
    assert found.error == found.noise_multiplier * found.rms_error
    assert found.summary()["error"] == found.error
    kappa = mechanism.column_norms(64).max()
    assert epsilon_of([Poisson(found.noise_multiplier / kappa, 40 / 1250, 16)], 1e-6) <= 2.0


def test_powers_of_two_and_the_most_are_tried() -> None:
    found = bandings(48, 1_000, 100, 1e-6, 4.0, kind="toeplitz")
    assert [one.bands for one in found] == [1, 2, 4, 8, 10]
    assert found[-1].probability == 1.0
    assert best_banding(found).error == min(one.error for one in found)
    assert most_bands(48, 1_000, 1) == 48
    fixed = bandings(48, 1_000, 100, 1e-6, 4.0, bands=[2], kind="toeplitz", sampling="fixed")
    assert fixed[0].noise_multiplier > found[1].noise_multiplier


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"batch_size": 2_000}, "more than the population"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"bands": [11]}, "1 to 10 bands"),
        ({"bands": [0, 1]}, "1 to 10 bands"),
        ({"bands": []}, "none"),
        ({"kind": "tree"}, "have them"),
        ({"epsilon": math.nan}, "epsilon must be"),
    ],
)
def test_bad_input(changes: dict, sentence: str) -> None:
    given = {"rounds": 48, "population": 1_000, "batch_size": 100, "delta": 1e-6, "epsilon": 4.0} | changes
    with pytest.raises(Refused, match=sentence):
        bandings(**given)
    assert "banded" in BANDED
