"""Every number about privacy that the papers print, to the digits they print, but for the slips in ERRATA."""

import itertools
import math

import pytest

from reticent.accounting.amplified import els_guarantee, sampled_guarantee
from reticent.accounting.calibration import smallest_noise
from reticent.accounting.gaussian import epsilon_of_gaussian
from reticent.accounting.losses import epsilon_of
from reticent.accounting.matrix import matrix_guarantee
from reticent.accounting.renyi import Moments
from reticent.accounting.sampled import Poisson
from reticent.mechanisms import Participation, make

# gboard, Tables 1 and 2: rounds, rounds *between* two participations, most participations, zCDP.
GBOARD = {
    "de-DE": (930, 212, 4, 0.48), "en-GB": (980, 226, 4, 0.48), "fr-FR": (1280, 180, 5, 0.89),
    "it-IT": (1620, 303, 5, 0.71), "pt-PT": (530, 54, 8, 1.86), "es-ES": (1900, 526, 3, 0.35),
    "es-ES secagg": (1750, 349, 4, 0.52), "en-US": (2800, 371, 7, 1.31), "en-US secagg": (1360, 622, 2, 0.25),
    "pt-BR": (3600, 909, 3, 0.45), "en-IN": (1290, 170, 6, 1.14), "es-MX": (1980, 343, 5, 0.64),
    "es-AR": (640, 90, 5, 0.84),
    "de-DE otf": (1170, 206, 5, 0.89), "en-GB otf": (1220, 206, 5, 0.89), "es-ES otf": (1280, 197, 5, 0.89),
    "fr-FR otf": (1300, 290, 4, 0.61), "it-IT otf": (1360, 188, 5, 0.89), "ru-RU otf": (870, 327, 3, 0.32),
    "pt-PT otf": (430, 54, 7, 0.99),
}  # fmt: skip
# gboard, Table 2 and App. A: epsilon at delta 1e-10, converted from the printed rho.
EPSILONS = {0.89: 9.01, 0.61: 7.31, 0.32: 5.13, 0.99: 9.56, 0.25: 4.49, 1.86: 13.69}


@pytest.mark.parametrize("population", GBOARD)
def test_gboard_zcdp(population: str) -> None:
    rounds, between, most, printed = GBOARD[population]
    participation = Participation(rounds, between + 1, most)
    # Secure aggregation is accounted with the inflated norm (gboard, Sec. 2.4): a thousandth is enough for what is printed.
    inflation = 1.001 if "secagg" in population else 1.0
    guarantee = matrix_guarantee(
        make("tree", participation), participation, 7.0, unit="device", clip_norm_inflation=inflation
    )
    assert guarantee.rho == pytest.approx((inflation * guarantee.sensitivity / 7) ** 2 / 2)
    assert round(guarantee.rho, 2) == printed


@pytest.mark.parametrize(("printed", "epsilon"), EPSILONS.items())
def test_gboard_epsilon_lies_where_the_rounding_of_rho_puts_it(printed: float, epsilon: float) -> None:
    least, most = (epsilon_of_gaussian(printed + half, 1e-10) for half in (-0.005, 0.005))
    assert least - 0.005 <= epsilon <= most + 0.005


def test_gboards_es_es_without_pretraining() -> None:
    # rho 0.81 after 2,000 rounds with 313 rounds between, at most 6 of them.
    participation = Participation(2000, 314, 6)
    guarantee = matrix_guarantee(make("tree", participation), participation, 7.0)
    assert guarantee.rho == pytest.approx(79 / 98)
    assert round(guarantee.rho, 2) == 0.81


# blt, Table 2: mechanism, noise multiplier, rounds, separation, most; ERRATA's zCDP and epsilon, and the printed ones.
BLT = {
    "es-ES": ("blt-400", 7.379, 1280, 300, 4, 0.1535, 3.458, 0.16, 3.46),
    "id-ID": ("blt-400", 7.379, 2350, 447, 5, 0.1950, 3.930, 0.20, 3.93),
    "pt-BR": ("blt-1000", 8.681, 2000, 2000, 1, 0.02228, 1.250, 2.23e-2, 1.25),
    "pt-BR 12K": ("blt-1000", 16.1, 2000, 1181, 2, 0.01394, 0.979, 1.40e-2, 0.98),
    "pt-PT": ("blt-100", 3.12, 430, 92, 4, 1.1133, 10.22, 1.11, 10.19),
    "pt-PT 6K": ("blt-100", 5.5, 320, 49, 6, 0.7602, 8.25, 0.75, 8.19),
}


@pytest.mark.parametrize("population", BLT)
def test_blt_production_rows(population: str) -> None:
    kind, noise, rounds, separation, most, rho, epsilon, printed_rho, printed_epsilon = BLT[population]
    participation = Participation(rounds, separation, most)
    guarantee = matrix_guarantee(make(kind, participation), participation, noise)
    assert guarantee.rho == pytest.approx(rho, rel=5e-4)
    assert guarantee.epsilon(1e-10) == pytest.approx(epsilon, rel=1e-3)
    assert guarantee.epsilon(1e-10) == pytest.approx(printed_epsilon, abs=0.07)
    assert guarantee.rho == pytest.approx(printed_rho, rel=0.045)


def test_blt_tree_row() -> None:
    participation = Participation(2350, 437, 5)
    guarantee = matrix_guarantee(make("tree", participation), participation, 7.0)
    assert round(guarantee.rho, 4) == 0.9388
    assert epsilon_of_gaussian(0.94, 1e-10) == pytest.approx(9.29, abs=0.005)


@pytest.mark.parametrize(("rho", "epsilon"), [(0.52, 6.69), (0.24, 4.35)])
def test_bandmf_production_pair(rho: float, epsilon: float) -> None:
    least, most = (epsilon_of_gaussian(rho + half, 1e-10) for half in (-0.005, 0.005))
    assert least <= epsilon <= most


# bandmf, Table 4: the matrices have sensitivity 1 under 342 rounds apart; at delta 1e-6. (The rows of Multi-epoch MF need
# its matrices, which are scaled to another schema.)
TABLE_4 = {1: 4.22468, 2: 2.23048, 4: 1.19352, 8: 0.65294, 16: 0.36861}


@pytest.mark.parametrize(("epsilon", "noise"), TABLE_4.items())
def test_bandmf_table_4_noise(epsilon: float, noise: float) -> None:
    participation = Participation(2052, 342)
    independent = make("independent", participation)

    def guarantee(sigma: float):
        return matrix_guarantee(independent, participation, sigma)

    found = smallest_noise(guarantee, 1e-6, epsilon=epsilon) / math.sqrt(6)
    assert found == pytest.approx(noise, abs=2e-5)


# bandmf, Table 5: epsilon, bands, the noise multiplier over sqrt(6).
TABLE_5 = [
    (1, 1, 0.37313), (2, 1, 0.30481), (4, 1, 0.25136), (8, 1, 0.20567), (16, 1, 0.16876),
    (1, 9, 0.79118), (2, 18, 0.64708), (4, 32, 0.52224), (8, 64, 0.43490),
]  # fmt: skip


@pytest.mark.parametrize(("epsilon", "bands", "printed"), TABLE_5)
def test_bandmf_table_5_noise(epsilon: float, bands: int, printed: float) -> None:
    noise, times = printed * math.sqrt(6), math.ceil(2052 / bands)
    found = epsilon_of([Poisson(noise, bands * 1000 / 342_477, times)], 1e-6)
    # The printed noise was calibrated with a coarser grid, which asks for a little more than is needed.
    assert (1 - 1.2e-3) * epsilon <= found <= epsilon
    assert float(f"{found:.2g}") == epsilon


# dpfedavg, Table 1: users, users per round, noise multiplier, epsilon after 1, 10, ... 10^6 rounds at delta K^-1.1.
TABLE_1 = [
    (1e5, 1e2, 1.0, [0.97, 0.98, 1.00, 1.07, 1.18, 2.21, 7.50]),
    (1e6, 1e1, 1.0, [0.68, 0.69, 0.69, 0.69, 0.69, 0.72, 0.73]),
    (1e6, 1e3, 1.0, [1.17, 1.17, 1.20, 1.28, 1.39, 2.44, 8.13]),
    (1e6, 1e4, 1.0, [1.73, 1.92, 2.08, 3.06, 8.49, 32.38, 187.01]),
    (1e6, 1e3, 3.0, [0.47, 0.47, 0.48, 0.48, 0.49, 0.67, 1.95]),
    (1e9, 1e3, 1.0, [0.84, 0.84, 0.84, 0.85, 0.88, 0.88, 0.88]),
]


@pytest.mark.parametrize(("users", "cohort", "noise", "printed"), TABLE_1)
def test_dpfedavg_table_1(users: float, cohort: float, noise: float, printed: list[float]) -> None:
    found = [Moments(Poisson(noise, cohort / users, 10**power)).epsilon(users**-1.1) for power in range(len(printed))]
    assert [round(epsilon, 2) for epsilon in found] == printed


# dpfedavg, Table 2: noise, clip norm, users, users per round, epsilon after 5,000 rounds at delta 1e-9. The noise
# multiplier is sigma over the sensitivity S / (qW).
TABLE_2 = [
    (0.003, 15, 763_430, 5000, 4.634), (0.006, 10, 763_430, 1667, 2.314), (0.012, 15, 763_430, 1250, 2.038),
    (0.003, 15, 1e8, 5000, 1.152), (0.006, 10, 1e8, 1667, 0.991), (0.012, 15, 1e8, 1250, 0.987),
]  # fmt: skip


@pytest.mark.parametrize(("deviation", "norm", "users", "cohort", "printed"), TABLE_2)
def test_dpfedavg_table_2(deviation: float, norm: float, users: float, cohort: float, printed: float) -> None:
    noise = round(deviation * cohort / norm, 3)  # 1; the cohort is rounded
    found = Moments(Poisson(noise, cohort / users, 5000)).epsilon(1e-9)
    assert round(found, 3) == printed
    # Today's accountant says less, sometimes far less.
    assert epsilon_of([Poisson(noise, cohort / users, 5000)], 1e-9) < 0.9 * found


def test_todays_numbers_for_dpfedavg_table_2() -> None:
    # 4.63 becomes 3.90, and 1.15 becomes 0.025: both from dp_accounting with a grid of 1e-5.
    assert sampled_guarantee(5000 / 763_430, 5000, 1.0).epsilon(1e-9) == pytest.approx(3.90, abs=0.01)
    assert sampled_guarantee(5000 / 1e8, 5000, 1.0).epsilon(1e-9) == pytest.approx(0.0248, abs=0.0003)


@pytest.mark.parametrize(("rounds", "printed", "exact"), [(3000, 3.81, 3.816), (20_000, 8.92, 8.92)])
def test_dpfedavg_fedsgd_pair(rounds: int, printed: float, exact: float) -> None:
    found = Moments(Poisson(1.0, 5000 / 763_430, rounds)).epsilon(1e-9)
    assert found == pytest.approx(exact, abs=0.001 if rounds == 3000 else 0.005)
    assert math.floor(found * 100) / 100 == printed


def test_the_clipped_estimator_needs_twice_the_noise() -> None:
    # dpfedavg, Lemma 1 and Thm. 1: S / (qW) for f_f, 2 S / (q W_min) for f_c.
    fixed, clipped = (
        sampled_guarantee(0.01, 50, noise, estimator=kind) for noise, kind in ((1, "fixed"), (2, "clipped"))
    )
    assert fixed.epsilon(1e-9) == pytest.approx(clipped.epsilon(1e-9), rel=1e-12)
    assert (fixed.sensitivity, clipped.sensitivity) == (1, 2)


def test_uldp_figure_1_grows_nearly_linearly() -> None:
    # ULDP, Fig. 1: T = 2000, p = 0.01, delta = 1e-6; the generic bound diverges where the exact one stays near a line.
    found = [els_guarantee(0.01, 2000, size, 4.0).epsilon(1e-6) for size in (1, 2, 4, 8)]
    assert all(later < 2.6 * earlier for earlier, later in itertools.pairwise(found))
    generic = els_guarantee(0.01, 2000, 1, 4.0).by_generic_bound(8).epsilon(1e-6)
    assert generic > found[-1]
