"""What can go wrong in a round, with names; no message ever carries a secret."""

from reticent.errors import Refused


class Fault(Refused):
    """One party's message is not what the protocol asks for. `culprit` is a client's name or "the server".

    The state before the message is still good: a server goes on without that client, a client that faults leaves the
    round.
    """

    def __init__(self, culprit: str, what: str) -> None:
        super().__init__(f"{culprit}: {what}.")
        self.culprit = culprit
        self.what = what


class Aborted(Refused):
    """The round cannot be completed; nothing was revealed by this party."""


SERVER = "the server"
