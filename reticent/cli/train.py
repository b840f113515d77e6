"""`reticent train`: from a run file to a trained model, a verified guarantee and a report."""

from pathlib import Path
from typing import Annotated, Any

import typer

from reticent.cli.cluster import joined, leaving
from reticent.cli.output import print_json


def train(
    run_file: Annotated[str, typer.Argument(help="The run file, TOML; `reticent config fields` lists its keys.")],
    out: Annotated[
        str | None,
        typer.Option(help="The run's directory; without it runs/ and the run's name. All in it may be shown."),
    ] = None,
    going_on: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out where it stopped.")] = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Override a key: --set run.rounds=20.")] = None,
    secrets: Annotated[
        str | None,
        typer.Option(
            help="The folder for the run's secrets directory; without it $RETICENT_SECRETS, or your state folder."
        ),
    ] = None,
    tensorboard: Annotated[str | None, typer.Option(help="A folder to write TensorBoard's event files into.")] = None,
    wandb: Annotated[
        str | None, typer.Option(help="A project of Weights & Biases to send the run's metrics to.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="One of several processes, on as many hosts: start this on each.")
    ] = False,
    coordinator: Annotated[
        str | None, typer.Option(help="HOST:PORT of process 0; without it $RETICENT_COORDINATOR or SLURM's.")
    ] = None,
    process_id: Annotated[
        int | None, typer.Option(help="This process's number, from 0; without it from the environment.")
    ] = None,
    processes: Annotated[int | None, typer.Option(help="How many there are; without it from the environment.")] = None,
) -> None:
    """Trains, verifies what was written, writes the report, and then destroys the run's secrets."""
    from reticent.config import load

    settings = load(run_file, overrides or ())
    cluster = joined(distributed, coordinator, process_id, processes)
    directory = Path(out or Path("runs") / settings.run.name)
    from reticent.cli.watch import Watch

    watch = Watch(quiet=as_json)
    try:
        with leaving(cluster):
            if cluster is not None and not cluster.leads:
                from reticent.training.distributed import follow

                follow(settings, cluster, work_of=work_of(settings))
                return
            callbacks = [watch, *_trackers(tensorboard, wandb)]
            result = _train(settings, directory, callbacks, going_on, secrets, cluster)
    except KeyboardInterrupt:
        again = f"reticent train {run_file} --out {directory} --resume"
        typer.echo(f"\nStopped. Nothing that was released is lost; go on with: {again}", err=True)
        raise typer.Exit(130) from None
    if as_json:
        print_json(result)
    elif "report" in result:
        typer.echo(f"Report: {result['report']}")


def work_of(settings: Any) -> Any:
    """What makes the work of a run file's algorithm."""
    from reticent.config.datacenter import ALGORITHMS as DATACENTER

    if settings.run.algorithm in DATACENTER:
        from reticent.finetune import work_of as algorithm
    else:
        from reticent.training.work import federated as algorithm
    return algorithm


def _trackers(tensorboard: str | None, wandb: str | None) -> list[Any]:
    if tensorboard is None and wandb is None:
        return []
    from reticent.training.trackers import TensorBoard, WeightsAndBiases

    found: list[Any] = [] if tensorboard is None else [TensorBoard(tensorboard)]
    return found if wandb is None else [*found, WeightsAndBiases(wandb)]


def _train(
    settings: Any, directory: Path, callbacks: list[Any], going_on: bool, secrets: str | None, cluster: Any = None
) -> dict[str, Any]:
    watch = callbacks[0]
    if not settings.private and cluster is None:
        from reticent.training.pretrain import pretrain

        last = pretrain(settings, directory, callbacks=callbacks, going_on=going_on, progress=watch.stage)
        return {"directory": str(directory), "last": last}
    from reticent.audit.attack import at_the_end
    from reticent.report import read_run
    from reticent.training import train as run

    trained = run(
        settings,
        directory,
        work_of=work_of(settings),
        callbacks=callbacks,
        going_on=going_on,
        secrets=secrets,
        auditor=at_the_end if settings.audit.declared else None,
        progress=watch.stage,
        cluster=cluster,
    )
    facts = read_run(trained.path, verdict=trained.verdict, secrets=secrets).facts()
    return facts | {"directory": str(directory), "report": str(trained.report)}
