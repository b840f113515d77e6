"""The models of docs/models.md, as they are printed there."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

from reticent.models.clients import local_updates
from reticent.training.export import named

GUIDE = Path(__file__).parents[2] / "docs" / "models.md"
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


@pytest.mark.parametrize(
    "framework",
    [
        "plain",
        pytest.param("flax", marks=pytest.mark.peers),
        *(pytest.param(name, marks=pytest.mark.peers) for name in ("equinox", "haiku")),
    ],
)
def test_a_model_of_any_framework_learns(framework, tmp_path):
    if framework != "plain":
        pytest.importorskip(framework)
    kind = "sums" if framework == "plain" else framework
    (block,) = [block for block in BLOCKS if f'kind="{kind}"' in block]
    said: dict = {}
    exec(block, said)
    model = said["model"]
    params = model.init(jax.random.key(0))
    assert model.parameters == sum(leaf.size for leaf in jax.tree.leaves(params))
    tokens = np.random.default_rng(0).integers(0, 1004, (2, 3, 4, 7)).astype(np.int32)
    tokens[:, :, 1:, 4:] = -1
    scores = model.apply(params, np.maximum(tokens[0, 0], 0))
    assert scores.shape == (4, 7, 1004)
    changed = np.maximum(tokens[0, 0], 0)
    changed[:, 4:] = 5
    np.testing.assert_allclose(model.apply(params, changed)[:, :4], scores[:, :4], rtol=1e-5, atol=1e-6)
    update = jax.jit(lambda params: local_updates(model, params, tokens, 0.5, total=True))(params)
    after = jax.tree.map(lambda value, change: value + change / 2, params, update)
    assert model.loss(after, tokens[0, 0], None)[0] < model.loss(params, tokens[0, 0], None)[0]
    names = named(params)
    assert len(names) == len(jax.tree.leaves(params))
    assert all(re.fullmatch(r"[\w/~]+(\.[\w/~]+)*", name) for name in names), list(names)


def test_the_guide_tells_the_parameters_that_there_are():
    from reticent.models import KINDS, make

    table = {
        found[1]: int(found[2].replace(",", ""))
        for found in re.finditer(r"^\| `([\w-]+)` \|.*\| ([\d,]+)\b[^|]*\|$", GUIDE.read_text(), re.MULTILINE)
    }
    assert table
    for kind, count in table.items():
        assert make(kind).parameters == count
    assert table.keys() >= {kind for kind in KINDS if kind != "huggingface" and not kind.startswith("image-")}
