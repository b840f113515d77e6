"""`reticent generate`: text that a trained model writes, for a look at it."""

from pathlib import Path
from typing import Annotated

import typer

from reticent.cli.output import print_json


def generate(
    directory: Annotated[str, typer.Argument(help="A run's directory, or a Hugging Face checkpoint's.")],
    prompt: Annotated[str, typer.Argument(help="What the text begins with.")],
    tokens: Annotated[int, typer.Option(min=1, help="How many tokens to write at most.")] = 50,
    temperature: Annotated[float, typer.Option(min=0, help="0: always the likeliest token.")] = 0.8,
    top: Annotated[int, typer.Option(min=0, help="Draw among this many likeliest tokens (0: among all).")] = 40,
    seed: Annotated[int, typer.Option(min=0, help="The same seed writes the same text.")] = 0,
    last: Annotated[bool, typer.Option(help="Of a run: the model after the last round, not the best one.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Text that a trained model, or a Hugging Face checkpoint, writes after a prompt."""
    from reticent.training.generate import Sampling
    from reticent.training.generate import generate as write

    path, ends = Path(directory), tuple[int, ...]()
    if (path / "config.json").is_file() and not (path / "run.toml").is_file():
        from reticent.finetune.huggingface import load

        model, params, tokenizer, ends = load(path)
    else:
        from reticent.training.finished import load_trained

        trained = load_trained(directory, last=last)
        model, params, tokenizer = trained.model, trained.params, trained.tokenizer
    text = write(model, params, tokenizer, prompt, tokens=tokens, sampling=Sampling(temperature, top, seed), ends=ends)
    if as_json:
        print_json({"prompt": prompt, "text": text})
    else:
        typer.echo(text)
