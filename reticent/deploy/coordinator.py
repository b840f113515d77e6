"""One attempt at a round, on the server: invitations, and the five steps of a secure sum, over devices that do as they like.

What a device sends is taken, or counted and ignored: too late, twice, nonsense. A step waits for the devices that are
needed, then for as long again for the others, at most until its deadline.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from random import Random, SystemRandom
from typing import Any

import numpy as np

from reticent.deploy.letters import (
    DELIVERY,
    INVITE,
    OTHER_TERMS,
    OTHER_VERSION,
    STEP,
    Letter,
    Unreadable,
    read_answer,
)
from reticent.deploy.post import Post
from reticent.deploy.terms import Terms
from reticent.secagg import Aborted, Fault, Registry, Round, server
from reticent.secagg.wire import Kind, kind_of, sender

log = logging.getLogger("reticent.server")

GRACE_SECONDS = 2.0
WAIT_SECONDS = 1.0
_DIGEST = slice(5, 37)


@dataclass
class Tally:
    """What became of letters. Counts of messages, not of anything in them."""

    invited: int = 0
    declined: int = 0
    other_terms: int = 0
    other_version: int = 0
    late: int = 0
    twice: int = 0
    nonsense: int = 0
    failed: int = 0

    def facts(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True)
class Hooks:
    """What must be durable before the next letters leave. `begin(names)`: these devices' updates are about to be asked
    for; `ask(names)`: so are the shares that open the sum of these, after which the round is completed or burnt."""

    begin: Callable[[list[str]], None]
    ask: Callable[[list[str]], None]


@dataclass
class Coordinator:
    """The server's side of a run's rounds. `where` is which device was met at which node, `home` the
    same by device."""

    terms: Terms
    registry: Registry
    post: Post
    clock: Callable[[], float] = time.monotonic
    random: Random = field(default_factory=SystemRandom)
    where: dict[int, str] = field(default_factory=dict)
    home: dict[str, int] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    told: set[str] = field(default_factory=set)

    @property
    def deadline(self) -> float:
        """Seconds that a step waits at most."""
        return self.terms.settings["deploy"]["deadline"]

    def attempt(
        self, round: Round, run: str, eligible: Callable[[str], bool], model: Callable[[], bytes], hooks: Hooks
    ) -> np.ndarray:
        """The sum of exactly `report_goal` devices' updates, as int32 in units of the grid. Secret until it is noised.

        Only devices that are `eligible` begin. Aborted, with the reason, if too few are left at a step; the hooks tell the
        caller how far it had got.
        """
        return _Attempt(self, round, run, eligible, hooks).sum(model)

    def meet(self, name: str, node: int) -> None:
        """A device was met at a node: letters to it go there, and no other device's do."""
        self.where.pop(self.home.get(name, node), None)
        self.where[node], self.home[name] = name, node

    def say_once(self, what: str) -> None:
        """A warning for whoever runs the server, once."""
        if what not in self.told:
            self.told.add(what)
            log.warning(what)


class _Attempt:
    def __init__(
        self, office: Coordinator, round: Round, run: str, eligible: Callable[[str], bool], hooks: Hooks
    ) -> None:
        self.office, self.round, self.run, self.eligible, self.hooks = office, round, run, eligible, hooks
        self.terms, self.post, self.tally = office.terms, office.post, office.tally
        self.state = server.open_round(round, office.registry)
        self.asked: set[int] = set()  # nodes that this step waits for
        self.tried: set[int] = set()  # nodes that were invited
        self.nodes: dict[str, int] = {}

    def sum(self, model: Callable[[], bytes]) -> np.ndarray:
        goal = self.terms.report_goal
        self._invite(goal)
        self._send(self._close(), STEP)
        self._gather(lambda: len(self.state.present), goal, len(self.nodes))
        if len(self.state.present) < goal:
            raise self._too_few("shares", len(self.state.present))
        deliveries = self._close()
        self.hooks.begin(sorted(deliveries))
        self._send(deliveries, DELIVERY, model())
        del deliveries
        self._gather(lambda: len(self.state.survivors), goal, goal)
        if len(self.state.survivors) < goal:
            raise self._too_few("masked inputs", len(self.state.survivors))
        self._send(self._close(), STEP)
        self._gather(lambda: len(self.state.agreements), self.round.fewest, goal)
        quorum = self._close()
        self.hooks.ask(self.state.names(self.state.survivors))
        self._send(quorum, STEP)
        self._gather(lambda: len(self.state.opened), self.round.fewest, len(quorum))
        self._close()
        assert self.state.total is not None
        return self.terms.sums.units_of(self.terms.code(self.round).decode(self.state.total, goal))

    def _invite(self, goal: int) -> None:
        """Devices until there are enough, one more for each that declines."""
        most, wanted = self.round.cohort, self.round
        letter = Letter(INVITE, self.run, wanted.number, self.terms.digest, wanted.attempt, wanted.nonce).to_bytes()

        def invite_more() -> None:
            missing = most - len(self.state.adverts) - len(self.asked)
            if missing <= 0:
                return
            there = [node for node in self.post.nodes() if node not in self.tried and self._may_ask(node)]
            for node in self.office.random.sample(there, min(missing, len(there))):
                self.tried.add(node)
                self.asked.add(node)
                self.tally.invited += 1
                self.post.send(node, letter)

        self._gather(lambda: len(self.state.adverts), goal, most, invite_more)
        if len(self.state.adverts) < goal:
            raise self._too_few("adverts", len(self.state.adverts))

    def _may_ask(self, node: int) -> bool:
        name = self.office.where.get(node)
        return name is None or self.eligible(name)

    def _send(self, messages: dict[str, bytes], kind: str, model: bytes = b"") -> None:
        self.asked = {self.nodes[name] for name in messages}
        for name, message in messages.items():
            letter = Letter(kind, self.run, self.round.number, body=message)
            self.post.send(self.nodes[name], letter.to_bytes(), model)

    def _gather(
        self, count: Callable[[], int], needed: int, wanted: int, more: Callable[[], None] = lambda: None
    ) -> None:
        """Takes answers until there are as many as wanted; or those needed, and nobody else came for as long again; or
        the deadline."""
        clock, began, reached = self.office.clock, self.office.clock(), None
        end = began + self.office.deadline
        while count() < wanted:
            more()
            for node, content in self.post.answers(WAIT_SECONDS):
                self._take(node, content)
                if count() >= wanted:
                    break
            if not self.asked and self.state.collects != Kind.ADVERT:
                return  # nobody is left who could answer
            now = clock()
            if reached is None and count() >= needed:
                reached = now
                end = min(end, now + (now - began) + GRACE_SECONDS)
            if now >= end:
                return

    def _take(self, node: int, content: bytes | None) -> None:
        """One answer: into the state, or into the tally."""
        if content is None:
            self.asked.discard(node)
            self.tally.failed += 1
            return
        try:
            message = read_answer(content)
        except Unreadable:
            self.asked.discard(node)
            self.tally.nonsense += 1
            return
        if isinstance(message, str):
            self.asked.discard(node)
            self._take_word(message)
            return
        if self._is_late(message):
            self.tally.late += 1
            return
        self.asked.discard(node)
        name, collects = sender(message), self.state.collects
        if collects == Kind.ADVERT and not self._is_at(node, name):
            self.tally.nonsense += 1
            return
        if collects == Kind.ADVERT and name in self.office.registry and not self.eligible(name):
            self.tally.declined += 1
            return
        try:
            self.state = server.receive(self.state, message)
        except Fault:
            self.tally.twice += self._answered(name)
            self.tally.nonsense += not self._answered(name)
        except Exception as error:
            # Not even a mistake in the parser may end the server; what was raised may hold the message, and is not told.
            log.error("A message was not understood: %s.", type(error).__name__)
            self.tally.nonsense += 1
        else:
            if collects == Kind.ADVERT:
                self.nodes[name] = node
                self.office.meet(name, node)

    def _is_at(self, node: int, name: str) -> bool:
        """Whether this device may be at this node: an advert that somebody else passes on would draw its letters there."""
        known = self.office.home.get(name, node)
        return node in self.tried and (known == node or known not in self.post.nodes())

    def _is_late(self, message: bytes) -> bool:
        """Whether a message is of another round, attempt or step than the one that is under way."""
        kind = kind_of(message)
        return kind is not None and (
            message[_DIGEST] != self.round.digest or kind < (self.state.collects or Kind.UNMASKING)
        )

    def _take_word(self, word: str) -> None:
        if word == OTHER_TERMS:
            self.tally.other_terms += 1
            self.office.say_once(
                f"A device does not know the terms {self.terms.digest[:12]} of this run; ship it this app's terms.json."
            )
        elif word == OTHER_VERSION:
            self.tally.other_version += 1
            self.office.say_once("A device has another version of reticent; install the same on both sides.")
        else:
            self.tally.declined += 1

    def _answered(self, name: str) -> bool:
        state: Any = self.state
        if state.collects == Kind.ADVERT:
            return name in state.adverts
        place = state.roster.places.get(name)
        answered = {
            Kind.SHARES: state.dealt,
            Kind.MASKED_INPUT: state.statements,
            Kind.AGREEMENT: state.agreements,
            Kind.UNMASKING: state.opened,
        }
        return place in answered.get(state.collects, {})

    def _close(self) -> dict[str, bytes]:
        self.state, messages = server.close(self.state)
        return messages

    def _too_few(self, what: str, count: int) -> Aborted:
        return Aborted(
            f"Round {self.round.number}: {count} devices sent their {what}, and the report goal is {self.terms.report_goal}."
        )
