"""Secure aggregation: against Flower's SecAgg+ on the same vectors, and at the size of a production round.

    python benchmarks/secagg.py                   both tables; of the large round's clients, five are timed
    python benchmarks/secagg.py --whole           the large round with every client, to the sum (needs 15 minutes)
    python benchmarks/secagg.py --only primitives|flower|large

Times are processor seconds of one process, so that a busy machine changes them little. Flower's clients run its
`secaggplus_mod`, its server the stages of its `SecAggPlusWorkflow`, with a grid that hands messages over in memory;
both sides mask along as many edges. Flower's modulus is 2^32, ours what the cohort needs.
"""

import argparse
import contextlib
import copy
import logging
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from reticent.secagg import Integers, Member, RotatedCode, Round, client, server, smallest_scale
from reticent.secagg.hadamard import walsh_hadamard
from reticent.secagg.masks import with_masks
from reticent.secagg.packing import packed_size

PHASES = ("advert", "shares", "masked input", "agreement", "unmasking")


@dataclass
class Clock:
    """Processor seconds by party and phase."""

    spent: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    @contextlib.contextmanager
    def of(self, party: str, phase: str) -> Iterator[None]:
        start = time.process_time()
        yield
        self.spent.setdefault((party, phase), []).append(time.process_time() - start)

    def per_client(self, phase: str) -> float:
        """The median client's."""
        return float(np.median(self.spent.get(("client", phase), [0.0])))

    def client(self) -> float:
        return sum(self.per_client(phase) for party, phase in self.spent if party == "client")

    def server(self) -> float:
        return sum(sum(times) for (party, _), times in self.spent.items() if party == "server")


def our_round(names, code, vector_of, gone, timed=(), stop=None, encode=None):
    """A whole round; `encode` is the code's if not given; `gone` drop out before their masked input. With `stop`, the
    round ends with that phase, in which only the `timed` answer: what that costs them, and the server for each, is known
    then, and there is no sum."""
    clock, encode = Clock(), encode or code.encode
    members = Member.enrol(names)
    plan = Round.plan("benchmark", 0, len(names), code.length, code.modulus_bits)
    state, states = server.open_round(plan, members[names[0]].registry), {}
    inbox, sent, received = dict.fromkeys(names, b""), dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for phase in PHASES:
        for name, message in inbox.items():
            if (phase == "masked input" and name in gone) or (phase == stop and name not in timed):
                continue
            vector = vector_of(name) if phase == "masked input" else None
            with clock.of("client", phase):
                if phase == "advert":
                    states[name], answer = client.join(members[name], plan)
                else:
                    words = None if vector is None else encode(vector)
                    states[name], answer = client.step(members[name], states[name], message, words)
            sent[name] += len(answer)
            received[name] += len(message)
            with clock.of("server", phase):
                state = server.receive(state, answer)
        if phase == stop:
            return clock, plan, None, (), sent, received
        with clock.of("server", phase):
            state, inbox = server.close(state)
    survivors = state.names(state.survivors)
    return clock, plan, code.decode(state.total, len(survivors)) * code.step, survivors, sent, received


def flower_round(vectors, gone, partners, threshold):
    """The same with Flower's own functions; clients are numbered, and drop out before their masked input."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.client.mod.secure_aggregation.secaggplus_mod import secaggplus_mod
    from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters
    from flwr.compat.common import recorddict_compat as compat
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
    from flwr.server.workflow.constant import Key as WorkflowKey
    from flwr.server.workflow.secure_aggregation.secaggplus_workflow import SecAggPlusWorkflow, WorkflowState
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    clock, sums = Clock(), []
    contexts = {name: Context(0, name, {}, RecordDict(), {}) for name in vectors}
    phases = iter(("advert", "shares", "masked input", "unmasking"))

    def train(message, context):
        nothing_else = FitRes(
            Status(Code.OK, ""), ndarrays_to_parameters([vectors[message.metadata.dst_node_id]]), 1, {}
        )
        return Message(compat.fitres_to_recorddict(nothing_else, keep_input=True), reply_to=message)

    class Grid:
        inside = 0.0

        def send_and_receive(self, messages, *, timeout=None):
            start, phase = time.process_time(), next(phases)
            replies = []
            for message in messages:
                name = message.metadata.dst_node_id
                if name in gone and phase in ("masked input", "unmasking"):
                    continue
                # On a wire every client would have its own; the setup stage sends one object to all.
                message = copy.deepcopy(message)
                with clock.of("client", phase):
                    replies.append(secaggplus_mod(message, contexts[name], train))
            self.inside += time.process_time() - start
            return replies

    class Strategy:
        def configure_fit(self, *_):
            empty = ndarrays_to_parameters([])
            return [(SimpleNamespace(node_id=name), FitIns(empty, {})) for name in vectors]

        def aggregate_fit(self, round, results, failures):
            sums.extend(results)
            return None, {}

    records = RecordDict({MAIN_CONFIGS_RECORD: ConfigRecord({WorkflowKey.CURRENT_ROUND: 1})})
    records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(ndarrays_to_parameters([np.zeros(1)]), False)
    context = SimpleNamespace(
        state=records,
        strategy=Strategy(),
        client_manager=SimpleNamespace(num_available=lambda: len(vectors)),
        history=SimpleNamespace(add_metrics_distributed_fit=lambda **_: None),
    )
    workflow = SecAggPlusWorkflow(
        num_shares=partners + 1, reconstruction_threshold=threshold, max_weight=1.0, clipping_range=1.0
    )
    state, grid = WorkflowState(), Grid()
    for stage in (
        workflow.setup_stage,
        workflow.share_keys_stage,
        workflow.collect_masked_vectors_stage,
        workflow.unmask_stage,
    ):
        start, inside = time.process_time(), grid.inside
        assert stage(grid, context, state), f"Flower's round halted in {stage.__name__}"
        clock.spent.setdefault(("server", stage.__name__), []).append(
            time.process_time() - start - (grid.inside - inside)
        )
    from flwr.common import parameters_to_ndarrays

    mean = parameters_to_ndarrays(sums[0][1].parameters)[0]
    return clock, mean


def against_flower(clients, dimension):
    rng = np.random.default_rng(0)
    names = list(range(101, 101 + clients))
    vectors = {name: (rng.standard_normal(dimension) / np.sqrt(dimension)).astype(np.float32) for name in names}
    for vector in vectors.values():
        vector *= np.float32(min(1.0, 0.999 / np.linalg.norm(vector)))
    gone = set(rng.choice(names, clients // 20, replace=False).tolist())
    expected = np.sum([vectors[name] for name in names if name not in gone], axis=0, dtype=np.float64)

    ours = {f"client-{name:04}": name for name in names}
    runs = []
    # The scale of 1% inflation is what one would train with; the other is as fine as Flower's 2^22 levels, and so are
    # the integers, which are not rotated, as Flower's are not.
    integers = Integers(dimension, 2**21, clients)
    for code, encode, unit in (
        (RotatedCode(dimension, 1.0, smallest_scale(1.0, dimension, 0.01), clients), None, 1),
        (RotatedCode(dimension, 1.0, 2e6, clients), None, 1),
        (integers, lambda vector: integers.encode(np.rint(vector * np.float32(2**21)).astype(np.int32)), 2.0**-21),
    ):
        clock, plan, total, survivors, sent, _ = our_round(
            list(ours),
            code,
            lambda name: vectors[ours[name]],
            {name for name in ours if ours[name] in gone},
            encode=encode,
        )
        assert len(survivors) == clients - len(gone)
        error = float(np.linalg.norm(total * unit - expected) / np.linalg.norm(expected))
        runs.append((clock, code.modulus_bits, max(sent.values()), error))

    graph = plan.graph
    edges = 2 * graph.neighbours - graph.neighbours**2 / (clients - 1)
    partners = 2 * round(edges / 2)
    flower, mean = flower_round(vectors, gone, partners, partners // 2 + 1)
    theirs = float(np.linalg.norm(mean * (clients - len(gone)) - expected) / np.linalg.norm(expected))

    def row(label, mine, other, form):
        print(f"{label:28}" + "".join(f"{value:>16{form}}" for value in [*mine, other]))

    def client_seconds(clock):
        return sum(clock.per_client(phase) for phase in PHASES)

    print(
        f"\n{clients} clients, {dimension:,} floats, {len(gone)} drop out before the masked input (processor seconds)\n"
    )
    row("", ["1% inflation", "as fine", "integers"], "Flower SecAgg+", "")
    for phase in PHASES:
        row(f"  client, {phase}", [run[0].per_client(phase) for run in runs], flower.per_client(phase), ".4f")
    row("per client", [client_seconds(run[0]) for run in runs], client_seconds(flower), ".4f")
    row("  times faster", [client_seconds(flower) / client_seconds(run[0]) for run in runs], 1, ".1f")
    row("server", [run[0].server() for run in runs], flower.server(), ".4f")
    row("  times faster", [flower.server() / run[0].server() for run in runs], 1, ".1f")
    row("masks per client", [edges] * 3, partners, ".1f")
    row("bits per entry", [run[1] for run in runs], 64, "d")
    row("bytes sent per client", [run[2] for run in runs], 8 * dimension, ",")
    row("relative error of the sum", [run[3] for run in runs], theirs, ".1e")


def large(clients, dimension, whole, encoded):
    names = [f"client-{place:05}" for place in range(clients)]
    if encoded:
        code = RotatedCode(dimension, 1.0, smallest_scale(1.0, dimension, 0.01), clients)
    else:
        code = Integers(dimension, 2**15, clients)

    def vector_of(name):
        rng = np.random.default_rng(int(name[-5:]))
        if encoded:
            return (rng.standard_normal(dimension, np.float32) / np.float32(dimension**0.5)) * np.float32(0.99)
        return rng.integers(-(2**15), 2**15, dimension, np.int32, endpoint=True)

    gone = set(names[7 :: clients // (clients // 20)]) if whole else set()
    timed, stop = names[:: clients // 5], None if whole else "masked input"
    clock, plan, total, survivors, sent, received = our_round(names, code, vector_of, gone, timed, stop)
    print(
        f"\n{clients} clients, {dimension:,} {'floats, encoded' if encoded else 'integers'}, {code.modulus_bits} bits"
    )
    graph = plan.graph
    print(f"neighbours drawn {graph.neighbours}, threshold {graph.threshold}, ", end="")
    print(f"masks per client {2 * graph.neighbours - graph.neighbours**2 / (clients - 1):.1f} on average")
    seconds = {phase: clock.per_client(phase) for phase in PHASES}
    if not whole:
        seconds |= late_phases(clients)
    for phase, spent in seconds.items():
        print(f"  client, {phase:18}{spent:9.4f} s")
    print(f"{'per client':28}{sum(seconds.values()):9.4f} s of one core")
    name = max(sent, key=lambda one: sent[one])
    up, down, packed = sent[name], received[name], packed_size(code.length, code.modulus_bits)
    print(f"sent {up:,} bytes, received {down:,}; packed integers {packed:,}; 32-bit floats {4 * dimension:,}")
    print(f"traffic / packed integers {(up + down) / packed:.4f}; / plain floats {(up + down) / (4 * dimension):.4f}")
    if not whole:
        per_input = np.mean(clock.spent["server", "masked input"])
        print(f"server, per masked input    {per_input:9.4f} s")
        return
    print(f"server                      {clock.server():9.1f} s for the whole round")
    expected = np.zeros(dimension, np.float64 if encoded else np.int64)
    for name in survivors:
        expected += vector_of(name)
    if encoded:
        print(f"relative error {np.linalg.norm(total - expected) / np.linalg.norm(expected):.2e}")
    else:
        assert (total == expected).all()
        print(f"the sum of {len(survivors)} survivors is exact")


def late_phases(clients):
    """What agreement and unmasking cost a client does not depend on the vector: timed on one of a single word."""
    names = [f"client-{place:05}" for place in range(clients)]
    code = Integers(1, 1, clients)
    gone = set(names[7 :: clients // (clients // 20)])
    clock, *_ = our_round(names, code, lambda _: np.ones(1, np.int32), gone, names[:: clients // 5], "unmasking")
    return {phase: clock.per_client(phase) for phase in ("agreement", "unmasking")}


def best(function, repeat=5):
    times = []
    for _ in range(repeat):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def primitives():
    words = np.zeros(6_400_000, np.uint32)
    seeds = [(os.urandom(32), 1)] * 8
    vector = np.random.default_rng(0).standard_normal(1 << 23).astype(np.float32)
    code = RotatedCode(6_400_000, 1.0, smallest_scale(1.0, 6_400_000, 0.01), 1000)
    print("\nprimitives (processor seconds, best of 5)\n")
    print(f"  one mask of 6.4 million words, expanded and added  {best(lambda: with_masks(words, seeds, 26)) / 8:.4f}")
    print(f"  Walsh-Hadamard of 2^23 floats                      {best(lambda: walsh_hadamard(vector)):.4f}")
    print(f"  encoding 6.4 million floats                        {best(lambda: code.encode(vector[:6_400_000])):.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("primitives", "flower", "large"))
    parser.add_argument("--whole", action="store_true", help="every client of the large round, to the sum")
    parser.add_argument("--encoded", action="store_true", help="the large round on floats, through the rotation")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--dimension", type=int, default=6_400_000)
    options = parser.parse_args()
    if options.only in (None, "primitives"):
        primitives()
    if options.only in (None, "flower"):
        against_flower(100, 1_000_000)
    if options.only in (None, "large"):
        large(options.clients, options.dimension, options.whole, options.encoded)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"\npeak memory of this process {peak:.2f} GB")


if __name__ == "__main__":
    main()
