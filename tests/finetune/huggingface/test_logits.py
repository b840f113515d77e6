"""The same logits as `transformers`, loaded and written back."""

import jax
import numpy as np
import pytest

from reticent.finetune.huggingface import open_checkpoint
from reticent.models.transformer import transformer
from tests.finetune.huggingface.peers import MODELS, made

pytestmark = pytest.mark.peers

TOKENS = np.random.default_rng(0).integers(0, 61, (2, 24))


def theirs(model, tokens=TOKENS):
    import torch

    with torch.no_grad():
        return model(torch.tensor(tokens)).logits.numpy()


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers_and_stay_so_when_written_back(name, tmp_path):
    import transformers

    model = made(name, tmp_path / "theirs")
    expected = theirs(model)
    # Everything is at work: what the option does is far above the tolerance.
    assert expected.std() > 0.1
    checkpoint = open_checkpoint(tmp_path / "theirs")
    params = checkpoint.params()
    ours = jax.jit(transformer(checkpoint.shape).apply)(params, TOKENS)
    np.testing.assert_allclose(ours, expected, atol=1e-4, rtol=1e-4)
    (tmp_path / "back").mkdir()
    checkpoint.write(params, tmp_path / "back")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back", attn_implementation="eager")
    np.testing.assert_allclose(theirs(again.float().eval()), expected, atol=1e-5, rtol=1e-5)
    once_more = open_checkpoint(tmp_path / "back").params()
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), once_more, params)
