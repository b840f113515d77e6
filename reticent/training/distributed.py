"""A run on the devices of many hosts: the rounds that process 0 leads, and those who follow.

Every host trains its share of a cohort, device by device, as a single machine would. Then their integer sums are added,
and every device makes the noise and takes the server's step for its own part of the vectors. Process 0 has the run's
directories, and checks and writes what it always does; the others do as they are told, and hold every release against the
digest that was written.
"""

import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import NamedSharding, PartitionSpec

from reticent.config import RunFile, resolved
from reticent.errors import Refused
from reticent.ledger.clip_norms import first_norms
from reticent.models import Model
from reticent.privacy.chacha import CHACHA20
from reticent.privacy.clipping import Contribution
from reticent.privacy.noise import NoiseState
from reticent.training.cluster import Cluster, Died, machine_facts
from reticent.training.placing import HOST, Layout
from reticent.training.rounds import Rounds, unraveled
from reticent.training.setup import Progress, Setup, open_data, prepare
from reticent.training.state import State
from reticent.training.work import WorkOf, federated

# Their step for one entry looks at that entry alone, so that a vector may be cut anywhere. (Compiled for arrays of other
# shapes, those that correct for their beginning, adam and its kin, may differ by a bit from an undistributed run.)
ENTRY_BY_ENTRY = ("sgd", "adam", "adamw", "adagrad", "yogi", "lion", "rmsprop", "nadam")


def agree_on(run_file: RunFile, cluster: Cluster, progress: Progress) -> None:
    """Refuses, on all processes alike and before anything is computed, what they do not agree on: the run file, the code,
    the devices, the store. Process 0 opens the data first, so that data at hand is made once."""
    facts = machine_facts()
    cluster.agree({**facts, "run file": hashlib.sha256(resolved(run_file).encode()).hexdigest()[:16]})
    problem = _what_cannot_be(run_file)
    if problem:
        raise Refused(problem)
    first = cluster.gather(_store_facts(run_file, progress) if cluster.leads else {})[0]
    if first.get("problem"):
        raise Refused(f"Process 0: {first['problem']}")
    cluster.agree(first if cluster.leads else _store_facts(run_file, progress))


def _store_facts(run_file: RunFile, progress: Progress) -> dict[str, Any]:
    try:
        data = open_data(run_file, progress)
    except (Refused, OSError) as error:
        return {"problem": f"the data cannot be read there: {error}"}
    people = data.people
    return {"store": data.train.digest, "store to evaluate on": None if people is None else people.store.digest}


def _what_cannot_be(run_file: RunFile) -> str | None:
    if run_file.server.optimizer not in ENTRY_BY_ENTRY:
        return (
            f"server.optimizer {run_file.server.optimizer!r} looks at whole arrays, which no device of a distributed run "
            f"has; there are {', '.join(ENTRY_BY_ENTRY)}."
        )
    if run_file.run.secure_aggregation != "off":
        return (
            "Secure aggregation is simulated in one process; set run.secure_aggregation to 'off' to train distributed."
        )
    if run_file.audit.declared:
        return "What [audit] plants is planted by one process; leave the table out to train distributed."
    if not run_file.private:
        return "Algorithm 'pretrain' trains on one machine; leave --distributed out."
    return None


class DistributedRounds(Rounds):
    """The rounds of a run on all devices of a cluster. Process 0 calls its methods, the others `follow`.

    A state it works on has its vectors in parts (`placing.Layout`): parameters and optimiser state as one vector each.
    """

    def __init__(self, setup: Setup, params: Any, cluster: Cluster) -> None:
        if "clip_norms" in setup.description or setup.measures is not None:
            raise Refused(
                "Clip norms that change, and metrics of those trained on, are made in one process; leave them out to train "
                "distributed."
            )
        super().__init__(setup, params)
        self.cluster = cluster
        self.layout = Layout(setup.size)
        vector = jax.ShapeDtypeStruct((self.layout.padded,), jnp.float32)
        units = jax.ShapeDtypeStruct((self.layout.padded,), jnp.int32)
        self._tree = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
        self._kept = {
            "params": vector,
            "optimizer": jax.eval_shape(self.optimizer.init, vector),
            "noise": jax.eval_shape(self.mechanism.init, units),
        }
        of = {name: self.layout.shardings(kept) for name, kept in self._kept.items()}
        one, whole, rows = self.layout.sharding((self.layout.padded,)), self.layout.whole, self.layout.rows
        extra = NamedSharding(self.layout.mesh, PartitionSpec(HOST))
        self._extra = extra
        self._noise_sharding = of["noise"]
        self._row = jax.jit(lambda units: jnp.pad(ravel_pytree(units)[0], (0, self.layout.padded - self.layout.size)))
        self._sum_rows = jax.jit(
            lambda rows, beside: (added(self.layout, rows), beside.sum(0, dtype=jnp.int32)),
            in_shardings=(rows, extra),
            out_shardings=(one, whole),
        )
        self._noised = jax.jit(
            self._make_noise,
            in_shardings=((one, whole), of["noise"], whole),
            out_shardings=(one, of["noise"]),
            donate_argnums=(0, 1),
        )
        self._served = jax.jit(
            self._served_in_parts,
            in_shardings=(one, of["optimizer"], one),
            out_shardings=(one, of["optimizer"]),
            donate_argnums=(0, 1),
        )
        self._unraveled = jax.jit(self._unravel)
        self._everywhere = jax.jit(lambda vector: vector, out_shardings=whole)
        self._released: tuple[str, jax.Array] | None = None

    # What process 0 calls.

    def first_state(self, params: Any) -> State:
        simulated = self.setup.run_file.run.simulated_row_seed
        noise = jax.eval_shape(self.mechanism.init, jax.ShapeDtypeStruct((self.layout.size,), jnp.int32))
        start = self.setup.sampler.start(simulated)
        optimizer = jax.eval_shape(self.optimizer.init, self._tree)
        return State(params, optimizer, noise, start, first_norms(self.setup.description))

    def placed(self, state: State) -> State:
        # Of a state that was read, arrays without entries are not stored, and are shapes still.
        kept = [leaf for leaf in jax.tree.leaves(state.noise) if leaf.size]
        fresh = all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in kept)
        if not fresh and any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in kept):
            raise Refused("The state that was stored lacks a part of the noise; restore its checkpoint from a copy.")
        self.cluster.tell({"do": "place", "fresh": fresh})
        return state.replace(**self._placed(state, fresh))

    def local(self, state: State) -> State:
        self.cluster.tell({"do": "gather", "what": ["params", "optimizer", "noise"]})
        whole = {name: self._gathered(getattr(state, name)) for name in ("params", "optimizer", "noise")}
        return state.replace(
            params=unraveled(whole["params"], self._tree),
            optimizer=self._as_tree(whole["optimizer"]),
            noise=whole["noise"],
        )

    def params(self, state: State) -> Any:
        self.cluster.tell({"do": "gather", "what": ["params"]})
        return jax.tree.map(jnp.asarray, unraveled(self._gathered(state.params), self._tree))

    def compile(self, state: State) -> None:
        self.cluster.tell({"do": "compile"})
        self.sums.compile(self._here(state.params))

    def sum_of(self, state: State, cohort: np.ndarray, round: int) -> Any:
        cohort = np.sort(np.asarray(cohort, np.int64))
        self.cluster.tell({"do": "sum", "round": round}, {"cohort": cohort})
        return self._summed(state.params, cohort, round)

    def noised(self, total: Any, noise: Any, key: bytes) -> tuple[Any, Any]:
        self.cluster.tell({"do": "noise"}, {"key": np.frombuffer(key, np.uint8)})
        return self._released_of(total, noise, key)

    def skipped(self, state: State, key: bytes) -> Any:
        self.cluster.tell({"do": "skip"}, {"key": np.frombuffer(key, np.uint8)})
        return self._noised(self._nothing(), state.noise, _words(key))[1]

    def served(self, state: State, release: Any) -> State:
        units = np.asarray(release)
        digest = digest_of(units)
        again = self._released is None or self._released[0] != digest
        self.cluster.tell({"do": "serve", "digest": digest, "again": again})
        params, optimizer = self._served_of(state.params, state.optimizer, digest, units if again else None, again)
        return state.replace(params=params, optimizer=optimizer)

    # What the others do.

    def follow(self) -> None:
        """Does what process 0 tells, to the end of the run."""
        params: Any = None
        optimizer: Any = None
        noise: Any = None
        total: Any = None
        while True:
            order, arrays = self.cluster.hear()
            match order["do"]:
                case "place":
                    state = self._placed(None, order["fresh"])
                    params, optimizer, noise = state["params"], state["optimizer"], state["noise"]
                case "gather":
                    held = {"params": params, "optimizer": optimizer, "noise": noise}
                    for name in order["what"]:
                        self._gathered(held[name], keep=False)
                case "compile":
                    self.sums.compile(self._here(params))
                case "sum":
                    total = self._summed(params, arrays["cohort"], order["round"])
                case "noise":
                    _, noise = self._released_of(total, noise, arrays["key"].tobytes())
                case "skip":
                    noise = self._noised(self._nothing(), noise, _words(arrays["key"].tobytes()))[1]
                case "serve":
                    params, optimizer = self._served_of(params, optimizer, order["digest"], None, order["again"])
                case "stop":
                    return _stopped(order)

    # What all do together.

    def _placed(self, state: State | None, fresh: bool) -> dict[str, Any]:
        """The parts of a state that process 0 has whole; of a `fresh` one, only its parameters are sent."""
        leads = self.cluster.leads
        vector = None if state is None else np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.params)])
        params = self.layout.spread(vector, (self.layout.padded,), np.float32, leads)
        if fresh:
            optimizer = jax.jit(self.optimizer.init, out_shardings=self.layout.shardings(self._kept["optimizer"]))(
                params
            )
            noise = jax.jit(self._no_noise, out_shardings=self._noise_sharding)()
            return {"params": params, "optimizer": optimizer, "noise": noise}
        given = {} if state is None else {"optimizer": self._as_vectors(state.optimizer), "noise": state.noise}
        placed = {"params": params}
        for name in ("optimizer", "noise"):
            kept, structure = jax.tree.flatten(self._kept[name])
            leaves = jax.tree.leaves(given[name]) if given else [None] * len(kept)
            placed[name] = jax.tree.unflatten(
                structure,
                [
                    self.layout.spread(leaf, like.shape, like.dtype, leads)
                    for leaf, like in zip(leaves, kept, strict=True)
                ],
            )
        return placed

    def _gathered(self, tree: Any, keep: bool = True) -> Any:
        return jax.tree.map(lambda leaf: self.layout.gathered(leaf, keep), tree)

    def _here(self, params: jax.Array) -> Any:
        """The parameters whole on this process's first device."""
        return self._unraveled(self._everywhere(params).addressable_data(0))

    def _summed(self, params: jax.Array, cohort: np.ndarray, round: int) -> Any:
        """The sum over the whole cohort, in parts; this host trains its share of it, people that are neighbours in the
        store."""
        share = np.array_split(cohort, self.cluster.processes)[self.cluster.process]
        mine = self.sums(self._here(params), share, round)
        rest = np.array([[int(mine.weight), int(mine.zeroed)]], np.int32)
        beside = jax.make_array_from_process_local_data(self._extra, rest, (self.layout.hosts, 2))
        return self._sum_rows(self.layout.row(self._row(mine.units)), beside)

    def _nothing(self) -> Any:
        one, whole = self.layout.sharding((self.layout.padded,)), self.layout.whole
        made = jax.jit(
            lambda: (jnp.zeros(self.layout.padded, jnp.int32), jnp.zeros(2, jnp.int32)), out_shardings=(one, whole)
        )
        return made()

    def _no_noise(self) -> Any:
        return self.mechanism.init(jnp.zeros(self.layout.padded, jnp.int32))

    def _make_noise(self, total: tuple[jax.Array, jax.Array], noise: Any, words: jax.Array) -> tuple[jax.Array, Any]:
        units, beside = total
        sums = self.setup.estimator.before_noise(Contribution(units, beside[0], beside[1]))
        assert self.setup.run_file.privacy
        if self.setup.run_file.privacy.random_bits == "threefry":
            key = jax.random.wrap_key_data(words[:2], impl="threefry2x32")
        else:
            key = jax.random.wrap_key_data(words, impl=CHACHA20)
        release, noise = noised_in_pieces(self.mechanism, self.layout, sums, noise, key)
        filled = jax.lax.broadcasted_iota(jnp.uint32, release.shape, 0) >= self.layout.size
        return jnp.where(filled, 0, release), noise

    def _released_of(self, total: Any, noise: Any, key: bytes) -> tuple[np.ndarray, Any]:
        """The release whole, on every process."""
        release, noise = self._noised(total, noise, _words(key))
        units = self.layout.gathered(release)
        self._released = (digest_of(units), release)
        return units, noise

    def _served_in_parts(self, params: jax.Array, optimizer: Any, release: jax.Array) -> tuple[jax.Array, Any]:
        step, optimizer = self.optimizer.update(
            self._gradient(self.terms.clipping.norm, self.terms.grid, release), optimizer, params
        )
        return optax.apply_updates(params, step), optimizer

    def _served_of(
        self, params: Any, optimizer: Any, digest: str, units: np.ndarray | None, again: bool
    ) -> tuple[jax.Array, Any]:
        if again:
            release = self.layout.spread(units, (self.layout.padded,), np.int32, self.cluster.leads)
            self._released = (digest_of(self.layout.gathered(release)), release)
        assert self._released is not None
        held, release = self._released
        for process, theirs in enumerate(self.cluster.gather({"digest": held})):
            if theirs["digest"] != digest:
                raise Refused(
                    f"Process {process} holds another release than the one that was written ({theirs['digest'][:12]}, not "
                    f"{digest[:12]}); its memory or its network is not to be trusted. Go on without it."
                )
        self._released = None
        return self._served(params, optimizer, release)

    def _as_vectors(self, optimizer: Any) -> Any:
        """The optimiser's state as it is stored, an array for each of the model's, as one of vectors."""
        return jax.tree.map(
            lambda like, part: (
                np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(part)])
                if like.shape == (self.layout.padded,)
                else part
            ),
            self._kept["optimizer"],
            optimizer,
        )

    def _as_tree(self, optimizer: Any) -> Any:
        """The inverse of `_as_vectors`."""
        return jax.tree.map(
            lambda like, leaf, part: unraveled(leaf, part) if like.shape == (self.layout.padded,) else leaf,
            self._kept["optimizer"],
            optimizer,
            jax.eval_shape(self.optimizer.init, self._tree),
        )


def added(layout: Layout, rows: jax.Array) -> jax.Array:
    """The sum of the hosts' vectors, each device getting its part of it and no more."""
    add = jax.shard_map(
        lambda mine: jax.lax.psum_scatter(mine[0], HOST, tiled=True),
        mesh=layout.mesh,
        in_specs=layout.rows.spec,
        out_specs=layout.sharding((layout.padded,)).spec,
        check_vma=False,
    )
    return add(rows)


def noised_in_pieces(
    mechanism: optax.GradientTransformationExtraArgs, layout: Layout, sums: jax.Array, noise: NoiseState, key: jax.Array
) -> tuple[jax.Array, NoiseState]:
    """The release and the state after it; every device works on its own part of the vectors, piece after piece and in
    place, so that beside them it holds little more than a piece."""
    words, generator = jax.random.key_data(key), jax.random.key_impl(key)
    cut = {name: layout.shardings(tree) for name, tree in (("sums", sums), ("noise", noise))}
    specs = jax.tree.map(lambda sharding: sharding.spec, cut)

    def on_device(sums: jax.Array, noise: NoiseState, words: jax.Array) -> tuple[jax.Array, NoiseState]:
        part = sums.shape[0]
        begins = layout.number_of_part() * np.uint32(part)
        key = jax.random.wrap_key_data(words, impl=generator)
        along = jax.tree.map(lambda leaf: leaf.ndim > 0 and leaf.shape[-1] == part, noise.buffers)

        def piece(number: jax.Array, so_far: tuple[jax.Array, NoiseState]) -> tuple[jax.Array, NoiseState]:
            sums, state = so_far
            at = number * layout.piece

            def taken(leaf: jax.Array, cut: bool) -> jax.Array:
                return jax.lax.dynamic_slice_in_dim(leaf, at, layout.piece, -1) if cut else leaf

            def put(leaf: jax.Array, new: jax.Array, cut: bool) -> jax.Array:
                return jax.lax.dynamic_update_slice_in_dim(leaf, new, at, -1) if cut else new

            def worked(summed: jax.Array, before: NoiseState) -> tuple[jax.Array, NoiseState]:
                return mechanism.update(summed, before, key=key, start=begins + at.astype(jnp.uint32))

            # Every piece is of the same round: round and keys are those before it. The condition always holds; it keeps what
            # is read apart from what is written, where the compiler would otherwise copy whole vectors.
            before = noise._replace(buffers=jax.tree.map(taken, state.buffers, along))
            made, after = jax.lax.cond(at < part, worked, lambda *same: same, taken(sums, True), before)
            return put(sums, made, True), after._replace(buffers=jax.tree.map(put, state.buffers, after.buffers, along))

        return jax.lax.fori_loop(0, part // layout.piece, piece, (sums, noise))

    made = jax.shard_map(
        on_device,
        mesh=layout.mesh,
        in_specs=(specs["sums"], specs["noise"], layout.whole.spec),
        out_specs=(specs["sums"], specs["noise"]),
        check_vma=False,
    )
    return made(sums, noise, words)


def follow(
    run_file: RunFile,
    cluster: Cluster,
    model: Model | None = None,
    work_of: WorkOf = federated,
    progress: Progress = lambda stage, done: None,
) -> None:
    """Takes part in a run that process 0 trains (`training.train` with the same cluster), to its end."""
    with told_apart():
        agree_on(run_file, cluster, progress)
        order, arrays = cluster.hear()
        if order["do"] == "stop":
            _stopped(order)
            return
        setup = prepare(
            run_file, model=model, work_of=work_of, stored=order["description"], arrays=arrays, progress=progress
        )
        shapes = jax.eval_shape(setup.model.init, jax.random.key(0))
        rounds = DistributedRounds(setup, shapes, cluster)
        try:
            rounds.follow()
        finally:
            rounds.close()


@contextmanager
def leading(cluster: Cluster | None) -> Iterator[None]:
    """Within it process 0 may refuse and fail: the others are told, and stop too."""
    if cluster is None:
        yield
        return
    reason = None
    with told_apart():
        try:
            yield
        except jax.errors.JaxRuntimeError:
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, Refused) else f"{type(error).__name__}, see its own messages"
            raise
        finally:
            if not isinstance(sys.exception(), jax.errors.JaxRuntimeError | KeyboardInterrupt):
                with suppress(jax.errors.JaxRuntimeError):
                    cluster.tell({"do": "stop", "reason": reason})


@contextmanager
def told_apart() -> Iterator[None]:
    """Within it, what JAX says of a process that is gone becomes `Died`."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        said = next(iter(str(error).splitlines()), "")[:200]
        raise Died(
            f"Another process of this run has died or cannot be reached ({said}). Nothing that was released is lost: start "
            "all processes again with --resume, on as many hosts as you like."
        ) from None


def _stopped(order: Mapping[str, Any]) -> None:
    if order["reason"] is not None:
        raise Refused(f"Process 0 stopped the run: {order['reason']}")


def digest_of(units: np.ndarray) -> str:
    """The digest of a release as the ledger states it."""
    return hashlib.sha256(np.ascontiguousarray(units.astype("<i4", copy=False)).data).hexdigest()


def _words(key: bytes) -> np.ndarray:
    return np.frombuffer(key, "<u4").astype(np.uint32)
