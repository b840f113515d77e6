"""Flower's half: letters as its messages, a ClientApp for devices, a ServerApp for the server.

A device's app may be started anew for every message: what it needs is imported when it is needed.
"""

import time
from collections import deque
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from reticent.errors import Refused

if TYPE_CHECKING:
    from reticent.deploy.device import Learner

MESSAGE = "query.letter"
LETTER, MODEL, ANSWER, CONTENT = "letter", "model", "answer", "content"
AT_ONCE, LARGE_AT_ONCE = 64, 4
POLL_SECONDS = 0.2


class FlowerPost:
    """Letters over Flower's Grid. Answers that carry an update are fetched a few at a time, whatever the cohort."""

    def __init__(self, grid: Grid, lifetime: float) -> None:
        self.grid = grid
        self.lifetime = lifetime
        self.waiting: dict[str, tuple[int, bool]] = {}
        self.fetched: deque[Message] = deque()
        self.model: tuple[bytes, ConfigRecord] = (b"", ConfigRecord())

    def nodes(self) -> Collection[int]:
        return list(self.grid.get_node_ids())

    def send(self, node: int, letter: bytes, model: bytes = b"") -> None:
        content = RecordDict({LETTER: ConfigRecord({CONTENT: letter})})
        if model:
            # One record for the whole cohort: Flower then keeps it once.
            if self.model[0] is not model:
                self.model = (model, ConfigRecord({CONTENT: model}))
            content[MODEL] = self.model[1]
        message = Message(content, node, MESSAGE, ttl=self.lifetime)
        for sent in self.grid.push_messages([message]):
            if sent:
                self.waiting[sent] = (node, bool(model))

    def answers(self, seconds: float) -> Iterable[tuple[int, bytes | None]]:
        end = time.monotonic() + seconds
        while True:
            self._fetch()
            if self.fetched or time.monotonic() >= end:
                break
            time.sleep(POLL_SECONDS)
        while self.fetched:
            message = self.fetched.popleft()
            node, _ = self.waiting.pop(message.metadata.reply_to_message_id, (None, False))
            if node is not None:
                yield node, _content(message)
            if not self.fetched:
                self._fetch()

    def _fetch(self) -> None:
        """Asks for all answers that are waited for, until there are some."""
        for large, most in ((False, AT_ONCE), (True, LARGE_AT_ONCE)):
            due = [message for message, (_, is_large) in self.waiting.items() if is_large == large]
            for start in range(0, len(due), most):
                self.fetched.extend(self.grid.pull_messages(due[start : start + most]))
                if self.fetched:
                    return


def _content(message: Message) -> bytes | None:
    """What a device answered; None for what Flower has instead of an answer."""
    if message.has_error():
        return None
    try:
        content: Any = message.content[ANSWER][CONTENT]  # type: ignore[index]
        return content if isinstance(content, bytes) else b""
    except (KeyError, TypeError, AttributeError):
        return b""


def client_app(learner: "Learner | None" = None) -> ClientApp:
    """The app of a device: its directory is `device` in the node's configuration. `learner` as in `Device`."""
    app = ClientApp()

    @app.query("letter")
    def letter(message: Message, context: Context) -> Message:
        content = answer(message, context, learner)
        return Message(RecordDict({ANSWER: ConfigRecord({CONTENT: content})}), reply_to=message)

    return app


def answer(message: Message, context: Context, learner: "Learner | None" = None) -> bytes:
    """A device's answer to a Flower message; a word, if it has no device's directory."""
    from reticent.deploy.device import Device, log
    from reticent.deploy.letters import no

    directory = context.node_config.get("device")
    try:
        records = message.content
        letter: Any = records[LETTER][CONTENT] if LETTER in records else b""  # type: ignore[index]
        model: Any = records[MODEL][CONTENT] if MODEL in records else b""  # type: ignore[index]
        if not isinstance(directory, str):
            raise Refused("Say where the device is: --node-config 'device=\"/path/to/device\"'.")
        return Device(directory, learner).answer(bytes(letter), bytes(model))
    except Refused as error:
        log.error("%s", error)
    except Exception as error:
        log.error("A message was not understood: %s.", type(error).__name__)
    return no()


def server_app() -> ServerApp:
    """The app of the server: the run's configuration says where its terms, its registry and its directories are."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run(grid, {key: str(value) for key, value in context.run_config.items()})

    return app


def run(grid: Grid, config: dict[str, str]) -> None:
    """A whole run over Flower; what can be mended is one sentence in the log."""
    import logging
    import sys

    from reticent.deploy.deployment import deploy
    from reticent.deploy.progress import Say
    from reticent.deploy.settings import read_registry
    from reticent.deploy.terms import Terms

    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    logging.getLogger("reticent").setLevel(logging.INFO)
    try:
        terms = Terms.load(config["reticent-terms"])
        registry = read_registry(Path(config["reticent-registry"]))
        post = FlowerPost(grid, 4 * terms.settings["deploy"]["deadline"])
        deploy(
            terms,
            config["reticent-out"],
            registry,
            post,
            callbacks=[Say()],
            secrets=config.get("reticent-secrets") or None,
        )
    except Refused as error:
        print(f"reticent: {error}", flush=True)
        raise SystemExit(2) from None
