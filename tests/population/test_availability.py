"""The availability model against a slow one that plays each device's clock, and against what must hold of any."""

import heapq
import json
import math

import numpy as np
import pytest

from reticent.errors import Refused
from reticent.population.availability import BUSIEST, Devices, Rounds, simulate


def play_slowly(devices, plan, seed):
    """Every device's next check-in on a heap, with nothing shared with the fast one but the model's description."""
    random = np.random.default_rng(seed)
    activity = np.exp(devices.activity_spread * random.standard_normal(devices.population))
    activity = np.minimum(activity / np.exp(devices.activity_spread**2 / 2), BUSIEST)
    activity /= activity.mean()
    zone = devices.zone_spread_hours * random.standard_normal(devices.population)
    low = 1 / devices.night_to_day

    def level(hour):
        return low + (1 - low) * (1 + math.cos(2 * math.pi * (hour - devices.peak_hour) / 24)) / 2

    def next_check_in(user, hour):
        fastest = devices.check_ins_per_day / 24 * activity[user] / ((1 + low) / 2)
        while True:
            hour += random.exponential(1 / fastest)
            if random.random() < level(hour + zone[user]):
                return hour

    clocks = [(next_check_in(user, 0.0), user) for user in range(devices.population)]
    heapq.heapify(clocks)
    hour, counts, last, separation = 0.0, np.zeros(devices.population), {}, math.inf
    for round in range(plan.rounds):
        invited = []
        while len(invited) < plan.invited:
            time, user = heapq.heappop(clocks)
            if time < hour:  # checked in while no round was open
                heapq.heappush(clocks, (next_check_in(user, hour), user))
                continue
            invited.append(user)
        hour = time
        for user in invited:
            heapq.heappush(clocks, (next_check_in(user, hour + plan.timer_hours), user))
            counts[user] += 1
            separation = min(separation, round - last.get(user, -math.inf))
            last[user] = round
        reports = devices.report_minutes * np.exp(devices.report_spread * random.standard_normal(len(invited)))
        stay = random.random(len(invited)) >= devices.dropout
        hour += np.sort(reports[stay])[plan.report_goal - 1] / 60
    return hour / 24, separation, counts


@pytest.mark.parametrize("timer", [5.0, 30.0])
def test_like_a_slow_model_that_plays_each_clock(timer):
    devices = Devices(600, check_ins_per_day=6, dropout=0.02, zone_spread_hours=3)
    plan = Rounds(120, 8, timer, over_selection=1.5, timeout_minutes=1e6)
    fast, slow = [], []
    for seed in range(12):
        observed = simulate(devices, plan, seed)
        fast.append((observed.days, observed.min_separation, observed.max_participations, observed.participants))
        days, separation, counts = play_slowly(devices, plan, 100 + seed)
        slow.append((days, separation, counts.max(), np.sum(counts > 0)))
    fast, slow = np.array(fast, float), np.array(slow, float)
    error = np.sqrt((fast.var(0, ddof=1) + slow.var(0, ddof=1)) / len(fast))
    assert np.all(np.abs(fast.mean(0) - slow.mean(0)) <= 4 * error + 0.02 * slow.mean(0)), (fast.mean(0), slow.mean(0))


def test_waiting_times_of_an_even_population_follow_from_its_rate():
    devices = Devices(100_000, check_ins_per_day=3, activity_spread=0, night_to_day=1, zone_spread_hours=0, dropout=0)
    observed = simulate(devices, Rounds(200, 500, 0.0, over_selection=1, timeout_minutes=1e6))
    per_minute = 100_000 * 3 / 24 / 60
    assert observed.waiting_minutes["p50"] == pytest.approx(500 / per_minute, rel=0.02)
    assert observed.largest_separation == 200


def test_longer_timers_separate_more_until_the_population_is_used_up():
    devices = Devices(30_000)
    separations = [simulate(devices, Rounds(400, 100, hours)).min_separation for hours in (6, 24, 48, 96)]
    assert separations == sorted(separations)
    assert separations[1] > 2 * separations[0]
    assert separations[-1] <= 30_000 // 110
    rare = simulate(devices, Rounds(400, 100, 24 * 60, max_days=30))
    assert not rare.finished
    assert rare.rounds < 30_000 // 100
    assert rare.min_separation is None
    assert rare.participation.most == 1


def test_rounds_wait_longer_by_day_than_by_night():
    devices = Devices(20_000, zone_spread_hours=0, night_to_day=6)
    observed = simulate(devices, Rounds(600, 100, 12, timeout_minutes=60))
    assert observed.waiting_minutes["p90"] > 2 * observed.waiting_minutes["p10"]
    assert sum(observed.by_day) <= 600


def test_rounds_given_up_count_for_those_who_were_in_them():
    devices = Devices(3000, dropout=0.3)
    observed = simulate(devices, Rounds(60, 100, 1.0, over_selection=1.45))
    assert observed.attempts > 60
    assert observed.finished


def test_the_same_seed_plays_the_same():
    plan = Rounds(50, 100, 4.0)
    assert simulate(Devices(5000), plan, 3).summary() == simulate(Devices(5000), plan, 3).summary()
    assert simulate(Devices(5000), plan, 3).summary() != simulate(Devices(5000), plan, 4).summary()


def test_what_could_never_finish_is_refused_with_the_remedy():
    with pytest.raises(Refused, match=r"raise over_selection to at least 1\.25"):
        simulate(Devices(5000, dropout=0.2), Rounds(5, 100, 1.0, over_selection=1.1))
    with pytest.raises(Refused, match="lower report_goal to 45 or less"):
        simulate(Devices(50), Rounds(5, 100, 1.0))
    with pytest.raises(Refused, match="Not one round was finished"):
        simulate(Devices(50_000), Rounds(5, 1000, 1.0, timeout_minutes=0.5, max_days=1))
    for bad in ({"dropout": 1.0}, {"check_ins_per_day": 0}, {"night_to_day": 0.5}, {"activity_spread": -1}):
        with pytest.raises(Refused):
            Devices(100, **bad)
    for bad in ({"timer_hours": -1.0}, {"over_selection": 0.9}, {"max_days": 0}):
        with pytest.raises(Refused):
            Rounds(**{"rounds": 10, "report_goal": 5, "timer_hours": 1.0, **bad})


def test_the_verb_prints_a_table_or_one_object(capsys):
    from reticent.cli.main import app

    arguments = ["population", "simulate", "--population", "20000", "--report-goal", "100", "--rounds", "100"]
    arguments += ["--timer-hours", "6", "--timer-hours", "12"]
    app(arguments, standalone_mode=False)
    assert "20,000 devices, 100 reports a round" in capsys.readouterr().out
    app([*arguments, "--json"], standalone_mode=False)
    printed = json.loads(capsys.readouterr().out)
    assert [one["timer_hours"] for one in printed["timers"]] == [6, 12]
    assert printed["timers"][0]["min_separation"] < printed["timers"][1]["min_separation"]
