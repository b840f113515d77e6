"""A whole run on devices in this process: against simulation, through crashes, to the report."""

import contextlib
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from reticent.deploy.deployment import deploy, summed
from reticent.deploy.device import Device
from reticent.deploy.post import InProcess
from reticent.deploy.preparing import make_terms, setup_of
from reticent.errors import Refused
from reticent.ledger.lines import read_ledger
from reticent.ledger.secrets import place_of_secrets
from reticent.training import Callback
from reticent.training.finished import load_trained
from reticent.training.loop import first_params
from reticent.training.rounds import Rounds
from tests.deploy.trained import devices_of, registry_of, run_file
from tests.ledger.failing import Crash, FailingFiles

EXACT = {"privacy": {"noise_multiplier": 0.0, "delta": 1e-3}, "run": {"encoding_inflation": 0.0, "keep_secrets": True}}


class Federation:
    """Terms, devices and a post that reaches them; `learn` in place of training where the arithmetic does not matter."""

    def __init__(self, folder: Path, store, users=10, learn=None, **tables):
        self.folder, self.store = folder, store
        self.settings = run_file(store.path, **tables)
        self.terms = make_terms(self.settings)
        self.directories = devices_of(folder / "keys", store, list(range(users)), self.terms, folder / "compiled")
        self.registry = registry_of(self.directories)
        self.learn = learn
        self.steps = 0
        self.kill_at = None
        self.now = 0.0

    def post(self):
        devices = {node: Device(path, self.learn) for node, path in enumerate(self.directories.values())}
        return InProcess({node: device.answer for node, device in devices.items()})

    def clock(self):
        self.now += 1.0
        return self.now

    def run(self, **more):
        out, secrets = self.folder / "run", self.folder / "secrets"
        return deploy(
            self.terms,
            out,
            self.registry,
            more.pop("post", None) or self.post(),
            secrets=secrets,
            clock=self.clock,
            **more,
        )

    @property
    def secrets(self) -> Path:
        return place_of_secrets(read_ledger(self.folder / "run" / "ledger.jsonl").first["run"], self.folder / "secrets")

    def diaries(self) -> dict[str, list[int]]:
        run = read_ledger(self.folder / "run" / "ledger.jsonl").first["run"]
        return {name: Device(path).diary.rounds(run) for name, path in self.directories.items()}


def simulated(terms, store, cohorts):
    """The model that a simulation comes to with these cohorts, of users of the store: sums made in the usual way."""
    setup = setup_of(terms)
    params = first_params(setup)
    rounds = Rounds(setup, params)
    state = rounds.first_state(params)
    for round in range(terms.rounds):
        key = bytes(32)
        if round not in cohorts:
            state = state.replace(noise=rounds.skipped(state, key))
            continue
        total = rounds.sum_of(state, np.array(sorted(cohorts[round])), round)
        release, noise = rounds.noised(total, state.noise, key)
        state = rounds.served(state.replace(noise=noise), release)
    rounds.close()
    return flat(state.params)


def flat(params) -> np.ndarray:
    import jax

    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(params)])


def apart(rounds: list[int], separation: int) -> bool:
    return all(later - earlier >= separation for earlier, later in itertools.pairwise(rounds))


def nothing(settings, terms, model, round):
    return np.zeros(terms.size, np.int32)


def test_the_model_is_the_simulations_on_the_same_cohorts(tmp_path, people_store):
    federation = Federation(tmp_path, people_store, **EXACT)
    trained = federation.run()
    assert trained.verdict.holds, trained.verdict
    cohorts = summed(federation.secrets)
    assert sorted(cohorts) == [0, 1, 2, 3]
    assert all(len(cohort) == 3 for cohort in cohorts.values())
    model = flat(load_trained(trained.path, last=True).params)
    expected = simulated(federation.terms, people_store, cohorts)
    np.testing.assert_allclose(model, expected, atol=1e-6)
    start = flat(first_params(setup_of(federation.terms)))
    assert np.abs(model - start).max() > 100 * np.abs(model - expected).max()
    for rounds in federation.diaries().values():
        assert apart(rounds, 2)


def test_a_noised_run_holds_and_its_report_tells_what_devices_recorded(tmp_path, people_store):
    federation = Federation(tmp_path, people_store, learn=nothing, run={"keep_secrets": True})
    trained = federation.run()
    assert trained.verdict.holds
    assert trained.verdict.guarantee["unit"] == "device"
    assert {check.name: check.holds for check in trained.verdict.checks}["noise"] is True
    finish = read_ledger(trained.path / "ledger.jsonl").finished
    rounds = federation.diaries()
    # What the ledger states covers what devices recorded: one that dropped out may be counted without having known.
    assert finish["largest_participation"] >= max(map(len, rounds.values()))
    closest = min(b - a for times in rounds.values() for a, b in itertools.pairwise(times))
    assert 2 <= finish["smallest_separation"] <= closest
    page = (trained.path / "report.md").read_text()
    assert "device" in page
    metrics = [json.loads(line) for line in (trained.path / "metrics.jsonl").read_text().splitlines()]
    assert [one["devices"]["invited"] for one in metrics if one["kind"] == "round"] == [4, 4, 4, 4]


def test_when_too_few_have_rested_a_row_is_burnt_and_the_run_goes_on(tmp_path, people_store):
    """Everybody vanishes with their updates made in the first attempt: nobody may be in that round again."""
    federation = Federation(tmp_path, people_store, users=8, learn=nothing, run={"keep_secrets": True})
    post, vanish = federation.post(), [True]

    def at(node):
        real = post.devices[node]

        def answer(letter, model):
            found = real(letter, model)
            if model and vanish[0]:
                raise ConnectionError
            return found

        return answer

    for node in list(post.devices):
        post.devices[node] = at(node)

    class Watch(Callback):
        def on_round(self, record):
            vanish[0] = False

    # Both halves of the devices vanish in round 0; it is burnt, so is round 1, in which all rest, and round 2 goes on.
    trained = federation.run(post=post, callbacks=[Watch()])
    assert trained.verdict.holds, trained.verdict
    ledger = read_ledger(trained.path / "ledger.jsonl")
    assert [line["round"] for line in ledger.of_kind("burnt")] == [0, 1]
    assert [line["round"] for line in ledger.of_kind("release")] == [2, 3]
    assert all(apart(rounds, 2) for rounds in federation.diaries().values())


class StopAt(FailingFiles):
    """Dies before a file of this name comes to its place for the n-th time."""

    def __init__(self, part: str, times: int):
        super().__init__()
        self.part, self.times = part, times

    def _operate(self, name, arguments):
        if name == "rename" and self.part in str(arguments[1]):
            self.times -= 1
            if self.times == 0:
                raise Crash(f"before {arguments[1].name}")
        return super()._operate(name, arguments)


@pytest.mark.parametrize(
    ("part", "times", "burnt"),
    [
        ("/intents/", 2, []),  # before any update was asked for: the round is done anew
        ("/asked/", 2, []),  # updates were in, shares not asked for: given up, and done anew by others
        (".release", 2, [1]),  # shares were asked for: burnt
        ("ledger.jsonl", 4, []),  # after the checkpoint of round 2
    ],
)
def test_killed_on_the_way_the_round_is_abandoned_or_burnt(tmp_path, people_store, part, times, burnt):
    federation = Federation(tmp_path, people_store, users=12, learn=nothing, run={"keep_secrets": True})
    with pytest.raises(Crash):
        federation.run(files=StopAt(part, times))
    with contextlib.suppress(Crash):
        trained = federation.run()
    ledger = read_ledger(trained.path / "ledger.jsonl")
    assert [line["round"] for line in ledger.of_kind("burnt")] == burnt
    assert [line["round"] for line in ledger.of_kind("release")] == sorted({0, 1, 2, 3} - set(burnt))
    assert trained.verdict.holds, trained.verdict
    assert all(apart(rounds, 2) for rounds in federation.diaries().values())


@pytest.mark.full
def test_a_failure_at_every_operation(tmp_path, people_store):
    """Whatever fails, each row is spent once, and every device keeps its separation."""
    from reticent.ledger.durable import Files
    from reticent.ledger.secrets import Secrets

    counted = FailingFiles()
    (tmp_path / "counted").mkdir()
    federation = Federation(tmp_path / "counted", people_store, users=16, learn=nothing, run={"keep_secrets": True})
    federation.run(files=counted)
    for at in range(len(counted.done)):
        folder = tmp_path / f"at-{at}"
        folder.mkdir()
        federation = Federation(folder, people_store, users=16, learn=nothing, run={"keep_secrets": True})
        with contextlib.suppress(OSError, Crash):
            federation.run(files=FailingFiles(at, ("before", "after")[at % 2]))
        trained = federation.run()
        assert trained.verdict.holds, (at, trained.verdict)
        ledger = read_ledger(trained.path / "ledger.jsonl")
        spent = [line["round"] for line in ledger.lines if line["kind"] in ("release", "burnt")]
        assert sorted(spent) == [0, 1, 2, 3], at
        assert all(apart(rounds, 2) for rounds in federation.diaries().values())
        keys = [one.row_key for one in Secrets.open(federation.secrets, ledger.first["run"], Files()).intents()]
        assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("tables", "remedy"),
    [
        ({"run": {"secure_aggregation": "off"}}, "set run.secure_aggregation = 'protocol'"),
        ({"run": {"simulated_row_seed": 1}}, "is no simulation"),
        ({"population": {"report_goal": 2}}, "hides nobody"),
        ({"audit": {"zero_coordinates": 3}}, "leave the table"),
    ],
)
def test_what_devices_cannot_keep_to_is_refused_with_the_remedy(people_store, tables, remedy):
    with pytest.raises(Refused, match=remedy):
        make_terms(run_file(people_store.path, **tables))


def test_too_few_devices_for_the_separation_are_refused(tmp_path, people_store):
    federation = Federation(tmp_path, people_store, users=7, learn=nothing)
    with pytest.raises(Refused, match="take 8 devices, and 7 are enrolled"):
        federation.run()


def test_another_store_than_the_terms_were_made_with_is_refused(tmp_path, people_store):
    import dataclasses

    terms = make_terms(run_file(people_store.path))
    other = dataclasses.replace(terms, description={**terms.description, "tokenizer": "0" * 64})
    with pytest.raises(Refused, match="tokenizer differs"):
        setup_of(other)


def test_terms_survive_their_file_and_a_damaged_one_is_refused(tmp_path, people_store):
    from reticent.deploy.terms import Terms

    terms = make_terms(run_file(people_store.path, mechanism={"kind": "dense", "bands": None}))
    terms.save(tmp_path / "terms.json")
    again = Terms.load(tmp_path / "terms.json")
    assert again.digest == terms.digest
    assert again.arrays.keys() == terms.arrays.keys() != set()
    content = (tmp_path / "terms.json").read_bytes()
    (tmp_path / "terms.json").write_bytes(content[: len(content) // 2])
    with pytest.raises(Refused, match="damaged"):
        Terms.load(tmp_path / "terms.json")
