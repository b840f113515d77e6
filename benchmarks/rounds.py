"""Rounds of private training: clients per second with the ledger on, against pfl-research with the same model in PyTorch.

    python benchmarks/rounds.py rival [--model quickstart|paper] [--clients N] [--repeats R] [--pfl FOLDER]
    python benchmarks/rounds.py scaling [--clients N ...] [--populations N ...]
    python benchmarks/rounds.py server [--clients N]

`rival`: the same people, rows and local steps. Ours is `reticent train` whole: secure noise, clipping, integers, ledger;
theirs is FederatedAveraging on SimulatedBackend without any privacy. Each in a process of its own, round by round in turn.
pfl pins an older dp-accounting: `pip install --no-deps --target FOLDER pfl==0.6.0 prv-accountant` puts it beside; torch is
in the extra `peers`. `scaling`: seconds of a round by cohort and by population. `server`: noise, ledger and optimiser at
6.4 million parameters against the clients' time. Medians, with the least beside them: the machine's load is printed.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

LENGTH, BATCH = 20, 16
MARK = "seconds of a round:"
# name: (vocabulary, embedding, hidden, local steps)
MODELS = {"quickstart": (2004, 32, 64, 5), "paper": (10_004, 96, 670, 16)}


def write_people(path, people, vocabulary, rows):
    """A store of people who each wrote `rows` rows of 20 words."""
    from reticent.data.store import StoreWriter
    from reticent.data.tokenizers import WordTokenizer

    random = np.random.default_rng(0)
    words = [f"w{number}" for number in range(vocabulary - 4)]
    with StoreWriter(path, WordTokenizer(words, origin={"source": "given"})) as writer:
        for person in range(people):
            drawn = random.integers(4, vocabulary, (rows, LENGTH + 1), dtype=np.int32)
            writer.add_user(f"person {person}", list(drawn))


def run_file(store, model, clients, people, rounds):
    from reticent.config import parse

    vocabulary, embedding, hidden, _ = MODELS[model]
    return parse(
        {
            "run": {"name": "rounds", "rounds": rounds, "checkpoint_every": rounds},
            "data": {"store": str(store), "sequence_length": LENGTH},
            "model": {"kind": "lstm", "embedding": embedding, "hidden": hidden, "vocabulary": vocabulary},
            "population": {"report_goal": clients, "min_separation": max(1, people // clients - 1)},
            "mechanism": {"kind": "blt", "buffers": 3},
            "clipping": {"norm": 1.0},
            "client": {"batch_size": BATCH, "learning_rate": 0.5},
            "privacy": {"noise_multiplier": 5.0, "delta": 1e-6, "accept_vacuous": True},
            "evaluation": {"every": rounds},
        }
    )


def ours(store, model, clients, people, rounds):
    """Makes a round whenever a line comes in; prints its seconds."""
    from reticent.training import Callback, train

    class Metronome(Callback):
        def on_start(self, facts):
            self.wait()

        def on_round(self, record):
            print(MARK, time.perf_counter() - self.began, flush=True)
            if record["rounds"] < rounds:
                self.wait()

        def wait(self):
            sys.stdin.readline()
            self.began = time.perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        settings = run_file(store, model, clients, people, rounds)
        train(settings, Path(folder, "run"), secrets=Path(folder, "secrets"), callbacks=[Metronome()])


def theirs(store, model, clients, rounds):
    """pfl-research: the same people and steps, in PyTorch on the processor (or the GPU that it finds)."""
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    from reticent.data.store import Store

    vocabulary, embedding, hidden, _ = MODELS[model]

    class Words(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(vocabulary, embedding)
            self.cell = torch.nn.LSTM(embedding, hidden, batch_first=True)
            self.projection = torch.nn.Linear(hidden, embedding)
            self.scores = torch.nn.Linear(embedding, vocabulary)

        def loss(self, tokens):
            tokens = tokens.long()  # they make floats of all data
            states, _ = self.cell(self.embedding(tokens[:, :-1]))
            scores = self.scores(self.projection(states))
            return torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())

        def metrics(self, tokens):
            return {}

    data = Store.open(store)
    rows = {
        user: np.stack([np.asarray(example) for example in data.examples(user)]).astype(np.int64)
        for user in range(data.users)
    }
    drawing = np.random.default_rng(0)
    people = FederatedDataset(
        lambda user: Dataset([rows[user]], user_id=user), lambda: int(drawing.integers(data.users))
    )
    module = Words()
    wrapped = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0, momentum=0.9))

    class Metronome(TrainingProcessCallback):
        def on_train_begin(self, *, model):
            self.wait()
            return Metrics()

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            print(MARK, time.perf_counter() - self.began, flush=True)
            if central_iteration + 1 < rounds:
                self.wait()
            return False, Metrics()

        def wait(self):
            sys.stdin.readline()
            self.began = time.perf_counter()

    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=10**9, train_cohort_size=clients, val_cohort_size=0
        ),
        backend=SimulatedBackend(training_data=people, val_data=people),
        model=wrapped,
        model_train_params=NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=0.5),
        model_eval_params=NNEvalHyperParams(local_batch_size=10**6),
        callbacks=[Metronome()],
    )


def in_turn(commands, rounds, environment):
    """The seconds of each round of each command; the first of each, which compiles, is left out."""
    processes = {
        name: subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment[name])
        for name, command in commands.items()
    }
    seconds = {name: [] for name in processes}
    for _ in range(rounds):
        for name, process in processes.items():
            process.stdin.write("go\n")
            process.stdin.flush()
            # They print things of their own.
            line = next((line for line in process.stdout if line.startswith(MARK)), None)
            if line is None:
                raise SystemExit(f"{name} failed")
            seconds[name].append(float(line.removeprefix(MARK)))
    for process in processes.values():
        process.wait()
    return {name: taken[1:] for name, taken in seconds.items()}


def load():
    return f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} processors"


def rival(asked):
    rounds, people = asked.repeats + 1, 4 * asked.clients
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        write_people(store, people, MODELS[asked.model][0], BATCH * MODELS[asked.model][3])
        common = [
            "--model",
            asked.model,
            "--clients",
            str(asked.clients),
            "--people",
            str(people),
            "--rounds",
            str(rounds),
        ]
        commands = {
            who: [sys.executable, __file__, who, "--store", str(store), *common]
            for who in ("ours", *(("theirs",) if asked.pfl else ()))
        }
        path = os.pathsep.join(filter(None, (asked.pfl, os.environ.get("PYTHONPATH"))))
        environment = {"ours": os.environ, "theirs": {**os.environ, "PYTHONPATH": path}}
        before = load()
        seconds = in_turn(commands, rounds, environment)
    print(f"{asked.model} model, {asked.clients} clients a round, {asked.repeats} rounds each, in turn; {before}")
    for who, taken in seconds.items():
        rates = [asked.clients / one for one in taken]
        print(f"  {who:<8} {statistics.median(rates):8.2f} clients/s   (most {max(rates):.2f}, least {min(rates):.2f})")
    if "theirs" in seconds:
        ratios = [theirs / ours for ours, theirs in zip(seconds["ours"], seconds["theirs"], strict=True)]
        print(f"  ours / theirs, median of the pairs: {statistics.median(ratios):.2f}")


def scaling(asked):
    print(f"{asked.model} model; {load()}")
    for what, cases in (
        ("cohort", [(clients, 4 * max(asked.clients)) for clients in asked.clients]),
        ("population", [(min(asked.clients), people) for people in asked.populations]),
    ):
        commands, stores = {}, []
        with tempfile.TemporaryDirectory() as folder:
            for clients, people in cases:
                store = Path(folder, f"store-{people}")
                if not store.is_dir():
                    write_people(store, people, MODELS[asked.model][0], asked.rows)
                stores.append(store)
                rounds = asked.repeats + 1
                sizes = ["--clients", str(clients), "--people", str(people), "--rounds", str(rounds)]
                command = [sys.executable, __file__, "ours", "--store", str(store), "--model", asked.model, *sizes]
                commands[f"{clients} of {people:,}"] = command
            seconds = in_turn(commands, asked.repeats + 1, dict.fromkeys(commands, os.environ))
        print(f"  by {what}:")
        for (name, taken), (clients, _) in zip(seconds.items(), cases, strict=True):
            median = statistics.median(taken)
            print(
                f"    {name:<24} {median:8.3f} s a round (least {min(taken):.3f}), {1e3 * median / clients:.2f} ms a client"
            )


def server(asked):
    """What a round does once, at 6.4 million parameters, against what each client costs."""
    import jax

    from reticent.ledger import RunDirectory
    from reticent.training.loop import first_params
    from reticent.training.rounds import Rounds
    from reticent.training.setup import prepare

    MODELS["large"] = (22_000, 96, 670, 16)
    with tempfile.TemporaryDirectory() as folder:
        store, most = Path(folder, "store"), 4
        write_people(store, 2 * most, MODELS["large"][0], BATCH * MODELS["large"][3])
        settings = run_file(store, "large", most, 2 * most, 40)
        setup = prepare(settings)
        params = first_params(setup)
        rounds = Rounds(setup, params)
        state = rounds.first_state(params)
        rounds.compile(state)
        run = RunDirectory.create(Path(folder, "run"), dict(setup.description), "", secrets=Path(folder, "secrets"))
        once, each = [], []
        for round in range(asked.repeats + 1):
            began = time.perf_counter()
            total = jax.block_until_ready(rounds.sum_of(state, np.arange(most), round))
            summed = time.perf_counter()
            intent = run.begin(list(range(most)))
            release, noise = rounds.noised(total, state.noise, intent.row_key)
            payload = np.asarray(release).astype("<i4", copy=False)
            run.release(intent, payload.data, rounds.terms.clipping.norm, rounds.terms.grid.step)
            state = rounds.served(state.replace(noise=noise), release)
            jax.block_until_ready(state.params)
            each.append((summed - began) / most)
            once.append(time.perf_counter() - summed)
        run.close()
        rounds.close()
    server_seconds, client_seconds = statistics.median(once[1:]), statistics.median(each[1:])
    share = server_seconds / (server_seconds + asked.clients[0] * client_seconds)
    print(f"{setup.size:,} parameters; {load()}")
    print(f"  noise, ledger and optimiser: {server_seconds:.3f} s a round (least {min(once[1:]):.3f})")
    print(f"  a client: {client_seconds:.3f} s (least {min(each[1:]):.3f})")
    print(f"  of a round of {asked.clients[0]} clients, the server's side is {share:.2%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rival", "scaling", "server", "ours", "theirs"))
    parser.add_argument("--model", choices=MODELS, default="quickstart")
    parser.add_argument("--clients", type=int, nargs="+", default=None)
    parser.add_argument("--populations", type=int, nargs="+", default=[1_000, 30_000, 1_000_000])
    parser.add_argument("--rows", type=int, default=BATCH, help="for scaling: rows of each person")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--pfl", help="a folder with pfl in it")
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--people", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    many = {"scaling": [25, 50, 100, 200], "server": [500]}
    clients = asked.clients or many.get(asked.what) or [100]
    if asked.what in ("ours", "theirs"):
        more = (clients[0], asked.people, asked.rounds) if asked.what == "ours" else (clients[0], asked.rounds)
        {"ours": ours, "theirs": theirs}[asked.what](asked.store, asked.model, *more)
        return
    asked.clients = clients[0] if asked.what == "rival" else clients
    {"rival": rival, "scaling": scaling, "server": server}[asked.what](asked)


if __name__ == "__main__":
    main()
