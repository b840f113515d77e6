"""The sum of a cohort's clipped updates, as integers: the same whatever the chunks, threads and devices it is made on."""

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from reticent.data.batches import ClientBatches, Shape, assemble_in_shapes, shapes
from reticent.data.store import Store
from reticent.models import Model
from reticent.models.clients import local_updates
from reticent.privacy.clipping import Contribution
from reticent.privacy.weighting import WHOLE, user_weights

CLIENTS_ON_CPU = 16

Each = Callable[..., Contribution]
"""From one client's update and its weight to what is added up: clipped, in integers (`privacy.clipping.Clipping`)."""


@dataclass(frozen=True)
class LocalWork:
    """What a client does with its own text: `epochs` times through it in steps of `batch_size` rows (DP-FedAvg's
    UserUpdateFedAvg), or with `one_step` a single one (UserUpdateFedSGD)."""

    batch_size: int
    sequence_length: int
    learning_rate: float
    epochs: int = 1
    one_step: bool = False
    max_examples: int | None = None
    max_tokens: int | None = None
    packed: bool = False
    weight_cap: float | None = None

    @property
    def rows(self) -> dict[str, Any]:
        """What decides a client's rows, as `reticent.data.batches` takes it."""
        most = [cap for cap in (self.max_examples, self.batch_size if self.one_step else None) if cap is not None]
        return {
            "batch_size": self.batch_size,
            "sequence_length": self.sequence_length,
            "max_examples": min(most, default=None),
            "max_tokens": self.max_tokens,
            "packed": self.packed,
        }

    def weights(self, batches: ClientBatches) -> np.ndarray:
        """The weight of each client, in parts of `WHOLE`; nobody weighs 0."""
        somebody = np.where(batches.clients < 0, 0, WHOLE).astype(np.int32)
        if self.weight_cap is None:
            return somebody
        return np.minimum(np.asarray(user_weights(jnp.asarray(batches.examples), self.weight_cap)), somebody)


class CohortSums:
    """Sums over cohorts drawn from one store; the users of a second, `planted`, have the numbers -1, -2, ... `close` ends
    its threads."""

    def __init__(
        self, model: Model, store: Store, work: LocalWork, each: Each, seed: int, planted: Store | None = None
    ) -> None:
        self.model = model
        self.store = store
        self.planted = planted
        self.work = work
        self.measured = getattr(each, "measures", None) is not None
        self.seed = seed
        self.devices = _workers()
        self.skipping = self.devices[0].platform == "cpu"
        self.shapes: tuple[Shape, ...] = shapes(store, skipping=self.skipping, **work.rows)
        if planted is not None:
            self.shapes = with_shape(self.shapes, shapes(planted, most=1, **work.rows)[-1])
        self.clients = CLIENTS_ON_CPU if self.skipping else _clients_at_once(model, self.shapes[-1], work)
        self._pool = ThreadPoolExecutor(len(self.devices), thread_name_prefix="cohort")
        # What is not trained is on every device once.
        self._frozen = {device: jax.device_put(model.frozen, device) for device in dict.fromkeys(self.devices)}
        self.take(each)

    def take(self, each: Each) -> None:
        """Goes on with another `each`, as where the clip norm changes."""
        self.each = each
        # Not the method itself, which `jit` would take for the same program as before.
        self._add = jax.jit(partial(self._add_group, each), donate_argnums=0)

    def compile(self, params: Any, estimate: float | None = None) -> None:
        """Compiles everything before the first round, with nobody in the cohort."""
        nobody, tracked = np.full(self.clients, -1), _number(estimate)
        for device in dict.fromkeys(self.devices):
            own, total = jax.device_put(params, device), self.of_nobody(params, device, tracked)
            for steps, batch in self.shapes:
                tokens = np.full((self.clients, steps, batch, self.work.sequence_length + 1), -1, np.int32)
                empty = np.zeros(self.clients, np.int32)
                group = ClientBatches(tokens, empty, empty, empty, nobody)
                total = self._add(total, own, self._frozen[device], tokens, self.work.weights(group), tracked)
            jax.block_until_ready(total)

    def __call__(self, params: Any, cohort: np.ndarray, round: int, estimate: float | None = None) -> Contribution:
        """The sum of what `each` makes of the members' updates, on the first device. Secret until it is noised.

        `estimate` is the tracked norm of adaptive clipping.
        """
        tracked = _number(estimate)
        seed = (self.seed << 32) + round
        how: dict[str, Any] = {"clients": self.clients, "seed": seed, **self.work.rows}
        groups = assemble_in_shapes(self.store, cohort[cohort >= 0], self.shapes, **how)
        if self.planted is not None:
            writers = -1 - cohort[(cohort < 0) & (cohort >= -self.planted.users)]
            groups = itertools.chain(groups, assemble_in_shapes(self.planted, writers, self.shapes, **how))
        lock = threading.Lock()
        totals = self._pool.map(lambda device: self._work_off(groups, lock, params, tracked, device), self.devices)
        first, *others = (jax.device_put(total, self.devices[0]) for total in totals)
        for other in others:
            first = jax.tree.map(jnp.add, first, other)
        return first

    def _work_off(
        self, groups: Iterator[ClientBatches], lock: threading.Lock, params: Any, estimate: Any, device: Any
    ) -> Any:
        own, total = jax.device_put(params, device), self.of_nobody(params, device, estimate)
        while True:
            # The device is at work on one group while the next is assembled.
            with lock:
                group = next(groups, None)
            jax.block_until_ready(total)
            if group is None:
                return total
            total = self._add(total, own, self._frozen[device], group.tokens, self.work.weights(group), estimate)

    def _add_group(
        self, each: Each, total: Any, params: Any, frozen: Any, tokens: jax.Array, weights: jax.Array, estimate: Any
    ) -> Any:
        repeated = jnp.tile(tokens, (1, self.work.epochs, 1, 1))
        sums = local_updates(
            self.model.holding(frozen),
            params,
            repeated,
            self.work.learning_rate,
            self._with(each, estimate),
            beside=(weights,),
            measured=self.measured,
            total=True,
        )
        return jax.tree.map(jnp.add, total, sums)

    def _with(self, each: Each, estimate: Any) -> Callable[..., Contribution]:
        more = {} if estimate is None else {"estimate": estimate}
        if self.measured:
            return lambda update, sums, weight: each(update, weight, sums=sums, **more)
        return lambda update, weight: each(update, weight, **more)

    def of_nobody(self, params: Any, device: Any, estimate: Any = None) -> Contribution:
        """The sum over an empty cohort, on this device; with an `estimate` (any) where cohorts are summed with one."""
        shape = jax.eval_shape(self._shape_of_one, params, _number(estimate))
        return jax.device_put(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape), device)

    def _shape_of_one(self, params: Any, estimate: Any) -> Contribution:
        weight = jnp.zeros((), jnp.int32)
        sums: tuple[Any, ...] = ()
        if self.measured:
            rows = jnp.zeros((1, self.work.sequence_length + 1), jnp.int32)
            sums = (self.model.loss(params, rows, None)[1],)
        return self._with(self.each, estimate)(params, *sums, weight)

    def close(self) -> None:
        self._pool.shutdown()


def with_shape(found: tuple[Shape, ...], needed: Shape) -> tuple[Shape, ...]:
    """The shapes, with one more where none of them holds what is needed."""
    if any(steps >= needed[0] and batch >= needed[1] for steps, batch in found):
        return found
    return tuple(sorted({*found, needed}, key=lambda shape: (shape[0] * shape[1], shape)))


def _number(estimate: Any) -> np.float32 | None:
    return None if estimate is None else np.float32(estimate)


def _workers() -> list[Any]:
    """A thread for each device; several for the one of a CPU, where a client's small matrix products leave cores idle."""
    devices = jax.local_devices()
    if devices[0].platform == "cpu" and len(devices) == 1:
        return devices * len(os.sched_getaffinity(0))
    return devices


def _clients_at_once(model: Model, largest: Shape, work: LocalWork) -> int:
    """As many clients as half of an accelerator's memory holds: each with its parameters, their gradient, its update and
    the scores of one step's words."""
    memory = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 16 * 2**30)
    memory = max(memory - sum(leaf.nbytes for leaf in jax.tree.leaves(model.frozen)), 0)
    scores = largest[1] * work.sequence_length * model.vocabulary
    return int(np.clip(memory // 2 // (4 * (4 * model.parameters + 4 * scores)), 1, 256))
