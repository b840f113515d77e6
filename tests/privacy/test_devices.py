import functools
import json
import subprocess
import sys

import pytest


@functools.cache
def on(count: int) -> dict:
    command = [sys.executable, "-m", "tests.privacy.devices", str(count)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.full)])
def test_noise_is_the_same_on_any_number_of_devices(count):
    one, many = on(1), on(count)
    assert {name: made["digest"] for name, made in many.items()} == {name: made["digest"] for name, made in one.items()}


def test_every_device_makes_its_own_part_alone():
    for count in (2, 4):
        exchanging = {name: made["exchanges"] for name, made in on(count).items() if made["exchanges"]}
        assert all("seams" in name for name in exchanging), exchanging
    # And no more than its part: what a program needs beside its arguments halves with it.
    for name in (
        "row_key normals rows",
        "row_key normals columns",
        "simulation_threefry_key normals rows",
        "noise blt",
    ):
        assert on(4)[name]["bytes"] < 0.6 * on(2)[name]["bytes"] + 2**13, name
