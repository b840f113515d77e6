"""Who wants to know how a run goes."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Record = dict[str, Any]


class Callback:
    """What is called while a run goes on; override what you need. All that it is given may be shown to anybody.

    `on_start` gets the facts of the run before its first round (or before the first after a resume), the others the
    record that goes to `metrics.jsonl`.
    """

    def on_start(self, facts: Record) -> None:
        return None

    def on_round(self, record: Record) -> None:
        return None

    def on_evaluation(self, record: Record) -> None:
        return None

    def on_end(self, record: Record) -> None:
        return None

    def close(self) -> None:
        """Called once at the end, also when the run is interrupted."""


@contextmanager
def listening(callbacks: Iterable[Callback]) -> Iterator[tuple[Callback, ...]]:
    """The callbacks, each closed at the end whatever happens."""
    given = tuple(callbacks)
    try:
        yield given
    finally:
        for callback in given:
            callback.close()
