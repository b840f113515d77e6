"""Secure aggregation in runs: the same sums by encoding and protocol, their norms accounted, verified, resumed."""

import math

import jax
import numpy as np
import pytest

from reticent.errors import Refused
from reticent.ledger.lines import read_ledger
from reticent.secagg import in_process
from reticent.training import prepare, train
from reticent.training.rounds import Rounds
from tests.ledger.failing import Crash
from tests.training.runs import GOAL, parameters, run_file
from tests.training.test_crashes import StopAfter

ENCODING = ("run.secure_aggregation=encoding",)
PROTOCOL = ("run.secure_aggregation=protocol",)
WHOLE = ("run.encoding_inflation=0",)


def releases(path):
    return [line["release"] for line in read_ledger(path / "ledger.jsonl").of_kind("release")]


def accounting(path):
    return read_ledger(path / "ledger.jsonl").first["description"]["accounting"]


@pytest.fixture(scope="module")
def made(people_store, tmp_path_factory):
    """Runs of two rounds, by what they were asked for."""
    folder = tmp_path_factory.mktemp("secure")

    def run(*overrides):
        out = folder / "-".join(("run", *overrides))
        if not out.exists():
            settings = run_file(people_store.path, ("run.rounds=2", "population.min_separation=2", *overrides))
            outcome = train(settings, out, secrets=folder / "s")
            assert outcome.verdict.holds
        return out

    return run


def test_the_protocol_releases_what_the_encoding_does(made):
    assert releases(made(*PROTOCOL)) == releases(made(*ENCODING))
    assert releases(made(*ENCODING)) != releases(made())


def test_whole_steps_release_what_a_plain_sum_does(made):
    assert releases(made(*PROTOCOL, *WHOLE)) == releases(made())
    assert accounting(made(*PROTOCOL, *WHOLE))["secure_aggregation"] == {"inflation": 1.0}


def test_the_inflated_norm_is_accounted(people_store):
    plain, encoded = (prepare(run_file(people_store.path, over)) for over in ((), ENCODING))
    told = encoded.description["secure_aggregation"]
    # gboard, Sec. 2.4: s^2 C^2 + d/4 + sqrt(2 ln(1/alpha)) (s C + sqrt(d)/2), alpha = exp(-1/2), over s^2 C^2.
    padded, scaled = told["words"], told["scale"] * 0.5
    assert padded == 2 ** math.ceil(math.log2(encoded.size))
    longer = math.sqrt(1 + (padded / 4 + scaled + math.sqrt(padded) / 2) / scaled**2)
    assert 1 < longer <= 1.01
    assert encoded.guarantee.rho / plain.guarantee.rho == pytest.approx(longer**2, rel=1e-5)
    assert encoded.guarantee.rho >= plain.guarantee.rho * longer**2


def test_a_target_epsilon_is_kept_whatever_the_encoding_adds(people_store):
    """At so coarse a grid that decoded sums are rounded to it, which adds to the norm as well."""
    privacy = {"noise_multiplier": None, "epsilon": 0.01, "delta": 1e-3}
    over = (*ENCODING, "run.encoding_inflation=0.000001", "model.hidden=64")
    setup = prepare(run_file(people_store.path, over, privacy=privacy))
    assert setup.description["accounting"]["rounding"] > 0
    assert 0.0099 < setup.guarantee.epsilon(1e-3) <= 0.01 * (1 + 1e-9)


def test_nobody_changes_a_sum_by_more_than_is_accounted(people_store):
    setup = prepare(run_file(people_store.path, (*ENCODING, "run.encoding_inflation=0.1", "client.learning_rate=50")))
    params = setup.model.init(jax.random.key(0))
    rounds = Rounds(setup, params)
    try:
        cohort = np.arange(GOAL)
        whole = np.asarray(rounds.sums(params, cohort, 0).units, np.int64)
        changes = [
            setup.grid.step * np.linalg.norm(whole - np.asarray(rounds.sums(params, np.delete(cohort, user), 0).units))
            for user in range(GOAL)
        ]
    finally:
        rounds.close()
    most = 0.5 * setup.description["accounting"]["secure_aggregation"]["inflation"]
    assert max(changes) <= most
    # The learning rate is so large that everybody is clipped: the bound is not slack.
    assert min(changes) > 0.5 * 0.9


def test_a_run_that_crashed_goes_on_bit_for_bit(people_store, tmp_path, made):
    settings = run_file(people_store.path, ("run.rounds=2", "population.min_separation=2", *ENCODING))
    with pytest.raises(Crash):
        train(settings, tmp_path / "run", secrets=tmp_path / "s", files=StopAfter(1))
    train(settings, tmp_path / "run", secrets=tmp_path / "s", going_on=True)
    np.testing.assert_array_equal(parameters(tmp_path / "run"), parameters(made(*ENCODING)))


def test_without_a_seed_coins_are_the_operating_systems(people_store):
    settings = run_file(people_store.path, ENCODING, run={"simulated_row_seed": None})
    setup = prepare(settings)
    params = setup.model.init(jax.random.key(0))
    rounds = Rounds(setup, params)
    try:
        sums = [np.asarray(rounds.sums(params, np.arange(5), 0).units) for _ in range(2)]
    finally:
        rounds.close()
    assert (sums[0] != sums[1]).any()


def test_random_cohorts_may_be_empty(people_store, tmp_path):
    population = {"sampler": "poisson", "probability": 0.001, "report_goal": None, "min_separation": None}
    settings = run_file(
        people_store.path,
        (*ENCODING, "run.rounds=2"),
        population=population,
        mechanism={"kind": "independent", "buffers": None},
    )
    outcome = train(settings, tmp_path / "run", secrets=tmp_path / "s")
    assert outcome.verdict.holds


def test_verification_knows_how_long_an_encoded_sum_can_be(people_store, tmp_path, monkeypatch):
    """Everybody's update the same and as long as encoding can make it: the run holds; a little longer and it does not."""
    from reticent.secagg import GridSums

    for factor, holds in ((0.999, True), (1.001, False)):

        def directly(self, updates, seed=None, factor=factor):
            count = len(list(updates))
            total = np.zeros(self.code.dimension, np.int32)
            total[0] = count * factor * self.accounting()["secure_aggregation"]["inflation"] * 0.5 / self.grid
            return total

        monkeypatch.setattr(GridSums, "directly", directly)
        settings = run_file(
            people_store.path,
            (
                *ENCODING,
                "run.encoding_inflation=0.1",
                "run.rounds=2",
                "population.min_separation=2",
                "run.keep_secrets=true",
            ),
        )
        outcome = train(settings, tmp_path / f"{factor}", secrets=tmp_path / "s")
        assert {one.name: one.holds for one in outcome.verdict.checks}["noise"] is holds


def test_what_a_protocol_cannot_keep_is_refused_before_the_first_round(people_store, tmp_path):
    for overrides, sentence in (
        (("run.tolerated_dropout=0.5",), "cohort must be larger"),
        (("population.report_goal=2",), "hides nobody"),
    ):
        with pytest.raises(Refused, match=sentence):
            train(run_file(people_store.path, (*PROTOCOL, *overrides)), tmp_path / "run", secrets=tmp_path / "s")
    assert not (tmp_path / "run").exists()


def test_the_fractions_tolerated_reach_the_protocol(people_store, monkeypatch):
    plans = []
    plan = in_process.Round.plan

    def noted(*arguments):
        plans.append(plan(*arguments))
        return plans[-1]

    monkeypatch.setattr(in_process.Round, "plan", noted)
    settings = run_file(people_store.path, (*PROTOCOL, "run.tolerated_dropout=0.2", "run.tolerated_corruption=0.1"))
    setup = prepare(settings)
    params = setup.model.init(jax.random.key(0))
    rounds = Rounds(setup, params)
    try:
        rounds.sums(params, np.arange(GOAL), 4)
    finally:
        rounds.close()
    assert [(one.number, one.dropouts, one.corrupted, one.cohort) for one in plans] == [(4, 2, 1, GOAL)]
