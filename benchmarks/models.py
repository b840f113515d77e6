"""Local training of many clients against a plain `vmap` of the textbook cell: `python benchmarks/models.py [--clients N]`.

What is timed is one pass of the CIFG of 2.4 million parameters over each client's own 16 steps of 16 rows of 20 words, from
shared parameters to the update of every client, summed. The ways take turns, so that a busy machine slows all of them.

- textbook: the cell as it is written in books, both products in every step of the scan, `log_softmax`, `vmap` over clients;
- textbook, one by one: the same cell, one client after another;
- ours, all at once / one by one: `reticent.models.clients.local_updates` as it runs on an accelerator / on a CPU;
- ours: as the platform chooses.

`--remap` asks what a local numbering of each client's words could gain: one client's pass with the whole input embedding,
and with one of only the 512 words it uses, which is the most that a remap could reach.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

from reticent.models import make
from reticent.models.clients import local_updates

STEPS, BATCH, LENGTH = 16, 16, 20
RATE = 0.1


def textbook_loss(params, tokens):
    """The mean cross-entropy of a CIFG, written down without a thought of speed."""
    cell, projection = params["cell"], params["projection"]["kernel"]

    def step(carry, ids):
        memory, state = carry
        gates = params["embedding"][ids] @ cell["input"] + state @ cell["recurrent"] + cell["bias"]
        forget, candidate, leave = jnp.split(gates, 3, axis=1)
        keep = jax.nn.sigmoid(forget)
        memory = keep * memory + (1 - keep) * jnp.tanh(candidate)
        state = (jax.nn.sigmoid(leave) * jnp.tanh(memory)) @ projection
        return (memory, state), state @ params["output"]["embedding"].T + params["output"]["bias"]

    inputs, targets = jnp.maximum(tokens[:, :-1], 0), tokens[:, 1:]
    start = jnp.zeros((len(tokens), projection.shape[0])), jnp.zeros((len(tokens), projection.shape[1]))
    _, logits = jax.lax.scan(step, start, inputs.T)
    chances = jax.nn.log_softmax(jnp.swapaxes(logits, 0, 1))
    chosen = jnp.take_along_axis(chances, jnp.maximum(targets, 0)[..., None], axis=-1)[..., 0]
    counted = targets >= 0
    return -jnp.where(counted, chosen, 0).sum() / jnp.maximum(counted.sum(), 1)


def textbook(each):
    """One client's update by plain SGD, over all clients by `each`, summed."""

    def one(params, batches):
        def step(local, batch):
            slope = jax.grad(textbook_loss)(local, batch)
            return jax.tree.map(lambda value, change: value - RATE * change, local, slope), None

        return jax.tree.map(jnp.subtract, jax.lax.scan(step, params, batches)[0], params)

    return jax.jit(lambda params, tokens: jax.tree.map(lambda leaf: leaf.sum(0), each(one, params, tokens)))


def ours(model, platform):
    return jax.jit(lambda params, tokens: local_updates(model, params, tokens, RATE, total=True, platform=platform))


def remap(model, params, repeats):
    """Seconds and CPU seconds of one client's pass, with the whole input embedding and with 512 rows of it."""
    tokens = np.random.default_rng(0).integers(0, 512, (1, STEPS, BATCH, LENGTH + 1)).astype(np.int32)
    run = ours(model, None)
    ways = {
        "the whole embedding": params,
        "the 512 rows that are used": {**params, "embedding": params["embedding"][:512]},
    }
    taken = {name: [] for name in ways}
    for held in ways.values():
        jax.block_until_ready(run(held, tokens))
    for _ in range(repeats):
        for name, held in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            jax.block_until_ready(run(held, tokens))
            taken[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    for name, seconds in taken.items():
        wall, cpu = np.median(seconds, axis=0)
        print(f"{name:<30} {wall:.3f} s ({cpu:.3f} s CPU) for one client")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--short", action="store_true", help="only the first way and what this platform gets")
    parser.add_argument("--remap", action="store_true", help="only what a local numbering of words could gain")
    options = parser.parse_args()
    model = make("cifg", compute_dtype=options.dtype)
    params = model.init(jax.random.key(0))
    if options.remap:
        return remap(model, params, options.repeats)
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, model.vocabulary, (options.clients, STEPS, BATCH, LENGTH + 1)).astype(np.int32)
    ways = {
        "textbook, vmap over clients": textbook(
            lambda one, params, tokens: jax.vmap(one, in_axes=(None, 0))(params, tokens)
        ),
        "textbook, one by one": textbook(
            lambda one, params, tokens: jax.lax.map(lambda batches: one(params, batches), tokens)
        ),
        "ours, all at once": ours(model, "gpu"),
        "ours, one by one": ours(model, "cpu"),
    }
    chosen = "ours, one by one" if jax.default_backend() == "cpu" else "ours, all at once"
    if options.dtype != "float32":
        ways = {name: way for name, way in ways.items() if name.startswith("ours")}
    if options.short:
        ways = {name: way for name, way in ways.items() if name in (next(iter(ways)), chosen)}
    results, seconds = {}, {name: [] for name in ways}
    for name, way in ways.items():
        results[name] = jax.block_until_ready(way(params, tokens))
    for _ in range(options.repeats):
        for name, way in ways.items():
            started = time.perf_counter()
            jax.block_until_ready(way(params, tokens))
            seconds[name].append(time.perf_counter() - started)
    base = next(iter(ways))
    print(
        f"{jax.devices()[0].device_kind}, {model.parameters:,} parameters, {options.clients} clients, {options.dtype}"
    )
    for name, taken in seconds.items():
        ratios = sorted(slow / fast for slow, fast in zip(seconds[base], taken, strict=True))
        apart = max(
            float(jnp.abs(one - other).max() / jnp.abs(other).max())
            for one, other in zip(jax.tree.leaves(results[name]), jax.tree.leaves(results[base]), strict=True)
        )
        mark = "  <- what this platform gets" if name == chosen else ""
        print(
            f"{name:<30} {options.clients / np.median(taken):8.3f} clients/s   {np.median(ratios):.2f}x of the first "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})   largest difference {apart:.1e}{mark}"
        )


if __name__ == "__main__":
    main()
