"""Many devices on one machine: a process that has imported everything once, and forks each device's.

    python -m reticent.deploy.nursery

reads a JSON object per line, {"device", "server", "port", "poll", "log"}, and answers each with the number of the process,
which leads a group of its own. It ends when its input does; the devices are ended by whoever asked for them.
"""

import json
import os
import signal
import sys
from pathlib import Path

from reticent.deploy.supernode import preload, run


def main() -> None:
    """Forks until there is nothing more to read."""
    preload()
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Not `for line in sys.stdin`, which reads ahead what a fork would read again.
    while line := sys.stdin.readline():
        asked = json.loads(line)
        child = os.fork()
        if child:
            print(child, flush=True)
            continue
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        try:
            run(Path(asked["device"]), asked["server"], asked["port"], asked["poll"])
        except SystemExit:
            pass
        finally:
            os._exit(1)


if __name__ == "__main__":
    main()
