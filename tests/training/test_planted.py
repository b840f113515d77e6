"""What an audit plants: nobody's updates change by it, canaries are clipped as people are, and it goes through a crash."""

import itertools

import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from reticent.errors import Refused
from reticent.ledger.lines import read_ledger
from reticent.training import prepare, train
from reticent.training.loop import first_params
from reticent.training.planted import Planted
from reticent.training.rounds import Rounds
from tests.ledger.failing import Crash
from tests.training.runs import GOAL, ROUNDS, SEPARATION, parameters, run_file
from tests.training.test_crashes import StopAfter

AUDIT = {"canaries": 20, "phrases": 2, "phrase_users": 2, "phrase_repeats": 3, "zero_coordinates": 40}


@pytest.fixture(scope="module")
def rounds(people_store):
    setup = prepare(run_file(people_store.path, audit=AUDIT))
    made = Rounds(setup, first_params(setup))
    yield made
    made.close()


def sum_of(rounds, cohort):
    state = rounds.first_state(first_params(rounds.setup))
    return np.asarray(ravel_pytree(rounds.sum_of(state, np.array(cohort), 0).units)[0])


def test_a_canary_sends_its_direction_clipped_or_nothing(rounds):
    planted, grid, norm = rounds.setup.planted, rounds.setup.grid, rounds.setup.clipping.norm
    assert 0 < planted.present.sum() < AUDIT["canaries"]
    for canary in range(AUDIT["canaries"]):
        sent = sum_of(rounds, [-1 - planted.writers - canary])
        if not planted.present[canary]:
            assert not sent.any()
            continue
        signs = 1 - 2.0 * np.unpackbits(planted.whole_direction(canary, len(sent)))[: len(sent)]
        np.testing.assert_array_equal(np.sign(sent), signs)
        assert 0.999 * norm < np.linalg.norm(sent * grid.step) <= norm


def test_they_add_up(rounds):
    writers = rounds.setup.planted.writers
    cohort = [3, 5, -1, -3, *(-1 - writers - canary for canary in range(11))]
    np.testing.assert_array_equal(sum_of(rounds, cohort), sum(sum_of(rounds, [member]) for member in cohort))


def test_a_phrase_is_what_its_writers_write(rounds, people_store):
    planted, store = rounds.setup.planted, rounds.sums.planted
    assert store.users == planted.writers == 2 * (2 + 2)
    words = planted.phrase_words(people_store.tokenizer(), 6, 6)
    assert len({tuple(phrase) for phrase in words.tolist()}) == 6
    written = [[tuple(text.tolist()) for text in store.examples(user)] for user in range(store.users)]
    for phrase in range(6):
        for writer in planted.writers_of(phrase):
            assert written[writer] == [(1, *words[phrase].tolist(), 2)] * (1 if phrase < 2 else 3)
    assert sorted(one for phrase in range(6) for one in planted.writers_of(phrase)) == list(range(8))


def test_what_people_are_promised_does_not_change(people_store, rounds):
    """Not the noise, the divisor, the clip norm, the grid, or what one user can do; only the sampler has more to draw."""
    bare, planted = prepare(run_file(people_store.path)), rounds.setup
    told = dict(planted.description)
    assert told.pop("audit")["canaries"] == 20
    assert told == bare.description
    assert planted.guarantee.rho == bare.guarantee.rho
    assert planted.estimator == bare.estimator
    assert planted.sampler.population == bare.sampler.population + 28
    assert planted.size == bare.size + 40
    assert str(bare.sampler.population) not in str(planted.description["audit"])


def test_keys_are_fresh_unless_the_run_repeats(people_store):
    runs = [{"simulated_row_seed": seed} for seed in (None, None, 7, 7)]
    keys = [Planted.declared(run_file(people_store.path, audit=AUDIT, run=run)).key for run in runs]
    assert len(set(keys)) == 3
    assert keys[2] == keys[3]
    assert Planted.declared(run_file(people_store.path)) == Planted()


def test_nobody_that_people_could_be_told_from_is_planted_where_sampling_is_fixed(people_store):
    fixed = {"sampler": "fixed", "report_goal": 10, "size": 40, "min_separation": None}
    with pytest.raises(Refused, match="likelier to be drawn"):
        run_file(people_store.path, population=fixed, audit={"canaries": 5})
    run_file(people_store.path, population=fixed, audit={"zero_coordinates": 5})
    with pytest.raises(Refused, match="attacks runs of one clip norm"):
        run_file(
            people_store.path,
            clipping={"quantile": 0.5},
            mechanism={"kind": "tree", "buffers": None, "restarts": [3]},
            audit={"canaries": 5},
        )
    with pytest.raises(Refused, match="plain sums only"):
        run_file(people_store.path, run={"secure_aggregation": "encoding"}, audit={"phrases": 1})


@pytest.fixture(scope="module")
def trained(people_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    settings = run_file(people_store.path, audit=AUDIT, run={"keep_secrets": True})
    return settings, train(settings, folder / "run", secrets=folder / "s"), folder


def test_the_run_verifies_and_states_when_they_came(trained):
    _settings, outcome, _ = trained
    assert all(check.holds for check in outcome.verdict.checks), outcome.verdict.checks
    came = read_ledger(outcome.path / "ledger.jsonl").finished["simulated_users"]
    assert len(came) == 28
    assert any(came)
    for one in came:
        assert all(later - earlier >= SEPARATION for earlier, later in itertools.pairwise(one))
    # Writers and canaries have the chance of people: 28 of 28 + 48, in 6 rounds of 12.
    assert 0 < sum(map(len, came)) < ROUNDS * GOAL * 28 / 50


def test_nothing_but_noise_is_released_where_nobody_moves(trained):
    _, outcome, folder = trained
    from reticent.ledger.durable import Files
    from reticent.ledger.releases import read_release
    from reticent.ledger.secrets import Secrets, place_of_secrets
    from reticent.ledger.verify import Row
    from reticent.privacy.again import noise_of

    first = read_ledger(outcome.path / "ledger.jsonl").first
    intents = list(Secrets.open(place_of_secrets(first["run"], folder / "s"), first["run"], Files()).intents())
    description = first["description"]
    rows = [Row(one.round, one.row_key, description["clip_norm"], description["grid"]) for one in intents]
    size = description["model"]["parameters"] + 40
    for row, noise in zip(rows, noise_of(description, rows, size), strict=True):
        released = np.frombuffer(read_release(outcome.path / "releases" / f"{row.round:08d}.release")[1], "<i4")
        assert np.abs(released[:40] - noise[:40]).max() <= 64
        assert np.abs(released[40:] - noise[40:]).max() > 1000


def test_a_killed_run_goes_on_to_the_same_model(trained, tmp_path):
    settings, outcome, _ = trained
    with pytest.raises(Crash):
        train(settings, tmp_path / "run", secrets=tmp_path / "s", files=StopAfter(3))
    again = train(settings, tmp_path / "run", secrets=tmp_path / "s", going_on=True)
    assert again.verdict.holds
    np.testing.assert_array_equal(parameters(again.path), parameters(outcome.path))
