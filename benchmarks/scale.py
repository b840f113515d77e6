"""A run on many devices: what a device needs, what it sends, what a client costs, and what that says of larger clusters.

    python benchmarks/scale.py memory       a round's noise for 10^9 parameters on 8 devices, from the compiled program
    python benchmarks/scale.py traffic      bytes that a device sends per round, from the compiled programs
    python benchmarks/scale.py weak         processor seconds per client on 1, 2 and 4 virtual devices
    python benchmarks/scale.py model        rounds per second on 8, 64 and 512 accelerators, from rates and assumptions

Devices are virtual ones of a CPU. Nothing of the first two is run, so that they need little memory.
"""

import argparse
import os
import re
import subprocess
import sys
from functools import partial

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    wanted = os.environ.get("RETICENT_VIRTUAL_DEVICES", "8")
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={wanted}"

import jax
import jax.numpy as jnp
import numpy as np

from reticent.mechanisms import Participation, make
from reticent.privacy.chacha import CHACHA20
from reticent.privacy.grid import Grid
from reticent.privacy.noise import add_noise, noise_deviation
from reticent.training.distributed import added, noised_in_pieces
from reticent.training.placing import Layout

ROUNDS, SEPARATION, BUFFERS = 2000, 100, 4


def blt_noise():
    """BLT noise with as many buffers as were asked for, at most."""
    mechanism = make("blt", Participation(ROUNDS, SEPARATION), size=BUFFERS)
    deviation = noise_deviation(mechanism, ROUNDS, 1.0, 1.0)
    return add_noise(mechanism, ROUNDS, 1.0, 1.0, Grid.finest(1000, 1.0, deviation)), len(mechanism.decays)


def noise_program(layout):
    """A round's noise, compiled: sums and buffers in parts, given away."""
    noise, buffers = blt_noise()
    sums = jax.ShapeDtypeStruct((layout.padded,), jnp.int32)
    state = jax.eval_shape(noise.init, sums)
    parts = (layout.sharding(sums.shape), layout.shardings(state))

    def step(sums, state, words):
        return noised_in_pieces(noise, layout, sums, state, jax.random.wrap_key_data(words, impl=CHACHA20))

    program = jax.jit(step, in_shardings=(*parts, layout.whole), out_shardings=parts, donate_argnums=(0, 1))
    return program.lower(sums, state, jax.ShapeDtypeStruct((8,), jnp.uint32)).compile(), buffers


def memory(parameters):
    layout = Layout(parameters)
    compiled, buffers = noise_program(layout)
    told = compiled.memory_analysis()
    peak = told.argument_size_in_bytes + told.output_size_in_bytes + told.temp_size_in_bytes - told.alias_size_in_bytes
    held = 4 * layout.size * (buffers + 1)
    print(f"{parameters:,} parameters, {buffers} buffers and the sum that is noised: {held / 1e9:.2f} GB")
    print(f"on {layout.devices} devices, peak of each      {peak / 1e9:.3f} GB (compiled, not run)")
    print(f"of it neither buffers nor sum      {(peak - held / layout.devices) / 1e9:.3f} GB")
    print(f"peak / (1/{layout.devices} of buffers and sum)    {peak / (held / layout.devices):.4f}")


SIZES = {"s32": 4, "f32": 4, "u32": 4, "s8": 1, "u8": 1, "pred": 1}
EXCHANGE = re.compile(
    r"= \(?(\w+)\[([\d,]*)\].*? (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)\("
)


def exchanged(text, devices):
    """{exchange: bytes that a device sends}, of a compiled program, by the usual ring."""
    found = {}
    for kind, shape, name in EXCHANGE.findall(text):
        size = SIZES[kind] * int(np.prod([int(part) for part in shape.split(",") if part] or [1]))
        groups = devices
        share = (groups - 1) / groups
        sent = {"all-reduce": 2 * share, "all-gather": share, "reduce-scatter": share * groups}.get(name, 1.0) * size
        found[name] = found.get(name, 0.0) + sent
    return found


def traffic(parameters):
    """Of the programs of a round: the sum over hosts, the noise, and the parameters on their way to every device. The
    release on its way to every host is as large as the parameters."""
    print(f"{parameters:,} parameters; megabytes that a device sends per round\n")
    print("| hosts x devices | sum over hosts | noise | parameters to every device |")
    print("|---|---|---|---|")
    for hosts in (1, 2, 4, 8):
        layout = Layout(parameters, hosts)
        one = layout.sharding((layout.padded,))
        rows = jax.ShapeDtypeStruct((hosts, layout.padded), jnp.int32)
        vector = jax.ShapeDtypeStruct((layout.padded,), jnp.float32)
        add = jax.jit(partial(added, layout), in_shardings=layout.rows, out_shardings=one)
        whole = jax.jit(lambda vector: vector, in_shardings=one, out_shardings=layout.whole)
        cells = []
        for compiled, groups in (
            (add.lower(rows).compile(), hosts),
            (noise_program(layout)[0], layout.devices),
            (whole.lower(vector).compile(), layout.devices),
        ):
            found = exchanged(compiled.as_text(), groups)
            cells.append(", ".join(f"{name} {sent / 1e6:.2f}" for name, sent in found.items()) or "nothing")
        print(f"| {hosts} x {layout.locals} | {' | '.join(cells)} |")


WEAK = """
import sys, time, tempfile, pathlib
import jax, numpy as np
from reticent.config import parse
from reticent.training import prepare
from reticent.training.cluster import Cluster
from reticent.training.distributed import DistributedRounds
clients, rounds_made = int(sys.argv[1]), 4
setup = prepare(parse({
    "run": {"rounds": 40, "simulated_row_seed": 1},
    "data": {"store": "crowd", "people": 2000, "packed": True, "max_tokens_per_user": 800},
    "model": {"kind": "lstm", "embedding": 32, "hidden": 64, "vocabulary": 2004},
    "population": {"size": 2000, "report_goal": clients, "min_separation": 2},
    "mechanism": {"kind": "blt", "buffers": 2}, "clipping": {"norm": 1.0},
    "privacy": {"noise_multiplier": 4.0, "delta": 1e-5},
}))
params = setup.model.init(jax.random.key(0))
rounds = DistributedRounds(setup, params, Cluster(0, 1))
state = rounds.placed(rounds.first_state(params))
rounds.compile(state)
def one(state, number):
    total = rounds.sum_of(state, np.arange(clients), number)
    release, noise = rounds.noised(total, state.noise, bytes([number]) * 32)
    return rounds.served(state.replace(noise=noise), release)
state = one(state, 0)
spent, began = time.process_time(), time.perf_counter()
for number in range(1, rounds_made + 1):
    state = one(state, number)
print((time.process_time() - spent) / rounds_made / clients, (time.perf_counter() - began) / rounds_made)
rounds.close()
"""


def weak(each):
    print(f"{each} clients a device, a 157,172-parameter LSTM; devices share this machine's cores\n")
    print("| devices | clients | processor seconds per client | seconds per round |")
    print("|---|---|---|---|")
    for devices in (1, 2, 4):
        flags = f"--xla_force_host_platform_device_count={devices}"
        told = subprocess.run(
            [sys.executable, "-c", WEAK, str(each * devices)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        ).stdout.split()
        print(f"| {devices} | {each * devices} | {float(told[0]):.5f} | {float(told[1]):.2f} |", flush=True)


# (what, parameters, cohort, clients per second of one H200 as measured for this model or scaled from it by parameters)
WORKLOADS = (
    ("LSTM, 4.05 million parameters, cohort 6,500, bfloat16", 4.05e6, 6500, 402.0),
    ("the same by work per client, 10^8 parameters, cohort 1,000", 1e8, 1000, 402.0 * 4.05e6 / 1e8),
    ("10^9 parameters, cohort 1,000", 1e9, 1000, 402.0 * 4.05e6 / 1e9),
)
MEMORY, WITHIN, BETWEEN = (
    4.0e12,
    300e9,
    40e9,
)  # bytes per second: device memory; between a host's devices; between hosts
EXCHANGE_SECONDS, HOST_SECONDS, PER_HOST = 50e-6, 0.02, 8


def model():
    print("| workload | accelerators | training | exchanges | noise and step | host | seconds per round | efficiency |")
    print("|---|---|---|---|---|---|---|---|")
    for what, parameters, cohort, rate in WORKLOADS:
        size, first = 4 * parameters, None
        for devices in (1, 8, 64, 512):
            hosts, local = max(1, devices // PER_HOST), min(devices, PER_HOST)
            # The slowest device has a whole number of clients.
            training = -(-cohort // devices) / rate
            inside = 2 * size * (local - 1) / local / WITHIN
            # Each device sends its column's part of the sum, and gets its host's share of the parameters.
            across = 2 * size / local * (hosts - 1) / hosts / BETWEEN
            exchanges = inside + across + 4 * EXCHANGE_SECONDS * np.log2(max(devices, 2)) * (devices > 1)
            noise = (2 * BUFFERS + 8) * size / devices / MEMORY
            host = HOST_SECONDS + size / 2e9
            total = training + exchanges + noise + host
            first = first or total
            print(
                f"| {what} | {devices} | {training:.3f} | {exchanges:.4f} | {noise:.5f} | {host:.3f} | {total:.3f} | "
                f"{first / total / devices:.0%} |"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("memory", "traffic", "weak", "model"))
    parser.add_argument("--parameters", type=float, default=None)
    parser.add_argument("--clients", type=int, default=16, help="for weak: clients of each device")
    options = parser.parse_args()
    if options.what == "memory":
        memory(int(options.parameters or 1e9))
    elif options.what == "traffic":
        traffic(int(options.parameters or 6.4e6))
    elif options.what == "weak":
        weak(options.clients)
    else:
        model()


if __name__ == "__main__":
    main()
