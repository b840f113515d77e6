"""Sums of clipped gradients: ours, the same model's plain gradient, and jax_privacy's clipped_grad.

    python benchmarks/finetune.py                      # a transformer of 5.7 million parameters, on whatever JAX runs on
    python benchmarks/finetune.py --layers 24 --embedding 1024 --hidden 2816 --heads 16 --vocabulary 32000 --length 128

Times are of one micro-batch, the three taken in turn, the median over several turns; memory is what the compiler plans for
temporary arrays. A unit is an example of ELS, or a user of ULS with several rows.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from reticent.finetune.bookkeeping import clipped_sums
from reticent.finetune.sums import Single, loss_of_unit
from reticent.models import make
from reticent.privacy.clipping import Clipping
from reticent.privacy.grid import Grid

NORM = 0.5


def main() -> None:
    options = argparse.ArgumentParser()
    for name, size in {"vocabulary": 10_004, "embedding": 256, "hidden": 688, "layers": 4, "heads": 4}.items():
        options.add_argument(f"--{name}", type=int, default=size)
    options.add_argument("--kind", default="transformer")
    options.add_argument("--length", type=int, default=20)
    options.add_argument("--dtype", default="float32")
    options.add_argument("--examples", type=int, default=64, help="rows of a micro-batch of ELS")
    options.add_argument("--users", type=int, default=8, help="users of a micro-batch of ULS")
    options.add_argument("--group", type=int, default=8, help="rows of a user")
    options.add_argument("--turns", type=int, default=5)
    asked = options.parse_args()
    sizes = {name: getattr(asked, name) for name in ("vocabulary", "embedding", "hidden")}
    if asked.kind.startswith("transformer"):
        sizes |= {"layers": asked.layers, "heads": asked.heads}
    model = make(asked.kind, compute_dtype=asked.dtype, **sizes)
    params = model.init(jax.random.key(0))
    print(
        f"{model.kind}, {model.parameters:,} parameters, rows of {asked.length} tokens, {jax.devices()[0].device_kind}"
    )
    for name, units, rows in (("ELS", asked.examples, 1), ("ULS", asked.users, asked.group)):
        draw = np.random.default_rng(0)
        tokens = draw.integers(4, model.vocabulary, (units, rows, asked.length + 1)).astype(np.int32)
        print(f"\n{name}: {units} units of {rows} rows")
        _compare(model, params, jnp.asarray(tokens), asked.turns)


def _compare(model, params, tokens, turns) -> None:
    from jax_privacy.clipping import clipped_grad

    units, rows, width = tokens.shape

    def plain(params, tokens):
        return jax.grad(lambda params: model.loss(params, tokens.reshape(-1, width), None)[0])(params)

    def together(params, tokens):
        return clipped_sums(model, params, tokens, NORM).total

    single = Single(model, Clipping(NORM, Grid(-20)))

    def one_by_one(params, tokens):
        return single.add(single.nothing(params), params, tokens, jnp.full(units, 2**14, jnp.int32)).units

    def peer(params, tokens, size=None):
        def loss(params, rows):
            return loss_of_unit(model, params, rows)

        return clipped_grad(loss, l2_clip_norm=NORM, keep_batch_dim=False, microbatch_size=size)(params, tokens)

    ways = {
        "plain gradient": plain,
        "together": together,
        "one by one": one_by_one,
        "clipped_grad": peer,
        "clipped_grad, micro-batches of 1": lambda params, tokens: peer(params, tokens, 1),
        "clipped_grad, micro-batches of 8": lambda params, tokens: peer(params, tokens, min(8, units)),
    }
    compiled, memory, results = {}, {}, {}
    for name, way in ways.items():
        compiled[name] = jax.jit(way).lower(params, tokens).compile()
        memory[name] = compiled[name].memory_analysis().temp_size_in_bytes
        results[name] = jax.block_until_ready(compiled[name](params, tokens))
    _check(results)
    times = {name: [] for name in ways}
    for _ in range(turns):
        for name, run in compiled.items():
            began = time.perf_counter()
            jax.block_until_ready(run(params, tokens))
            times[name].append(time.perf_counter() - began)
    base = statistics.median(times["plain gradient"])
    count = units * rows * (width - 1)
    print(f"{'':34} {'tokens/s':>10} {'of plain':>9} {'temporary MB':>13}")
    for name, taken in times.items():
        middle = statistics.median(taken)
        print(f"{name:34} {count / middle:>10,.0f} {base / middle:>9.2f} {memory[name] / 2**20:>13,.0f}")


def _check(results) -> None:
    """All ways but the plain one have the same sum."""
    peer = results["clipped_grad"]
    difference = max(
        float(jnp.abs(ours - theirs).max())
        for ours, theirs in zip(jax.tree.leaves(results["together"]), jax.tree.leaves(peer), strict=True)
    )
    print(f"largest difference of an entry, together against clipped_grad: {difference:.2g}")


if __name__ == "__main__":
    main()
