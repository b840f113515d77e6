"""The ends of every range: nothing, everything, infinity, and what is refused."""

import math

import numpy as np
import pytest

from reticent.accounting.amplified import (
    amplified_guarantee,
    bands_of,
    els_guarantee,
    sampled_guarantee,
    shuffled_guarantee,
)
from reticent.accounting.calibration import smallest_noise
from reticent.accounting.checklist import Progress, checklist
from reticent.accounting.composition import composed, record, recorded
from reticent.accounting.gaussian import delta_of_gaussian, epsilon_of_gaussian, rho_of_gaussian
from reticent.accounting.guarantee import Guarantee
from reticent.accounting.launch import Launch, plan
from reticent.accounting.losses import Gaussian, check_noise, delta_of, epsilon_of
from reticent.accounting.matrix import matrix_guarantee
from reticent.accounting.pld import MOST_RELEASES, Together
from reticent.accounting.renyi import Moments, Renyi
from reticent.accounting.rounding import upper
from reticent.accounting.run import guarantee_of
from reticent.accounting.sampled import FixedSize, Poisson
from reticent.accounting.shuffled import Shuffled
from reticent.accounting.tuning import tuned
from reticent.errors import Refused
from reticent.mechanisms import Participation, make
from reticent.mechanisms.restarted import Restarted

ONCE = Participation(1)
INDEPENDENT = make("independent", ONCE)


def one_gaussian(noise: float, **more) -> Guarantee:
    return matrix_guarantee(INDEPENDENT, ONCE, noise, **more)


def test_no_loss_and_all_loss() -> None:
    assert delta_of_gaussian(0.0, 0.0) == 0
    assert epsilon_of_gaussian(0.0, 1e-9) == 0
    assert delta_of_gaussian(math.inf, 5.0) == 1
    assert delta_of_gaussian(math.inf, math.inf) == 0
    assert epsilon_of_gaussian(math.inf, 1e-9) == math.inf
    assert epsilon_of_gaussian(1e-9, 1e-3) == 0
    # Far below the mean loss nearly all of the mass is above.
    assert 0.999 < delta_of_gaussian(50.0, 0.0) < 1
    assert delta_of_gaussian(1e6, 10.0) == 1


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-3, 1e-12), (0.5, 1e-2), (8.0, 1e-6), (300.0, 1e-15)])
def test_the_largest_rho_is_the_largest(epsilon: float, delta: float) -> None:
    rho = rho_of_gaussian(epsilon, delta)
    assert delta_of_gaussian(rho, epsilon) <= delta < delta_of_gaussian(rho * (1 + 1e-9), epsilon)


def test_epsilon_and_delta_at_their_ends() -> None:
    gaussian = one_gaussian(2.0)
    for epsilon in (-1.0, math.nan):
        with pytest.raises(Refused, match="must not be negative"):
            gaussian.delta(epsilon)
    assert gaussian.by_generic_bound(3).delta(0.0) == pytest.approx(3 * gaussian.delta(0.0))
    assert gaussian.by_generic_bound(3).delta(1e4) == 0
    with_delta = Guarantee((Gaussian(0.5),), "user", "zero-out", extra_delta=1e-6)
    assert with_delta.rho is None
    assert with_delta.delta(0.3) == pytest.approx(delta_of_gaussian(0.125, 0.3) + 1e-6)
    assert with_delta.epsilon(1e-6) == math.inf
    assert with_delta.epsilon(2e-6) == pytest.approx(epsilon_of_gaussian(0.125, 1e-6))
    assert with_delta.describe(1e-7)["epsilon"] is None
    # The deltas of three neighbours grow with epsilon and never come down again.
    assert with_delta.by_generic_bound(3).epsilon(1e-6) == math.inf
    assert Guarantee((Gaussian(50.0),), "user", "zero-out").delta(0.0) <= 1
    for size in (0, -1, 1.5, True):
        with pytest.raises(Refused, match="whole number"):
            gaussian.for_group(size)  # type: ignore[arg-type]


def test_group_bounds_multiply_and_have_no_rho() -> None:
    twice = one_gaussian(2.0).by_generic_bound(2).by_generic_bound(3)
    assert (twice.group, twice.rho) == (6, None)
    fixed = amplified_guarantee(INDEPENDENT, 5, 2.0, 0.1, sampling="fixed")
    assert fixed.for_group(2).group == 2
    assert fixed.for_group(2).for_group(2).group == 4
    with pytest.raises(Refused, match="different sizes"):
        composed([fixed.for_group(2), fixed])
    assert composed([fixed.for_group(2), fixed.for_group(2)]).group == 2
    grouped = els_guarantee(0.1, 5, 3, 2.0)
    assert (grouped.sensitivity, grouped.for_group(2).parts[0].group) == (3, 6)


def test_a_group_of_one_is_still_an_assumption() -> None:
    assert els_guarantee(0.1, 5, 1, 2.0).assumptions[-1] == "a user has at most 1 example"
    assert els_guarantee(0.1, 5, 2, 2.0).assumptions[-1] == "a user has at most 2 examples"


def test_shuffling_of_banded_mechanisms() -> None:
    mechanism = make("banded-fhu", Participation(60, 6))
    kappa = mechanism.column_norms(60).max()
    one = shuffled_guarantee(mechanism, 60, 3.0, 10, groups=6)
    assert one.parts == (Shuffled(pytest.approx(3.0 / kappa), 10),)
    assert (one.adjacency, one.rho, one.also_holds_for) == ("replace-one", None, ())
    assert one.details["compositions"] == 1
    assert one.details["probability"] == 0.1
    assert "shuffled once into 60 cohorts" in one.assumptions[0]
    # More than one epoch is not amplified: so many Gaussians of twice the step.
    three = shuffled_guarantee(mechanism, 60, 3.0, 4, groups=6)
    assert three.rho == pytest.approx(3 * (2 * kappa / 3.0) ** 2 / 2)
    assert three.details["compositions"] == 3
    with pytest.raises(Refused, match="does not fill one cohort"):
        shuffled_guarantee(mechanism, 60, 3.0, 0, groups=6)
    # Where delta alone covers it, epsilon is 0.
    assert Shuffled(300.0, 10).epsilon(0.1) == 0
    assert Shuffled(300.0, 10).epsilon(1e-4) > 0


def test_refusals_of_amplification() -> None:
    for changes, sentence in (
        ({"groups": 0}, "groups must be"),
        ({"estimator": "other"}, "no estimator"),
        ({"estimator": "clipped", "groups": 2}, "Poisson sampling with independent noise"),
        ({"rounds": 0}, "rounds must be"),
        ({"metrics_noise": 0.0}, "metrics_noise is 0"),
        ({"clip_count_noise": -1.0}, "clip_count_noise must be"),
        ({"clip_norm_inflation": math.nan}, "at least 1"),
    ):
        given = {"rounds": 8, "noise_multiplier": 2.0, "probability": 0.1} | changes
        with pytest.raises(Refused, match=sentence):
            amplified_guarantee(INDEPENDENT, **given)
    banded = make("banded-fhu", Participation(8, 2))
    with pytest.raises(Refused, match="independent noise only"):
        amplified_guarantee(banded, 8, 2.0, 0.1, groups=2, estimator="clipped")
    with pytest.raises(Refused, match="made for 8 rounds"):
        amplified_guarantee(make("banded", Participation(8, 2)), 9, 2.0, 0.1, groups=2)


def test_bands() -> None:
    assert bands_of(make("banded-fhu", Participation(40, 5)), 40) == 5
    assert bands_of(make("toeplitz", Participation(40, 5)), 40) == 5
    assert bands_of(make("banded", Participation(40, 5)), 40) == 5
    assert bands_of(make("banded", Participation(40, 5)), 3) == 3
    assert bands_of(Restarted(make("banded", Participation(40, 5)), (0, 20)), 40) == 5
    assert bands_of(INDEPENDENT, 40) == 1


def test_calibration_at_its_ends() -> None:
    def sampled(noise: float) -> Guarantee:
        return sampled_guarantee(0.01, 50, noise)

    for wrong in ({}, {"epsilon": 1.0, "rho": 1.0}):
        with pytest.raises(Refused, match="exactly one target"):
            smallest_noise(sampled, 1e-6, **wrong)
    for rho in (0.0, math.inf, math.nan):
        with pytest.raises(Refused, match="rho must be"):
            smallest_noise(one_gaussian, 1e-6, rho=rho)
    # A target so loose that hardly any noise is needed, and one so tight that delta alone covers what is left.
    assert sampled(smallest_noise(sampled, 1e-6, epsilon=1e9)).epsilon(1e-6) <= 1e9
    for epsilon in (1e-9, 1e-3, 0.1, 30.0, 3000.0):
        noise = smallest_noise(sampled, 1e-6, epsilon=epsilon)
        assert sampled(noise).epsilon(1e-6) <= epsilon
        assert sampled(0.999 * noise).epsilon(1e-6) >= epsilon * (1 - 1e-4)

    def beside(noise: float) -> Guarantee:
        return composed([sampled(noise), sampled(0.7)])

    with pytest.raises(Refused, match="something else"):
        smallest_noise(beside, 1e-6, epsilon=0.5 * sampled(0.7).epsilon(1e-6))
    near = smallest_noise(beside, 1e-6, epsilon=1.001 * sampled(0.7).epsilon(1e-6))
    assert beside(near).epsilon(1e-6) <= 1.001 * sampled(0.7).epsilon(1e-6)

    def with_counts(noise: float) -> Guarantee:
        return one_gaussian(noise, clip_count_noise=1.0)

    # The counts alone have rho 1 / 8.
    for above in (1e-1, 1e-6, 1e-10, 1e-13):
        noise = smallest_noise(with_counts, 1e-6, rho=(1 + above) / 8)
        assert with_counts(noise).rho <= (1 + above) / 8
        assert noise == pytest.approx(math.sqrt(4 / above), rel=0.1 if above < 1e-8 else 1e-4)
    with pytest.raises(Refused, match="no noise on the updates"):
        smallest_noise(with_counts, 1e-6, rho=1 / 8)


@pytest.mark.parametrize("mu", [1e-3, 0.5, 3.0, 20.0])
def test_calibration_is_the_smallest(mu: float) -> None:
    target = epsilon_of_gaussian(mu**2 / 2, 1e-7)
    assert smallest_noise(one_gaussian, 1e-7, epsilon=target) == pytest.approx(1 / mu, rel=1e-9)
    assert smallest_noise(one_gaussian, 1e-7, rho=mu**2 / 2) == pytest.approx(1 / mu, rel=1e-12)


def test_noise_that_is_none() -> None:
    with pytest.raises(Refused, match="epsilon is infinite"):
        check_noise(0)
    for noise in (-1.0, math.inf, math.nan):
        with pytest.raises(Refused, match="positive and finite"):
            check_noise(noise)


def test_next_to_nothing_is_released() -> None:
    part = Poisson(1e5, 0.01, 100)
    assert delta_of([part], 0.0) < 1e-6
    assert epsilon_of([part], 1e-6) == 0
    assert 0 < epsilon_of([part], 1e-7) < 1e-5
    assert delta_of([part], 50.0) < 1e-20


def test_a_billion_rounds_and_no_more() -> None:
    rare = Poisson(1.0, 1e-9, MOST_RELEASES)
    assert 0 < epsilon_of([rare], 1e-6) < 1e-3
    with pytest.raises(Refused, match="more than the 1,000,000,000"):
        Together([rare, Poisson(1.0, 0.1, 1)])


def test_a_loss_that_is_infinite_for_more_than_delta() -> None:
    # Without noise to speak of, whoever is drawn is seen: epsilon is as large as the loss can be.
    found = epsilon_of([Poisson(0.01, 0.5, 1)], 1e-9)
    assert found == pytest.approx(1 / (2 * 0.01**2), rel=0.2)
    assert delta_of([Poisson(0.01, 0.5, 1)], 10.0) == pytest.approx(0.5, rel=1e-3)


def test_what_only_one_accountant_reads() -> None:
    part = Poisson(1.0, 0.01, 10)
    for own in (Moments(part), Shuffled(2.0, 10)):
        assert own.with_others([]) is own
        with pytest.raises(Refused, match="does not compose"):
            epsilon_of([own, Gaussian(1.0)], 1e-6)
        with pytest.raises(Refused, match="no loss distribution"):
            own.losses(0.1, 1e-9)
        with pytest.raises(Refused, match="no loss distribution"):
            own.loss_range(1e-9)
    both = epsilon_of([Gaussian(0.5), Renyi((part,))], 1e-6)
    assert both == pytest.approx(Renyi((part, Gaussian(0.5))).epsilon(1e-6))
    for part_of in (FixedSize(1.0, 0.1, 5), Shuffled(2.0, 10)):
        with pytest.raises(Refused, match="no Renyi accountant"):
            Renyi((part_of,)).epsilon(1e-6)
    assert Moments(part).delta(0.0) == 1
    assert Moments(part).delta(1e3) < 1e-100


def test_records_of_every_part() -> None:
    for part in (FixedSize(2.0, 0.1, 5), Shuffled(2.0, 10), Moments(Poisson(1.0, 0.01, 10))):
        guarantee = Guarantee((part,), "user", "replace-one", ("a", "b"), "as it is", extra_delta=1e-9, simulated=True)
        again = recorded(record(guarantee))
        assert again.parts == (part,)
        assert (again.assumptions, again.accounting, again.extra_delta, again.simulated) == (
            ("a", "b"), "as it is", 1e-9, True,
        )  # fmt: skip
    whole = record(one_gaussian(2.0))
    with pytest.raises(Refused, match="no releases of kind 'rumour'"):
        recorded({**whole, "parts": [{"kind": "rumour"}]})
    with pytest.raises(Refused, match="no adjacency 'near'"):
        recorded({**whole, "adjacency": "near"})
    counted = recorded({"kind": "gaussian", "noise_multiplier": 4.0, "adjacency": "add-or-remove"})
    assert (counted.rho, counted.also_holds_for) == (pytest.approx(1 / 32), ("zero-out",))
    with pytest.raises(Refused, match="epsilon is infinite"):
        recorded({"kind": "gaussian", "noise_multiplier": 0.0, "adjacency": "add-or-remove"})


def test_composition_keeps_what_holds_for_all() -> None:
    sampled, matrix = sampled_guarantee(0.1, 5, 2.0), one_gaussian(2.0)
    assert composed([sampled, sampled]).also_holds_for == ("zero-out",)
    both = composed([matrix, sampled])
    assert (both.adjacency, both.also_holds_for, both.rho) == ("zero-out", (), None)
    assert both.epsilon(1e-6) == pytest.approx(epsilon_of([*matrix.parts, *sampled.parts], 1e-6))
    assert set(both.assumptions) == {*matrix.assumptions, *sampled.assumptions}
    labelled = composed([matrix, Guarantee((Gaussian(1.0),), "user", "zero-out", simulated=True)])
    assert labelled.simulated


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"mechanism": "blt"}, "by its header"),
        ({"mechanism": "rumour"}, "by its header"),
        ({"participation": {"kind": "cyclic", "sampling": "sometimes", "groups": 2}}, "no sampling"),
        ({"participation": {"kind": "fixed", "cohort": 0, "population": 10}}, "cannot be drawn"),
        ({"participation": "often"}, "no participation"),
    ],
)
def test_runs_that_are_refused(changes: dict, sentence: str) -> None:
    accounting = {
        "rounds": 12, "noise_multiplier": 2.0, "mechanism": "independent", "participation": {"kind": "deterministic"},
    }  # fmt: skip
    with pytest.raises(Refused, match=sentence):
        guarantee_of(accounting | changes)
    for key in accounting:
        with pytest.raises(Refused, match=f"needs '{key}'"):
            guarantee_of({name: value for name, value in accounting.items() if name != key})


def test_a_run_of_shuffled_groups() -> None:
    event = {"kind": "cyclic", "sampling": "shuffle", "groups": 2, "smallest_group": 60, "cohort": 10}
    accounting = {"rounds": 12, "noise_multiplier": 2.0, "mechanism": "independent", "participation": event}
    assert guarantee_of(accounting).parts == (Shuffled(2.0, 6),)
    assert guarantee_of(accounting | {"rounds": 13}).rho == pytest.approx(2 * (2 / 2.0) ** 2 / 2)
    with_metrics = guarantee_of(accounting | {"metrics": {"noise_multiplier": 4.0}, "rounding": 0.5})
    assert with_metrics.parts == (Shuffled(pytest.approx(1 / math.hypot(1.5 / 2.0, 1 / 4.0)), 6),)


def test_tuning_is_refused_where_it_is_not_accounted() -> None:
    for wrong in (
        one_gaussian(2.0).by_generic_bound(2),
        Guarantee((Gaussian(1.0),), "user", "zero-out", extra_delta=1e-9),
    ):
        with pytest.raises(Refused, match="choose among the trainings"):
            tuned(wrong, 5)
    with pytest.raises(Refused, match="mean_runs"):
        tuned(one_gaussian(2.0), math.nan)
    with pytest.raises(Refused, match="shape"):
        tuned(one_gaussian(2.0), 5, math.nan)
    assert tuned(one_gaussian(2.0), 1).epsilon(1e-6) >= one_gaussian(2.0).epsilon(1e-6)


@pytest.mark.parametrize(
    ("value", "digits", "shown"),
    [
        (0.80612, 4, "0.8062"), (1.0, 4, "1"), (2.0, 4, "2"), (1.00001, 3, "1.01"), (0, 4, "0"), (math.inf, 4, "infinite"),
        (None, 4, "–"), (1.23401e-7, 4, "1.235e-07"), (999.95, 4, "1000"),
    ],
)  # fmt: skip
def test_bounds_are_rounded_up(value: float | None, digits: int, shown: str) -> None:
    assert upper(value, digits) == shown


def test_a_checklist_that_is_out_of_reach() -> None:
    steps = checklist(plan(Launch(10_000, 300, (100,), epsilon=0.01)), Progress(ratio_found=True))
    assert "out of reach at full utility" in steps[2].advice
    assert steps[2].summary() == {
        "number": 3, "what": steps[2].what, "state": "done", "advice": steps[2].advice,
    }  # fmt: skip
    row = plan(Launch(10_000, 300, (100,), epsilon=0.01)).rows[0].summary()
    assert row["meets"] is False
    assert "guarantee" not in row
    assert np.isfinite(row["epsilon"])


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 4.0, 40.0])
def test_calibration_takes_few_steps(epsilon: float) -> None:
    asked = []

    def guarantee(noise: float) -> Guarantee:
        asked.append(noise)
        return els_guarantee(0.01, 500, 8, noise)

    smallest_noise(guarantee, 1e-6, epsilon=epsilon)
    assert len(asked) <= 10


def test_grouping_without_a_new_unit_assumes_nothing_new() -> None:
    assert one_gaussian(2.0).for_group(2).assumptions == one_gaussian(2.0).assumptions
    assert one_gaussian(2.0).for_group(2).unit == "user"
    assert one_gaussian(2.0, unit="device").for_group(1, "user").unit == "user"
    assert one_gaussian(2.0).for_group(2).sensitivity == 2
    assert one_gaussian(2.0).as_adjacency("zero-out") == one_gaussian(2.0)
    replaced = one_gaussian(2.0).as_adjacency("replace-one")
    assert replaced.rho == pytest.approx(4 * one_gaussian(2.0).rho)
    assert "takes part in the rounds of the one who leaves" in replaced.assumptions[-1]
    assert replaced.also_holds_for == ()
    sampled = sampled_guarantee(0.1, 5, 2.0)
    assert sampled.as_adjacency("zero-out").also_holds_for == ()
    assert sampled.as_adjacency("replace-one").assumptions == sampled.assumptions


def test_everything_that_is_told_of_an_amplified_run() -> None:
    mechanism = make("banded-fhu", Participation(20, 3))
    kappa = float(mechanism.column_norms(20).max())
    beside = {"clip_count_noise": 5.0, "metrics_noise": 7.0, "clip_norm_inflation": 1.25}
    mu = math.sqrt((1.25 * kappa / 2.0) ** 2 + (kappa / 10.0) ** 2 + (1 / 7.0) ** 2)
    told = amplified_guarantee(mechanism, 20, 2.0, 0.2, groups=4, unit="example", **beside)
    assert dict(told.details) == {
        "mechanism": "banded-fhu", "rounds": 20, "sampling": "poisson", "probability": 0.2, "groups": 4, "bands": 3,
        "compositions": 5, "effective_noise_multiplier": pytest.approx(1 / mu), **beside,
    }  # fmt: skip
    assert told.parts == (Poisson(pytest.approx(1 / mu), 0.2, 5),)
    assert (told.unit, told.noise_multiplier, told.sensitivity) == ("example", 2.0, pytest.approx(kappa))
    assert told.accounting == "privacy loss distribution of 5 Poisson-sampled Gaussians, by BandMF Thm. 5"
    said = " ".join(told.assumptions)
    for part in (
        "each example is drawn with probability 0.2 from group i mod 4 in round i", "groups were made without looking",
        "and so does how many were", "divided by a constant chosen in advance", "at most 25.000% of the clip norm",
        "only where the mechanism restarts", "metrics of one round are clipped to norm 1",
    ):  # fmt: skip
        assert part in said
    fixed = amplified_guarantee(mechanism, 20, 2.0, 0.2, groups=4, sampling="fixed")
    assert fixed.details["effective_noise_multiplier"] == pytest.approx(1 / kappa)
    assert fixed.sensitivity == pytest.approx(2 * kappa)
    assert "fixed-size sampled" in fixed.accounting
    assert "uniformly random subset of fixed size, drawn anew from group i mod 4" in fixed.assumptions[0]
    assert not any("how many were" in one for one in fixed.assumptions)
    plain = sampled_guarantee(0.2, 20, 2.0)
    assert plain.accounting == "privacy loss distribution of 20 Poisson-sampled Gaussians"
    assert "in every round" in plain.assumptions[0]
    assert not any("groups" in one for one in plain.assumptions)
    clipped = sampled_guarantee(0.2, 20, 2.0, estimator="clipped")
    assert clipped.details["clipping_estimator"] == "clipped"
    assert any("clipped from below" in one for one in clipped.assumptions)
    everybody = amplified_guarantee(INDEPENDENT, 20, 2.0, 1.0, sampling="fixed")
    assert everybody.rho == pytest.approx(20 * (2 / 2.0) ** 2 / 2)
    assert sampled_guarantee(1.0, 20, 2.0).rho == pytest.approx(20 / 8)


def test_everything_that_is_told_of_a_matrix_run() -> None:
    participation = Participation(20, 6, 3)
    tree = make("tree", participation)
    told = matrix_guarantee(tree, participation, 4.0, metrics_noise=8.0, clip_count_noise=2.0)
    sensitivity = tree.sensitivity(participation).value
    assert told.rho == pytest.approx(((sensitivity / 4) ** 2 + (sensitivity / 4) ** 2 + 3 / 64) / 2)
    assert dict(told.details) == {
        "mechanism": "tree", "rounds": 20, "min_separation": 6, "max_participations": 3, "exact_separation": False,
        "sensitivity_exact": True, "sensitivity_reason": tree.sensitivity(participation).reason,
        "clip_count_noise": 2.0, "metrics_noise": 8.0,
    }  # fmt: skip
    assert told.assumptions[0] == "each user takes part in at most 3 of 20 rounds, at least 6 rounds apart"
    epochs = matrix_guarantee(tree, Participation(20, 10, exact=True), 4.0)
    assert epochs.assumptions[0] == "each user takes part in at most 2 of 20 rounds, exactly 10 rounds apart"
    assert one_gaussian(2.0, unit="device").assumptions[0] == "each device takes part in at most one round"
    assert "clip_norm_inflation" not in told.details
    assert told.describe(1e-6)["adjacency_means"].startswith("two datasets are neighbours if one arises")
    assert (told.noise_multiplier, told.sensitivity, told.also_holds_for) == (4.0, sensitivity, ())


def test_a_statement_of_a_choice_covers_the_choice() -> None:
    from reticent.accounting.statement import SELECTION, TUNING, statement

    told = statement(tuned(one_gaussian(2.0), 5), delta=1e-6, also_covered=("a vocabulary",), not_covered=("a thing",))
    assert "All runs that the best was chosen from (a Poisson number of runs with mean 5), whole" in told.markdown()
    assert "A vocabulary." in told.markdown()
    assert "A thing." in told.markdown()
    assert TUNING[1:] not in told.markdown()
    assert SELECTION[1:] in told.markdown()
    plain = statement(one_gaussian(2.0), delta=1e-6).markdown()
    assert "All that training read of each user" in plain
    assert "chosen from" not in plain
    assert "is public" not in plain
