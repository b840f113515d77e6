"""Noise: the time of a row against that of its Gaussians alone, and of moving its bytes; and against jax_privacy's.

    python benchmarks/noise.py [--parameters N ...] [--buffers B] [--rounds R]

One BLT step of B buffers reads and writes every buffer once and writes the noise: (2 B + 1) * 4 bytes per parameter. `move`
is the time of a program that moves as many, half of them read. All are timed in turn, round by round, on JAX's default
device; a figure is the median, with the least beside it. jax_privacy, where it is installed, runs in its own process.
"""

import argparse
import functools
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time

import jax
import jax.numpy as jnp

BLT_OF = {
    1: ((0.99,), (0.3,)),
    2: ((0.995, 0.9), (0.1, 0.3)),
    3: ((0.998, 0.97, 0.7), (0.06, 0.15, 0.25)),
    4: ((0.9999, 0.9944, 0.8986, 0.4912), (0.00703, 0.10614, 0.18982, 0.19666)),
}
ROUNDS = 1000


def seconds_of(programs, rounds):
    """The median and the least seconds of each program, which is called with what it returned last."""
    states = {}
    for name, (program, arguments) in programs.items():
        states[name] = jax.block_until_ready(program(*arguments))
    times = {name: [] for name in programs}
    for _ in range(rounds):
        for name, (program, _) in programs.items():
            start = time.perf_counter()
            states[name] = jax.block_until_ready(program(*states[name]))
            times[name].append(time.perf_counter() - start)
    return {name: (statistics.median(taken), min(taken)) for name, taken in times.items()}


def drawing(draw):
    """A program that draws from the same key again and again."""
    program = jax.jit(draw)
    return lambda key, _: (key, program(key))


def our_step(mechanism, parameters):
    """Adds a row of noise to sums; sums and buffers are donated."""
    from reticent.privacy.grid import Grid
    from reticent.privacy.noise import add_noise, noise_deviation

    grid = Grid.finest(1000, 1.0, noise_deviation(mechanism, ROUNDS, 7.0, 1.0))
    noise = add_noise(mechanism, ROUNDS, 7.0, 1.0, grid)
    update = jax.jit(lambda sums, state, key: noise.update(sums, state, key=key), donate_argnums=(0, 1))
    sums = jnp.zeros(parameters, jnp.int32)

    def program(key, sums, state):
        return (key, *update(sums, state, key))

    return program, lambda key: (key, jnp.copy(sums), noise.init(sums))


def ours(parameters, buffers, rounds):
    from reticent.mechanisms.blt import BLT
    from reticent.mechanisms.independent import Independent
    from reticent.privacy.gaussian import rounded_normal
    from reticent.privacy.keys import row_key, simulation_threefry_key

    keys = {"threefry": simulation_threefry_key(os.urandom(32)), "chacha20": row_key(os.urandom(32))}
    moved = jnp.zeros((2 * buffers + 1) * parameters // 2, jnp.float32)
    move = jax.jit(lambda values: values + 1, donate_argnums=0)
    shape = (parameters,)
    programs = {
        "move": (lambda values: (move(values),), (moved,)),
        "jax.random.normal, threefry": (
            drawing(functools.partial(jax.random.normal, shape=shape)),
            (keys["threefry"], 0),
        ),
        "jax.random.normal, chacha20": (
            drawing(functools.partial(jax.random.normal, shape=shape)),
            (keys["chacha20"], 0),
        ),
    }
    for name, key in keys.items():
        drawn = drawing(functools.partial(rounded_normal, shape=shape, deviation=1e7))
        programs[f"Gaussians, {name}"] = (drawn, (key, 0))
        for what, mechanism in (("independent", Independent()), (f"BLT, {buffers} buffers", BLT(*BLT_OF[buffers]))):
            step, state = our_step(mechanism, parameters)
            programs[f"{what}, {name}"] = (step, state(key))
    return seconds_of(programs, rounds)


def theirs(parameters, buffers, rounds):
    jax.config.update("jax_enable_x64", True)  # it wants its BLT so; noise is float32
    from jax_privacy import noise_addition
    from jax_privacy.matrix_factorization import buffered_toeplitz

    decays, scales = BLT_OF[buffers]
    matrix = buffered_toeplitz.BufferedToeplitz.build(decays, scales).inverse_as_streaming_matrix()
    correlated = functools.partial(noise_addition.matrix_factorization_privatizer, matrix)
    rivals = {"independent": noise_addition.gaussian_privatizer, f"BLT, {buffers} buffers": correlated}
    programs = {}
    for what, privatizer in rivals.items():
        noise = privatizer(stddev=7.0, prng_key=0, dtype=jnp.float32)
        sums = jnp.zeros(parameters, jnp.float32)
        update = jax.jit(noise.update, donate_argnums=(0, 1))
        programs[f"jax_privacy, {what}, threefry"] = (update, (sums, noise.init(sums)))
    return seconds_of(programs, rounds)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", type=int, nargs="+", default=[365_000, 2**20, 2**23])
    parser.add_argument("--buffers", type=int, default=4, choices=BLT_OF)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rival", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rival:
        print(json.dumps(theirs(asked.parameters[0], asked.buffers, asked.rounds)))
        return
    device = jax.devices()[0]
    print(
        f"{device.device_kind} x {jax.device_count()}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors\n"
    )
    for parameters in asked.parameters:
        times = ours(parameters, asked.buffers, asked.rounds)
        if importlib.util.find_spec("jax_privacy"):
            options = ["--rival", "--parameters", parameters, "--buffers", asked.buffers, "--rounds", asked.rounds]
            command = [sys.executable, __file__, *map(str, options)]
            times |= json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        print(
            f"{parameters:,} parameters   {'ns per parameter':>24}{'(least)':>9}{'/ move':>9}{'/ Gaussians alone':>19}"
        )
        for name, (median, least) in times.items():
            alone = times.get(f"Gaussians, {name.split(', ')[-1]}")
            beside = f"{median / alone[0]:19.2f}" if alone and not name.startswith("jax.random") else ""
            per = 1e9 / parameters
            print(f"  {name:<42}{median * per:10.2f}{least * per:9.2f}{median / times['move'][0]:9.2f}{beside}")
        print()


if __name__ == "__main__":
    main()
