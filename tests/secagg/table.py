"""A round laid out on a table: every message in reach, to be dropped, bent or replayed."""

from dataclasses import dataclass, field

import numpy as np

from reticent.secagg import Member, Round, client, server

SERVER_STEPS = 5


@dataclass
class Table:
    """Clients and a server that exchange nothing but bytes."""

    names: list[str]
    round: Round
    members: dict[str, Member]
    words: dict[str, np.ndarray]
    server: server.ServerState
    states: dict[str, client.ClientState] = field(default_factory=dict)
    inbox: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def lay(cls, clients=8, length=20, bits=16, dropouts=2, corrupted=1, number=0, members=None, seed=0):
        names = sorted(members) if members else [f"client-{place:03}" for place in range(clients)]
        members = members or Member.enrol(names)
        plan = Round("table", number, len(names), length, bits, dropouts, corrupted)
        rng = np.random.default_rng(seed)
        words = {name: rng.integers(0, 2**bits, length, dtype=np.uint64).astype(np.uint32) for name in names}
        table = cls(names, plan, members, words, server.open_round(plan, members[names[0]].registry))
        table.inbox = dict.fromkeys(names, b"")
        return table

    def answer(self, name, message=None, words=None):
        """One client's answer to what is in its inbox (or to another message)."""
        message = self.inbox[name] if message is None else message
        if name not in self.states:
            self.states[name], answer = client.join(self.members[name], self.round)
            return answer
        words = self.words[name] if words is None else words
        self.states[name], answer = client.step(self.members[name], self.states[name], message, words)
        return answer

    def play(self, steps=SERVER_STEPS, drop=()):
        """So many whole steps, without the answers of `drop`."""
        for _ in range(steps):
            for name in list(self.inbox):
                if name not in drop:
                    self.server = server.receive(self.server, self.answer(name))
            self.close()
        return self

    def close(self):
        self.server, self.inbox = server.close(self.server)

    def expected(self):
        survivors = self.server.names(self.server.survivors)
        return np.sum([self.words[name] for name in survivors], axis=0, dtype=np.uint64) % 2**self.round.modulus_bits
