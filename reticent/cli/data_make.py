"""`reticent data make`: data at hand, for trying things out."""

from pathlib import Path
from typing import Annotated

import typer

from reticent.cli.output import print_json

make = typer.Typer(
    help="Make a store of data at hand: plays, changelogs, a generated crowd, or images.", no_args_is_help=True
)

Out = Annotated[Path, typer.Option("--out", help="The store to write; it must not exist.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Words = Annotated[int, typer.Option(help="Words of the vocabulary.")]
Seed = Annotated[int, typer.Option(help="Decides which plays are held out, and who is in a crowd.")]
HeldOut = Annotated[int, typer.Option(help="Plays that feed neither the crowd nor the vocabulary.")]
Plays = Annotated[Path | None, typer.Option(help="The wheel or folder of the plays' package, where not installed.")]


@make.command()
def plays(
    out: Out,
    part: Annotated[str, typer.Option(help="all, crowd (what feeds the crowd), or held-out (to evaluate on).")] = "all",
    words: Words = 2000,
    seed: Seed = 0,
    held_out: HeldOut = 12,
    plays: Plays = None,
    json: Json = False,
) -> None:
    """Shakespeare's plays, by speaking role."""
    from reticent.data.plays import make_plays

    _print(make_plays(out, part=part, words=words, seed=seed, held_out=held_out, source=plays), json)


@make.command()
def crowd(
    out: Out,
    people: Annotated[int, typer.Option(help="People to generate.")] = 50_000,
    words: Words = 2000,
    seed: Seed = 0,
    held_out: HeldOut = 12,
    plays: Plays = None,
    json: Json = False,
) -> None:
    """A generated population, each of whom imitates a few roles of the plays that are not held out."""
    from reticent.cli.progress import stages
    from reticent.data.crowd import make_crowd

    with stages() as progress:
        facts = make_crowd(
            out,
            people=people,
            words=words,
            seed=seed,
            held_out=held_out,
            source=plays,
            progress=lambda done: progress("generating", done),
        )
    _print(facts, json)


@make.command()
def changelogs(
    out: Out,
    packages: Annotated[int, typer.Option(help="Packages to fetch.")] = 2000,
    manifest: Annotated[Path | None, typer.Option(help="Fetch what this lists; written if it does not exist.")] = None,
    vocabulary: Annotated[Path | None, typer.Option(help="A file of words; else the archive's descriptions'.")] = None,
    words: Words = 10_000,
    json: Json = False,
) -> None:
    """Debian changelogs by author, fetched through apt; names, addresses and URLs are taken out."""
    from reticent.cli.progress import stages
    from reticent.data.changelogs import make_changelogs

    with stages() as progress:
        facts = make_changelogs(
            out, packages=packages, manifest=manifest, vocabulary=vocabulary, words=words, progress=progress
        )
    _print(facts, json)


@make.command()
def digits(
    out: Out,
    source: Annotated[Path | None, typer.Option(help="digits.csv.gz, where scikit-learn is not installed.")] = None,
    json: Json = False,
) -> None:
    """Handwritten digits of 8 by 8 values, which come with scikit-learn: for dpsgd with a model of images."""
    from reticent.data.images import make_digits

    _print_images(make_digits(out, source=source), json)


@make.command()
def cifar10(
    directory: Annotated[Path, typer.Argument(help="The folder of CIFAR-10's binary version.")],
    out: Out,
    part: Annotated[str, typer.Option(help="train, or test (to evaluate on).")] = "train",
    json: Json = False,
) -> None:
    """CIFAR-10, of a folder that you have: for dpsgd with a model of images."""
    from reticent.data.images import make_cifar10

    _print_images(make_cifar10(out, directory, part=part), json)


def _print_images(facts: dict, as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    typer.echo(
        f"wrote {facts['store']}: {facts['images']:,} images; train on it with data.sequence_length = {facts['values']}"
    )


def _print(facts: dict, as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    generated = " (generated: nobody wrote them)" if facts.get("generated") else ""
    typer.echo(
        f"wrote {facts['store']}: {facts['users']:,} users, {facts['examples']:,} examples{generated}, "
        f"{facts['words']:,} words, median {facts['median_words_per_user']:,.0f} per user"
    )
