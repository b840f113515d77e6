"""What is done with a trained model: evaluation, prediction, export, and starting from it."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

from reticent.data.batches import client_rows, fill
from reticent.errors import Refused
from reticent.training import train
from reticent.training.evaluation import evaluator, held_out
from reticent.training.export import export, named
from reticent.training.finished import load_trained
from reticent.training.predict import next_words
from reticent.training.pretrain import batches, pretrain
from tests.training.runs import ROUNDS, run_file


@pytest.fixture(scope="module")
def run(people_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("use")
    settings = run_file(people_store.path, run={"simulated_row_seed": None})
    return train(settings, folder / "run", secrets=folder / "s")


def test_the_evaluation_is_that_of_counting_by_hand(people_store):
    from reticent.models import make

    model = make("lstm", vocabulary=40, embedding=8, hidden=12, unknown=3)
    params = model.init(jax.random.key(1))
    people = held_out(people_store, 7, 6)
    found = evaluator(model, people)(params)
    rows = client_rows(people_store, np.arange(7), 6, None, None, 0)
    tokens = fill(people_store, rows, np.arange(len(rows.rank)), len(rows.rank), 6)
    right = right3 = total = known = 0
    loss, targets = 0.0, []
    scores = np.asarray(model.apply(params, np.maximum(tokens[:, :-1], 0)), np.float64)
    for row, logits in zip(tokens, scores, strict=True):
        for target, one in zip(row[1:], logits, strict=True):
            if target < 0:
                continue
            total += 1
            targets.append(target)
            loss += np.log(np.exp(one).sum()) - one[target]
            order = [word for word in np.argsort(-one, kind="stable") if word != 3]
            known += target != 3
            right += target != 3 and order[0] == target
            right3 += target in order[:3]
    assert found["targets"] == total
    assert found["top1"] == pytest.approx(right / total)
    assert found["top1_in_vocabulary"] == pytest.approx(right / known)
    assert found["top3"] == pytest.approx(right3 / total)
    assert found["loss"] == pytest.approx(loss / total, rel=1e-5)
    counts = np.bincount(targets, minlength=40)
    counts[3] = 0
    assert found["unigram_top1"] == pytest.approx(counts.max() / total)


def test_the_model_of_a_run_is_the_one_of_its_best_evaluation(run):
    best, last = load_trained(run.path), load_trained(run.path, last=True)
    assert best.rounds == run.best["rounds"]
    assert last.rounds == ROUNDS


def test_predictions_are_words_by_their_probability(run):
    found = next_words(load_trained(run.path), "word1 word2", 5)
    assert len(found) == 5
    chances = [chance for _, chance in found]
    assert chances == sorted(chances, reverse=True)
    assert all(0 <= chance <= 1 for chance in chances)
    assert "<unknown>" not in [word for word, _ in found]


def test_an_export_holds_the_parameters_and_the_statement(run, tmp_path):
    from safetensors.numpy import load_file

    files = export(run.path, tmp_path / "out")
    trained = load_trained(run.path)
    stored = load_file(tmp_path / "out" / "model.safetensors")
    for name, array in named(trained.params).items():
        np.testing.assert_array_equal(stored[name], array)
    assert {path.name for path in files} == {
        "model.safetensors", "tokenizer.json", "config.json", "README.md", "privacy.json",
    }  # fmt: skip
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Privacy statement of small" in card
    assert "epsilon" in card
    with pytest.raises(Refused, match="exists"):
        export(run.path, tmp_path / "out")


def test_an_exported_computation_gives_the_same_scores(run, tmp_path):
    export(run.path, tmp_path / "out", "stablehlo")
    computation = jax.export.deserialize(bytearray((tmp_path / "out" / "model.stablehlo").read_bytes()))
    trained = load_trained(run.path)
    for shape in ((1, 6), (3, 6)):
        ids = np.random.default_rng(0).integers(0, 40, shape).astype(np.int32)
        expected = trained.model.apply(trained.params, ids)
        np.testing.assert_allclose(computation.call(ids), expected, rtol=1e-5, atol=1e-6)


def test_a_damaged_checkpoint_is_refused_by_name(run, tmp_path):
    import shutil

    shutil.copytree(run.path, tmp_path / "run")
    half = tmp_path / "run" / "checkpoints" / f"{ROUNDS:08d}"
    file = max(half.glob("model/**/*"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(Refused, match=file.name):
        load_trained(tmp_path / "run", last=True)


@pytest.fixture
def pretraining(people_store):
    from reticent.config import parse

    content = {
        "run": {"name": "public", "algorithm": "pretrain", "rounds": 100, "checkpoint_every": 10},
        "data": {"store": str(people_store.path), "sequence_length": 6, "held_out_users": 0.2},
        "model": {"kind": "lstm", "embedding": 8, "hidden": 12},
        "client": {"batch_size": 8},
        "server": {"optimizer": "adam", "learning_rate": 0.02},
    }
    return parse(content)


def test_pretraining_learns_and_resumes_where_it_stopped(pretraining, tmp_path):
    whole = pretrain(pretraining, tmp_path / "whole")
    assert whole["loss"] < 3.0  # log(40) = 3.69 at the start

    class Stop(Exception):
        pass

    from reticent.training import Callback

    class Stopping(Callback):
        def on_round(self, record):
            if record["rounds"] == 20:
                raise Stop

    with pytest.raises(Stop):
        pretrain(pretraining, tmp_path / "stopped", callbacks=[Stopping()])
    resumed = pretrain(pretraining, tmp_path / "stopped", going_on=True)
    assert resumed["loss"] == whole["loss"]
    with pytest.raises(Refused, match="holds other files"):
        pretrain(pretraining, tmp_path / "whole")


def test_every_row_comes_once_each_time_through(pretraining, people_store):
    store = people_store.split(held_out_users=0.2, seed=0).train
    rows = client_rows(store, np.arange(store.users), 6, None, None, 0)
    per_epoch = len(rows.rank) // 8
    taken = [row.tobytes() for step in list(batches(store, pretraining, 0))[:per_epoch] for row in step]
    everything = fill(store, rows, np.arange(len(rows.rank)), len(rows.rank), 6)
    assert len(taken) == per_epoch * 8
    from collections import Counter

    assert not Counter(taken) - Counter(row.tobytes() for row in everything)
    again = [row.tobytes() for step in batches(store, pretraining, 3) for row in step]
    assert again == [row.tobytes() for step in list(batches(store, pretraining, 0))[3:] for row in step]


def test_a_private_run_starts_from_public_text_at_no_cost(pretraining, people_store, tmp_path):
    from reticent.training import prepare

    pretrain(pretraining, tmp_path / "public")
    alone = prepare(run_file(people_store.path))
    settings = run_file(people_store.path, model={"checkpoint": str(tmp_path / "public")})
    setup = prepare(settings)
    assert setup.guarantee.rho == alone.guarantee.rho
    assert "public" in setup.description["public_data"] or "store" in setup.description["public_data"]
    from reticent.training.loop import first_params

    expected = load_trained(tmp_path / "public", last=True).params
    jax.tree.map(np.testing.assert_array_equal, first_params(setup), expected)
    other = run_file(people_store.path, model={"checkpoint": str(tmp_path / "public"), "hidden": 13})
    with pytest.raises(Refused, match="another model"):
        first_params(prepare(other))


def test_the_commands(run, people_store):
    def command(*arguments):
        done = subprocess.run([sys.executable, "-m", "reticent", *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    best = command("evaluate", str(run.path), "--json")
    assert best["top1"] == pytest.approx(run.best["top1"])
    other = command("evaluate", str(run.path), "--store", str(people_store.path), "--users", "5", "--json")
    assert other["users"] == 5
    assert len(command("predict", str(run.path), "word1", "--words", "2", "--json")["next"]) == 2


def test_a_directory_without_a_run_is_one_sentence(tmp_path):
    for verb in (["evaluate"], ["predict"], ["export", "--out", "nowhere"]):
        arguments = [
            sys.executable,
            "-m",
            "reticent",
            verb[0],
            str(tmp_path),
            *(["text"] if verb[0] == "predict" else []),
        ]
        done = subprocess.run([*arguments, *verb[1:]], capture_output=True, text=True)
        assert done.returncode == 2
        assert "holds no run" in done.stderr
        assert "Traceback" not in done.stderr
