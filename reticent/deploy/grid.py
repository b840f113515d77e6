"""Flower's Grid in one process: thousands of simulated devices through Flower's own messages, for load and for tests."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity


class InProcessGrid(Grid):
    """Each message is handed to the app when its answer is asked for; one is in memory at a time.

    A device that raises gets the error message that Flower would send for it.
    """

    def __init__(self, app: ClientApp, directories: Mapping[int, Path]) -> None:
        self.app = app
        self.directories = dict(directories)
        self.sent: dict[str, Message] = {}
        self.series = Run.create_empty(1)
        self.count = 0
        # Whose messages these are, which Flower asks of the process.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def set_run(self, run: Run) -> None:
        self.series = run

    @property
    def run(self) -> Run:
        return self.series

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.directories)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return (NodeInfo(node_id=node) for node in self.directories)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            self.count += 1
            # Flower numbers a message by its content's digest, which for a model takes longer than anything else here.
            message.metadata.__dict__["_message_id"] = f"{self.count:064x}"
            self.sent[message.metadata.message_id] = message
            numbers.append(message.metadata.message_id)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._answer(self.sent.pop(one)) for one in message_ids if one in self.sent]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        context = Context(
            run_id=1,
            node_id=node,
            node_config={"device": str(self.directories[node])},
            state=RecordDict(),
            run_config={},
        )
        try:
            return self.app(message, context)
        except Exception as error:
            return Message(Error(code=0, reason=type(error).__name__), reply_to=message)
