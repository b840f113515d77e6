"""Group sizes: Estimate-and-Double against trying everything, histograms with and without noise, and what reading costs."""

import json
import math

import numpy as np
import pytest

from reticent.errors import Refused
from reticent.finetune import work_of
from reticent.finetune.choosing import choose
from reticent.finetune.sizes import (
    COUNTS,
    NORMS,
    Histograms,
    estimate_and_double,
    group_sizes_up_to,
    guarantee_of_reading,
    noise_for,
    splits,
)
from reticent.training import prepare
from tests.finetune.test_runs import run_file


def test_doubling_what_helps_more_ends_near_the_best_of_all_splits():
    # Gradients a tenth alike; noise of an average that falls like 1 / M until sampling no longer amplifies.
    def norm(group):
        return math.sqrt(0.1 + 0.9 / group)

    def noise(cohort):
        return (0.6 + cohort / 512) / cohort

    path = estimate_and_double(norm, noise, 4096, 100_000, 256)
    assert path[0] == (1, 32)
    assert all(g * m == 32 * 2**step for step, (g, m) in enumerate(path))
    assert {g for g, _ in path} > {1}
    assert {m for _, m in path} > {32}
    for group, cohort in path[1:]:
        budget = group * cohort
        every = [norm(2**power) * noise(budget // 2**power) for power in range(9) if budget // 2**power >= 32]
        assert norm(group) * noise(cohort) <= 1.1 * min(every)
    alike = estimate_and_double(lambda group: 1.0, lambda cohort: 1 / cohort, 1024, 100_000, 256)
    assert alike[-1] == (1, 1024)
    diverse = estimate_and_double(lambda group: 1 / math.sqrt(group), lambda cohort: 1.0, 1024, 100_000, 256)
    assert diverse[-1] == (32, 32)


def test_doubling_stops_where_everything_is_spent():
    path = estimate_and_double(lambda group: 1 / group, lambda cohort: 1.0, 10**9, 200, 8)
    assert path[-1] == (8, 128)


def histograms():
    counts, norms = np.zeros(len(COUNTS)), {}
    counts[np.searchsorted(COUNTS, 8)] = 500
    counts[np.searchsorted(COUNTS, 16)] = 300
    for group in group_sizes_up_to(16):
        norms[group] = np.zeros(len(NORMS))
        norms[group][np.searchsorted(NORMS, 2 / math.sqrt(group))] = 800
    return Histograms(counts, norms, 800.0)


def test_both_algorithms_are_predicted_side_by_side():
    found = histograms()
    assert found.median_examples == 8
    assert found.examples(8) == 800 * 8
    assert found.norm(4) == pytest.approx(1.0)
    calls = []

    def sigma(probability, group):
        calls.append((probability, group))
        return 1.0 * group

    table = splits(found, sigma, 512, users=8000)
    for uls, els in table:
        assert uls.group * uls.drawn == uls.budget == els.budget
        assert uls.predicted == pytest.approx(uls.norm / uls.drawn)
        # 8,000 users, by the public estimate, with 8 examples each.
        assert els.probability == pytest.approx(els.budget / 64_000)
        assert els.predicted == pytest.approx(8 * 2.0 / els.budget)


def test_noise_keeps_to_what_reading_may_cost():
    noise = noise_for(0.3, 1e-5, 8)
    assert guarantee_of_reading(noise, 8).epsilon(1e-5) == pytest.approx(0.3, rel=1e-6)


def test_reading_is_private_or_public_and_says_so(people_store, tmp_path):
    made = run_file(people_store, "uls", privacy={"epsilon": 2.0, "noise_multiplier": None})
    with pytest.raises(Refused, match="--public STORE, or give --epsilon"):
        choose(made)
    exact = choose(made, public=str(people_store.path), budget=4, users=20)
    assert (exact["guarantee"], exact["source"]) == (None, "public")
    assert list(exact["norms"]) == ["1", "2", "4"]
    noised = choose(made, epsilon=1.0, budget=4, users=20)
    assert noised["source"] == "private"
    assert noised["cost"]["epsilon"] == pytest.approx(1.0, rel=1e-6)
    # Composed with the run: more than the run alone, for which the same noise is then not enough.
    path = tmp_path / "sizes.json"
    path.write_text(json.dumps({"guarantee": noised["guarantee"]}))
    alone = prepare(made, work_of=work_of)
    both = prepare(
        run_file(people_store, "uls", privacy={"epsilon": 2.0, "noise_multiplier": None, "composed_with": [str(path)]}),
        work_of=work_of,
    )
    assert both.noise_multiplier > alone.noise_multiplier
    assert both.guarantee.epsilon(1e-3) <= 2.0
    assert any("learned of the same people" in told for told in both.description["also_covered"])
    path.write_text("{}")
    with pytest.raises(Refused, match=r"sizes\.json, which holds no guarantee"):
        prepare(
            run_file(people_store, "uls", privacy={"composed_with": [str(path)]}),
            work_of=work_of,
        )


def test_what_cannot_be_chosen_is_refused(people_store):
    with pytest.raises(Refused, match="give privacy.epsilon"):
        choose(run_file(people_store, "uls"), public=str(people_store.path))
    with pytest.raises(Refused, match="not for 'dpsgd'"):
        choose(run_file(people_store, "dpsgd"), public=str(people_store.path))


def test_a_noised_median_is_near_the_true_one():
    from reticent.finetune.sizes import _median, _noised

    counts = np.zeros(len(COUNTS))
    counts[5:9] = [200, 300, 300, 200]
    medians = [_median(_noised(counts, 10.0)) for _ in range(200)]
    assert _median(counts) == 6
    assert np.mean([abs(one - 6) <= 1 for one in medians]) > 0.95
