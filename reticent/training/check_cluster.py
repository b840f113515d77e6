"""Whether hosts can be trusted with a run together: what they have, how fast they add, whether they see the same."""

import platform
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from reticent.data.store import Store
from reticent.errors import Refused
from reticent.training.cluster import Cluster, machine_facts
from reticent.training.distributed import added
from reticent.training.placing import Layout

ENTRIES = (2**16, 2**20, 2**24)
REPEATS = 5
LARGEST_SKEW_SECONDS = 5.0


def check(cluster: Cluster, store: str | None = None) -> dict[str, Any]:
    """Facts of every process, and the time of sums like a round's. All processes call it together.

    Refuses, on all of them and naming the process: other code, JAX or devices than process 0's; a wrong sum; a store that
    one of them cannot see, or sees another version of; clocks, of the hosts or of the store's files, more than five
    seconds apart.
    """
    cluster.agree(machine_facts())
    started = cluster.gather({"clock": time.time()})
    facts: dict[str, Any] = {"process": cluster.process, "host": platform.node(), **_memory()}
    if store is not None:
        cluster.agree(_of_store(store))
    skew = [one["clock"] - started[0]["clock"] for one in started]
    for process, seconds in enumerate(skew):
        if abs(seconds) > LARGEST_SKEW_SECONDS:
            raise Refused(
                f"The clock of process {process}'s host is {seconds:+.1f} s from process 0's, or it came that late; set "
                "the clocks by NTP."
            )
    processes = cluster.gather({**facts, "clock": f"{skew[cluster.process]:+.2f} s"})
    return {"processes": processes, "reductions": [_reduction(cluster, entries) for entries in ENTRIES]}


def _memory() -> dict[str, Any]:
    device = jax.local_devices()[0]
    limit = (device.memory_stats() or {}).get("bytes_limit")
    return {
        "devices": f"{jax.local_device_count()} x {device.device_kind}",
        "memory each": "host's" if limit is None else f"{limit / 2**30:.0f} GiB",
    }


def _of_store(store: str) -> dict[str, Any]:
    try:
        found = Store.open(store)
        written = Path(store, "header.json").stat().st_mtime
    except (Refused, OSError) as error:
        return {"problem": f"the store cannot be read there: {error}"}
    # Hosts that cache a store's attributes for long, or have copies of it, differ here.
    return {"store": found.digest, "time the store was written": round(written)}


def _reduction(cluster: Cluster, entries: int) -> dict[str, Any]:
    """A vector of every host, added as in a round, each device keeping its part."""
    layout = Layout(entries)
    one = layout.sharding((layout.padded,))
    add = jax.jit(partial(added, layout), out_shardings=one)
    vector = jnp.arange(layout.padded, dtype=jnp.int32) + cluster.process
    seconds = []
    for _ in range(REPEATS + 1):
        rows = jax.block_until_ready(layout.row(vector))
        began = time.perf_counter()
        total = jax.block_until_ready(add(rows))
        seconds.append(time.perf_counter() - began)
    whole = layout.gathered(total)
    due = np.arange(entries) * layout.hosts + layout.hosts * (layout.hosts - 1) // 2
    wrong = [one["wrong"] for one in cluster.gather({"wrong": bool((whole != due).any())})]
    if any(wrong):
        raise Refused(
            f"Process {wrong.index(True)} got a wrong sum of {entries} integers; its network is not to be used."
        )
    # The first was compiled; what a device sends and gets when its column is reduced over the hosts.
    best = min(seconds[1:])
    sent = 4 * layout.padded // layout.locals * (layout.hosts - 1) / layout.hosts
    return {
        "entries": f"{entries:,}",
        "milliseconds": round(1000 * best, 3),
        "GB/s a device": round(sent / best / 1e9, 2) if layout.hosts > 1 else "one host",
    }
