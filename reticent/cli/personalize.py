"""`reticent personalize`: what training a model further on each person's own text would gain them."""

import dataclasses
from typing import Annotated

import typer

from reticent.cli.output import print_json


def personalize(
    directory: Annotated[str, typer.Argument(help="The run's directory.")],
    store: Annotated[
        str | None, typer.Option(help="A store of people to do it for; without it the run's held-out users.")
    ] = None,
    users: Annotated[int | None, typer.Option(help="People at most.", min=1)] = None,
    epochs: Annotated[int, typer.Option(help="Passes over a person's half.", min=1)] = 4,
    batch_size: Annotated[int, typer.Option(help="Rows of a step.", min=1)] = 16,
    learning_rate: Annotated[
        list[float] | None, typer.Option(help="Of SGD; once or more; 0.002, 0.005 and 0.02.")
    ] = None,
    most: Annotated[int, typer.Option(help="Rows of one person used at most.", min=2)] = 64,
    last: Annotated[bool, typer.Option(help="Use the model after the last round, not the best one.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Trains on half of each person's examples and measures on the other half: loss without and with."""
    from reticent.finetune.people import people_of
    from reticent.finetune.personal import personalise
    from reticent.training.finished import load_trained

    trained = load_trained(directory, last=last)
    people = people_of(trained, store, users)
    found = []
    for rate in learning_rate or (0.002, 0.005, 0.02):
        measured = personalise(
            trained.model,
            trained.params,
            people.store,
            sequence_length=people.sequence_length,
            users=people.users,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=rate,
            most=most,
        )
        found.append({"learning_rate": rate, **dataclasses.asdict(measured), "gain": measured.gain})
    best = min(found, key=lambda one: one["personalised_loss"])
    if as_json:
        print_json({"rounds": trained.rounds, "best": best, "tried": found})
        return
    skipped = f" ({best['left_out']:,} had fewer than two examples)" if best["left_out"] else ""
    typer.echo(f"{best['people']:,} people{skipped}, the model after {trained.rounds:,} rounds")
    for row in found:
        typer.echo(
            f"learning rate {row['learning_rate']:g}: loss {row['loss']:.4f} without, {row['personalised_loss']:.4f} with; "
            f"better for {row['better']:,}"
        )
    typer.echo("These people were not trained on; the guarantee does not cover what is measured on them.")
