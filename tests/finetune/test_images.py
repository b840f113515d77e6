"""Classifiers of images under example-level privacy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from reticent.config import parse
from reticent.data.images import FIRST, make_digits
from reticent.errors import Refused
from reticent.finetune import work_of
from reticent.models import make
from reticent.training import prepare, train
from tests.data.test_images import write_digits


def test_a_classifier_reads_values_and_is_measured_by_its_label():
    model = make("image-digits")
    params = model.init(jax.random.key(0))
    rows = np.random.default_rng(0).integers(FIRST, FIRST + 17, (4, 65)).astype(np.int32)
    rows[:, -1] = FIRST + np.arange(4)
    scores = np.asarray(model.apply(params, rows[:, :-1]), np.float64)
    expected = [np.log(np.exp(one).sum()) - one[label] for label, one in enumerate(scores)]
    padded = np.concatenate([rows, np.full((3, 65), -1, np.int32)])
    loss, sums = model.loss(params, padded, None)
    assert float(loss) == pytest.approx(np.mean(expected), rel=1e-5)
    assert float(sums["tokens"]) == 4
    assert float(sums["correct"]) == (scores.argmax(1) == np.arange(4)).sum()
    slope = jax.grad(lambda params: model.loss(params, jnp.full((3, 65), -1), None)[0])(params)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(slope))
    with pytest.raises(Refused, match="images of 64 values, not of 20"):
        model.apply(params, rows[:, :20])


def test_parameter_counts():
    # Two pairs of layers of 16, then 64 to 32 to 10.
    assert make("image-digits").parameters == 9_530
    # Three pairs of layers of 32, 64 and 128, then 2,048 to 128 to 10.
    assert make("image-cifar").parameters == 550_570


def digits_file(tmp_path, **tables):
    if not (tmp_path / "store").is_dir():
        write_digits(tmp_path / "digits.csv.gz", images=40)
        make_digits(tmp_path / "store", source=tmp_path / "digits.csv.gz")
    content = {
        "run": {"algorithm": "dpsgd", "rounds": 4, "simulated_row_seed": 1},
        "data": {"store": str(tmp_path / "store"), "sequence_length": 64, "held_out_users": 0.2},
        "model": {"kind": "image-digits"},
        "population": {"size": 32, "sampler": "cyclic-poisson", "groups": 2, "probability": 0.5},
        "mechanism": {"kind": "banded", "bands": 2},
        "clipping": {"norm": 1.0},
        "client": {"micro_batch": 16},
        "privacy": {"noise_multiplier": 1.0, "delta": 1e-3},
        "evaluation": {"every": 4},
    }
    for name, table in tables.items():
        content[name] = {**content[name], **table}
    return parse(content)


def test_a_classifier_is_trained_with_banded_noise(tmp_path):
    setup = prepare(digits_file(tmp_path), work_of=work_of)
    assert (setup.guarantee.unit, setup.description["gradients"]) == ("example", "single")


@pytest.mark.full
def test_a_classifier_goes_through_the_whole_run(tmp_path):
    trained = train(digits_file(tmp_path), tmp_path / "run", work_of=work_of, secrets=tmp_path / "secrets")
    assert trained.verdict.holds
    assert trained.last["targets"] == trained.last["users"]
