"""Runs from the first round to the report, and what is refused before the first."""

import json
import tomllib

import numpy as np
import pytest

from reticent.accounting.gaussian import epsilon_of_gaussian
from reticent.config import resolved
from reticent.errors import Refused
from reticent.ledger.lines import read_ledger
from reticent.mechanisms import Participation
from reticent.mechanisms.storage import from_header
from reticent.report import read_run
from reticent.training import Callback, prepare, train
from tests.training.runs import GOAL, ROUNDS, SEPARATION, parameters, run_file


class Heard(Callback):
    def __init__(self):
        self.events = []

    def on_start(self, facts):
        self.events.append(("start", facts))

    def on_round(self, record):
        self.events.append(("round", record))

    def on_evaluation(self, record):
        self.events.append(("evaluation", record))

    def on_end(self, record):
        self.events.append(("end", record))

    def close(self):
        self.events.append(("close", None))


@pytest.fixture(scope="module")
def trained(people_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    heard = Heard()
    settings = run_file(people_store.path, ("run.keep_secrets=true",), run={"simulated_row_seed": None})
    outcome = train(settings, folder / "run", callbacks=[heard], secrets=folder / "secrets")
    return settings, outcome, heard, folder


def test_it_verifies_and_reports(trained):
    settings, outcome, _, _ = trained
    assert outcome.verdict.finished
    assert all(check.holds for check in outcome.verdict.checks), outcome.verdict.checks
    assert outcome.report.name == "report.html"
    assert "privacy statement" in outcome.report.read_text().lower()
    assert (outcome.path / "run.toml").read_text() == resolved(settings)


def test_the_guarantee_is_that_of_the_sensitivity_and_the_noise(trained):
    _, outcome, heard, _ = trained
    accounting = read_ledger(outcome.path / "ledger.jsonl").first["description"]["accounting"]
    matrix = from_header(accounting["mechanism"], {}, "it").matrix(ROUNDS)
    # All patterns of two participations at least three rounds apart, by hand.
    pairs = [(i, j) for i in range(ROUNDS) for j in range(ROUNDS) if j - i >= SEPARATION]
    largest = max(np.linalg.norm(matrix[:, i] + matrix[:, j]) for i, j in pairs)
    rho = (largest / 2.0) ** 2 / 2
    told = heard.events[0][1]["guarantee"]
    assert told["rho"] == pytest.approx(rho)
    assert outcome.verdict.guarantee["epsilon"] == pytest.approx(epsilon_of_gaussian(rho, 1e-3))
    assert outcome.verdict.guarantee["adjacency"] == "zero-out"


def test_what_is_heard_is_what_is_written(trained):
    _, outcome, heard, _ = trained
    kinds = [kind for kind, _ in heard.events]
    assert kinds[0] == "start"
    assert kinds[-2:] == ["end", "close"]
    assert kinds.count("round") == ROUNDS
    assert kinds.count("evaluation") == 3
    records = [json.loads(line) for line in (outcome.path / "metrics.jsonl").read_text().splitlines()]
    assert [one["rounds"] for one in records if one["kind"] == "evaluation"] == [2, 4, 6]
    best = max((one for one in records if one["kind"] == "evaluation"), key=lambda one: one["top1"])
    assert records[-1]["kind"] == "end"
    assert records[-1]["best_round"] == best["round"]
    assert (outcome.path / "checkpoints" / f"{best['rounds']:08d}").is_dir()
    facts = read_run(outcome.path, verdict=outcome.verdict).facts()
    assert facts["best_rounds"] == best["rounds"]


def test_epsilon_so_far_is_that_of_the_rounds_so_far(trained):
    _, _, heard, _ = trained
    so_far = [record["epsilon"] for kind, record in heard.events if kind == "round"]
    assert so_far == sorted(so_far)
    assert so_far[SEPARATION] > 1.2 * so_far[SEPARATION - 1]  # where a second participation first fits


def test_nothing_secret_is_in_the_run_directory(trained):
    """Not the cohorts, not the digest of the data, not the noise: in no file, in no form that is looked for."""
    _, outcome, _, folder = trained
    secrets = next((folder / "secrets").iterdir())
    hidden = json.loads((next((secrets / "checkpoints").iterdir()) / "data.json").read_text())["digest"]
    intents = [path.read_bytes() for path in (secrets / "intents").iterdir()]
    keys = [json.loads(content.split(b"\n")[0])["row_key"] for content in intents]
    cohorts = [content.partition(b"\n")[2] for content in intents]
    assert len(keys) == ROUNDS
    for path in outcome.path.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for key in keys:
                assert key.encode() not in content
                assert bytes.fromhex(key) not in content
            assert hidden.encode() not in content
            assert not any(cohort in content for cohort in cohorts)


def test_cohorts_keep_the_separation_and_the_goal(trained):
    _, outcome, _, folder = trained
    from reticent.ledger.durable import Files
    from reticent.ledger.secrets import Secrets, place_of_secrets

    run_id = read_ledger(outcome.path / "ledger.jsonl").first["run"]
    intents = list(Secrets.open(place_of_secrets(run_id, folder / "secrets"), run_id, Files()).intents())
    last = {}
    for intent in intents:
        members = list(intent.members)
        assert len(set(members)) == len(members) == GOAL
        for member in members:
            assert intent.round - last.get(member, -SEPARATION) >= SEPARATION
            last[member] = intent.round


def test_secrets_are_gone_when_it_is_verified(people_store, tmp_path):
    settings = run_file(people_store.path, run={"simulated_row_seed": None})
    outcome = train(settings, tmp_path / "run", secrets=tmp_path / "secrets")
    assert outcome.verdict.holds
    assert list((tmp_path / "secrets").iterdir()) == []


def test_two_real_runs_share_neither_noise_nor_cohorts(people_store, tmp_path):
    settings = run_file(people_store.path, run={"simulated_row_seed": None})
    models = [parameters(train(settings, tmp_path / name, secrets=tmp_path / "s").path) for name in "ab"]
    assert np.abs(models[0] - models[1]).max() > 1e-3


def test_a_simulated_run_repeats_and_says_so(people_store, tmp_path):
    settings = run_file(people_store.path)
    runs = [train(settings, tmp_path / name, secrets=tmp_path / "s") for name in "ab"]
    np.testing.assert_array_equal(*(parameters(run.path) for run in runs))
    facts = read_run(runs[0].path, verdict=runs[0].verdict).facts()
    assert facts["epsilon"] is None
    assert facts["standing"] == "simulated"
    assert "SIMULATED" in runs[0].report.read_text()


@pytest.mark.parametrize(
    ("kind", "more"),
    [("independent", {}), ("tree", {"restarts": [3]}), ("banded", {"bands": 2}), ("banded-inverse", {"bands": 3})],
)
def test_every_kind_of_noise(people_store, tmp_path, kind, more):
    settings = run_file(people_store.path, mechanism={"kind": kind, "buffers": None, **more})
    outcome = train(settings, tmp_path / "run", secrets=tmp_path / "s")
    assert outcome.verdict.holds, outcome.verdict.checks
    assert next(check for check in outcome.verdict.checks if check.name == "noise").holds


@pytest.mark.parametrize(
    ("population", "adjacency"),
    [
        ({"sampler": "poisson", "probability": 0.3, "size": 40}, "add-or-remove"),
        ({"sampler": "fixed", "report_goal": 10, "size": 40}, "replace-one"),
        ({"sampler": "shuffled-epochs", "report_goal": 10}, "zero-out"),
    ],
)
def test_every_way_to_take_part(people_store, tmp_path, population, adjacency):
    settings = run_file(
        people_store.path,
        mechanism={"kind": "independent", "buffers": None},
        population={"report_goal": None, "min_separation": None, **population},
        privacy={"noise_multiplier": 3.0},
        run={"simulated_row_seed": None},
    )
    heard = Heard()
    outcome = train(settings, tmp_path / "run", secrets=tmp_path / "s", callbacks=[heard])
    assert outcome.verdict.holds, outcome.verdict.checks
    assert outcome.verdict.guarantee["adjacency"] == adjacency
    rounds = [record for kind, record in heard.events if kind == "round"]
    assert ("clients_per_second" in rounds[0]) == (adjacency != "add-or-remove")
    assert ("seconds" in rounds[0]) == (adjacency != "add-or-remove")
    if adjacency == "add-or-remove":
        written = (outcome.path / "metrics.jsonl").read_text()
        assert "seconds" not in written
        assert "clients_per_second" not in written


def test_fedsgd(people_store, tmp_path):
    settings = run_file(people_store.path, run={"algorithm": "fedsgd"})
    assert train(settings, tmp_path / "run", secrets=tmp_path / "s").verdict.holds


def test_an_epsilon_budget_ends_the_run(people_store, tmp_path):
    full = prepare(run_file(people_store.path))
    third = full.guarantee_after(3).epsilon(1e-3)
    settings = run_file(people_store.path, privacy={"epsilon_budget": third * 1.0001})
    heard = Heard()
    outcome = train(settings, tmp_path / "run", secrets=tmp_path / "s", callbacks=[heard])
    assert outcome.verdict.finished
    assert len([kind for kind, _ in heard.events if kind == "round"]) == 3
    assert heard.events[0][1]["planned_rounds"] == ROUNDS
    with pytest.raises(Refused, match="One round alone"):
        prepare(run_file(people_store.path, privacy={"epsilon_budget": 0.01}))


def test_a_reduced_cohort_is_an_estimate_everywhere(people_store, tmp_path):
    settings = run_file(
        people_store.path, population={"simulated_cohort": 4}, run={"simulated_row_seed": None}, privacy={"delta": 1e-3}
    )
    outcome = train(settings, tmp_path / "run", secrets=tmp_path / "s")
    assert outcome.verdict.holds
    assert outcome.verdict.guarantee is None
    facts = read_run(outcome.path, verdict=outcome.verdict).facts()
    assert facts["epsilon"] is None
    assert facts["standing"] == "estimate"
    # 4 stand for 12: the noise of the average is that of the whole cohort's.
    assert facts["noise_multiplier"] == pytest.approx(2.0 * 4 / 12)
    metrics = (outcome.path / "metrics.jsonl").read_text()
    assert all(json.loads(line).get("epsilon") is None for line in metrics.splitlines())


def test_no_noise_is_no_privacy(people_store, tmp_path):
    settings = run_file(people_store.path, privacy={"noise_multiplier": 0.0}, run={"simulated_row_seed": None})
    heard = Heard()
    outcome = train(settings, tmp_path / "run", secrets=tmp_path / "s", callbacks=[heard])
    assert heard.events[0][1]["guarantee"] is None
    assert "NO PRIVACY" in outcome.report.read_text()


def test_training_learns(people_store, tmp_path):
    settings = run_file(
        people_store.path,
        run={"rounds": 40, "checkpoint_every": 40},
        population={"min_separation": 1},
        privacy={"noise_multiplier": 0.01, "accept_vacuous": True},
        client={"learning_rate": 1.0, "batch_size": 3},
        clipping={"norm": 5.0},
        evaluation={"every": 40},
    )
    outcome = train(settings, tmp_path / "run", secrets=tmp_path / "s")
    assert outcome.last["loss"] < 3.45  # log(40) = 3.69 at the start


def test_starting_from_a_private_run_adds_its_guarantee(people_store, tmp_path):
    first = train(
        run_file(people_store.path, run={"simulated_row_seed": None}), tmp_path / "first", secrets=tmp_path / "s"
    )
    settings = run_file(people_store.path, model={"checkpoint": str(first.path)}, run={"simulated_row_seed": None})
    setup = prepare(settings)
    alone = first.verdict.guarantee["rho"]
    assert setup.guarantee.rho == pytest.approx(2 * alone)
    second = train(settings, tmp_path / "second", secrets=tmp_path / "s")
    assert second.verdict.guarantee["rho"] == pytest.approx(2 * alone)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"population": {"size": None, "min_separation": 5}}, r"largest\s+min_separation that can be kept is 4"),
        ({"privacy": {"noise_multiplier": 0.05}}, "promises next to nothing"),
        ({"model": {"vocabulary": 99}}, "model.vocabulary"),
        ({"server": {"optimizer": "sdg"}}, "server.optimizer"),
        ({"mechanism": {"file": "nowhere.json", "buffers": None}}, "nowhere.json"),
        ({"data": {"store": "nowhere"}}, "nowhere"),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_round(people_store, tmp_path, tables, message):
    with pytest.raises(Refused, match=message):
        train(run_file(people_store.path, **tables), tmp_path / "run", secrets=tmp_path / "s")
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "s").exists()


def test_the_examples_are_valid():
    from pathlib import Path

    from reticent.config import load

    examples = sorted(Path("examples").glob("*.toml"))
    assert len(examples) >= 6
    for path in examples:
        settings = load(path)
        assert settings.run.name == path.stem
        assert tomllib.loads(resolved(settings))["run"]["name"] == path.stem


def test_no_separation_between_rounds_that_a_sampler_breaks_is_stated(people_store, tmp_path, monkeypatch):
    """A sampler that ignores the separation: the run refuses to end with a claim."""
    from reticent.population.separated import MinSeparated

    monkeypatch.setattr(MinSeparated, "_draw", lambda self, state: np.arange(self.report_goal))
    with pytest.raises(Refused, match="closer than the separation"):
        train(run_file(people_store.path), tmp_path / "run", secrets=tmp_path / "s")


def test_participation_that_was_planned_is_what_is_told(people_store):
    setup = prepare(run_file(people_store.path))
    assert setup.sampler.participation == Participation(ROUNDS, SEPARATION)
