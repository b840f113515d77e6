"""What commands that run as several processes share: meeting, and leaving so that nobody waits."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from reticent.errors import Refused


def joined(distributed: bool, coordinator: str | None, process: int | None, processes: int | None) -> Any:
    """The cluster that the options speak of; None without --distributed."""
    if not distributed:
        if (coordinator, process, processes) != (None, None, None):
            raise Refused("--coordinator, --process-id and --processes go with --distributed; add it.")
        return None
    from reticent.training.cluster import address_of, join

    return join(address_of(coordinator, process, processes))


@contextmanager
def leaving(cluster: Any) -> Iterator[None]:
    """Ends a distributed process: by a last meeting if all is well, and at once if not, since JAX would wait for a process
    that is gone, and then be killed by it."""
    if cluster is None or cluster.processes == 1:
        yield
        return
    try:
        yield
    except Refused as error:
        typer.echo(f"reticent: {error}", err=True)
        _at_once(2)
    except KeyboardInterrupt:
        typer.echo("\nStopped. Nothing that was released is lost; start all processes again with --resume.", err=True)
        _at_once(130)
    except BaseException:
        import traceback

        traceback.print_exc()
        _at_once(1)
    import jax

    jax.distributed.shutdown()


def _at_once(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
