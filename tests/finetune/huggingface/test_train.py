"""From a directory to a private run and back to a directory."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

from reticent.config import parse
from reticent.data.store import Store, StoreWriter
from reticent.data.tokenizers import load_tokenizer
from reticent.errors import Refused
from reticent.finetune.huggingface import load, open_checkpoint
from reticent.finetune.huggingface.export import export
from reticent.finetune.huggingface.model import targets_of
from reticent.finetune.lora import Lora, merged
from reticent.models.transformer import transformer
from reticent.training import prepare, train
from reticent.training.finished import load_trained
from reticent.training.generate import Sampling, generate
from tests.finetune.huggingface.handmade import write_llama

WORDS = [f"word{number}" for number in range(56)]
TOKENS = np.random.default_rng(1).integers(0, 60, (2, 9)).astype(np.int32)


def write_tokenizer(folder):
    from tokenizers import Tokenizer, models, pre_tokenizers

    names = ["<pad>", "<s>", "</s>", "<unk>", *WORDS]
    engine = Tokenizer(models.WordLevel({name: place for place, name in enumerate(names)}, unk_token="<unk>"))
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    engine.add_special_tokens(names[:4])
    engine.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny-llama"
    write_llama(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def store(checkpoint, tmp_path_factory):
    path, generator = tmp_path_factory.mktemp("store") / "store", np.random.default_rng(0)
    tokenizer = load_tokenizer(checkpoint)
    with StoreWriter(path, tokenizer) as writer:
        for user in range(50):
            texts = [
                tokenizer.encode(" ".join(WORDS[(user + step) % 56] for step in range(generator.integers(2, 9))))
                for _ in range(generator.integers(1, 5))
            ]
            writer.add_user(f"person {user}", texts)
    return path


def run_file(store, checkpoint, **tables):
    content = {
        "run": {"name": "adapted", "rounds": 3, "checkpoint_every": 2, "simulated_row_seed": 7},
        "data": {"store": str(store), "sequence_length": 6, "held_out_users": 0.2},
        "model": {"checkpoint": str(checkpoint)},
        "lora": {"rank": 2, "alpha": 4.0, "targets": ["q_proj", "down_proj"]},
        "population": {"size": 40, "report_goal": 10, "min_separation": 2},
        "mechanism": {"kind": "tree"},
        "clipping": {"norm": 0.5},
        "client": {"batch_size": 4},
        "privacy": {"noise_multiplier": 2.0, "delta": 1e-3},
        "evaluation": {"every": 3},
    }
    for name, table in tables.items():
        content[name] = {**content.get(name, {}), **table}
    return parse({name: table for name, table in content.items() if table.get("rank") != 0})


@pytest.fixture(scope="session")
def run(store, checkpoint, tmp_path_factory):
    return train(run_file(store, checkpoint), tmp_path_factory.mktemp("run") / "out").path


def test_only_adapters_are_trained_noised_and_kept(run, store, checkpoint, monkeypatch):
    settings = run_file(store, checkpoint)
    assert settings.model.kind == "huggingface"
    setup = prepare(settings)
    assert setup.size == 2 * 2 * ((24 + 24) + (40 + 24))
    assert setup.description["model"]["checkpoint"] == open_checkpoint(checkpoint).digest()
    assert "tiny-llama" in setup.description["public_data"]
    monkeypatch.chdir(run.parent)
    trained = load_trained(run.name)
    assert sum(leaf.size for leaf in jax.tree.leaves(trained.params)) == setup.size


def test_what_comes_back_is_the_checkpoint_with_its_adapters_added(run, checkpoint, tmp_path):
    files = {path.name for path in export(run, tmp_path / "hf")}
    assert files == {"README.md", "config.json", "model.safetensors", "privacy.json", "tokenizer.json"}
    before, after = open_checkpoint(checkpoint), open_checkpoint(tmp_path / "hf")
    trained = load_trained(run)
    one = transformer(after.shape).apply(after.params(), TOKENS)
    np.testing.assert_allclose(one, trained.model.apply(trained.params, TOKENS), rtol=1e-4, atol=1e-4)
    lora = Lora(2, 2.0, targets_of(before.family, before, ("q_proj", "down_proj")))
    jax.tree.map(np.testing.assert_array_equal, after.params(), merged(before.params(), trained.params, lora))
    untouched = before.params()["layers"]["key"]["kernel"]
    np.testing.assert_array_equal(after.params()["layers"]["key"]["kernel"], untouched)
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "simulated" in card.lower()
    assert str(run) not in card
    assert not list(tmp_path.glob(".*"))


def test_adapters_alone_can_be_taken_and_gone_on_from(run, store, checkpoint, tmp_path):
    files = {path.name for path in export(run, tmp_path / "peft", "peft")}
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md", "privacy.json"} <= files
    further = run_file(store, checkpoint, lora={"rank": 0})
    further = parse({**further.model_dump(exclude_none=True), "lora": {"adapters": str(tmp_path / "peft")}})
    path = tmp_path / "peft" / "privacy.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "owed": []}))
    with pytest.raises(Refused, match="without a guarantee"):
        prepare(further)
    # Adapters from elsewhere owe nothing.
    path.unlink()
    setup = prepare(further)
    jax.tree.map(np.testing.assert_array_equal, setup.model.begin(None), load_trained(run).params)
    assert "peft" in setup.description["public_data"]


def test_a_guarantee_goes_with_the_model_and_is_composed(run, store, checkpoint, tmp_path):
    export(run, tmp_path / "hf")
    path = tmp_path / "hf" / "privacy.json"
    said = json.loads(path.read_text())
    assert said["private"]
    assert len(said["owed"]) == 1
    alone = prepare(run_file(store, checkpoint))
    twice = prepare(run_file(store, tmp_path / "hf"))
    assert twice.guarantee.rho == pytest.approx(2 * alone.guarantee.rho)
    assert any("checkpoint" in told for told in twice.description["also_covered"])
    path.write_text("{")
    with pytest.raises(Refused, match=r"privacy.json is damaged"):
        prepare(run_file(store, tmp_path / "hf"))


@pytest.mark.full
def test_the_whole_model_can_be_trained(store, checkpoint, tmp_path):
    settings = run_file(store, checkpoint, lora={"rank": 0}, run={"rounds": 2})
    out = train(settings, tmp_path / "out").path
    export(out, tmp_path / "hf")
    trained = load_trained(out)
    again = open_checkpoint(tmp_path / "hf").params()
    jax.tree.map(np.testing.assert_array_equal, again, trained.params)
    assert not np.array_equal(again["embedding"]["table"], open_checkpoint(checkpoint).params()["embedding"]["table"])
    with pytest.raises(Refused, match="has no adapters"):
        export(out, tmp_path / "peft", "peft")


def test_another_base_under_the_same_name_is_refused(run, checkpoint):
    path = checkpoint / "model.safetensors"
    content = path.read_bytes()
    try:
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(Refused, match="has changed since"):
            load_trained(run)
    finally:
        path.write_bytes(content)


def test_text_of_another_tokenizer_is_refused(checkpoint, store, tmp_path):
    write_llama(tmp_path / "other")
    with pytest.raises(Refused, match=r"has no tokenizer.json"):
        prepare(run_file(store, tmp_path / "other"))
    content = (checkpoint / "tokenizer.json").read_text()
    (tmp_path / "other" / "tokenizer.json").write_text(content.replace("word55", "word99"))
    with pytest.raises(Refused, match="another tokenizer than that of .*; import it with --tokenizer"):
        prepare(run_file(store, tmp_path / "other"))
    write_llama(tmp_path / "narrow", vocab_size=40)
    (tmp_path / "narrow" / "tokenizer.json").write_text(content)
    with pytest.raises(Refused, match="60 ids and the embedding of .* 40 rows"):
        prepare(run_file(store, tmp_path / "narrow"))


def test_a_run_file_that_cannot_be(store, checkpoint):
    with pytest.raises(Refused, match=r"leave \[lora\] out"):
        run_file(store, checkpoint, model={"kind": "lstm"})
    with pytest.raises(Refused, match="takes no model.hidden"):
        run_file(store, checkpoint, model={"hidden": 3})
    with pytest.raises(Refused, match="needs model.checkpoint"):
        parse({"run": {"rounds": 1, "algorithm": "pretrain"}, "data": {"store": "x"}, "model": {"kind": "huggingface"}})


def test_text_is_written_and_the_same_again(run, checkpoint):
    model, params, tokenizer, ends = load(checkpoint)
    one = generate(model, params, tokenizer, "word1 word2", tokens=8, sampling=Sampling(seed=1), ends=ends)
    assert one.startswith("word1 word2")
    assert 2 < len(one.split()) <= 10
    assert one == generate(model, params, tokenizer, "word1 word2", tokens=8, sampling=Sampling(seed=1), ends=ends)
    greedy = generate(model, params, tokenizer, "word5", tokens=1, sampling=Sampling(temperature=0))
    scores = np.array(model.apply(params, tokenizer.encode("word5")[None, :-1].astype(np.int32))[0, -1])
    scores[[1, 3, 60]] = -np.inf
    assert greedy.split()[1:] == ([] if scores.argmax() == 2 else tokenizer.decode([scores.argmax()]).split())

    def command(*arguments):
        done = subprocess.run([sys.executable, "-m", "reticent", *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert json.loads(command("generate", str(run), "word1", "--tokens", "3", "--json"))["text"].startswith("word1")


@pytest.mark.peers
def test_a_round_trip_ends_in_text_that_transformers_writes(run, checkpoint, tmp_path):
    import torch
    import transformers
    from peft import PeftModel

    export(run, tmp_path / "hf")
    export(run, tmp_path / "peft", "peft")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    trained = load_trained(run)
    tokens = torch.tensor(TOKENS.astype(np.int64))
    with torch.no_grad():
        expected = trained.model.apply(trained.params, TOKENS)
        np.testing.assert_allclose(theirs(tokens).logits.numpy(), expected, rtol=1e-4, atol=1e-4)
        base = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
        adapted = PeftModel.from_pretrained(base, tmp_path / "peft").eval()
        np.testing.assert_allclose(adapted(tokens).logits.numpy(), expected, rtol=1e-4, atol=1e-4)
    tokenizer = load_tokenizer(tmp_path / "hf")
    ids = torch.tensor(tokenizer.encode("word1 word2")[None, :-1].astype(np.int64))
    written = theirs.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0)[0].tolist()
    assert tokenizer.decode(written).startswith("word1 word2")
    assert Store.open(trained.run_file.data.store).header["tokenizer"]["digest"] == tokenizer.digest
