"""Whole runs of els, uls and dpsgd through the ledger, their guarantees against independent accounting, and refusals."""

import json
import shutil

import jax
import numpy as np
import pytest

from reticent.accounting.mixture import binomial
from reticent.errors import Refused
from reticent.finetune import work_of
from reticent.finetune.sums import Single, Together
from reticent.models import language_model
from reticent.privacy.clipping import Clipping
from reticent.privacy.grid import Grid
from reticent.report import read_run
from reticent.training import prepare, train
from tests.training.runs import parameters
from tests.training.runs import run_file as federated_file

RANDOM = {"size": 48, "sampler": "poisson", "probability": 0.25, "report_goal": None, "min_separation": None}
TABLES = {
    "els": {
        "run": {"algorithm": "els"},
        "data": {"max_examples_per_user": 3},
        "population": {**RANDOM, "examples": 120},
    },
    "uls": {"run": {"algorithm": "uls"}, "data": {"max_examples_per_user": 3}, "population": RANDOM},
    "dpsgd": {"run": {"algorithm": "dpsgd"}, "population": {**RANDOM, "size": 150}},
}


def run_file(store, algorithm, overrides=(), **tables):
    content = {
        "mechanism": {"kind": "independent", "buffers": None},
        "client": {"micro_batch": 16},
        "privacy": {"noise_multiplier": 3.0, "delta": 1e-3, "accept_vacuous": True},
    }
    for given in (TABLES[algorithm], tables):
        for name, table in given.items():
            content[name] = {**content.get(name, {}), **table}
    return federated_file(store.path, overrides, **content)


@pytest.mark.parametrize(
    "algorithm", ["els", pytest.param("uls", marks=pytest.mark.full), pytest.param("dpsgd", marks=pytest.mark.full)]
)
def test_a_run_is_trained_verified_and_reported(people_store, tmp_path, algorithm):
    trained = train(run_file(people_store, algorithm), tmp_path / "run", work_of=work_of, secrets=tmp_path / "secrets")
    assert trained.verdict.holds
    assert {check.name for check in trained.verdict.checks if check.holds} >= {"noise", "row keys", "guarantee"}
    facts = read_run(trained.path).facts()
    assert facts["unit"] == ("example" if algorithm == "dpsgd" else "user")
    assert facts["adjacency"] == "add-or-remove"
    first = json.loads((trained.path / "ledger.jsonl").read_text().splitlines()[0])["description"]
    assert first["gradients"] == "together"
    assert first["accounting"]["rounding"] == pytest.approx(
        first["grid"] * np.sqrt(first["model"]["parameters"]) / first["clip_norm"]
    )
    # Cohort sizes are private under add-or-remove: neither they nor times that tell of them are written.
    records = [json.loads(line) for line in (trained.path / "metrics.jsonl").read_text().splitlines()]
    assert not any({"seconds", "clients_per_second", "cohort"} & record.keys() for record in records)


def test_els_is_accounted_for_all_of_a_users_examples(people_store):
    setup = prepare(run_file(people_store, "els"), work_of=work_of)
    (part,) = setup.guarantee.parts
    inflated = 3.0 / (1 + setup.description["accounting"]["rounding"])
    assert (part.times, part.group, part.probability) == (6, 3, 0.25)
    assert part.noise == pytest.approx(inflated)
    assert setup.guarantee.epsilon(1e-3) == pytest.approx(epsilon_by_sampling(inflated, 3, 0.25, 6, 1e-3), rel=0.05)
    assert setup.description["sub_dataset"] == {"examples_per_user": 3, "seed": 0}
    # Divided by a constant told in advance: 120 examples, of which a quarter come.
    assert setup.work.denominator == 30


def epsilon_by_sampling(noise, group, probability, rounds, delta, samples=400_000):
    """The larger epsilon of both directions, by drawing the loss itself many times: nothing of the accountant in it."""
    draw, weights = np.random.default_rng(0), binomial(group, probability)
    steps = np.arange(group + 1)

    def loss(seen):
        return np.log(
            (weights[:, None] * np.exp((2 * steps[:, None] * seen - steps[:, None] ** 2) / (2 * noise**2))).sum(0)
        )

    found = []
    for there in (True, False):
        total = np.zeros(samples)
        for _ in range(rounds):
            moved = draw.binomial(group, probability, samples) if there else 0
            total += loss(moved + noise * draw.normal(size=samples)) * (1 if there else -1)
        low, high = 0.0, 50.0
        for _ in range(50):
            middle = (low + high) / 2
            kept = np.mean(np.maximum(0, 1 - np.exp(middle - total)))
            low, high = (middle, high) if kept > delta else (low, middle)
        found.append(high)
    return max(found)


def test_els_with_bands_is_accounted_by_groups_of_users(people_store):
    tables = {
        "population": {"sampler": "cyclic-poisson", "groups": 3},
        "mechanism": {"kind": "banded", "bands": 3},
        "clipping": {"gradients": "single"},
    }
    setup = prepare(run_file(people_store, "els", **tables), work_of=work_of)
    (part,) = setup.guarantee.parts
    kappa = setup.mechanism.column_norms(6).max()
    assert (part.times, part.group) == (2, 3)
    assert part.noise == pytest.approx(3.0 / kappa)
    assert "rounding" not in setup.description["accounting"]


@pytest.mark.parametrize("kind", ["tree", "blt"])
def test_els_with_other_mechanisms_needs_a_stated_bound(people_store, kind):
    ordered = {"sampler": "min-separated", "probability": None, "examples": None, "report_goal": 6, "min_separation": 3}
    tables = {"population": ordered, "mechanism": {"kind": kind}}
    with pytest.raises(Refused, match="els needs data.max_examples_per_round"):
        run_file(people_store, "els", **tables)
    tables["data"] = {"max_examples_per_round": 2}
    made = run_file(people_store, "els", **tables)
    setup = prepare(made, work_of=work_of)
    of_one = prepare(run_file(people_store, "els", ("data.max_examples_per_round=1",), **tables), work_of=work_of)
    # Two examples under one row move it twice as far: four times the rho.
    inflation = [1 + one.description["accounting"]["rounding"] for one in (setup, of_one)]
    assert setup.guarantee.rho == pytest.approx(4 * of_one.guarantee.rho * (inflation[0] / inflation[1]) ** 2)
    assert setup.work.denominator == 12
    assert setup.guarantee.unit == "user"


@pytest.mark.full
def test_els_with_a_stated_bound_goes_through_the_whole_run(people_store, tmp_path):
    ordered = {"sampler": "min-separated", "probability": None, "examples": None, "report_goal": 6, "min_separation": 3}
    tables = {"population": ordered, "mechanism": {"kind": "tree"}, "data": {"max_examples_per_round": 2}}
    trained = train(
        run_file(people_store, "els", **tables), tmp_path / "run", work_of=work_of, secrets=tmp_path / "secrets"
    )
    assert trained.verdict.holds


@pytest.mark.full
@pytest.mark.parametrize("kind", ["tree", "blt"])
def test_uls_with_other_mechanisms_keeps_a_separation(people_store, tmp_path, kind):
    ordered = {"sampler": "min-separated", "probability": None, "report_goal": 6, "min_separation": 3}
    made = run_file(people_store, "uls", population=ordered, mechanism={"kind": kind})
    trained = train(made, tmp_path / "run", work_of=work_of, secrets=tmp_path / "secrets")
    assert trained.verdict.holds
    assert trained.verdict.guarantee["adjacency"] == "zero-out"


@pytest.mark.full
def test_uls_may_train_locally(people_store, tmp_path):
    made = run_file(people_store, "uls", client={"local_training": True, "epochs": 2, "batch_size": 2})
    trained = train(made, tmp_path / "run", work_of=work_of, secrets=tmp_path / "secrets")
    first = json.loads((trained.path / "ledger.jsonl").read_text().splitlines()[0])["description"]
    assert trained.verdict.holds
    assert first["gradients"] == "single"
    assert "rounding" not in first["accounting"]


@pytest.mark.full
def test_single_and_together_agree(people_store, tmp_path):
    found = []
    for gradients in ("single", "together"):
        made = run_file(people_store, "uls", clipping={"gradients": gradients}, privacy={"noise_multiplier": 0.0})
        train(made, tmp_path / gradients, work_of=work_of, secrets=tmp_path / "secrets")
        found.append(parameters(tmp_path / gradients))
    np.testing.assert_allclose(*found, atol=3e-5)


@pytest.mark.full
def test_normalised_clipping_makes_the_norm_a_matter_of_direction(people_store, tmp_path):
    # Far below every gradient's norm, only the direction counts: a norm half as large then trains the same.
    found = []
    for norm in (1e-3, 5e-4):
        made = run_file(
            people_store, "uls", clipping={"norm": norm, "normalised": True}, privacy={"noise_multiplier": 0.0}
        )
        train(made, tmp_path / str(norm), work_of=work_of, secrets=tmp_path / "secrets")
        found.append(parameters(tmp_path / str(norm)))
    np.testing.assert_allclose(*found, atol=1e-4)
    assert np.abs(found[0]).max() > 0.1


@pytest.mark.full
def test_shuffling_accounted_as_poisson_is_an_estimate_everywhere(people_store, tmp_path):
    shuffled = {
        "sampler": "shuffled-epochs", "probability": None, "report_goal": 12, "accounted_as": "poisson"
    }  # fmt: skip
    for algorithm, public in (("els", 120), ("uls", 48), ("dpsgd", 150)):
        made = run_file(people_store, algorithm, population=shuffled)
        out = tmp_path / algorithm
        trained = train(made, out, work_of=work_of, secrets=tmp_path / "secrets")
        run = read_run(trained.path)
        assert run.facts()["epsilon"] is None
        assert trained.verdict.guarantee is None
        assert "shuffled" in (out / "report.md").read_text()
        first = json.loads((out / "ledger.jsonl").read_text().splitlines()[0])["description"]
        assert first["accounting"]["participation"] == {"kind": "poisson", "probability": 12 / public}


@pytest.mark.full
def test_a_killed_run_goes_on_to_the_same_model(people_store, tmp_path):
    class Killed(Exception):
        pass

    from reticent.training import Callback

    class Killer(Callback):
        def on_round(self, record):
            if record["round"] == 3:
                raise Killed

    made = run_file(people_store, "els")
    train(made, tmp_path / "whole", work_of=work_of, secrets=tmp_path / "secrets")
    with pytest.raises(Killed):
        train(made, tmp_path / "broken", work_of=work_of, secrets=tmp_path / "secrets", callbacks=[Killer()])
    train(made, tmp_path / "broken", work_of=work_of, secrets=tmp_path / "secrets", going_on=True)
    np.testing.assert_array_equal(parameters(tmp_path / "whole"), parameters(tmp_path / "broken"))


def test_a_model_of_ones_own_has_its_gradients_clipped_one_by_one(people_store, tmp_path):
    def init(key):
        return {"table": 0.1 * jax.random.normal(key, (40, 8)), "out": 0.1 * jax.random.normal(key, (8, 40))}

    model = language_model(init, lambda params, tokens: params["table"][tokens] @ params["out"], vocabulary=40)
    setup = prepare(run_file(people_store, "els"), work_of=work_of, model=model)
    assert setup.description["gradients"] == "single"
    with pytest.raises(Refused, match="cannot clip gradients together"):
        prepare(run_file(people_store, "els", clipping={"gradients": "together"}), work_of=work_of, model=model)


def test_a_cohort_beyond_what_was_planned_is_refused_never_cut(people_store):
    setup = prepare(run_file(people_store, "els"), work_of=work_of)
    sums = setup.work.sums(setup, None)
    params = setup.model.init(jax.random.key(0))
    assert sums.largest <= setup.work.largest
    sums.largest = 10
    with pytest.raises(Refused, match="larger than the 10"):
        sums(params, np.arange(11), 0)


def test_the_norm_of_a_sum_changes_by_one_clip_norm_at_most(people_store):
    """Whoever leaves: the sum of a cohort with and without each of its members, on the grid."""
    setup = prepare(run_file(people_store, "uls", clipping={"norm": 0.05}), work_of=work_of)
    params = setup.model.init(jax.random.key(0))
    clipping = Clipping(0.05, Grid(-24))
    cohort = np.arange(8)
    for how in (Together(setup.model, clipping), Single(setup.model, clipping)):
        sums = setup.work.sums(setup, None)
        sums.how, sums._contribution = how, jax.jit(how.contribution)

        def vector(cohort, sums=sums):
            units = jax.tree.leaves(sums(params, cohort, 2).units)
            return np.concatenate([np.asarray(leaf, np.int64).ravel() for leaf in units])

        whole = vector(cohort)
        room = 2.0**-24 * np.sqrt(len(whole)) if isinstance(how, Together) else 0.0
        moved = [2.0**-24 * np.linalg.norm(whole - vector(np.delete(cohort, user))) for user in range(8)]
        assert max(moved) <= 0.05 + room + 1e-9
        assert max(moved) > 0.049


@pytest.mark.parametrize(
    ("algorithm", "tables", "sentence"),
    [
        ("els", {"population": {"sampler": "fixed", "probability": None, "report_goal": 9}}, "has no proof"),
        ("els", {"clipping": {"weight_cap": 4.0}}, "weighs users"),
        ("els", {"data": {"max_tokens_per_user": 9}}, "caps a user's round"),
        ("uls", {"clipping": {"gradients": "together", "style": "per-layer"}}, "never makes a single update"),
        ("uls", {"clipping": {"quantile": 0.5}}, "clipping.quantile"),
        ("uls", {"population": {"accounted_as": "poisson"}}, "is for the sampler 'shuffled-epochs'"),
        ("dpsgd", {"client": {"local_training": True}}, "client.local_training is for uls"),
        ("uls", {"population": {"examples": 9}}, "population.examples is for els"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_the_data_is_opened(people_store, algorithm, tables, sentence):
    with pytest.raises(Refused, match=sentence):
        run_file(people_store, algorithm, **tables)


@pytest.mark.parametrize(
    ("algorithm", "tables", "sentence"),
    [
        ("els", {"data": {"max_examples_per_user": 500}}, "Nobody has as many as 500"),
        ("uls", {"data": {"max_examples_per_user": 500}}, "Nobody has as many as 500"),
        ("els", {"mechanism": {"kind": "tree"}}, "not banded"),
        ("els", {"mechanism": {"kind": "banded", "bands": 2}}, "not amplified"),
        (
            "uls",
            {"population": {"size": 60, "sampler": "fixed", "probability": None, "report_goal": 60}},
            "lower report_goal",
        ),
        ("uls", {"privacy": {"noise_multiplier": 0.05, "accept_vacuous": False}}, "promises next to nothing"),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_round(people_store, algorithm, tables, sentence):
    with pytest.raises(Refused, match=sentence):
        prepare(run_file(people_store, algorithm, **tables), work_of=work_of)


@pytest.mark.full
def test_the_command_trains_them(people_store, tmp_path, capsys):
    from reticent.cli.main import main
    from reticent.config import resolved

    (tmp_path / "run.toml").write_text(resolved(run_file(people_store, "els")))
    with pytest.raises(SystemExit) as ended:
        main(
            ["train", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run"), "--secrets", str(tmp_path), "--json"]
        )
    assert ended.value.code in (0, None)
    assert json.loads(capsys.readouterr().out)["unit"] == "user"
    shutil.rmtree(tmp_path / "run")
