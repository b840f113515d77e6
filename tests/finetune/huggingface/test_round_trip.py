"""From a checkpoint through private adapters on the crowd to text that `transformers` writes."""

import shutil

import numpy as np
import pytest

from reticent.config import parse
from reticent.data.crowd import make_crowd
from reticent.data.store import Store
from reticent.data.tokenizers import load_tokenizer
from reticent.finetune.huggingface.export import export
from reticent.training import train
from tests.finetune.huggingface.handmade import LLAMA, llama_tensors, write_llama

pytestmark = [pytest.mark.peers, pytest.mark.full]


def test_adapters_trained_privately_on_the_crowd_serve_in_transformers(tmp_path):
    import torch
    import transformers
    from peft import PeftModel

    make_crowd(tmp_path / "crowd", people=300, words=500)
    store = Store.open(tmp_path / "crowd")
    tokenizer = store.tokenizer()
    config = {**LLAMA, "vocab_size": tokenizer.size, "hidden_size": 32}
    write_llama(tmp_path / "base", llama_tensors(config, scale=0.05), vocab_size=tokenizer.size, hidden_size=32)
    shutil.copyfile(tmp_path / "crowd" / "tokenizer.json", tmp_path / "base" / "tokenizer.json")
    content = {
        "run": {"name": "crowd", "rounds": 8, "checkpoint_every": 4},
        "data": {
            "store": str(tmp_path / "crowd"),
            "sequence_length": 16,
            "held_out_users": 0.1,
            "max_examples_per_user": 16,
        },
        "model": {"checkpoint": str(tmp_path / "base")},
        "lora": {"rank": 4, "targets": ["all-linear"]},
        "population": {"size": 270, "report_goal": 40, "min_separation": 4},
        "mechanism": {"kind": "tree"},
        "clipping": {"norm": 1.0},
        "privacy": {"epsilon": 20.0, "delta": 1e-3},
        "evaluation": {"every": 4},
    }
    out = train(parse(content), tmp_path / "out", secrets=tmp_path / "secrets")
    assert out.verdict.holds
    export(out.path, tmp_path / "hf")
    export(out.path, tmp_path / "peft", "peft")
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "20" in card
    assert "user" in card
    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    adapted = PeftModel.from_pretrained(base, tmp_path / "peft").eval()
    again = load_tokenizer(tmp_path / "hf")
    ids = torch.tensor(again.encode("i pray you")[None, :-1].astype(np.int64))
    with torch.no_grad():
        np.testing.assert_allclose(adapted(ids).logits.numpy(), whole(ids).logits.numpy(), atol=1e-4)
    torch.manual_seed(0)
    written = whole.generate(ids, max_new_tokens=12, do_sample=True, pad_token_id=0)[0].tolist()
    assert len(again.decode(written).split()) > 5
