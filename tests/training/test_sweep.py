"""Sweeps: every point of a grid once, however often it is interrupted; on private text only what is paid for."""

import json

import pytest

from reticent.config import resolved
from reticent.errors import Refused
from reticent.training import sweep as sweeping
from reticent.training.sweep import Axis, accounted, noise_for_plan, points, starting_rate, sweep
from tests.training.runs import run_file

SHORT = {"run": {"rounds": 2, "checkpoint_every": 2}, "population": {"min_separation": 2}}


@pytest.fixture
def file(people_store, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(resolved(run_file(people_store.path, **SHORT)))
    return path


def test_a_grid_is_every_combination(file):
    axes = [Axis.of("clipping.norm=0.3, 1"), Axis.of("client.learning_rate=1,2,3")]
    found = points(file, axes)
    assert [(one.clipping.norm, one.client.learning_rate) for one, _ in found] == [
        (norm, rate) for norm in (0.3, 1.0) for rate in (1.0, 2.0, 3.0)
    ]
    assert Axis.of("mechanism.restarts=[1,2],[3]").values == ("[1,2]", "[3]")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["clipping.nrom=1"], "no key clipping.nrom.*nearest is clipping.norm"),
        (["clipping.norm"], "is written table.key=value"),
        (["clipping.norm=1", "clipping.norm=2"], "has several"),
        ([], "at least one --grid"),
        (["clipping.norm=auto"], "Only server.learning_rate can be 'auto'"),
        (["clipping.norm=-1"], "clipping.norm"),
    ],
)
def test_what_is_no_grid_is_refused_before_the_first_run(file, texts, message):
    with pytest.raises(Refused, match=message):
        points(file, [Axis.of(text) for text in texts])


def test_the_starting_rate_is_the_regression_s(file):
    from reticent.config import load
    from reticent.training import prepare

    setup = prepare(load(file))
    inverse = setup.mechanism.inverse(2)
    sums = [(inverse[: round + 1].sum(0) ** 2).sum() for round in range(2)]
    error = (sum(sums) / 2) ** 0.5 * setup.noise_multiplier / 12
    import math

    exact = math.exp(-0.95 * math.log(error) - 4.64)
    assert starting_rate(load(file)) / exact == pytest.approx(1, abs=0.31)
    found = points(file, [Axis.of("server.learning_rate=auto")])
    assert len(found) == 3
    assert found[1][0].server.learning_rate == pytest.approx(starting_rate(load(file)), rel=1e-3)


def test_it_goes_on_where_it_was_and_is_a_table(file, tmp_path, monkeypatch):
    found = points(file, [Axis.of("privacy.noise_multiplier=1.5,2")])
    with pytest.raises(Refused, match="may be private"):
        sweep(found, tmp_path / "out", secrets=tmp_path / "s")
    made, real = [], sweeping.train

    def counted(run_file, place, **more):
        made.append(place.name)
        if len(made) == 2:
            raise KeyboardInterrupt
        return real(run_file, place, **more)

    monkeypatch.setattr(sweeping, "train", counted)
    with pytest.raises(KeyboardInterrupt):
        sweep(found, tmp_path / "out", public=True, secrets=tmp_path / "s")
    rows = sweep(found, tmp_path / "out", public=True, secrets=tmp_path / "s")
    assert made == ["000", "001", "001"]
    assert [row["noise_multiplier"] for row in rows] == [1.5, 2.0]
    assert json.loads((tmp_path / "out" / "sweep.json").read_text())["runs"] == rows
    with pytest.raises(Refused, match="another sweep"):
        sweep(points(file, [Axis.of("privacy.noise_multiplier=2")]), tmp_path / "out", public=True)


def test_the_noise_to_plan_with_is_the_most_that_costs_little():
    rows = [
        {"top1": top1, "noise_multiplier": noise, "report_goal": 100}
        for noise, top1 in ((0.1, 0.2), (0.2, 0.199), (0.3, 0.197), (0.4, 0.19))
    ]
    assert noise_for_plan(rows)["noise_multiplier"] == 0.3
    assert noise_for_plan(rows[:1]) is None


def test_a_choice_on_private_text_is_paid_for_and_shows_the_best_alone(file, tmp_path, monkeypatch):
    from reticent.accounting.tuning import tuned
    from reticent.training import prepare

    found = points(file, [Axis.of("client.learning_rate=0.3,0.6")], ["run.simulated_row_seed=3"])
    monkeypatch.setattr(sweeping, "_poisson", lambda source, mean: 2)
    told = accounted(found, tmp_path / "out", 3.0, secrets=tmp_path / "s")
    each = prepare(found[0][0]).guarantee
    assert told["epsilon"] == pytest.approx(tuned(each, 3.0).epsilon(1e-3), rel=1e-6)
    assert told["epsilon"] > 1.2 * each.epsilon(1e-3)
    assert not list((tmp_path / "s").iterdir())
    assert not (tmp_path / "out" / "report.html").exists()
    assert "Poisson" in (tmp_path / "out" / "statement.md").read_text()
    monkeypatch.setattr(sweeping, "_poisson", lambda source, mean: 0)
    assert accounted(found, tmp_path / "none", 3.0, secrets=tmp_path / "s")["chosen"] is None
    assert not (tmp_path / "none").exists()


def test_poisson_numbers_have_their_mean_and_variance():
    import random
    import statistics

    source = random.Random(0)
    drawn = [sweeping._poisson(source, 4.0) for _ in range(4000)]
    assert statistics.mean(drawn) == pytest.approx(4, abs=0.2)
    assert statistics.variance(drawn) == pytest.approx(4, abs=0.5)
