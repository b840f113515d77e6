import numpy as np
import pytest

from reticent.audit.phrases import by_chance, exposure, inference


def test_exposure_by_hand():
    others = np.arange(1.0, 8.0)  # with the phrase, eight
    np.testing.assert_allclose(exposure(np.array([0.5, 1.5, 7.5, 1.0]), others), [3, 2, 0, 2])


def test_a_phrase_that_was_never_seen_is_exposed_by_chance_only():
    rng = np.random.default_rng(0)
    chances = [by_chance(exposure(rng.normal(size=8), rng.normal(size=4096)).tolist()) for _ in range(500)]
    assert np.mean(np.array(chances) < 0.05) == pytest.approx(0.05, abs=0.03)
    assert by_chance(exposure(np.full(8, -9.0), rng.normal(size=4096)).tolist()) < 1e-15
    assert by_chance([]) == 1


def test_inference_counts_pairs():
    rng = np.random.default_rng(1)
    members, others = rng.integers(0, 9, 30) + 1.0, rng.integers(0, 9, 50).astype(float)
    pairs = members[:, None] - others
    found = inference(members, others)
    assert found.auc == pytest.approx(((pairs > 0) + 0.5 * (pairs == 0)).mean())
    assert found.interval[0] < found.auc < found.interval[1]


def test_its_interval_covers():
    rng, truth = np.random.default_rng(2), 0.7602  # of two normals one apart
    found = [inference(rng.normal(1, size=40), rng.normal(size=200)) for _ in range(400)]
    inside = [one.interval[0] <= truth <= one.interval[1] for one in found]
    assert np.mean(inside) > 0.9
