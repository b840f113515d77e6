"""A device's processes: Flower's SuperNode, and a worker that forks a process for every message.

    python -m reticent.deploy.supernode DEVICE SERVER PORT POLL

Flower starts a new interpreter for every message, which takes a second or more, most of it to import what the last one had
imported. A worker that has it all imported, and nothing else, forks instead: the same isolation in a tenth of the time. It
never loads JAX, so that a process that trains loads it for itself. POLL: seconds between two questions for messages.
"""

import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

from reticent.deploy.environment import QUIET

PRELOADED = (
    "flwr.supernode.cli.flower_supernode",
    "flwr.supernode.runtime.run_clientapp",
    "reticent.accounting.composition",
    "reticent.accounting.run",
    "reticent.config",
    "reticent.data.batches",
    "reticent.deploy.device",
    "reticent.deploy.flower",
    "reticent.deploy.text",
)


def preload() -> None:
    """Imports what SuperNodes and workers need. Nothing here may start a thread: forks come after it."""
    for module in PRELOADED:
        import_module(module)


def run(device: Path, server: str, port: int, poll: float) -> None:
    """Runs a device's SuperNode in this process, its worker in another; ends with the SuperNode."""
    os.environ.update(QUIET, FLWR_HOME=str(device / "flower"))
    preload()
    _tell_more_often()
    me = os.getpid()
    if os.fork() == 0:
        try:
            _work(f"127.0.0.1:{port}", poll, me)
        finally:
            os._exit(0)
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    # Flower asks every three seconds, and looks for an answer to send twice a second.
    pause = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, poll)))
    start_client_internal.time = pause  # type: ignore[assignment]
    sys.argv = ["flower-supernode", *arguments(device, server, port), "--isolation", "process"]
    flower_supernode()


def _tell_more_often() -> None:
    """A device that vanished is known to have vanished, and let in again, after twenty seconds in place of sixty."""
    for module in ("flwr.supercore.heartbeat", "flwr.supernode.fleet_http_connection"):
        vars(import_module(module))["HEARTBEAT_DEFAULT_INTERVAL"] = 10


def arguments(device: Path, server: str, port: int) -> list[str]:
    """What `flower-supernode` is to be called with for a device."""
    return [
        *("--superlink", server, "--root-certificates", str(device / "ca.crt")),
        *("--auth-supernode-private-key", str(device / "login.key")),
        *("--node-config", f'device="{device}"', "--host", "127.0.0.1", "--port", str(port)),
    ]


def _work(address: str, poll: float, parent: int) -> None:
    """Takes a SuperNode's tasks and forks a process for each, until the SuperNode is gone."""
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    client = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
    )
    while os.getppid() == parent:
        try:
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        except httpx.HTTPError:  # not up yet, or going down
            time.sleep(poll)
            continue
        if found.HasField("task") and found.token:
            if os.fork() == 0:
                _one_message(address, found.token, os.getppid())
        else:
            time.sleep(poll)
        _reap()


def _one_message(address: str, token: str, parent: int) -> None:
    from flwr.supernode.runtime import run_clientapp

    from reticent.deploy.flower import client_app

    # The app that came with the message is not installed, nor loaded: a device runs its own program, not the server's.
    ours = {
        "install_from_fab": lambda *_, **__: None,
        "get_load_client_app_fn": lambda *_, **__: lambda *_, **__: client_app(),
    }
    vars(run_clientapp).update(ours)
    try:
        run_clientapp.run_clientapp(address, token, True, parent_pid=parent)
    except SystemExit:
        pass
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    run(Path(sys.argv[1]).absolute(), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
