"""`reticent deploy`: the rounds of a run file on real devices, over Flower."""

import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from reticent.cli.output import print_json

app = typer.Typer(
    help="The rounds of a run file on real devices, over Flower.", no_args_is_help=True, add_completion=False
)

RunFile = Annotated[str, typer.Argument(help="The run file, TOML; `reticent config fields` lists its keys.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="Override a key: --set run.rounds=20.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Secrets = Annotated[
    Path | None,
    typer.Option(
        help="The folder for the run's secrets directory; without it $RETICENT_SECRETS, or your state folder."
    ),
]


@app.command()
def new(
    run_file: RunFile,
    out: Annotated[Path, typer.Option(help="The app's directory; new or empty.")],
    run_directory: Annotated[
        Path | None, typer.Option(help="Where the server will write the run; without it runs/ and the run's name.")
    ] = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Writes a Flower app for a run file, and its terms, of which every device needs a copy."""
    from reticent.cli.progress import stages
    from reticent.config import load
    from reticent.deploy.app import write_app
    from reticent.deploy.preparing import make_terms

    settings = load(run_file, overrides or ())
    with stages() as progress:
        terms = make_terms(settings, progress)
    written = write_app(out, terms, run_directory or Path("runs") / settings.run.name)
    facts: dict[str, Any] = {
        "app": str(out),
        "terms": terms.digest,
        "devices_per_round": terms.invited,
        "report_goal": terms.report_goal,
        "fewest_devices": terms.invited * terms.min_separation,
        "files": [str(path) for path in written],
    }
    if as_json:
        print_json(facts)
        return
    typer.echo(f"App: {out}. Its terms, for every device: {out / 'terms.json'} ({terms.digest[:12]}).")
    typer.echo(
        f"A round begins with {terms.invited} devices and sums {terms.report_goal}; it takes at least "
        f"{facts['fewest_devices']} devices to keep {terms.min_separation} rounds between two of one's."
    )


@app.command()
def keys(
    out: Annotated[Path, typer.Option(help="The directory for the keys; new or empty.")],
    devices: Annotated[int, typer.Option(min=1, help="How many devices to make keys for.")],
    address: Annotated[
        list[str], typer.Option(help="A name or IP address that devices reach the server at; repeatable.")
    ],
    prefix: Annotated[str, typer.Option(help="How devices are called, before their number.")] = "device-",
) -> None:
    """Makes the server's TLS certificate, and for each device a key to log in with and one to sign with."""
    from reticent.deploy.keys import make_keys

    make_keys(out, [f"{prefix}{number:04d}" for number in range(devices)], address)
    typer.echo(
        f"The server's: {out / 'server'}. Each device's own: {out / 'devices'}. Keep {out / 'authority'} offline."
    )


@app.command()
def device(
    directory: Annotated[Path, typer.Argument(help="The device's directory, which `reticent deploy keys` began.")],
    terms: Annotated[Path | None, typer.Option(help="The terms.json of a run that it may take part in.")] = None,
    store: Annotated[Path | None, typer.Option(help="For a new device: the store that its text is in.")] = None,
    user: Annotated[str | None, typer.Option(help="For a new device: the id of its user in the store.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="For a new device: its lifetime budget, over all runs.")] = None,
    delta: Annotated[float, typer.Option(help="The delta of its lifetime budget.")] = 1e-6,
    least_words: Annotated[int, typer.Option(min=1, help="Words of text below which it takes part in nothing.")] = 1,
    accept_no_noise: Annotated[
        bool, typer.Option("--accept-no-noise", help="Also take part in runs without noise, which protect nobody.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Gets a device ready, gives it the terms of one more run, or shows what it took part in and why it refused."""
    from reticent.data.store import Store
    from reticent.deploy.budget import Budget
    from reticent.deploy.diary import Diary
    from reticent.deploy.provisioning import provision
    from reticent.deploy.settings import DeviceSettings
    from reticent.deploy.terms import Terms

    if terms is not None or store is not None or epsilon is not None:
        opened = None if store is None else Store.open(store)
        found = provision(
            directory,
            budget=None if epsilon is None else Budget(epsilon, delta, accept_no_noise),
            store=opened,
            user=None if user is None or opened is None else opened.index(user),
            terms=None if terms is None else Terms.load(terms),
            least_words=least_words,
        )
    else:
        found = DeviceSettings.load(directory)
    diary = Diary(found.directory / "diary.sqlite")
    runs = diary.runs()
    facts: dict[str, Any] = {
        "name": found.name,
        "budget": {"epsilon": found.budget.epsilon, "delta": found.budget.delta},
        "spent": found.budget.spent(runs),
        "terms": sorted(path.stem for path in found.directory.glob("terms/*.json")),
        "runs": [{"name": one.name, "run": one.run, "rounds": diary.rounds(one.run)} for one in runs],
        "refusals": diary.refusals()[-10:],
    }
    if as_json:
        print_json(facts)
        return
    typer.echo(
        f"{found.name}: {len(facts['terms'])} runs agreed to, epsilon {facts['spent']:.4g} of {found.budget.epsilon:g} "
        f"spent at delta {found.budget.delta:g}"
    )
    for one in facts["runs"]:
        typer.echo(f"  {one['name']} ({one['run'][:12]}): rounds {', '.join(map(str, one['rounds']))}")
    for why in facts["refusals"]:
        typer.echo(f"  refused: {why}")


@app.command()
def serve(
    directory: Annotated[Path, typer.Argument(help="The app, which `reticent deploy new` wrote.")],
    keys: Annotated[Path, typer.Option(help="The directory of `reticent deploy keys`.")],
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen at.")] = 9092,
    out: Annotated[Path | None, typer.Option(help="The run's directory; without it the one the app names.")] = None,
    secrets: Secrets = None,
) -> None:
    """Starts the server, lets in the devices whose keys are there, and runs the app to its end, or goes on with it."""
    from reticent.deploy.federation import Server

    _end_as_if_interrupted()

    config = {"registry": str((keys / "server" / "registry.json").absolute())}
    config |= {} if out is None else {"out": str(out.absolute())}
    config |= {} if secrets is None else {"secrets": str(secrets.absolute())}
    config["terms"] = str((directory / "terms.json").absolute())
    try:
        with Server(keys, host, port) as server:
            server.wait()
            typer.echo(f"Listening at {host}:{port}; {server.register()} devices may log in.")
            done = server.follow(server.start_run(directory, **config), _say)
    except KeyboardInterrupt:
        typer.echo("\nStopped. Nothing that was released is lost; the same command goes on.", err=True)
        raise typer.Exit(130) from None
    if not done:
        raise typer.Exit(1)


@app.command()
def start(
    directories: Annotated[list[Path], typer.Argument(help="The device's directory; several are run side by side.")],
    server: Annotated[str, typer.Option(help="The server, HOST:PORT.")],
    poll: Annotated[float, typer.Option(min=0.05, help="Seconds between two questions for messages.")] = 1.0,
) -> None:
    """Runs devices until they are interrupted."""
    from reticent.deploy.federation import run_nodes

    _end_as_if_interrupted()

    try:
        run_nodes(directories, server, typer.echo, poll=poll)
    except KeyboardInterrupt:
        typer.echo("Stopped.", err=True)


@app.command()
def up(
    run_file: RunFile,
    devices: Annotated[int, typer.Option(min=1, help="How many devices; each gets one user of the run file's store.")],
    out: Annotated[Path | None, typer.Option(help="A directory for all of it; without it runs/NAME-devices.")] = None,
    secrets: Secrets = None,
    overrides: Overrides = None,
) -> None:
    """Starts a whole federation on this machine to try a run out, runs it to its end, and stops it. Again: it goes on."""
    from reticent.cli.progress import stages
    from reticent.config import load
    from reticent.deploy.local import LocalFederation

    _end_as_if_interrupted()

    settings = load(run_file, overrides or ())
    directory = out or Path("runs") / f"{settings.run.name}-devices"
    with stages() as progress:
        federation = LocalFederation(settings, directory, devices, secrets=secrets, progress=progress)
    try:
        with federation:
            typer.echo(
                f"{len(federation.directories)} devices at 127.0.0.1:{federation.server.port}; logs are in {directory}"
            )
            done = federation.train(_say)
    except KeyboardInterrupt:
        typer.echo("\nStopped. Nothing that was released is lost; the same command goes on.", err=True)
        raise typer.Exit(130) from None
    if not done:
        raise typer.Exit(1)
    typer.echo(f"Report: {federation.run_directory / 'report.html'}")


def _end_as_if_interrupted() -> None:
    """A SIGTERM, too, ends what was started, and not this program alone."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _say(line: str) -> None:
    """What the run itself says; Flower's own lines are in its log."""
    flowers = ("\x1b[", "INFO", "Successfully installed", "ServerApp finished", "[flwr-serverapp]")
    if line.strip() and not line.lstrip().startswith(flowers):
        typer.echo(line)
