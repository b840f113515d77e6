"""A whole federation on this machine, to try a run out: keys, an app, devices with a user's text each, all processes."""

from pathlib import Path

from reticent.config import RunFile
from reticent.deploy.app import write_app
from reticent.deploy.budget import Budget
from reticent.deploy.federation import Line, Nursery, Server, free_port
from reticent.deploy.keys import make_keys
from reticent.deploy.preparing import make_terms
from reticent.deploy.provisioning import provision
from reticent.deploy.terms import Terms
from reticent.errors import Refused
from reticent.training.setup import Progress, open_data


class LocalFederation:
    """The federation in a directory: `run/` may be shown to anybody, `app/` is the Flower app, `keys/` holds the keys and
    the devices. Use it in a `with` statement; all processes end with it."""

    def __init__(
        self,
        run_file: RunFile,
        out: str | Path,
        devices: int,
        *,
        secrets: str | Path | None = None,
        poll: float = 0.5,
        progress: Progress = lambda stage, done: None,
    ) -> None:
        self.out = Path(out).absolute()
        self.run_directory = self.out / "run"
        self.secrets = None if secrets is None else Path(secrets).absolute()
        self.poll = poll
        if (self.out / "app" / "terms.json").is_file():
            self.terms = _continued(self.out, run_file)
        else:
            self.terms = make_terms(run_file, progress)
            self._make(run_file, devices, progress)
        self.directories = {path.name: path for path in sorted((self.out / "keys" / "devices").iterdir())}
        self.server: Server
        self.nursery: Nursery

    def _make(self, run_file: RunFile, devices: int, progress: Progress) -> None:
        terms = self.terms
        needed = terms.invited * terms.min_separation
        if devices < needed:
            raise Refused(
                f"{terms.invited} devices a round that rest for {terms.min_separation} rounds take at least {needed}; give "
                f"--devices {needed}, or lower population.report_goal or population.min_separation."
            )
        people = open_data(run_file).train
        if devices > people.users:
            raise Refused(f"data.store has {people.users} people, too few for {devices} devices; lower --devices.")
        names = [f"device-{number:04d}" for number in range(devices)]
        make_keys(self.out / "keys", names, ["127.0.0.1", "localhost"])
        budget = whole_run(terms)
        compiled = self.out / "compiled"
        for number, name in enumerate(names):
            directory = self.out / "keys" / "devices" / name
            provision(directory, budget=budget, store=people, user=number, terms=terms, compiled=compiled)
            progress("making devices", (number + 1) / devices)
        write_app(self.out / "app", terms, self.run_directory)

    def __enter__(self) -> "LocalFederation":
        port = free_port()
        address = f"127.0.0.1:{port}"
        self.server = Server(
            self.out / "keys", port=port, log=self.out / "superlink.log", compiled=self.out / "compiled"
        )
        try:
            self.nursery = Nursery(address, self.poll)
            self.nursery.__enter__()
            try:
                self.server.wait()
                self.server.register()
                for directory in self.directories.values():
                    self.nursery.start(directory)
            except BaseException:
                self.nursery.__exit__()
                raise
        except BaseException:
            self.server.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.nursery.__exit__()
        self.server.stop()

    def start(self) -> int:
        """Starts the run, or goes on with it; Flower's number of it."""
        return self.server.start_run(self.out / "app", secrets=str(self.secrets or ""))

    def train(self, say: Line) -> bool:
        """Runs it to its end; whether it ended well."""
        return self.server.follow(self.start(), say)


def whole_run(terms: Terms) -> Budget:
    """A lifetime budget that has room for this run and nothing else."""
    from reticent.accounting.run import guarantee_of

    delta = terms.description["delta"]
    if not terms.accounting["noise_multiplier"]:
        return Budget(1.0, delta, accept_no_noise=True)
    return Budget(guarantee_of(terms.accounting, terms.arrays).epsilon(delta) * (1 + 1e-6), delta)


def _continued(out: Path, run_file: RunFile) -> Terms:
    from reticent.config import differences, parse

    terms = Terms.load(out / "app" / "terms.json")
    changed = differences(parse(terms.settings), run_file)
    if changed:
        raise Refused(f"{out} is a federation for another run file ({'; '.join(changed)}); give another --out.")
    return terms
