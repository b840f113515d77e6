"""What a round on devices costs the server: 500 devices in a cohort, a model of 2.4 million parameters.

    ROUNDS=2 python benchmarks/devices.py [COHORT ...]

The server is this process, with the whole of it: secure aggregation, noise, ledger, model. The devices are another: each
answers through `reticent.deploy.device` with its own directory and keys, its update random integers in place of training.
Letters and answers go over a pipe, so that what Flower's own SuperLink takes is not in these figures. Seconds are processor
seconds of one core of this process; its memory is the most that it ever held, and what it held when the rounds began.
"""

import json
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

ROUNDS = int(os.environ.get("ROUNDS", "2"))
VOCABULARY = 10_000


def device_process(pipe, directories):
    """Answers letters until there are no more."""
    from reticent.deploy.device import Device

    def update(settings, terms, model, round):
        generator = np.random.default_rng([round, *settings.name.encode()])
        return generator.integers(-1000, 1001, terms.size, dtype=np.int32)

    model = b""
    while True:
        node, letter, new_model, with_model = pipe.recv()
        if node is None:
            return
        model = new_model or model
        pipe.send((node, Device(directories[node], update).answer(letter, model if with_model else b"")))


class Piped:
    """A post to the devices' process; one answer is in this process at a time."""

    def __init__(self, pipe, count):
        self.pipe, self.count = pipe, count
        self.letters, self.model = [], b""

    def nodes(self):
        return range(self.count)

    def send(self, node, letter, model=b""):
        self.letters.append((node, letter, model))

    def answers(self, seconds):
        letters, self.letters = self.letters, []
        for place, (node, letter, model) in enumerate(letters):
            fresh = model if model is not self.model else b""
            self.model = model or self.model
            self.pipe.send((node, letter, fresh, bool(model)))
            try:
                yield self.pipe.recv()
            except GeneratorExit:
                self.letters = letters[place + 1 :] + self.letters
                raise


def write_store(path, users):
    """People who wrote two words each, over the vocabulary of the model."""
    from reticent.data.store import StoreWriter
    from reticent.data.tokenizers import WordTokenizer

    tokenizer = WordTokenizer([f"word{number}" for number in range(VOCABULARY - 4)], origin={"source": "given"})
    with StoreWriter(path, tokenizer) as writer:
        for user in range(users):
            writer.add_user(f"person {user}", [np.array([1, 5 + user % 1000, 6, 2], np.int32)])


def make_devices(folder, terms, count, text):
    from reticent.deploy.budget import Budget
    from reticent.deploy.settings import DeviceSettings
    from reticent.secagg import Member

    members = Member.enrol([f"device-{number:05d}" for number in range(count)])
    registry = {name: key.hex() for name, key in next(iter(members.values())).registry.items()}
    (folder / "registry.json").write_text(json.dumps({"devices": registry}))
    (folder / "terms").mkdir()
    terms.save(folder / "terms" / f"{terms.digest}.json")
    made = {}
    for number, (name, member) in enumerate(members.items()):
        directory = folder / name
        directory.mkdir()
        for shared in ("registry.json", "terms"):
            (directory / shared).symlink_to(folder / shared)
        (directory / "signing.key").touch(0o600)
        (directory / "signing.key").write_text(member.signing_key.hex())
        DeviceSettings(directory, name, text, 1, Budget(1e6, 1e-6), directory / "compiled").save()
        made[number] = directory
    return made


def measure(cohort):
    """One run in a process of its own; prints its row."""
    from reticent.config import parse
    from reticent.deploy.deployment import deploy
    from reticent.deploy.preparing import make_terms
    from reticent.deploy.settings import read_registry
    from reticent.training import Callback

    goal = round(0.96 * cohort)
    folder = Path(tempfile.mkdtemp(prefix="devices-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        write_store(folder / "store", goal)
        write_store(folder / "text", 1)
        terms = make_terms(
            parse(
                {
                    "run": {
                        "name": "load",
                        "rounds": ROUNDS,
                        "secure_aggregation": "protocol",
                        "encoding_inflation": 0.0,
                        "checkpoint_every": ROUNDS,
                    },
                    "data": {"store": str(folder / "store")},
                    "model": {"kind": "cifg"},
                    "population": {"size": 10**6, "report_goal": goal, "min_separation": 1},
                    "mechanism": {"kind": "tree"},
                    "clipping": {"norm": 1.0},
                    "privacy": {"noise_multiplier": 5.0, "accept_vacuous": True},
                    "deploy": {"over_selection": cohort / goal, "deadline": 36_000.0},
                }
            )
        )
        directories = make_devices(folder, terms, terms.invited, folder / "text")
        here, there = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        devices = context.Process(target=device_process, args=(there, directories), daemon=True)
        devices.start()
        rows = []

        class Watch(Callback):
            def on_start(self, facts):
                self.at = time.process_time(), peak()
                self.begun = self.at[1]

            def on_round(self, record):
                now = time.process_time(), peak()
                rows.append((now[0] - self.at[0], now[1]))
                self.at = now

        watch = Watch()
        registry = read_registry(folder / "registry.json")
        post = Piped(here, len(directories))
        deploy(terms, folder / "run", registry, post, callbacks=[watch], secrets=folder / "secrets")
        here.send((None, b"", b"", False))
        vector = 4 * terms.size / 2**20
        seconds = ", ".join(f"{one[0]:.1f}" for one in rows)
        print(
            f"| {terms.invited} | {goal} | {terms.size:,} | {seconds} | {watch.begun:.0f} MB | {rows[-1][1]:.0f} MB | "
            f"{(rows[-1][1] - watch.begun) / vector:.1f} |",
            flush=True,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def peak():
    """The most memory that this process ever held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    cohorts = [int(one) for one in sys.argv[1:]] or [125, 500]
    print(
        "| devices | in the sum | parameters | server seconds, each round | memory before | at most | more, in vectors |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    for cohort in cohorts:
        worker = multiprocessing.get_context("spawn").Process(target=measure, args=(cohort,))
        worker.start()
        worker.join()


if __name__ == "__main__":
    main()
