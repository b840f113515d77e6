"""How letters get to devices and answers back: what the server needs of whatever carries them."""

from collections.abc import Callable, Collection, Iterable
from typing import Protocol


class Post(Protocol):
    """Devices are known by their node, a number that whoever carries the letters gives them."""

    def nodes(self) -> Collection[int]:
        """The nodes that can be reached now."""

    def send(self, node: int, letter: bytes, model: bytes = b"") -> None:
        """Sends a letter, which is answered once, or never."""

    def answers(self, seconds: float) -> Iterable[tuple[int, bytes | None]]:
        """Answers as they come, one in memory at a time; waits at most so long for the first. None is a node that failed."""


class InProcess:
    """Devices in this process, each a function from a letter and a model to an answer: for tests and simulations.

    A device is asked when its answer is waited for; one that raises ConnectionError does not answer.
    """

    def __init__(self, devices: dict[int, Callable[[bytes, bytes], bytes]]) -> None:
        self.devices = devices
        self.sent: list[tuple[int, bytes, bytes]] = []

    def nodes(self) -> Collection[int]:
        return list(self.devices)

    def send(self, node: int, letter: bytes, model: bytes = b"") -> None:
        self.sent.append((node, letter, model))

    def answers(self, seconds: float) -> Iterable[tuple[int, bytes | None]]:
        waiting, self.sent = self.sent, []
        for place, (node, letter, model) in enumerate(waiting):
            try:
                answer = self.devices[node](letter, model)
            except ConnectionError:
                continue
            try:
                yield node, answer
            except GeneratorExit:
                self.sent = waiting[place + 1 :] + self.sent
                raise
