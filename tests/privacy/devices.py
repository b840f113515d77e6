"""Makes noise on some number of virtual devices and prints, as JSON, what came out and what the programs exchange.

python -m tests.privacy.devices 4
"""

import hashlib
import json
import os
import re
import sys
from functools import partial

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={sys.argv[1]}"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from reticent.mechanisms import Participation, make
from reticent.privacy.gaussian import rounded_normal
from reticent.privacy.grid import Grid
from reticent.privacy.keys import row_key, simulation_threefry_key
from reticent.privacy.noise import add_noise, noise_deviation

SECRET = bytes(range(32))
ARRAYS = {
    "vector": ((2**14,), ("x",)),
    "rows": ((128, 300), ("x",)),
    "columns": ((128, 300), (None, "x")),
    "convolution": ((3, 3, 64, 32), (None, None, "x")),
    "seams": ((100,), ("x",)),
}
EXCHANGES = r"all-gather|all-reduce|collective-permute|all-to-all|reduce-scatter|collective-broadcast"


def digest(value) -> str:
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(value))).hexdigest()


def told(function, *arguments, sharding=None) -> dict:
    """What a program gives, and which exchanges between devices are in it."""
    program = jax.jit(function, out_shardings=sharding)
    compiled = program.lower(*arguments).compile()
    return {
        "digest": digest(program(*arguments)),
        "exchanges": sorted(set(re.findall(EXCHANGES, compiled.as_text()))),
        "bytes": compiled.memory_analysis().temp_size_in_bytes,
    }


def main(count: int) -> dict:
    mesh = jax.make_mesh((count,), ("x",))
    results = {}
    for maker in (row_key, simulation_threefry_key):
        for name, (shape, axes) in ARRAYS.items():
            sharding = NamedSharding(mesh, PartitionSpec(*axes))
            normals = partial(rounded_normal, shape=shape, deviation=1e8)
            results[f"{maker.__name__} normals {name}"] = told(normals, maker(SECRET), sharding=sharding)
    vector = NamedSharding(mesh, PartitionSpec("x"))
    results["bits"] = told(partial(jax.random.bits, shape=(2**14,)), row_key(SECRET), sharding=vector)
    for kind in ("blt", "toeplitz", "tree", "banded-inverse"):
        results[f"noise {kind}"] = noise_of(kind, mesh)
    return results


def noise_of(kind: str, mesh) -> dict:
    """Three rounds of noise on a vector and a matrix that lie in parts on all devices."""
    mechanism = make(kind, Participation(8, 3))
    noise = add_noise(mechanism, 8, 1.0, 1.0, Grid.finest(10, 1.0, noise_deviation(mechanism, 8, 1.0, 1.0)))
    part = NamedSharding(mesh, PartitionSpec("x"))
    sums = {
        "a": jax.device_put(jnp.zeros(2**13, jnp.int32), part),
        "b": jax.device_put(jnp.zeros((64, 24), jnp.int32), part),
    }

    def lies(leaf, array):
        # What is kept has the array's axes last.
        return NamedSharding(mesh, PartitionSpec(*[None] * (leaf.ndim - array.ndim), "x"))

    shapes = jax.eval_shape(noise.init, sums)
    buffers = jax.tree.map(lambda array, kept: jax.tree.map(lambda leaf: lies(leaf, array), kept), sums, shapes.buffers)
    whole = NamedSharding(mesh, PartitionSpec())
    sharding = shapes._replace(round=whole, buffers=buffers, earlier_keys=whole)
    state = jax.jit(noise.init, out_shardings=sharding)(sums)
    update = jax.jit(lambda sums, state, key: noise.update(sums, state, key=key), out_shardings=(part, sharding))
    compiled = update.lower(sums, state, row_key(SECRET)).compile()
    releases = []
    for round in range(3):
        release, state = update(sums, state, row_key(hashlib.sha256(bytes([round])).digest()))
        releases.append(release)
    exchanges = sorted(set(re.findall(EXCHANGES, compiled.as_text())))
    return {"digest": digest(releases), "exchanges": exchanges, "bytes": compiled.memory_analysis().temp_size_in_bytes}


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))
