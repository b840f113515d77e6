"""A round played at random: clients answer in any order, crash, come back from their files, drop out,
repeat themselves; the network bends bits. Whatever happens, a finished round has the exact sum, and a fault changes
nothing."""

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from reticent.errors import Refused
from reticent.secagg import Aborted, Fault, server
from reticent.secagg.device import state_from_bytes, state_to_bytes
from tests.secagg.table import Table


class PlayedRound(RuleBasedStateMachine):
    largest = 8
    finished = 0

    def __init__(self):
        super().__init__()
        self.table = None
        self.sent = []
        self.answered = set()
        self.aborted = False

    @precondition(lambda self: self.table is not None and not self.running())
    @rule(data=st.data(), length=st.integers(1, 40), bits=st.integers(1, 32), seed=st.integers(0, 2**32 - 1))
    def go_on_to_another_round(self, data, length, bits, seed):
        self.lay(data, length, bits, seed)

    @initialize(data=st.data(), length=st.integers(1, 40), bits=st.integers(1, 32), seed=st.integers(0, 2**32 - 1))
    def lay(self, data, length, bits, seed):
        clients = data.draw(st.integers(3, self.largest))
        dropouts = data.draw(st.integers(0, (clients - 1) // 2))
        corrupted = data.draw(st.integers(0, max(0, clients - 2 * dropouts - 1)))
        while clients - dropouts < (clients + corrupted) // 2 + 1 or clients - dropouts - corrupted < 2:
            corrupted, dropouts = (corrupted - 1, dropouts) if corrupted else (0, dropouts - 1)
        self.table = Table.lay(clients, length, bits, dropouts, corrupted, seed=seed)
        self.sent = []
        self.answered = set()
        self.aborted = False

    def running(self):
        return self.table is not None and self.table.server.collects is not None and not self.aborted

    def waiting(self):
        return [name for name in self.table.inbox if name not in self.answered]

    @precondition(lambda self: self.running() and self.waiting())
    @rule(data=st.data())
    def answer(self, data):
        name = data.draw(st.sampled_from(self.waiting()))
        self.deliver(name)

    @precondition(lambda self: self.running() and self.waiting())
    @rule()
    def everybody_answers(self):
        for name in self.waiting():
            self.deliver(name)

    def deliver(self, name):
        message = self.table.answer(name)
        self.table.server = server.receive(self.table.server, message)
        self.sent.append(message)
        self.answered.add(name)

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def restart_a_client(self, data):
        if not self.table.states:
            return
        name = data.draw(st.sampled_from(sorted(self.table.states)))
        before = self.table.states[name]
        after = state_from_bytes(state_to_bytes(before))
        assert after == before
        self.table.states[name] = after

    @precondition(lambda self: self.running() and self.sent)
    @rule(data=st.data())
    def replay(self, data):
        self.refuses(data.draw(st.sampled_from(self.sent)))

    @precondition(lambda self: self.running() and self.sent)
    @rule(data=st.data())
    def bend(self, data):
        message = bytearray(data.draw(st.sampled_from(self.sent)))
        bit = data.draw(st.integers(0, 2**24)) % (8 * len(message))
        message[bit // 8] ^= 1 << bit % 8
        self.refuses(bytes(message))

    def refuses(self, message):
        before = self.table.server
        with pytest.raises(Fault):
            server.receive(before, message)
        assert self.table.server is before

    @precondition(lambda self: self.running() and self.waiting() and self.table.states)
    @rule(data=st.data())
    def bend_what_a_client_reads(self, data):
        """It refuses, or its answer is refused."""
        name = data.draw(st.sampled_from(self.waiting()))
        if name not in self.table.states:
            return
        message = bytearray(self.table.inbox[name])
        bit = data.draw(st.integers(0, 2**24)) % (8 * len(message))
        message[bit // 8] ^= 1 << bit % 8
        state = self.table.states[name]
        try:
            answer = self.table.answer(name, bytes(message))
        except Refused:
            assert self.table.states[name] is state
            return
        self.table.states[name] = state
        self.refuses(answer)

    @precondition(lambda self: self.running() and self.answered)
    @rule()
    def close(self):
        before = self.table.server
        enough = len(self.answered) >= self.table.round.fewest
        try:
            self.table.close()
        except Aborted:
            assert not enough or self.thin(before)
            assert before.total is None
            self.aborted = True
            return
        assert enough
        self.answered = set()

    def thin(self, state):
        """Whether some secret has too few shares left, which random drop-outs of a tiny cohort can bring about."""
        opened = [sum(owner in shares for shares in state.opened.values()) for owner in state.present]
        return bool(opened) and min(opened) < self.table.round.graph.threshold

    @invariant()
    def finished_rounds_have_the_exact_sum(self):
        if self.table is not None and self.table.server.collects is None:
            np.testing.assert_array_equal(self.table.server.total, self.table.expected())
            assert len(self.table.server.survivors) >= self.table.round.fewest
            type(self).finished += 1


SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck))


def test_played_rounds():
    run_state_machine_as_test(PlayedRound, settings=settings(SETTINGS, max_examples=25, stateful_step_count=30))
    assert PlayedRound.finished


@pytest.mark.full
def test_many_played_rounds():
    class Larger(PlayedRound):
        largest = 30

    run_state_machine_as_test(Larger, settings=settings(SETTINGS, max_examples=150, stateful_step_count=50))
