"""What everything that is started here has in its environment."""

import os

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",  # nobody is told who trains what
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # no code from an index because a message names it
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}


def environment(**more: str) -> dict[str, str]:
    """The environment for Flower's programs."""
    return {**os.environ, **QUIET, **more}
