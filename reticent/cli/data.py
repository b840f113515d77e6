"""`reticent data`: text into stores, and what is in them."""

from pathlib import Path

import typer

from reticent.cli.data_make import make
from reticent.cli.output import print_json

app = typer.Typer(help="Import text by user, look at it, forget a user.", no_args_is_help=True, add_completion=False)
app.add_typer(make, name="make")


@app.command("import")
def import_(
    source: str = typer.Argument(
        help="A .parquet, .csv, .tsv or .jsonl file, a folder of them, a Hugging Face dataset (a folder, or "
        "name[:config]), or TFF's StackOverflow .sqlite."
    ),
    out: Path = typer.Option(..., "--out", help="The store to write; it must not exist."),
    user_column: str | None = typer.Option(None, help="The column that says whose text it is."),
    text_column: str | None = typer.Option(None, help="The column of the text."),
    split: str | None = typer.Option(None, help="The split to read, where the source has several."),
    by_domain: bool = typer.Option(False, help="The user column holds URLs; a user is the base domain of one."),
    web: bool = typer.Option(
        False, help="Text from the web, as CC-News and C4 come: --user-column url --text-column text --by-domain."
    ),
    tokenizer: Path | None = typer.Option(None, help="A Hugging Face tokenizer.json, or a store's."),
    vocabulary: Path | None = typer.Option(
        None, help="A file of words, one a line, that tells nothing of these users."
    ),
    size: int = typer.Option(10_000, help="The most words to take from the vocabulary file, or to discover."),
    spaces: bool = typer.Option(False, help="Words are what stands between spaces, as it is (text tokenised before)."),
    discover: bool = typer.Option(False, help="Find the vocabulary in this text under differential privacy."),
    rho: float = typer.Option(0.05, help="With --discover: the zCDP it costs each user."),
    delta: float = typer.Option(1e-10, help="With --discover: the delta of its threshold."),
    words_per_user: int = typer.Option(100, help="With --discover: the most distinct words one user counts for."),
    leak_vocabulary: bool = typer.Option(
        False, help="Count the vocabulary on this text WITHOUT privacy: every guarantee then leaves it out."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Import text with a user column into a store, grouped by user and tokenised."""
    from reticent.cli.progress import stages
    from reticent.data.importing import import_store
    from reticent.data.sources import Source
    from reticent.data.vocabulary import choose

    chosen, recipe = choose(
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        discover={"rho": rho, "delta": delta, "words_per_user": words_per_user} if discover else None,
        leak=leak_vocabulary,
        size=size,
        split="spaces" if spaces else "words",
    )
    if web:
        user_column, text_column, by_domain = user_column or "url", text_column or "text", True
    read = Source(source, user_column, text_column, split, by_domain)
    with stages() as progress:
        summary = import_store(read, out, chosen, recipe=recipe, progress=progress)
    if as_json:
        print_json({"store": out, **summary})
    else:
        from reticent.data.show import import_lines

        for line in import_lines(summary):
            typer.echo(line)
        typer.echo(f"wrote {out}")


@app.command()
def dedup(
    public: Path = typer.Argument(help="Public text: a .parquet or .jsonl[.gz] file, or a folder of them."),
    against: list[Path] = typer.Option(..., help="A store of private text; can be given several times."),
    out: Path = typer.Option(..., "--out", help="The file (or folder) to write; it must not exist."),
    text_column: str = typer.Option("text", help="The column of the public text."),
    url_column: str | None = typer.Option(None, help="The column of the public text's URLs."),
    drop_domains: Path | None = typer.Option(
        None, help="A file of domains to leave out with all below them, one a line."
    ),
    threshold: float = typer.Option(0.8, help="The Jaccard similarity from which on texts are nearly the same."),
    shingle: int = typer.Option(5, help="How many words in a row are compared."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Leave out of public text what repeats private text, before a model is pretrained on it."""
    from reticent.cli.progress import stages
    from reticent.data.dedup import dedup as filtered
    from reticent.data.domains import read_domains
    from reticent.data.store import Store

    drop = frozenset[str]() if drop_domains is None else read_domains(drop_domains)
    stores = [Store.open(path) for path in against]
    with stages() as progress:
        found = filtered(
            public,
            stores,
            out,
            text_column=text_column,
            url_column=url_column,
            drop=drop,
            threshold=threshold,
            shingle=shingle,
            progress=progress,
        )
    if as_json:
        print_json(found)
        return
    typer.echo(
        f"{found['rows']:,} rows: {found['near_duplicates']:,} repeat private text, {found['listed_domains']:,} are of "
        f"listed domains, {found['kept']:,} are kept in {out}."
    )
    typer.echo("Which rows are gone tells something of the private text: keep it, and the list of them, to yourself.")


@app.command()
def forget(
    store: Path = typer.Argument(help="The store to rewrite."),
    users: list[str] = typer.Argument(help="The ids of the users to forget."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Rewrite a store without some users (erasure requests)."""
    from reticent.data.forget import forget as forget_users

    result = forget_users(store, users)
    if as_json:
        print_json(result)
    else:
        typer.echo(
            f"{store}: forgot {result['forgotten']:,} users with {result['examples']:,} examples; "
            f"{result['users_left']:,} users are left. Copies, models and vocabularies made before are not changed."
        )


@app.command()
def show(
    store: Path = typer.Argument(help="The store to look at."),
    plot: Path | None = typer.Option(None, help="Write a histogram of users' sizes to this PNG file."),
    verify: bool = typer.Option(False, help="Read every byte and compare all checksums."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Print a store's counts and percentiles; these are facts about private text."""
    from reticent.data.show import describe, draw, lines
    from reticent.data.store import Store

    opened = Store.open(store)
    if verify:
        opened.verify()
    facts = describe(opened)
    if plot is not None:
        draw(opened, plot)
    if as_json:
        print_json({**facts, "plot": plot})
    else:
        for line in lines(facts):
            typer.echo(line)
