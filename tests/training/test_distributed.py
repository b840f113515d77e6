"""Two real processes with two virtual devices each, over sockets: the releases of one device, a death, a resume."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from reticent.errors import Refused
from reticent.ledger.lines import read_ledger
from reticent.training import train
from reticent.training.cluster import Cluster, address_of, first_node
from tests.training.runs import parameters, run_file

ROOT = Path(__file__).parents[2]
# What a process of a run does: store, run's folder, process, processes, compilation cache, overrides, "resume" or "".
WORKER = """
import json, sys
store, folder, process, processes, coordinator, cache, overrides, resume = sys.argv[1:]
import jax
jax.config.update("jax_compilation_cache_dir", cache)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
from pathlib import Path
from reticent.cli.cluster import leaving
from reticent.report import page
from reticent.training import Callback, train
from reticent.training.cluster import Address, join
from reticent.training.distributed import follow
from tests.training.test_distributed import settings_of

page.figures = lambda *_: []

class Say(Callback):
    def on_round(self, record):
        print("round", record["rounds"], flush=True)

cluster = join(Address(coordinator, int(process), int(processes)))
settings = settings_of(store, tuple(json.loads(overrides)))
with leaving(cluster):
    if cluster.leads:
        where = {"out": Path(folder, "run"), "secrets": Path(folder, "s")}
        train(settings, **where, callbacks=[Say()], going_on=resume != "", cluster=cluster)
    else:
        follow(settings, cluster)
"""


def settings_of(store, overrides=()):
    return run_file(Path(store), ("evaluation.every=6", *overrides))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def start(store, folder, cache, processes=2, devices=2, overrides=(), resume=False, differing=()):
    """The processes of a run; those but the first may have overrides of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    coordinator = f"localhost:{free_port()}"
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    started = []
    for process in range(processes):
        asked = json.dumps([*overrides, *(differing if process else ())])
        where = [store, folder, process, processes, coordinator, cache, asked, "resume" if resume else ""]
        started.append(
            subprocess.Popen(
                list(map(str, [sys.executable, "-c", WORKER, *where])),
                stdout=subprocess.PIPE,
                stderr=(folder / f"errors-{process}").open("w"),
                env=environment,
                cwd=ROOT,
                text=True,
            )
        )
    return started


def ended(started, folder):
    """Exit codes and what was said on standard error."""
    for one in started:
        one.communicate()
    return [one.returncode for one in started], [
        (folder / f"errors-{place}").read_text() for place in range(len(started))
    ]


def releases(folder):
    return [line["release"] for line in read_ledger(folder / "run" / "ledger.jsonl").of_kind("release")]


@pytest.fixture(scope="module")
def undisturbed(people_store, tmp_path_factory):
    """The run on one device."""
    folder = tmp_path_factory.mktemp("one device")
    train(settings_of(people_store.path), folder / "run", secrets=folder / "s")
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.getbasetemp().parent / "compiled"


@pytest.mark.timeout(1800)
def test_two_processes_release_what_one_device_does(people_store, tmp_path, undisturbed, cache):
    started = start(people_store.path, tmp_path, cache)
    codes, said = ended(started, tmp_path)
    assert codes == [0, 0], said
    assert releases(tmp_path) == releases(undisturbed)
    np.testing.assert_array_equal(parameters(tmp_path / "run"), parameters(undisturbed / "run"))


@pytest.mark.full
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_killed_in_a_round_and_the_run_resumed_on_one_and_on_two(
    people_store, tmp_path, undisturbed, cache, victim
):
    folder = tmp_path / "a"
    started = start(people_store.path, folder, cache)
    while started[0].stdout.readline().split() != ["round", "3"]:
        assert started[0].poll() is None
    started[victim].kill()
    codes, said = ended(started, folder)
    assert codes[victim] == -9
    assert codes[1 - victim] == 2 or "distributed service detected fatal errors" in said[1 - victim]
    assert 3 <= read_ledger(folder / "run" / "ledger.jsonl").rounds < 6
    shutil.copytree(folder, tmp_path / "b")
    shutil.copytree(folder, tmp_path / "c")
    # On one process with one device, on two with one each, and without --distributed at all.
    for name, processes, devices in (("a", 1, 1), ("b", 2, 1)):
        started = start(people_store.path, tmp_path / name, cache, processes, devices, resume=True)
        codes, said = ended(started, tmp_path / name)
        assert codes == [0] * processes, said
    train(settings_of(people_store.path), tmp_path / "c" / "run", secrets=tmp_path / "c" / "s", going_on=True)
    for name in "abc":
        assert releases(tmp_path / name) == releases(undisturbed)
        np.testing.assert_array_equal(parameters(tmp_path / name / "run"), parameters(undisturbed / "run"))


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("differing", "sentence"),
    [
        (("client.learning_rate=0.25",), "Process 1 has another run file than process 0"),
        ((), None),
    ],
)
def test_processes_that_disagree_refuse_before_the_first_round(people_store, tmp_path, cache, differing, sentence):
    if sentence is None:
        # A store that one host cannot see: the other process has it under a name that is not there.
        hidden = tmp_path / "elsewhere"
        started = start(people_store.path, tmp_path / "r", cache, differing=(f'data.store="{hidden}"',))
        sentence = "Process 1 has another run file"
    else:
        started = start(people_store.path, tmp_path / "r", cache, differing=differing)
    codes, said = ended(started, tmp_path / "r")
    assert codes == [2, 2], said
    assert all(sentence in one for one in said), said
    assert not (tmp_path / "r" / "run").exists()


def answering(cluster, monkeypatch, *records):
    monkeypatch.setattr(Cluster, "gather", lambda self, record: [record, *records])


def test_what_processes_disagree_on_is_named_with_the_process(monkeypatch):
    cluster = Cluster(0, 3)
    answering(cluster, monkeypatch, {"code": "a", "store": "s"}, {"code": "b", "store": "s"})
    with pytest.raises(Refused, match="Process 2 has another code than process 0: b, not a"):
        cluster.agree({"code": "a", "store": "s"})
    answering(cluster, monkeypatch, {"problem": "the data cannot be read there: no such folder."}, {"store": "s"})
    with pytest.raises(Refused, match="Process 1: the data cannot be read there"):
        cluster.agree({"store": "s"})


SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_STEP_NODELIST": "gpu[007-010],x1", "SLURM_JOB_ID": "41017"}
KUBERNETES = {"RETICENT_COORDINATOR": "run-0.run:29500", "RETICENT_PROCESSES": "4", "JOB_COMPLETION_INDEX": "2"}


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        (("host:1", 1, 2), {}, ("host:1", 1, 2)),
        ((None, None, None), SLURM, ("gpu007:29517", 3, 8)),
        ((None, None, None), KUBERNETES, ("run-0.run:29500", 2, 4)),
        (("other:5", 0, None), SLURM, ("other:5", 0, 8)),
        ((None, 0, 1), {}, ("", 0, 1)),
    ],
)
def test_where_processes_meet(given, environment, expected):
    found = address_of(*given, environment)
    assert (found.coordinator, found.process, found.processes) == expected


@pytest.mark.parametrize(
    ("given", "environment", "sentence"),
    [
        ((None, None, None), {}, "--processes"),
        ((None, None, 2), {}, "--process-id"),
        ((None, 0, 2), {}, "--coordinator"),
        (("host:1", 2, 2), {}, "numbered from 0"),
        (("host", 0, 2), {}, "HOST:PORT"),
        ((None, None, None), {**KUBERNETES, "RETICENT_PROCESSES": "four"}, "a number is due"),
    ],
)
def test_what_is_missing_is_named(given, environment, sentence):
    with pytest.raises(Refused, match=sentence):
        address_of(*given, environment)


@pytest.mark.parametrize(
    ("nodes", "first"), [("a1", "a1"), ("a1,b2", "a1"), ("n[03-09,12]", "n03"), ("r2n[1,5].east,z", "r2n1.east")]
)
def test_the_first_of_slurms_nodes(nodes, first):
    assert first_node(nodes) == first


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("server.optimizer=lamb", "looks at whole arrays"),
        ("run.secure_aggregation=encoding", "simulated in one process"),
        ("audit.zero_coordinates=3", "planted by one process"),
    ],
)
def test_what_cannot_be_distributed_is_refused(people_store, tmp_path, override, sentence):
    with pytest.raises(Refused, match=sentence):
        train(run_file(people_store.path, (override,)), tmp_path / "run", secrets=tmp_path / "s", cluster=Cluster(0, 1))
    assert not (tmp_path / "run").exists()


def test_another_release_than_the_one_written_is_seen(people_store, monkeypatch):
    """A process whose copy of a release differs in one unit stops the run, and is named."""
    import jax

    from reticent.training import prepare
    from reticent.training.distributed import DistributedRounds

    setup = prepare(settings_of(people_store.path))
    params = setup.model.init(jax.random.key(0))
    rounds = DistributedRounds(setup, params, Cluster(0, 1))
    try:
        state = rounds.placed(rounds.first_state(params))
        total = rounds.sum_of(state, np.arange(5), 0)
        release, noise = rounds.noised(total, state.noise, bytes(32))
        served = rounds.served(state.replace(noise=noise), release)
        stored = rounds.local(served)
        # As a state comes back from its checkpoint: what has no entries was not kept.
        read = [
            leaf if leaf.size else jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
            for leaf in jax.tree.leaves(stored.noise)
        ]
        read = stored.replace(noise=jax.tree.unflatten(jax.tree.structure(stored.noise), read))
        again = rounds.local(rounds.placed(read))
        for part in ("params", "optimizer", "noise"):
            for one, other in zip(*(jax.tree.leaves(getattr(kept, part)) for kept in (stored, again)), strict=True):
                np.testing.assert_array_equal(one, other)
        assert any(np.any(leaf) for leaf in jax.tree.leaves(again.noise.buffers))
        monkeypatch.setattr(Cluster, "gather", lambda self, record: [record, {"digest": "0" * 64}])
        with pytest.raises(Refused, match="Process 1 holds another release"):
            rounds.served(served, release + 1)
    finally:
        rounds.close()


def test_the_doctor_checks_a_cluster(people_store, tmp_path, capsys):
    from reticent.cli.main import main

    alone = ["doctor", "--distributed", "--processes", "1", "--process-id", "0"]
    with pytest.raises(SystemExit) as ended:
        main([*alone, "--store", str(people_store.path)])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "16,777,216" in said
    assert "the store and the clocks agree" in said
    with pytest.raises(SystemExit) as ended:
        main([*alone, "--store", str(tmp_path / "nowhere")])
    assert ended.value.code == 2
    assert "Process 0: the store cannot be read there" in capsys.readouterr().err
