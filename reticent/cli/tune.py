"""`reticent tune`: group sizes and cohorts for a budget, and the studies that say when ELS or ULS is the better."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from reticent.cli.output import print_json, print_table

app = typer.Typer(
    help="Group sizes and cohorts for els and uls, and when which of the two is better.", no_args_is_help=True
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("group-sizes")
def group_sizes(
    run_file: Annotated[str, typer.Argument(help="The run file, TOML, with a target epsilon.")],
    public: Annotated[
        str | None, typer.Option(help="A store of public text to learn from, in place of the run's own data.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="What reading the run's own data may cost, at the run's delta.")
    ] = None,
    budget: Annotated[
        int | None, typer.Option(help="Gradients per round; without it what the run file spends.", min=1)
    ] = None,
    users: Annotated[int, typer.Option(help="Users whose gradients are looked at, about.", min=1)] = 1000,
    out: Annotated[
        Path | None, typer.Option(help="Where the guarantee of reading goes, for privacy.composed_with.")
    ] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Override a key: --set run.rounds=20.")] = None,
    as_json: Json = False,
) -> None:
    """The median rule for els, Estimate-and-Double for uls, and both side by side."""
    from reticent.cli.progress import stages
    from reticent.config import load
    from reticent.finetune.choosing import choose

    with stages() as progress:
        found = choose(
            load(run_file, overrides or ()),
            public=public,
            epsilon=epsilon,
            budget=budget,
            users=users,
            progress=progress,
        )
    if out is not None and found["guarantee"] is not None:
        from reticent.files import write_atomically

        write_atomically(out, (json.dumps({"guarantee": found["guarantee"]}, indent=1) + "\n").encode())
    if as_json:
        print_json(found)
        return
    rows = [
        {
            "budget": one["uls"]["budget"],
            "uls: M x G": f"{one['uls']['drawn']:.0f} x {one['uls']['group']}",
            "uls noise": f"{one['uls']['predicted']:.3g}",
            "els: B of G": "-" if one["els"] is None else f"{one['els']['drawn']:.0f} of {one['els']['group']}",
            "els noise": "-" if one["els"] is None else f"{one['els']['predicted']:.3g}",
        }
        for one in found["splits"]
    ]
    print_table("ULS and ELS for the same work", rows)
    typer.echo("noise: the standard deviation of an entry of the averaged gradient, predicted at the target epsilon")
    for line in found["told"]:
        typer.echo(line)
    if out is None and found["guarantee"] is not None:
        typer.echo("Its cost is lost unless you give --out FILE, and privacy.composed_with = [FILE] in the run file.")


@app.command()
def variances(
    epsilons: Annotated[list[float] | None, typer.Option("--epsilon", help="Once or more; 1, 4 and 16.")] = None,
    cohorts: Annotated[list[int] | None, typer.Option("--cohort", help="Once or more; 32, 64 and 128.")] = None,
    as_json: Json = False,
) -> None:
    """Noise variances of els and uls for equal work, where gradients of a user are alike and where they are not."""
    from reticent.cli.progress import stages
    from reticent.finetune.studies import variance_study

    with stages() as progress:
        found = variance_study(epsilons or (1.0, 4.0, 16.0), cohorts or (32, 64, 128), progress=progress)
    rows = [dataclasses.asdict(one) for one in found]
    if as_json:
        print_json({"variances": rows})
        return
    print_table("Variance of an entry's noise", [{key: _short(value) for key, value in row.items()} for row in rows])


@app.command("mean-estimation")
def mean_estimation(
    trials: Annotated[int, typer.Option(help="Runs to average over, of each setting.", min=2)] = 32,
    seed: Annotated[int, typer.Option(help="Of people and noise.", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """The mean of a synthetic population by els and uls, with epsilon, budget and the diversity of users varied."""
    from reticent.cli.progress import stages
    from reticent.finetune.studies import mean_study

    with stages() as progress:
        found = mean_study(trials=trials, seed=seed, progress=progress)
    rows = [
        {
            "epsilon": one.setting.epsilon,
            "budget": one.setting.budget,
            "within": one.setting.within,
            "algorithm": one.algorithm,
            "group": one.group,
            "loss": one.loss,
            "error": one.error,
            "learning_rate": one.learning_rate,
            "clip_norm": one.clip_norm,
        }
        for one in found
    ]
    if as_json:
        print_json({"means": rows})
        return
    print_table(
        "Distance to the mean, the best learning rate and norm of each",
        [{key: _short(value) for key, value in row.items()} for row in rows],
    )


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
