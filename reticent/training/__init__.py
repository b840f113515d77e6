"""Federated rounds: local updates, the release protocol, the server's step, evaluation."""

from reticent.training.events import Callback
from reticent.training.loop import Trained, train
from reticent.training.setup import Setup, prepare

__all__ = ["Callback", "Setup", "Trained", "prepare", "train"]
