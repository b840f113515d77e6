"""A run in a process of its own, to be killed: begins or takes up the run at a path, and says each round."""

import sys
import time
from pathlib import Path

from tests.ledger.toy import begin_or_take_up, train

if __name__ == "__main__":
    path, secrets = Path(sys.argv[1]), Path(sys.argv[2])
    run, toy = begin_or_take_up(path, secrets, rounds=40, keep_releases=False)
    print("at work", time.monotonic(), flush=True)
    train(run, toy, checkpoint_every=3)
    run.close()
