"""Over real processes and sockets, on the loopback: TLS, logins, devices killed in the middle of rounds."""

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from reticent.deploy.deployment import summed
from reticent.deploy.diary import Diary
from reticent.deploy.local import LocalFederation
from reticent.ledger import Files
from reticent.ledger.lines import read_ledger
from reticent.ledger.secrets import Secrets, place_of_secrets
from reticent.training.finished import load_trained
from tests.deploy.made import enrolled, terms_of
from tests.deploy.test_deployment import apart, flat, simulated
from tests.deploy.trained import run_file

NOISE_OFF = {"noise_multiplier": 0.0, "delta": 1e-3}


class Killer(threading.Thread):
    """`kill -9` for devices in the middle of a round: where one has the secrets of a round under way on its disk."""

    def __init__(self, federation: LocalFederation, kills: int, seed: int):
        super().__init__(daemon=True)
        self.federation, self.kills, self.killed = federation, kills, []
        self.random = random.Random(seed)
        self.over = threading.Event()

    def run(self):
        while len(self.killed) < self.kills and not self.over.wait(0.1):
            at_work = [path.parents[2] for path in self.federation.out.glob("keys/devices/*/rounds/*/attempt.json")]
            at_work = [path for path in at_work if path.name not in self.killed]
            if at_work:
                victim = self.random.choice(at_work)
                time.sleep(self.random.uniform(0, 3))
                self.federation.nursery.nodes[victim.name].kill()
                self.killed.append(victim.name)
                self.over.wait(self.random.uniform(5, 15))


def federate(folder: Path, store, devices: int, kills: int, server_kills: int = 0, seed: int = 0, **tables):
    settings = run_file(
        store.path,
        run={"encoding_inflation": 0.0, "keep_secrets": True, **tables.pop("run", {})},
        privacy=NOISE_OFF,
        evaluation={"every": 100},
        **tables,
    )
    federation = LocalFederation(settings, folder / "federation", devices, secrets=folder / "secrets")
    said: list[str] = []
    # Code that comes with a message is never run on a device.
    client = federation.out / "app" / "reticent_app" / "client.py"
    client.write_text(f"import pathlib\npathlib.Path({str(folder / 'owned')!r}).touch()\n{client.read_text()}")
    with federation:
        killer = Killer(federation, kills, seed)
        killer.start()
        for _ in range(server_kills):
            run = federation.start()
            kill_server_app(federation)
            assert not federation.server.follow(run, said.append)
        done = federation.train(said.append)
        killer.over.set()
        killer.join()
        started = [federation.server.program.process.pid, federation.nursery.process.pid]
        started += [node.process for node in federation.nursery.nodes.values()]
    assert done, "\n".join(said)
    assert len(killer.killed) == kills, "\n".join(said)
    assert not [process for process in started if running(process)]
    assert not (folder / "owned").exists()
    check(federation, store)
    return federation, said


def running(process: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


def kill_server_app(federation):
    """`kill -9` of the server's app, once it has asked for updates."""
    while not list((federation.secrets).glob("*/intents/*")):
        time.sleep(0.1)
    time.sleep(random.uniform(0, 5))
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (path / "cmdline").read_bytes()
            if b"flwr-serverapp" in command and f":{federation.server.port}".encode() in command:
                os.kill(int(path.name), signal.SIGKILL)


def check(federation: LocalFederation, store) -> None:
    """What must hold of any finished run, whatever was killed."""
    path, terms = federation.run_directory, federation.terms
    ledger = read_ledger(path / "ledger.jsonl")
    run = ledger.first["run"]
    released = [line["round"] for line in ledger.of_kind("release")]
    burnt = [line["round"] for line in ledger.of_kind("burnt")]
    assert sorted(released + burnt) == list(range(terms.rounds))
    assert len(released) >= terms.rounds / 2
    secrets = place_of_secrets(run, federation.secrets)
    cohorts = {round: devices for round, devices in summed(secrets).items() if round in released}
    assert {len(cohort) for cohort in cohorts.values()} == {terms.report_goal}

    # The model is the one that a simulation comes to with the same cohorts.
    model = flat(load_trained(path, last=True).params)
    expected = simulated(terms, store, cohorts)
    np.testing.assert_allclose(model, expected, atol=1e-6)
    assert np.abs(expected).max() > 1e-3

    # No device was in two rounds too near, by what the devices themselves wrote down.
    diaries = {
        number: Diary(directory / "diary.sqlite").rounds(run)
        for number, directory in enumerate(federation.directories.values())
    }
    for rounds in diaries.values():
        assert apart(rounds, terms.min_separation)
        assert len(rounds) <= terms.max_participations
    for round, cohort in cohorts.items():
        assert all(round in diaries[number] for number in cohort)

    # The report states what occurred: all that devices recorded is in it.
    intents: dict[int, set[int]] = {}
    for intent in Secrets.open(secrets, run, Files()).intents():
        for number in intent.members:
            intents.setdefault(number, set()).add(intent.round)
    assert all(set(rounds) <= intents.get(number, set()) for number, rounds in diaries.items())
    stated = ledger.finished
    assert stated["largest_participation"] == max(map(len, intents.values()))
    gaps = [later - first for rounds in intents.values() for first, later in itertools.pairwise(sorted(rounds))]
    assert stated["smallest_separation"] == min(gaps, default=None)
    assert stated["largest_participation"] >= max(map(len, diaries.values()))
    assert str(stated["largest_participation"]) in (path / "report.md").read_text()


def nothing_private(federation: LocalFederation, words: list[str]) -> None:
    """No log of any process has a word of anybody's text, or a key."""
    logs = [federation.out / "superlink.log", *federation.out.glob("keys/devices/*/supernode.log")]
    content = b"".join(path.read_bytes() for path in logs)
    keys = [path.read_bytes().strip() for path in federation.out.glob("keys/devices/*/signing.key")]
    for secret in [*(word.encode() for word in words), *keys]:
        assert secret not in content


@pytest.mark.timeout(900)
def test_six_devices_four_rounds_one_killed(tmp_path, people_store):
    tables = {"population": {"report_goal": 3}, "deploy": {"over_selection": 1.0, "deadline": 120.0}}
    federation, _ = federate(tmp_path, people_store, devices=6, kills=1, **tables)
    nothing_private(federation, ["word1", "word35"])


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_twenty_devices_ten_rounds_many_killed_and_the_server_too(tmp_path, people_store):
    tables = {
        "run": {"rounds": 10},
        "population": {"report_goal": 7},
        "deploy": {"over_selection": 1.4, "deadline": 120.0},
    }
    federate(tmp_path, people_store, devices=20, kills=5, server_kills=2, seed=1, **tables)


def test_an_unauthenticated_device_is_turned_away_and_others_named(tmp_path):
    """A device with keys that nobody registered; one that trusts another authority; a server that is not there."""
    from reticent.deploy.federation import Server, check_server, free_port, start_node
    from reticent.deploy.keys import make_keys
    from reticent.errors import Refused

    make_keys(tmp_path / "keys", ["known", "unknown"], ["127.0.0.1"])
    make_keys(tmp_path / "other", ["stranger"], ["127.0.0.1"])
    known, unknown = (tmp_path / "keys" / "devices" / name for name in ("known", "unknown"))
    stranger = tmp_path / "other" / "devices" / "stranger"
    (unknown / "login.key.pub").unlink()  # the server is not given it
    port = free_port()
    address = f"127.0.0.1:{port}"
    with pytest.raises(Refused, match=f"No server answers at {address}"):
        check_server(known, address)
    with Server(tmp_path / "keys", port=port, log=tmp_path / "superlink.log") as server:
        server.wait()
        assert server.register() == 1
        with pytest.raises(Refused, match="not the one that this device was shipped to trust"):
            check_server(stranger, address)
        check_server(known, address)
        nodes = {path.name: start_node(path, address, poll=0.3) for path in (known, unknown)}
        try:
            assert nodes["unknown"].process.wait(timeout=300) != 0
            assert "[code: 2004]" in nodes["unknown"].told()
            end = time.monotonic() + 300
            while "SuperNode ID" not in nodes["known"].told() and time.monotonic() < end:
                time.sleep(0.2)
            assert "SuperNode ID" in nodes["known"].told()
        finally:
            for node in nodes.values():
                node.stop()
        # The login is checked by the server, not by the device's own manners: without one nothing is answered.
        import httpx
        from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

        answer = httpx.post(
            f"https://{address}/v1/fleet/pull-messages",
            verify=ssl_of(known),
            content=b"",
            headers={"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE},
        )
        assert answer.status_code == 401


def ssl_of(device: Path):
    import ssl

    return ssl.create_default_context(cafile=str(device / "ca.crt"))


def test_nothing_phones_home():
    from reticent.deploy.environment import QUIET, environment

    assert QUIET["FLWR_TELEMETRY_ENABLED"] == "0"
    assert QUIET["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert environment().items() >= QUIET.items()
    assert os.environ.get("FLWR_TELEMETRY_ENABLED", "0") == "0"


def test_only_the_step_that_trains_loads_jax(tmp_path, people_store):
    """Each letter in a process of its own, as on a device: what it had imported when it had answered."""
    code = (
        "import sys; from pathlib import Path; from reticent.deploy.device import Device;"
        "from reticent.deploy.letters import INVITE, Letter;"
        "letter = Letter(INVITE, 'a' * 32, 0, sys.argv[2], 0, bytes(16)).to_bytes();"
        "answer = Device(sys.argv[1]).answer(letter);"
        "assert answer[:1] == b'\\x01', answer;"
        "import reticent.secagg, reticent.deploy.flower, reticent.deploy.supernode; reticent.deploy.supernode.preload();"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'jax', 'jaxlib', 'optax', 'orbax', 'pyarrow'}))"
    )
    terms = terms_of()
    directory = enrolled(tmp_path, ["a", "b", "c"], terms)["a"]
    found = subprocess.run([sys.executable, "-c", code, str(directory), terms.digest], capture_output=True, text=True)
    assert found.stdout.strip() == "[]", found.stderr
