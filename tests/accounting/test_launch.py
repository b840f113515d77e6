"""The planner: its arithmetic against the papers', what it marks as impossible, what it recommends, where the user is."""

import dataclasses
import math

import pytest

from reticent.accounting.checklist import Progress, checklist
from reticent.accounting.launch import GBOARD, MECHANISMS, Launch, Plan, Ratio, Row, plan, run_file
from reticent.accounting.learning_rate import LARGEST, effective_error, starting_rate
from reticent.accounting.matrix import matrix_guarantee
from reticent.accounting.timers import best_timer, play
from reticent.errors import Refused
from reticent.mechanisms import Participation, make
from reticent.population.availability import Devices

# gboard, Table 1: devices in millions and rounds.
POPULATIONS = {
    "de-DE": (3.24, 930), "en-GB": (2.38, 980), "fr-FR": (2.79, 1280), "it-IT": (3.32, 1620), "pt-PT": (0.83, 530),
    "es-ES": (4.21, 1900), "en-US": (13, 2800), "pt-BR": (16.6, 3600), "en-IN": (7.72, 1290), "es-MX": (9.96, 1980),
    "es-AR": (4.09, 640),
}  # fmt: skip
ES_ES = Launch(4_210_000, 1900, (6500,), delta=1e-10, over_selection=1.0)


def row_of(found: Plan, mechanism: str, goal: int = 6500) -> Row:
    return next(row for row in found.rows if (row.mechanism, row.report_goal) == (mechanism, goal))


def test_a_row_is_the_papers_arithmetic() -> None:
    # gboard, Sec. 2.2: 4.21M / 6500 is about 647 rounds.
    row = row_of(plan(ES_ES), "tree")
    assert (row.invited, row.min_separation, row.max_participations, row.noise_multiplier) == (6500, 647, 3, 7.0)
    participation = Participation(1900, 647)
    tree = make("tree", participation)
    guarantee = matrix_guarantee(tree, participation, 7.0)
    assert (row.rho, row.epsilon) == (guarantee.rho, guarantee.epsilon(1e-10))
    assert row.effective_error == pytest.approx(tree.rms_error(1900) * 7 / 6500)
    assert row_of(plan(dataclasses.replace(ES_ES, over_selection=1.1)), "tree").min_separation == 4_210_000 // 7150


@pytest.mark.parametrize("name", POPULATIONS)
def test_the_largest_separation_of_every_population_is_above_what_was_reached(name: str) -> None:
    from tests.accounting.test_papers import GBOARD as REACHED

    millions, rounds = POPULATIONS[name]
    found = plan(Launch(round(millions * 1e6), rounds, (6500,), delta=1e-10, over_selection=1.0))
    row = row_of(found, "tree")
    assert row.min_separation == min(round(millions * 1e6) // 6500, rounds)
    assert row.min_separation > REACHED[name][1]
    assert row.rho <= REACHED[name][3] + 0.005
    assert row.max_participations == math.ceil(rounds / row.min_separation)


def test_noise_grows_with_the_report_goal_and_keeps_the_noise_in_the_model() -> None:
    found = plan(dataclasses.replace(ES_ES, report_goals=(500, 6500), ratios=(Ratio(0.54, 500),)))
    assert row_of(found, "tree", 6500).noise_multiplier == pytest.approx(0.54 * 13)
    for goal in (500, 6500):
        noise = {
            row.mechanism: row.noise_multiplier * make(row.mechanism, Participation(1900)).max_error(1900) / goal
            for row in found.rows
            if row.report_goal == goal
        }
        assert noise == pytest.approx(dict.fromkeys(MECHANISMS, noise["tree"]))
    average = plan(dataclasses.replace(ES_ES, objective="rms"))
    errors = {row.effective_error for row in average.rows}
    assert max(errors) == pytest.approx(min(errors))


def test_matching_the_noise_in_the_model_gives_about_the_papers_noise() -> None:
    # blt, Sec. 5: the BLTs that were used beside a tree at 7 for 6,500 reports.
    found = plan(Launch(16_600_000, 2000, (6500,), over_selection=1.0))
    for name, used in (("blt-100", 3.12 * 6500 / 3000), ("blt-400", 7.379), ("blt-1000", 8.681)):
        assert row_of(found, name).noise_multiplier == pytest.approx(used, rel=0.13)


def test_a_mechanism_may_have_a_ratio_of_its_own() -> None:
    # blt, Table 2: pt-BR with 8.681 at 6,500 reports, and 16.1 at 12,000.
    launch = Launch(
        16_600_000, 2000, (6500, 12_000), (GBOARD, Ratio(8.681, 6500, "blt-1000")), ("tree", "blt-1000"), 1e-10,
        over_selection=1.0,
    )  # fmt: skip
    found = plan(launch)
    first, second = row_of(found, "blt-1000"), row_of(found, "blt-1000", 12_000)
    assert first.noise_multiplier == 8.681
    assert second.noise_multiplier == pytest.approx(16.1, rel=0.01)
    assert (first.min_separation, second.min_separation) == (2000, 1383)
    assert first.epsilon == pytest.approx(1.25, abs=0.005)


def test_what_cannot_be_is_marked_and_says_why() -> None:
    found = plan(Launch(10_000, 300, (500, 20_000), over_selection=1.0, min_separation=18))
    assert row_of(found, "tree", 500).why_not is None
    assert (
        "20,000 devices and there are 10,000; lower the report goal to 10,000" in row_of(found, "tree", 20_000).why_not
    )
    assert row_of(found, "tree", 20_000).epsilon is None
    tight = plan(Launch(10_000, 300, (500, 1000), over_selection=1.0, min_separation=18))
    assert "18 rounds apart needs 18,000 devices and there are 10,000; lower the min separation to 10" in (
        row_of(tight, "tree", 1000).why_not
    )
    made = plan(Launch(10_000, 300, (500,), mechanisms=("tree", "no-such-file.npz")))
    assert "no mechanism file or kind 'no-such-file.npz'" in row_of(made, "no-such-file.npz", 500).why_not
    with pytest.raises(Refused, match="Nothing of this can be launched: a round invites 22,000 devices"):
        plan(Launch(10_000, 300, (20_000,)))


def test_a_mechanism_made_for_fewer_rounds_is_refused(tmp_path) -> None:
    file = tmp_path / "short.npz"
    make("banded", Participation(60, 6)).save(file)
    found = plan(Launch(10_000, 61, (100,), mechanisms=("tree", str(file))))
    assert "made for 60 rounds" in row_of(found, str(file), 100).why_not
    fits = plan(Launch(10_000, 60, (100,), mechanisms=("tree", str(file))))
    assert run_file(dataclasses.replace(fits, recommended=dataclasses.replace(
        fits.recommended, row=row_of(fits, str(file), 100))))["mechanism"] == {"file": str(file)}  # fmt: skip


def test_everybody_once_needs_no_separation() -> None:
    found = plan(Launch(10_000_000, 100, (500,), over_selection=1.0, min_separation=4000))
    assert (found.rows[0].min_separation, found.rows[0].max_participations) == (100, 1)
    timed = plan(Launch(10_000, 300, (500,), over_selection=1.0, timer_rounds=12))
    assert timed.rows[0].min_separation == 12
    assert plan(Launch(10_000, 300, (500,), over_selection=1.0, timer_rounds=99)).rows[0].min_separation == 20
    limited = plan(Launch(10_000, 300, (500,), over_selection=1.0, max_participations=2))
    assert limited.rows[0].max_participations == 2


def test_the_recommendation_is_the_smallest_goal_that_keeps_to_the_target() -> None:
    launch = dataclasses.replace(ES_ES, report_goals=(500, 1000, 2000, 4000, 8000), epsilon=4.0)
    found = plan(launch)
    best = found.recommended
    kept = [row for row in found.rows if row.meets]
    assert best.row in kept
    assert best.row.report_goal == min(row.report_goal for row in kept)
    assert best.row.rho == min(row.rho for row in kept if row.report_goal == best.row.report_goal)
    assert (best.extra_noise, best.noise_multiplier) == (1, best.row.noise_multiplier)
    assert all(row.meets == (row.epsilon <= 4.0) for row in found.rows)
    by_rho = plan(dataclasses.replace(launch, epsilon=None, rho=0.2))
    assert all(row.meets == (row.rho <= 0.2) for row in by_rho.rows)
    assert all(row.meets is None for row in plan(dataclasses.replace(launch, epsilon=None)).rows)


def test_where_nothing_keeps_to_the_target_the_noise_grows_alone() -> None:
    found = plan(dataclasses.replace(ES_ES, report_goals=(500, 1000), epsilon=0.5))
    best = found.recommended
    assert best.row.report_goal == 1000
    assert best.extra_noise == pytest.approx(best.noise_multiplier / best.row.noise_multiplier)
    assert best.extra_noise > 1
    assert best.guarantee.epsilon(1e-10) == pytest.approx(0.5, rel=1e-6)
    assert best.guarantee.epsilon(1e-10) <= 0.5
    assert "less accurate" in best.why
    assert best.learning_rate < best.row.learning_rate or best.row.learning_rate == LARGEST
    kept = run_file(found, clip_norm=0.5)
    assert best.noise_multiplier <= kept["privacy"]["noise_multiplier"] <= best.noise_multiplier * (1 + 1e-7)
    assert kept["clipping"] == {"norm": 0.5}
    assert kept["server"]["learning_rate"] == pytest.approx(2 * best.learning_rate, rel=0.01)


def test_a_user_of_several_devices() -> None:
    one, three = plan(ES_ES), plan(dataclasses.replace(ES_ES, devices_per_user=3))
    assert row_of(three, "tree").rho == pytest.approx(9 * row_of(one, "tree").rho)
    told = three.recommended.guarantee
    assert told.unit == "user"
    assert any("at most 3 devices" in one for one in told.assumptions)


def test_the_guarantee_of_a_row_is_what_its_run_file_gives() -> None:
    from reticent.accounting.run import guarantee_of

    found = plan(dataclasses.replace(ES_ES, epsilon=3.0))
    keys = run_file(found)
    accounting = {
        "rounds": keys["run"]["rounds"],
        "noise_multiplier": keys["privacy"]["noise_multiplier"],
        "mechanism": keys["mechanism"]["kind"],
        "participation": {
            "kind": "deterministic",
            "min_separation": keys["population"]["min_separation"],
            "max_participations": keys["population"]["max_participations"],
        },
    }
    assert guarantee_of(accounting).rho == pytest.approx(found.recommended.guarantee.rho, rel=1e-6)
    assert guarantee_of(accounting).rho <= found.recommended.guarantee.rho
    assert keys["privacy"]["delta"] == 1e-10
    assert "delta" not in run_file(plan(dataclasses.replace(ES_ES, delta=None)))["privacy"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"population": 0}, "population must be"),
        ({"rounds": 0}, "rounds must be"),
        ({"report_goals": ()}, "report_goals is empty"),
        ({"report_goals": (0,)}, "report goal must be"),
        ({"over_selection": 0.9}, "at least 1"),
        ({"epsilon": 1.0, "rho": 1.0}, "one target"),
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"rho": -1.0}, "rho must be"),
        ({"delta": 0.0}, "delta must be"),
        ({"delta": 1.0}, "delta must be"),
        ({"min_separation": 0}, "min_separation must be"),
        ({"devices_per_user": 0}, "devices_per_user must be"),
    ],
)
def test_bad_input(changes: dict, sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        dataclasses.replace(ES_ES, **changes)
    with pytest.raises(Refused, match="epsilon is infinite"):
        Ratio(0.0, 500)


# bandmf, Table 4: epsilon, the noise multiplier, the best server learning rate with independent noise (sensitivity
# sqrt 6) and with 1,000 clients a round.
RATES = [(4.22468, 0.0244), (2.23048, 0.0414), (1.19352, 0.0704), (0.65294, 0.1197), (0.36861, 0.3460)]


@pytest.mark.parametrize(("noise", "best"), RATES)
def test_the_starting_rate_is_a_step_from_the_best(noise: float, best: float) -> None:
    error = effective_error(make("independent", Participation(2052)).rms_error(2052), noise * math.sqrt(6), 1000)
    assert best / 1.71 <= starting_rate(error) <= 1.71 * best
    assert math.log(starting_rate(error)) == pytest.approx(-0.95 * math.log(error) - 4.64)


def test_the_starting_rate_does_not_run_away() -> None:
    assert starting_rate(1e-9) == LARGEST
    for error in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(Refused):
            starting_rate(error)
        with pytest.raises(Refused):
            effective_error(1.0, error, 100)


@pytest.mark.parametrize(
    ("launch", "progress", "now"),
    [
        ({}, Progress(), 2),
        ({}, Progress(ratio_found=True), 3),
        ({"epsilon": 5.0}, Progress(ratio_found=True), 4),
        ({"epsilon": 5.0}, Progress(ratio_found=True, timer_chosen=True), 5),
        ({"epsilon": 5.0}, Progress(True, True, True, 5.0), 6),
        ({"epsilon": 5.0}, Progress(timer_chosen=True, clip_norm=5.0), 2),
    ],
)
def test_the_checklist_knows_where_the_user_is(launch: dict, progress: Progress, now: int) -> None:
    steps = checklist(plan(dataclasses.replace(ES_ES, **launch)), progress)
    assert [step.number for step in steps] == list(range(1, 8))
    assert [step.number for step in steps if step.state == "now"] == [now]
    assert all(step.state == "done" for step in steps[1 : now - 1] if step.number != 5)
    assert steps[0].state == ("done" if progress.pretrained else "open")
    assert steps[6].state == "open"


def test_timers_are_played_for_the_recommended_row() -> None:
    found = plan(Launch(5_000, 40, (50,), delta=1e-6, over_selection=1.1))
    played = play(found, Devices(5_000), (2.0, 48.0), seed=1)
    assert [one.timer_hours for one in played] == [2.0, 48.0]
    for one in played:
        seen = one.observed
        assert seen.finished
        made = found.recommended.row.made
        guarantee = matrix_guarantee(made, seen.participation, found.recommended.noise_multiplier)
        assert one.rho == guarantee.rho
        assert one.summary()["epsilon_if_so"] == guarantee.epsilon(1e-6)
    assert played[1].rho < played[0].rho
    assert best_timer(played) is played[1]
    with pytest.raises(Refused, match="No timer finished"):
        best_timer(play(found, Devices(5_000), (48.0,), max_days=0.05))
