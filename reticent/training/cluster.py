"""Several processes as one run: how they find each other, what they must agree on, how they speak.

Process 0 leads: it alone draws cohorts, keeps secrets, writes the ledger. What it tells the others goes over the same
network as their sums, which is taken to be trusted, as are the hosts.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import reticent
from reticent.errors import Refused

PORT = 29500
HEARTBEAT_SECONDS = 30
_SHORT = 4096
_LENGTH_BYTES = 8


class Died(Refused):
    """A process of the run is gone."""


@dataclass(frozen=True)
class Address:
    """Where process 0 listens, which process this is, and how many there are."""

    coordinator: str
    process: int
    processes: int


def address_of(
    coordinator: str | None = None,
    process: int | None = None,
    processes: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Address:
    """From what is given; what is not, from the environment: RETICENT_COORDINATOR and RETICENT_PROCESSES, with
    RETICENT_PROCESS_ID or an indexed Kubernetes job's JOB_COMPLETION_INDEX; or SLURM's. Refuses what stays unknown."""
    slurm = "SLURM_PROCID" in environment and "SLURM_NTASKS" in environment

    def number(given: int | None, *names: str) -> int | None:
        found = next((environment[name] for name in names if environment.get(name)), None)
        if given is not None or found is None:
            return given
        if not re.fullmatch(r"\d+", found):
            raise Refused(f"{names[0]} is {found!r}, where a number is due.")
        return int(found)

    process = number(process, "RETICENT_PROCESS_ID", *(("SLURM_PROCID",) if slurm else ()), "JOB_COMPLETION_INDEX")
    processes = number(processes, "RETICENT_PROCESSES", *(("SLURM_NTASKS",) if slurm else ()))
    coordinator = coordinator or environment.get("RETICENT_COORDINATOR")
    if coordinator is None and slurm:
        nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
        port = PORT + int(environment.get("SLURM_JOB_ID", "0")) % 1000
        coordinator = f"{first_node(nodes)}:{port}" if nodes else None
    for value, flag, name in (
        (processes, "--processes", "RETICENT_PROCESSES"),
        (process, "--process-id", "RETICENT_PROCESS_ID"),
        (coordinator if processes != 1 else "", "--coordinator", "RETICENT_COORDINATOR"),
    ):
        if value is None:
            raise Refused(f"A distributed run needs {flag} (or ${name}; under SLURM, start it with srun).")
    assert process is not None
    assert processes is not None
    if not 0 <= process < processes:
        raise Refused(f"Process {process} of {processes} there cannot be; they are numbered from 0.")
    if processes > 1 and not re.fullmatch(r"\S+:\d+", coordinator or ""):
        raise Refused(f"The coordinator is HOST:PORT, not {coordinator!r}.")
    return Address(coordinator or "", process, processes)


def first_node(nodes: str) -> str:
    """The first host of a SLURM node list such as "gpu[003-007,12],login1"."""
    found = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,]*))?", nodes.strip())
    if found is None:
        raise Refused(f"The node list {nodes!r} names no host.")
    return "".join(part or "" for part in found.groups())


def join(address: Address) -> "Cluster":
    """Meets the other processes; before anything else of JAX is used. Refuses when they do not all come."""
    import jax

    if address.processes > 1:
        try:
            jax.distributed.initialize(
                address.coordinator,
                address.processes,
                address.process,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            )
        except Exception as error:
            raise Refused(
                f"Process {address.process} did not meet all {address.processes} processes at {address.coordinator} "
                f"({str(error).splitlines()[0][:200]}); start all of them, and see that the address can be reached."
            ) from None
    return Cluster(address.process, address.processes)


@dataclass(frozen=True)
class Cluster:
    """The processes of a run, all of them alive as far as is known."""

    process: int
    processes: int

    @property
    def leads(self) -> bool:
        return self.process == 0

    def tell(self, order: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
        """Tells all other processes, which must be hearing; process 0 only."""
        if self.processes > 1:
            _broadcast(_packed(order, arrays or {}))

    def hear(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What process 0 tells; waits for it."""
        return _unpacked(_broadcast(None))

    def gather(self, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Every process's record, in their order; all must call this together."""
        if self.processes == 1:
            return [json.loads(json.dumps(record))]
        from jax.experimental import multihost_utils

        content = json.dumps(record).encode()
        lengths = multihost_utils.process_allgather(np.array([len(content)], np.int64)).reshape(-1)
        padded = np.zeros(_rounded_up(int(lengths.max())), np.uint8)
        padded[: len(content)] = np.frombuffer(content, np.uint8)
        rows = np.asarray(multihost_utils.process_allgather(padded)).reshape(self.processes, -1)
        return [json.loads(row[:length].tobytes()) for row, length in zip(rows, lengths.tolist(), strict=True)]

    def agree(self, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Every process's facts. Refuses, on all of them, the first that differs from process 0's, and a `problem`."""
        everybody = self.gather(facts)
        for process, theirs in enumerate(everybody):
            if theirs.get("problem"):
                raise Refused(f"Process {process}: {theirs['problem']}")
            for key, value in everybody[0].items():
                if theirs.get(key) != value:
                    raise Refused(
                        f"Process {process} has another {key} than process 0: {theirs.get(key)}, not {value}; make them "
                        "the same and start all processes again."
                    )
        return everybody


def code_digest() -> str:
    """The digest of this package's own source."""
    root, total = Path(reticent.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        total.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return total.hexdigest()[:16]


def machine_facts() -> dict[str, Any]:
    """What all processes must have in common before they compute together."""
    import jax

    return {
        "version of Reticent": reticent.__version__,
        "code": code_digest(),
        "version of JAX": jax.__version__,
        "kind of device": jax.local_devices()[0].device_kind,
        "number of devices": jax.local_device_count(),
    }


def _packed(order: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    described = {name: [str(array.dtype), list(array.shape)] for name, array in arrays.items()}
    text = json.dumps([order, described]).encode()
    parts = [
        len(text).to_bytes(_LENGTH_BYTES),
        text,
        *(np.ascontiguousarray(array).tobytes() for array in arrays.values()),
    ]
    return b"".join(parts)


def _unpacked(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    at = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES])
    order, described = json.loads(content[_LENGTH_BYTES:at])
    arrays = {}
    for name, (dtype, shape) in described.items():
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        arrays[name] = np.frombuffer(content[at : at + size], dtype).reshape(shape)
        at += size
    return order, arrays


def _broadcast(content: bytes | None) -> bytes:
    """Process 0's content on every process, in one exchange where it is short."""
    from jax.experimental import multihost_utils

    head = np.zeros(_SHORT, np.uint8)
    if content is not None:
        start = len(content).to_bytes(_LENGTH_BYTES) + content[: _SHORT - _LENGTH_BYTES]
        head[: len(start)] = np.frombuffer(start, np.uint8)
    head = np.asarray(multihost_utils.broadcast_one_to_all(head))
    length = int.from_bytes(head[:_LENGTH_BYTES].tobytes())
    first = head[_LENGTH_BYTES:].tobytes()[:length]
    if len(first) == length:
        return first
    rest = np.zeros(_rounded_up(length - len(first)), np.uint8)
    if content is not None:
        rest[: length - len(first)] = np.frombuffer(content[len(first) :], np.uint8)
    rest = np.asarray(multihost_utils.broadcast_one_to_all(rest))
    return first + rest[: length - len(first)].tobytes()


def _rounded_up(length: int) -> int:
    """To a power of two, so that few sizes are ever compiled."""
    return 1 << max(length - 1, 255).bit_length()
