"""Progress on standard error: a bar on a terminal, a line per stage elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer


@contextmanager
def stages() -> Iterator[Callable[[str, float], None]]:
    """Gives `progress(stage, fraction done)`."""
    if not sys.stderr.isatty():
        seen: set[str] = set()

        def say(stage: str, done: float) -> None:
            if stage not in seen:
                seen.add(stage)
                typer.echo(f"{stage} ...", err=True)

        yield say
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def draw(stage: str, done: float) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=1.0)
            bars.update(tasks[stage], completed=done)

        yield draw
