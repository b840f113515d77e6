"""Faults that happened to others, planted one at a time: the instrument that can finds each, and none finds a sound run."""

import hashlib
import json

import jax
import numpy as np
import pytest

from reticent.audit import audit
from reticent.ledger.secrets import Secrets
from reticent.privacy import noise as noise_module
from reticent.privacy.noise import add_noise
from reticent.training import rounds as rounds_module
from reticent.training import train
from reticent.training.rounds import Rounds
from tests.audit.runs import audited, detail, settings, verdicts

SOUND = {
    "what was written": "holds",
    "epsilon": "holds",
    "clipping": "holds",
    "noise where nobody moves": "holds",
    "noise of all coordinates": "holds",
    "row keys": "holds",
    "exposure": "measured",
    "user inference": "holds",
}
KINDS = [{"kind": "blt", "buffers": 2}, {"kind": "tree", "buffers": None}, {"kind": "independent", "buffers": None}]


@pytest.mark.parametrize("number", [0, *(pytest.param(one, marks=pytest.mark.full) for one in range(1, 20))])
def test_a_sound_run_stands(people_store, tmp_path, number):
    outcome, made = audited(people_store.path, tmp_path, mechanism=KINDS[number % 3], run={"seed": number})
    assert outcome.verdict.holds
    assert made.holds
    assert verdicts(made) == SOUND, made.content["findings"]
    assert list((tmp_path / "s").iterdir()) == []  # and its secrets are gone
    assert made.content["epsilon"]["lower_bound"] < made.content["claimed_epsilon"]


def test_halved_noise(people_store, tmp_path, monkeypatch):
    """The code that makes noise is told half of the multiplier that the ledger states."""
    monkeypatch.setattr(
        rounds_module,
        "add_noise",
        lambda mechanism, rounds, noise, norm, grid: add_noise(mechanism, rounds, noise / 2, norm, grid),
    )
    outcome, made = audited(people_store.path, tmp_path)
    assert verdicts(made)["noise where nobody moves"] == "BROKEN"
    assert made.content["noise"]["scale"] == pytest.approx(0.5, abs=0.03)
    assert not made.holds
    assert not outcome.verdict.holds  # the row keys, too, make other noise
    assert "CLAIM DOES NOT STAND" in outcome.report.read_text()


@pytest.mark.full
def test_noise_halved_at_its_source(people_store, tmp_path, monkeypatch):
    """Now the noise made again is as wrong as the released: only its size tells."""
    real = noise_module.add_noise

    def halved(mechanism, rounds, noise, norm, grid):
        return real(mechanism, rounds, noise / 2, norm, grid)

    from reticent.privacy import again

    monkeypatch.setattr(rounds_module, "add_noise", halved)
    monkeypatch.setattr(again, "add_noise", halved)
    outcome, made = audited(people_store.path, tmp_path, audit={"zero_coordinates": 0})
    assert outcome.verdict.holds
    assert verdicts(made)["noise where nobody moves"] == "not tested"
    assert verdicts(made)["noise of all coordinates"] == "BROKEN"
    assert list((tmp_path / "s").iterdir())  # what is needed to find out why is kept
    # The size of secret noise is as secret as the noise.
    assert "noise" not in made.content
    assert detail(made, "noise of all coordinates") == "made again from the row keys and whitened, it is not as claimed"


def test_a_user_whose_clipping_was_skipped(people_store, tmp_path, monkeypatch):
    """One canary, that of the first round that has one, comes through ten times as long as it may be."""
    real, victims = Rounds.sum_of, []

    def faulty(self, state, cohort, round):
        total, planted = real(self, state, cohort, round), self.setup.planted
        there = [one for one in planted.canaries_in(cohort).tolist() if planted.present[one]]
        victims.extend(there[:1] if not victims else [])
        if not set(victims) & set(there):
            return total
        alone = real(self, state, np.array([-1 - planted.writers - victims[0]]), round)
        return jax.tree.map(lambda sums, one: sums + 9 * one, total, alone)

    monkeypatch.setattr(Rounds, "sum_of", faulty)
    _, made = audited(people_store.path, tmp_path)
    assert verdicts(made)["clipping"] == "BROKEN"
    assert made.content["clipping"]["furthest"] == pytest.approx(10, abs=3)
    assert verdicts(made)["noise where nobody moves"] == "holds"


def test_an_ignored_separation(people_store, tmp_path, monkeypatch):
    from reticent.ledger import run as run_module
    from reticent.population.separated import MinSeparated

    monkeypatch.setattr(MinSeparated, "_draw", lambda self, state: np.arange(self.report_goal))
    monkeypatch.setattr(run_module, "check", lambda what, schema: None)  # which would refuse to end such a run
    outcome, made = audited(people_store.path, tmp_path)
    assert not next(one for one in outcome.verdict.checks if one.name == "participations").holds
    assert verdicts(made)["what was written"] == "BROKEN"
    assert not made.holds


def test_a_row_used_twice(people_store, tmp_path, monkeypatch):
    real = Secrets.row_key
    kept = []

    def row_key(self, round):
        kept.append(real(self, round))
        return kept[1] if round == 4 else kept[-1]

    monkeypatch.setattr(Secrets, "row_key", row_key)
    outcome, made = audited(people_store.path, tmp_path)
    assert not next(one for one in outcome.verdict.checks if one.name == "row keys").holds
    assert verdicts(made)["what was written"] == "BROKEN"
    # And with the releases alone.
    told = detail(audit(outcome.path, secrets=tmp_path / "elsewhere"), "noise where nobody moves")
    assert "rounds 1 and 4 are alike" in told


def test_a_key_of_16_bits(people_store, tmp_path, monkeypatch):
    def row_key(self, round):
        return hashlib.sha256((4711 + round).to_bytes(2, "little")).digest()

    monkeypatch.setattr(Secrets, "row_key", row_key)
    outcome, made = audited(people_store.path, tmp_path)
    assert outcome.verdict.holds
    assert verdicts(made)["row keys"] == "BROKEN"
    again = audit(outcome.path, secrets=tmp_path / "elsewhere")
    assert verdicts(again)["row keys"] == "BROKEN"  # found in the releases alone
    assert "SHA-256 of its two bytes" in detail(again, "row keys")


@pytest.mark.full
def test_without_noise_the_bound_is_large(people_store, tmp_path):
    _, made = audited(people_store.path, tmp_path, privacy={"noise_multiplier": 0.0}, audit={"canaries": 100})
    assert made.content["claimed_epsilon"] is None
    assert made.content["epsilon"]["lower_bound"] > 2
    assert verdicts(made)["noise where nobody moves"] == "holds"


def test_a_run_that_planted_nothing_is_audited_for_what_it_can_be(people_store, tmp_path):
    none = {"canaries": 0, "phrases": 0, "zero_coordinates": 0}
    outcome, made = audited(people_store.path, tmp_path, audit=none)
    untested = [name for name, verdict in verdicts(made).items() if verdict == "not tested"]
    assert untested == [
        "epsilon",
        "clipping",
        "noise where nobody moves",
        "row keys",
        "exposure",
        "user inference",
    ]
    assert made.holds
    written = (outcome.path / "report.md").read_text()
    assert "no canaries were planted" in written
    assert json.loads((outcome.path / "audit.json").read_text())["ledger_head"] == outcome.verdict.head


@pytest.mark.full
def test_people_are_attacked_for_their_owner_only(people_store, tmp_path):
    outcome = train(settings(people_store.path), tmp_path / "run", secrets=tmp_path / "s")
    made = audit(outcome.path, secrets=tmp_path / "s", people=True)
    assert 0 <= made.private["user_inference_on_people"]["auc"] <= 1
    assert "people" not in (outcome.path / "audit.json").read_text()
