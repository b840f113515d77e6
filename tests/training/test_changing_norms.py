"""Clip norms that change where the mechanism restarts, and metrics of those trained on: what is released beside the update,
what it costs, and that it is what it is said to be."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from reticent.data.batches import assemble
from reticent.errors import Refused
from reticent.ledger.clip_norms import bit_units
from reticent.ledger.lines import read_ledger
from reticent.ledger.releases import read_release, release_path
from reticent.ledger.verify import Row, verify
from reticent.mechanisms.storage import from_header
from reticent.models.losses import next_token_loss
from reticent.models.model import inputs_of, targets_of
from reticent.privacy.again import noise_of
from reticent.privacy.keys import row_key
from reticent.privacy.measures import WORTH, measures_of
from reticent.training import prepare, train
from reticent.training.loop import first_params
from reticent.training.rounds import local_work
from tests.ledger.failing import Crash, FailingFiles
from tests.ledger.test_verify import rewritten
from tests.training.runs import GOAL, ROUNDS, SEPARATION, parameters, run_file
from tests.training.test_crashes import StopAfter

COUNT_NOISE, METRICS_NOISE = 1.5, 4.0
ADAPTIVE = {
    "mechanism": {"restarts": [2, 4]},
    "clipping": {"quantile": 0.5, "quantile_noise": COUNT_NOISE},
    "evaluation": {"training_noise": METRICS_NOISE},
}


def settings_of(store, **tables):
    content = {name: {**ADAPTIVE.get(name, {}), **tables.get(name, {})} for name in {*ADAPTIVE, *tables}}
    return run_file(store.path, **content)


@pytest.fixture(scope="module")
def trained(people_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adaptive")
    settings = settings_of(people_store, run={"simulated_row_seed": None, "keep_secrets": True})
    return settings, train(settings, folder / "run", secrets=folder / "s"), folder


def intents_of(folder):
    from reticent.ledger.durable import Files
    from reticent.ledger.secrets import Secrets, place_of_secrets

    run = read_ledger(folder / "run" / "ledger.jsonl").first["run"]
    return list(Secrets.open(place_of_secrets(run, folder / "s"), run, Files()).intents())


def verdict_on(folder):
    return verify(folder / "run", noise_of=noise_of, secrets=folder / "s")


def test_it_verifies_and_the_norm_changes_at_restarts_only(trained):
    _, outcome, _ = trained
    assert outcome.verdict.holds, outcome.verdict.checks
    assert next(check.holds for check in outcome.verdict.checks if check.name == "clip norms")
    norms = [line["clip_norm"] for line in read_ledger(outcome.path / "ledger.jsonl").of_kind("release")]
    assert norms[0] == norms[1] == 0.5
    assert norms[2] == norms[3] != norms[1]
    assert norms[4] == norms[5] != norms[3]
    told = [json.loads(line) for line in (outcome.path / "metrics.jsonl").read_text().splitlines()]
    rounds = [one for one in told if one["kind"] == "round"]
    assert [one["clip_norm"] for one in rounds] == norms
    assert rounds[1]["tracked_norm"] == norms[2]


def test_all_of_it_is_paid_for(trained):
    """Gboard, Thm. 1, for the bits, and one Gaussian per participation for the metrics; sensitivity over all patterns."""
    _, outcome, _ = trained
    accounting = read_ledger(outcome.path / "ledger.jsonl").first["description"]["accounting"]
    block = from_header(accounting["mechanism"], {}, "it").matrix(2)
    matrix = np.kron(np.eye(3), block)
    pairs = [(i, j) for i in range(ROUNDS) for j in range(ROUNDS) if j - i >= SEPARATION]
    squared = max(np.linalg.norm(matrix[:, i] + matrix[:, j]) for i, j in pairs) ** 2
    noise = 2.0
    combined = squared * (noise**-2 + (2 * COUNT_NOISE) ** -2) + 2 / METRICS_NOISE**2
    assert outcome.verdict.guarantee["rho"] == pytest.approx(combined / 2)


def test_what_is_released_of_round_0_is_what_its_people_did(trained, people_store):
    """Without its noise: the count of bits and the metrics, against plain local training of each member."""
    settings, outcome, folder = trained
    setup, ledger = prepare(settings), read_ledger(outcome.path / "ledger.jsonl")
    description, intent = ledger.first["description"], intents_of(folder)[0]
    payload = np.frombuffer(read_release(release_path(outcome.path / "releases", 0))[1], "<i4")
    size = setup.model.parameters
    assert len(payload) == size + 1 + 3
    row = Row(0, intent.row_key, description["clip_norm"], description["grid"])
    clean = (payload.astype(np.int64) - next(iter(noise_of(description, [row], len(payload))))).astype(np.int32)
    params, work = first_params(setup), local_work(settings)
    store, bits, metrics = setup.data.train, 0, np.zeros(3)
    gradient = jax.jit(jax.grad(setup.model.loss, has_aux=True))
    members = np.array(intent.members)
    batches = assemble(store, members, seed=0, **work.rows)
    for member in range(len(members)):
        local, loss, words, correct = params, 0.0, 0, 0
        for step in batches.tokens[member, : batches.steps[member]]:
            scores = setup.model.apply(local, inputs_of(step))
            _, sums = next_token_loss(scores, targets_of(step), 3)
            loss, words = loss + float(sums["loss"]), words + int((targets_of(step) >= 0).sum())
            best = np.asarray(scores).copy()
            best[..., 3] = -np.inf
            correct += int(
                ((best.argmax(-1) == targets_of(step)) & (targets_of(step) >= 0) & (targets_of(step) != 3)).sum()
            )
            slope, _ = gradient(local, step, None)
            local = jax.tree.map(lambda value, change: value - work.learning_rate * change, local, slope)
        norm = np.linalg.norm(np.asarray(ravel_pytree(local)[0], float) - np.asarray(ravel_pytree(params)[0], float))
        bits += 1 if norm <= 0.5 else -1
        metrics += [loss / words / (1.5 * math.log(40)), correct / words, float(norm > 0.5 * (1 - 1e-4))]
    unit = bit_units(description, 0.5, description["grid"])
    assert clean[size] == bits * unit
    # The noise of a bit is that of so many people, as was paid for.
    assert 2.0 * 0.5 / description["grid"] / (2 * unit) == pytest.approx(COUNT_NOISE, rel=1e-3)
    measured = clean[size + 1 :] * description["metrics"]["grid"] / WORTH + len(members) / 2
    np.testing.assert_allclose(measured, metrics, atol=1e-3)


def test_metrics_have_noise_of_their_own(trained):
    _, outcome, _ = trained
    description = read_ledger(outcome.path / "ledger.jsonl").first["description"]
    measures, secret = measures_of(description), bytes(range(32))
    made = np.asarray(measures.noised(jnp.zeros(30_000, jnp.int32), row_key(secret)), float) * measures.grid.step
    assert made.std() == pytest.approx(METRICS_NOISE, rel=0.02)
    # Not the noise of the update under the same key.
    update = next(iter(noise_of(description, [Row(0, secret, 0.5, description["grid"])], 1004)))[:1000]
    assert abs(np.corrcoef(made[:1000], update)[0, 1]) < 0.2


@pytest.mark.parametrize("what", ["a norm from elsewhere", "a norm that was not taken over"])
def test_a_norm_that_releases_do_not_explain_is_found(trained, tmp_path, what):
    import shutil

    _, _, folder = trained
    shutil.copytree(folder, tmp_path / "copy")
    path = tmp_path / "copy" / "run"

    def forge(lines):
        for line in lines:
            if line["kind"] == "release" and line["round"] in (2, 3):
                line["clip_norm"] = 0.5 if "taken" in what else 1.01 * line["clip_norm"]
        return lines

    assert verdict_on(folder).holds
    rewritten(path, forge)
    broken = {check.name for check in verify(path).checks if check.holds is False}
    assert "clip norms" in broken


@pytest.mark.full
def test_killed_and_resumed_across_restarts(people_store, tmp_path):
    settings = settings_of(people_store, run={"checkpoint_every": 3}, evaluation={"every": 3})
    train(settings, tmp_path / "whole", secrets=tmp_path / "s")
    whole = read_ledger(tmp_path / "whole" / "ledger.jsonl").of_kind("release")
    for after in (2, 5):
        folder = tmp_path / str(after)
        with pytest.raises(Crash):
            train(settings, folder / "run", secrets=folder / "s", files=StopAfter(after))
        outcome = train(settings, folder / "run", secrets=folder / "s", files=FailingFiles(), going_on=True)
        assert outcome.verdict.holds, outcome.verdict.checks
        np.testing.assert_array_equal(parameters(folder / "run"), parameters(tmp_path / "whole"))
        again = read_ledger(folder / "run" / "ledger.jsonl").of_kind("release")
        assert [(line["clip_norm"], line["release"]) for line in again] == [
            (line["clip_norm"], line["release"]) for line in whole
        ]


@pytest.mark.full
def test_a_norm_far_too_small_comes_near_the_quantile(people_store, tmp_path):
    settings = settings_of(
        people_store,
        run={"rounds": 24, "checkpoint_every": 24},
        mechanism={"restarts": [8, 16]},
        clipping={"norm": 0.02, "quantile_noise": 0.6, "quantile_learning_rate": 0.6},
        population={"min_separation": 3},
        privacy={"noise_multiplier": 1.0, "accept_vacuous": True},
        evaluation={"every": 24},
    )
    outcome = train(settings, tmp_path / "run", secrets=tmp_path / "s")
    norms = [line["clip_norm"] for line in read_ledger(outcome.path / "ledger.jsonl").of_kind("release")]
    setup = prepare(settings)
    params, work = first_params(setup), local_work(settings)
    lengths = []
    gradient = jax.jit(jax.grad(setup.model.loss, has_aux=True))
    batches = assemble(setup.data.train, np.arange(30), seed=0, **work.rows)
    for member in range(30):
        local = params
        for step in batches.tokens[member, : batches.steps[member]]:
            slope, _ = gradient(local, step, None)
            local = jax.tree.map(lambda value, change: value - work.learning_rate * change, local, slope)
        lengths.append(np.linalg.norm(np.asarray(ravel_pytree(jax.tree.map(np.subtract, local, params))[0])))
    assert norms[0] == 0.02
    assert norms[-1] == pytest.approx(np.median(lengths), rel=0.5)


def test_planned_norms(people_store, tmp_path):
    settings = run_file(
        people_store.path,
        mechanism={"restarts": [3]},
        clipping={"later_norms": [0.2]},
        run={"simulated_row_seed": None},
    )
    outcome = train(settings, tmp_path / "run", secrets=tmp_path / "s")
    assert outcome.verdict.holds, outcome.verdict.checks
    lines = read_ledger(outcome.path / "ledger.jsonl").of_kind("release")
    assert [line["clip_norm"] for line in lines] == [0.5] * 3 + [0.2] * 3
    # Noise goes down with the norm.
    spread = [
        line["grid"]
        * np.frombuffer(read_release(release_path(outcome.path / "releases", line["round"]))[1], "<i4").std()
        for line in lines
    ]
    assert np.mean(spread[3:]) / np.mean(spread[:3]) == pytest.approx(0.4, rel=0.1)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"clipping": {"quantile": 0.5}}, "never does; give mechanism.restarts"),
        (
            {"clipping": {"quantile": 1.0}, "mechanism": {"restarts": [2]}},
            "clipping.quantile: input should be less than 1",
        ),
        (
            {"clipping": {"quantile": 0.0}, "mechanism": {"restarts": [2]}},
            "clipping.quantile: input should be greater than 0",
        ),
        ({"clipping": {"quantile": 0.5}, "mechanism": {"restarts": [2, 6]}}, "stay below 6 rounds"),
        ({"clipping": {"later_norms": [0.2]}}, "1 norms for 0 mechanism.restarts"),
        (
            {"clipping": {"later_norms": [0.2], "quantile": 0.5}, "mechanism": {"restarts": [2]}},
            "leave one of them out",
        ),
        (
            {"clipping": {"quantile": 0.5}, "mechanism": {"restarts": [2]}, "run": {"secure_aggregation": "encoding"}},
            "clipping.quantile counts bits",
        ),
        (
            {"evaluation": {"training_noise": 3.0}, "run": {"secure_aggregation": "encoding"}},
            "evaluation.training_noise needs sums",
        ),
        ({"evaluation": {"training_noise": 0.0}}, "evaluation.training_noise"),
    ],
)
def test_what_does_not_fit_is_one_sentence(people_store, tables, message):
    with pytest.raises(Refused, match=message) as refused:
        prepare(run_file(people_store.path, **tables))
    assert len(str(refused.value).split(". ")) == 1


def test_a_mechanism_too_short_for_its_restarts_is_refused(people_store, tmp_path):
    from reticent.mechanisms import Participation, make

    make("banded", Participation(3, 3), size=2).save(tmp_path / "short")
    settings = settings_of(people_store, mechanism={"kind": "banded", "buffers": None, "file": str(tmp_path / "short")})
    with pytest.raises(Refused):
        prepare(run_file(people_store.path, mechanism={**settings.mechanism.model_dump(), "restarts": [4]}))


def test_noise_that_nothing_recovers_from_is_said_before_the_first_round(people_store):
    from reticent.training.swamped import noise_to_model, warning

    small = prepare(settings_of(people_store, clipping={"norm": 0.01}))
    large = prepare(settings_of(people_store, clipping={"norm": 50.0}))
    params = first_params(small)
    assert warning(small, params) is None
    said = warning(large, params)
    assert "Begin with clipping.norm" in said
    # By hand: noise of two rounds in the model, that of both rows together, over the parameters' own norm.
    rows = np.linalg.inv(np.asarray(large.mechanism.matrix(ROUNDS)))[:2].sum(0)
    noise = large.noise_multiplier * 50.0 / GOAL * np.linalg.norm(rows) * math.sqrt(large.model.parameters)
    size = np.linalg.norm(np.asarray(ravel_pytree(params)[0]))
    assert noise_to_model(large, params) == pytest.approx(noise / size / (1 - 0.9), rel=1e-5)
