"""Where a run's vectors lie on many devices: each cut into as many equal parts as there are devices, of all hosts.

A device holds one part of the parameters, of the server optimiser and of every noise buffer, and no more. Whole vectors
exist only where a device trains (the parameters) and, a piece at a time, on their way to a file.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from reticent.errors import Refused
from reticent.privacy import keys as noise_keys

# A piece of a vector has its noise made alone where it begins at a multiple of this.
UNIT = noise_keys.PIECE
# Entries that a device makes the noise of at a time.
PIECE = 2**20
# Entries that are on their way at a time.
AT_ONCE = 2**24

HOST, LOCAL = "host", "local"


class Layout:
    """The places of vectors of `size` entries, filled up to `padded`. All processes make it alike.

    `hosts` other than the processes there are is for looking at the programs of a cluster without having it.
    """

    def __init__(self, size: int, hosts: int | None = None) -> None:
        devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
        self.hosts, self.devices = hosts or jax.process_count(), len(devices)
        each, uneven = divmod(self.devices, self.hosts)
        if uneven or (hosts is None and any(device.process_index != at // each for at, device in enumerate(devices))):
            raise Refused("The processes have different numbers of devices; give each the same.")
        self.locals = self.devices // self.hosts
        self.mesh = Mesh(np.array(devices).reshape(self.hosts, self.locals), (HOST, LOCAL))
        self.size = size
        part = -(-size // self.devices)
        pieces = -(-part // PIECE)
        # What a device works on at a time.
        self.piece = -(-part // (pieces * UNIT)) * UNIT
        self.padded = self.piece * pieces * self.devices
        self.whole = NamedSharding(self.mesh, PartitionSpec())
        # What every host sums by itself, one row of each; a device then has all rows of its column.
        self.rows = NamedSharding(self.mesh, PartitionSpec(HOST, LOCAL))

    def sharding(self, shape: tuple[int, ...]) -> NamedSharding:
        """That of an array whose last axis is a vector's, in parts; of any other, whole on every device."""
        if not shape or shape[-1] != self.padded:
            return self.whole
        return NamedSharding(self.mesh, PartitionSpec(*[None] * (len(shape) - 1), (LOCAL, HOST)))

    def shardings(self, tree: Any) -> Any:
        """`sharding` of every array of a pytree."""
        return jax.tree.map(lambda leaf: self.sharding(leaf.shape), tree)

    def number_of_part(self) -> jax.Array:
        """Which part of a vector this device has, within a `shard_map` over the mesh."""
        number = jax.lax.axis_index(LOCAL) * self.hosts + jax.lax.axis_index(HOST)
        return number.astype(jnp.uint32)

    def row(self, vector: jax.Array) -> jax.Array:
        """The global array of a vector of each host, cut among its devices."""
        here = Mesh(np.array(jax.local_devices()), (LOCAL,))
        parts = jax.device_put(vector, NamedSharding(here, PartitionSpec(LOCAL))).addressable_shards
        return jax.make_array_from_single_device_arrays(
            (self.hosts, self.padded), self.rows, [part.data[None] for part in parts]
        )

    def gathered(self, array: jax.Array, keep: bool = True) -> np.ndarray:
        """The array whole, in this host's memory, without what it was filled up with; all processes take part, and who
        does not `keep` it gets nothing."""
        if self.sharding(array.shape) is self.whole:
            return np.asarray(array.addressable_data(0))
        lines, part = int(np.prod(array.shape[:-1])), self.padded // self.devices
        found = np.empty((lines if keep else 0, self.devices, part), array.dtype)
        for line in range(lines):
            for start, stop in _pieces(part, self.devices):
                piece = _piece(array, line, start, stop - start, self.devices, self.whole)
                if keep:
                    found[line, :, start:stop] = piece.addressable_data(0)
        return found.reshape(*array.shape[:-1], self.padded)[..., : self.size] if keep else found

    def spread(self, array: np.ndarray | None, shape: tuple[int, ...], dtype: Any, leads: bool) -> jax.Array:
        """Process 0's array (its last axis of `size`) in parts on all devices; the others give None. `shape` is that of
        the array filled up."""
        from jax.experimental import multihost_utils

        def told(piece: np.ndarray) -> np.ndarray:
            return piece if self.hosts == 1 else np.asarray(multihost_utils.broadcast_one_to_all(piece))

        sharding = self.sharding(shape)
        if sharding is self.whole:
            whole = told(np.asarray(array, dtype) if leads else np.zeros(shape, dtype)) if np.prod(shape) else None
            return jax.make_array_from_callback(
                shape, sharding, lambda index: np.zeros(shape, dtype)[index] if whole is None else whole[index]
            )
        lines, part = int(np.prod(shape[:-1])), self.padded // self.devices
        places = sharding.addressable_devices_indices_map(shape).values()
        kept = {_start(place): np.zeros((lines, part), dtype) for place in places}
        given = None if array is None else np.asarray(array, dtype).reshape(lines, self.size)
        for line in range(lines):
            for start, stop in _pieces(part, self.devices):
                piece = np.zeros((self.devices, stop - start), dtype)
                if given is not None:
                    for number in range(self.devices):
                        there = given[line, number * part + start : number * part + stop]
                        piece[number, : len(there)] = there
                piece = told(piece)
                for first, mine in kept.items():
                    mine[line, start:stop] = piece[first // part]
        return jax.make_array_from_callback(
            shape, sharding, lambda index: kept[_start(index)].reshape(*shape[:-1], part)
        )


def _start(place: tuple[slice, ...] | None) -> int:
    """Where along the last axis a device's part begins."""
    assert place is not None
    return place[-1].start or 0


def _pieces(part: int, devices: int) -> Iterator[tuple[int, int]]:
    """Ranges of a part, such that all devices' are of at most `AT_ONCE` entries together."""
    step = max(1, AT_ONCE // devices)
    for start in range(0, part, step):
        yield start, min(start + step, part)


@partial(jax.jit, static_argnums=(3, 4, 5))
def _piece(array: jax.Array, line: int, start: int, length: int, devices: int, whole: NamedSharding) -> jax.Array:
    """The same range of every device's part of one line, on all devices."""
    flat = array.reshape(-1, array.shape[-1])
    one = jax.lax.dynamic_index_in_dim(flat, line, keepdims=False).reshape(devices, -1)
    return jax.lax.with_sharding_constraint(jax.lax.dynamic_slice_in_dim(one, start, length, axis=1), whole)
