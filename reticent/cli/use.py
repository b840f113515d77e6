"""`reticent evaluate`, `predict` and `export`: what a trained model can do, and taking it elsewhere."""

from pathlib import Path
from typing import Annotated, Any

import typer

from reticent.cli.output import print_json

Directory = Annotated[str, typer.Argument(help="The run's directory.")]
Last = Annotated[bool, typer.Option(help="Use the model after the last round, not the one with the best evaluation.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def evaluate(
    directory: Directory,
    store: Annotated[
        str | None, typer.Option(help="A store to evaluate on; without it the people the run was evaluated on.")
    ] = None,
    users: Annotated[int | None, typer.Option(help="Users evaluated on at most.")] = None,
    heads: Annotated[
        bool, typer.Option("--head-words", help="Also tell how much its predictions lean on the commonest words.")
    ] = False,
    last: Last = False,
    as_json: Json = False,
) -> None:
    """Accuracy, loss and perplexity of a trained model on people it was not trained on."""
    from reticent.training.evaluation import evaluator, held_out
    from reticent.training.finished import load_trained
    from reticent.training.setup import open_data

    trained = load_trained(directory, last=last)
    if store is None:
        people = open_data(trained.run_file).people
        if people is None:
            from reticent.errors import Refused

            raise Refused("The run was evaluated on nobody; name a store with --store.")
        people = people if users is None else held_out(people.store, users, people.sequence_length)
    else:
        from reticent.data.store import Store

        opened = Store.open(store)
        opened.check_tokenizer(trained.tokenizer, "The model's tokenizer")
        people = held_out(opened, users, trained.run_file.data.sequence_length)
    found = evaluator(trained.model, people)(trained.params) | {"rounds": trained.rounds}
    if heads:
        from reticent.training.head_words import head_words

        found["head_words"] = head_words(trained.model, trained.params, people)
    if as_json:
        print_json(found)
        return
    typer.echo(f"{found['users']:,} people, {found['targets']:,} words, the model after {found['rounds']:,} rounds")
    typer.echo(f"top-1 {found['top1']:.2%} (always the commonest word: {found['unigram_top1']:.2%})")
    typer.echo(f"top-1 of known words {found['top1_in_vocabulary']:.2%}, top-3 {found['top3']:.2%}")
    typer.echo(f"loss {found['loss']:.4f} nats, perplexity {found['perplexity']:.2f}")
    if heads:
        from reticent.cli.output import print_table

        print_table(
            "Predictions by how many of their ten likeliest words are among the n commonest",
            [
                {"n": str(head)}
                | {str(inside): f"{count / max(1, sum(counts)):.0%}" for inside, count in enumerate(counts)}
                for head, counts in found["head_words"].items()
            ],
        )


def predict(
    directory: Directory,
    text: Annotated[str, typer.Argument(help="What was written so far.")],
    words: Annotated[int, typer.Option(min=1, help="How many words to show.")] = 3,
    last: Last = False,
    as_json: Json = False,
) -> None:
    """The words that a trained model thinks come next."""
    from reticent.training.finished import load_trained
    from reticent.training.predict import next_words

    found = next_words(load_trained(directory, last=last), text, words)
    if as_json:
        print_json({"text": text, "next": [{"word": word, "probability": chance} for word, chance in found]})
        return
    for word, chance in found:
        typer.echo(f"{chance:7.2%}  {word or '(the end)'}")


def export(
    directory: Directory,
    out: Annotated[Path, typer.Option(help="The directory to write; it must not exist.")],
    format: Annotated[
        str | None,
        typer.Option(
            help="safetensors (parameters) or stablehlo (the computation); of a Hugging Face checkpoint also huggingface, "
            "its default, and peft (the adapters alone)."
        ),
    ] = None,
    last: Last = False,
    as_json: Json = False,
) -> None:
    """Writes a trained model, its tokenizer and a card with its privacy statement; nothing secret is read."""
    from reticent.models.kinds import HUGGINGFACE
    from reticent.training.export import export as write
    from reticent.training.finished import run_file_of

    format = format or (HUGGINGFACE if run_file_of(Path(directory)).model.kind == HUGGINGFACE else "safetensors")
    if format in ("huggingface", "peft"):
        from reticent.finetune.huggingface.export import export as to_huggingface

        paths = to_huggingface(directory, out, format, last=last)
    else:
        paths = write(directory, out, format, last=last)
    written = [str(path) for path in paths]
    told: dict[str, Any] = {"files": written}
    if as_json:
        print_json(told)
    else:
        typer.echo("\n".join(written))
