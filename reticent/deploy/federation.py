"""Starting and stopping Flower's programs: the server's, a device's, or a whole federation on one machine.

Everything runs over TLS, and only devices whose login keys were registered are let in; there is no way to ask for less.
"""

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reticent.deploy.environment import QUIET, environment
from reticent.deploy.settings import DeviceSettings
from reticent.errors import Refused

Line = Callable[[str], None]
PATIENCE = 120.0
TURNED_AWAY = "[code: 2004]"
LET_IN = 30.0


def free_port() -> int:
    """A port of the loopback that nobody uses now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def program(name: str) -> str:
    """One of Flower's programs, from the environment that this one runs in."""
    beside = Path(sys.executable).parent / name
    if not beside.is_file():
        raise Refused(f'{name} is not installed here; install Flower with: pip install "reticent[devices]".')
    return str(beside)


class Program:
    """A program in a process group of its own, so that it is ended with all that it started."""

    def __init__(self, command: list[str], log: Path, **more: str) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        self.began = log.stat().st_size if log.exists() else 0
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment(PATH=path, **more),
                start_new_session=True,
            )
        self.log = log
        self.since = time.monotonic()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """`kill -9`, for it and all that it started."""
        self._signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Ends it, gently first."""
        if self.running:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=10)
        self.kill()

    def interrupt(self) -> None:
        """Asks it to end, without waiting."""
        self._signal(signal.SIGTERM)

    def told(self) -> str:
        """What it said since it was started."""
        with self.log.open("rb") as file:
            file.seek(self.began)
            return file.read().decode(errors="replace")

    def tail(self) -> str:
        """The last line with something in it."""
        lines = [line.strip() for line in self.told().splitlines() if line.strip()]
        return lines[-1] if lines else ""

    def _signal(self, what: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, what)


class Server:
    """Flower's SuperLink, with the keys in a directory that `make_keys` made. Use it in a `with` statement."""

    def __init__(
        self,
        keys: Path,
        host: str = "127.0.0.1",
        port: int = 9092,
        log: Path | None = None,
        compiled: Path | None = None,
    ) -> None:
        self.keys, self.host, self.port = keys.absolute(), host, port
        folder = self.keys / "server"
        for name in ("server.pem", "server.key", "ca.crt", "registry.json"):
            if not (folder / name).is_file():
                raise Refused(f"{folder / name} is missing; `reticent deploy keys` makes it.")
        self.home = folder / "flower"
        command = [
            program("flower-superlink"),
            *("--ssl-certfile", str(folder / "server.pem"), "--ssl-keyfile", str(folder / "server.key")),
            *("--ssl-ca-certfile", str(folder / "ca.crt"), "--enable-supernode-auth"),
            *("--disable-runtime-dependency-installation", "--host", host, "--port", str(port)),
        ]
        if _taken(host, port):
            raise Refused(f"{host}:{port} is in use; give another --port, or stop what listens there.")
        self.program = Program(
            command,
            log or folder / "superlink.log",
            FLWR_HOME=str(self.home),
            FLWR_SUPEREXEC_TASK_POLL_INTERVAL="0.5",
            JAX_COMPILATION_CACHE_DIR=str(compiled or folder / "compiled"),
            JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        )
        os.environ.update(QUIET)
        self.client = self._client()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the server and everything that it started."""
        self.program.stop()

    def wait(self) -> None:
        """Waits until it answers."""
        from flwr.proto.control_pb2 import ListNodesRequest

        end = time.monotonic() + PATIENCE
        while True:
            try:
                self.client.ListNodes(ListNodesRequest())
                return
            except Exception as error:
                if not self.program.running or time.monotonic() > end:
                    raise Refused(
                        f"Flower's SuperLink does not answer ({self.program.tail()[:200] or type(error).__name__}); its log "
                        f"is {self.program.log}."
                    ) from None
            time.sleep(0.1)

    def register(self) -> int:
        """Lets in every device whose keys are in the directory, and no other."""
        from cryptography.hazmat.primitives import serialization
        from flwr.proto.control_pb2 import RegisterNodeRequest

        found = sorted(self.keys.glob("devices/*/login.key.pub"))
        for path in found:
            key = serialization.load_ssh_public_key(path.read_bytes())
            point = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
            self.client.RegisterNode(RegisterNodeRequest(public_key=point, name=path.parent.name))
        return len(found)

    def start_run(self, app: Path, **config: str) -> int:
        """Starts the app in a directory; `config` overrides its configuration. Returns Flower's number of the run."""
        import hashlib

        from flwr.cli.build import build_fab_from_disk
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        if not (app / "pyproject.toml").is_file():
            raise Refused(f"{app} is no app; `reticent deploy new` writes one.")
        content = build_fab_from_disk(app)
        override: dict[str, Any] = {f"reticent-{key}": value for key, value in config.items()}
        answer = self.client.StartRun(
            StartRunRequest(
                fab=fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {})),
                override_config=user_config_to_proto(override),
            )
        )
        if not answer.HasField("run_id"):
            raise Refused(f"Flower did not start the run ({answer.note or 'no reason given'}).")
        return int(answer.run_id)

    def status(self, run: int) -> tuple[str, str]:
        """(status, how it ended) of a run, in Flower's words."""
        from flwr.proto.control_pb2 import ListRunsRequest

        found = self.client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return found.status, found.sub_status

    def follow(self, run: int, say: Line) -> bool:
        """Says what the run says until it has ended; whether it ended well."""
        from flwr.proto.control_pb2 import StreamLogsRequest

        after = 0.0
        while True:
            with contextlib.suppress(Exception):
                for part in self.client.StreamLogs(StreamLogsRequest(run_id=run, after_timestamp=after)):
                    after = max(after, part.latest_timestamp)
                    for line in part.log_output.splitlines():
                        say(line)
            status, ended = self.status(run)
            if status == "finished":
                return ended == "completed"
            if not self.program.running:
                raise Refused(f"Flower's SuperLink ended ({self.program.tail()[:200]}); its log is {self.program.log}.")
            time.sleep(0.2)

    def _client(self) -> Any:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        host = "127.0.0.1" if self.host == "0.0.0.0" else self.host
        return ControlHttpClient.from_server_address(
            f"{host}:{self.port}",
            False,
            str(self.keys / "server" / "ca.crt"),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )


def start_node(directory: Path, server: str, *, poll: float = 1.0, log: Path | None = None) -> Program:
    """A device's SuperNode and worker, as a program of its own."""
    directory = directory.absolute()
    command = [sys.executable, "-m", "reticent.deploy.supernode", str(directory), server, str(free_port()), str(poll)]
    return Program(command, log or directory / "supernode.log")


def check_server(directory: Path, server: str) -> None:
    """Refuses a server that does not answer, or that shows a certificate which this device does not trust."""
    host, _, port = server.rpartition(":")
    if not host or not port.isdigit():
        raise Refused(f"A server's address is written HOST:PORT, as in 127.0.0.1:9092; got {server!r}.")
    root = directory / "ca.crt"
    if not root.is_file():
        raise Refused(f"{root} is missing; `reticent deploy keys` makes it.")
    try:
        context = ssl.create_default_context(cafile=str(root))
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname=host.strip("[]")),
        ):
            return
    except ssl.SSLCertVerificationError as error:
        raise Refused(
            f"The certificate of {server} is not the one that this device was shipped to trust ({error.verify_message}); "
            f"copy the federation's own ca.crt to {root}, or make the server's keys with --address {host}."
        ) from None
    except ssl.SSLError:
        raise Refused(f"{server} does not speak TLS; it is not the federation's server.") from None
    except OSError as error:
        raise Refused(
            f"No server answers at {server} ({error.strerror or error}); start it with `reticent deploy serve`, or check "
            "the address."
        ) from None


def run_nodes(directories: list[Path], server: str, say: Line, *, poll: float = 1.0) -> None:
    """Keeps devices running until this is interrupted; refuses where one cannot work."""
    devices = [DeviceSettings.load(directory) for directory in directories]
    for device in devices:
        _ = device.member
        check_server(device.directory, server)
    started: dict[str, Program] = {}
    again: dict[str, tuple[float, float]] = {}  # when to start it again, and how long to wait after that
    turned_away: dict[str, float] = {}  # since when
    try:
        for device in devices:
            started[device.name] = start_node(device.directory, server, poll=poll)
            say(f"{device.name} is at {server}; its log is {started[device.name].log}")
        while True:
            for device in devices:
                _keep_running(device, server, poll, started, again, turned_away, say)
            time.sleep(0.2)
    finally:
        for node in started.values():
            node.interrupt()
        for node in started.values():
            node.stop()


def _keep_running(
    device: DeviceSettings,
    server: str,
    poll: float,
    started: dict[str, Program],
    again: dict[str, tuple[float, float]],
    turned_away: dict[str, float],
    say: Line,
) -> None:
    node = started[device.name]
    if node.running:
        if time.monotonic() - node.since > LET_IN:
            turned_away.pop(device.name, None)
        return
    node.kill()  # what it started, if anything is left
    now, (due, pause) = time.monotonic(), again.get(device.name, (0.0, 0.5))
    if due == 0.0:
        # A device that the server takes to be connected still, after a crash, is turned away for a while as well.
        if TURNED_AWAY in node.told() and now - turned_away.setdefault(device.name, node.since) > LET_IN:
            raise Refused(
                f"The server at {server} turns {device.name} away: its login key is not registered there, or the device is "
                f"connected already. Whoever runs the server registers {device.directory / 'login.key.pub'}."
            )
        again[device.name] = (now + pause, min(2 * pause, 60.0))
        say(f"{device.name} lost the server; trying again in {pause:g} s")
    elif now >= due:
        started[device.name] = start_node(device.directory, server, poll=poll)
        again[device.name] = (0.0, pause)


class Node:
    """A device's processes, forked by a nursery."""

    def __init__(self, process: int, log: Path) -> None:
        self.process, self.log = process, log

    @property
    def running(self) -> bool:
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> None:
        """`kill -9`, for all of them."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ends them, gently first."""
        self._end(signal.SIGTERM)
        end = time.monotonic() + 10
        while self.running and time.monotonic() < end:
            time.sleep(0.05)
        self.kill()

    def _end(self, how: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process, how)


class Nursery:
    """Starts the devices of a whole federation on this machine. Use it in a `with` statement: all end with it."""

    def __init__(self, server: str, poll: float = 0.5) -> None:
        self.server, self.poll = server, poll
        self.nodes: dict[str, Node] = {}
        self._turn = threading.Lock()
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "reticent.deploy.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> "Nursery":
        assert self.process.stdout
        if self.process.stdout.readline().strip() != "ready":
            raise Refused("The devices' processes could not be started; see the messages above.")
        self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin
        self._over.set()
        self._keeper.join()
        for node in self.nodes.values():
            node._end(signal.SIGTERM)
        for node in self.nodes.values():
            node.stop()
        self.process.stdin.close()
        self.process.wait()

    def start(self, directory: Path) -> Node:
        """Starts a device, which is started again whenever it ends."""
        with self._turn:
            return self._start(directory)

    def _keep(self) -> None:
        while not self._over.wait(1.0):
            for node in [*self.nodes.values()]:
                if not node.running and not self._over.is_set():
                    node.kill()  # what it started, if anything is left
                    self.start(node.log.parent)

    def _start(self, directory: Path) -> Node:
        assert self.process.stdin
        assert self.process.stdout
        directory = directory.absolute()
        log = directory / "supernode.log"
        asked = {
            "device": str(directory),
            "server": self.server,
            "port": free_port(),
            "poll": self.poll,
            "log": str(log),
        }
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        self.nodes[directory.name] = Node(int(self.process.stdout.readline()), log)
        return self.nodes[directory.name]


def _taken(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, port))
        except OSError:
            return True
    return False
