"""The run's two directories, the release protocol, and the checker."""

from reticent.ledger.checkpoints import Checkpoint
from reticent.ledger.durable import Files
from reticent.ledger.recovery import Recovery, Replay, resume
from reticent.ledger.run import RunDirectory, release_point
from reticent.ledger.secrets import Intent

__all__ = ["Checkpoint", "Files", "Intent", "Recovery", "Replay", "RunDirectory", "release_point", "resume"]
