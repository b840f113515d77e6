"""Whole sums in one process: for simulations, tests and benchmarks.

`encoded_sum` sums directly what the protocol would sum, and this process sees it all; `aggregate_in_process` is the
protocol: every client and the server by itself, bytes in between. Training uses both through `grid_sums.py`.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from reticent.errors import Refused
from reticent.secagg import client, server
from reticent.secagg.encoding import Code
from reticent.secagg.keys import Member
from reticent.secagg.round import Round

PHASES = ("advert", "shares", "masked input", "agreement", "unmasking")
"""The five messages a client sends, by the names under which `drop` lets it fail to send them."""


@dataclass(frozen=True)
class Aggregate:
    """A secure sum: what it is (in units of the code's `step`), whose it is, and what it cost on the wire (bytes per
    client, up and down)."""

    total: np.ndarray
    survivors: tuple[str, ...]
    sent: Mapping[str, int] = field(repr=False)
    received: Mapping[str, int] = field(repr=False)


def encoded_sum(vectors: Iterable[np.ndarray], code: Code) -> np.ndarray:
    """The sum of the vectors after each was encoded, modulo 2^m, and decoded, in units of the code's `step`: exactly
    what the protocol gives.

    Nothing is hidden from the process that calls this. The accountant uses the code's `inflated_clip_norm` where it has
    one (`RotatedCode`). Refuses no vectors at all.
    """
    return sum_of_words((code.encode(vector) for vector in vectors), code)


def sum_of_words(encoded: Iterable[np.ndarray], code: Code) -> np.ndarray:
    """The sum of vectors that are encoded already, decoded."""
    total, count = np.zeros(code.length, np.uint32), 0
    for words in encoded:
        total += words
        count += 1
    if not count:
        raise Refused("There is nothing to sum.")
    if code.modulus_bits < 32:
        total &= np.uint32((1 << code.modulus_bits) - 1)
    return code.decode(total, count)


def aggregate_in_process(
    vectors: Mapping[str, np.ndarray | Callable[[], np.ndarray]],
    code: Code,
    *,
    cohort: int | None = None,
    dropout: float = 0.05,
    corruption: float = 0.05,
    drop: Mapping[str, Collection[str]] | None = None,
    members: Mapping[str, Member] | None = None,
    run: str | None = None,
    number: int = 0,
    coins: Callable[[str], bytes] | None = None,
) -> Aggregate:
    """The whole protocol over bytes: the sum of the vectors of those that survived to the masked input.

    `vectors` are by client; a function is called when its client needs it, so that they need not all be in memory.
    `cohort` is the largest that could have come (default: the number of vectors). `drop` says who fails to send which
    of `PHASES`. `members` are the clients' identities (default: fresh ones), `coins` each client's, by name, as in
    `RotatedCode.encode`. Aborted, with the reason, when more drop out than the fraction tolerated; Refused for a cohort
    that no graph makes safe.
    """
    drop = drop or {}
    unknown = set(drop) - set(PHASES) | {name for names in drop.values() for name in names} - set(vectors)
    if unknown:
        raise Refused(f"Nothing called {sorted(unknown)[0]!r} can be dropped: phases are {', '.join(PHASES)}.")
    cohort = max(cohort or 0, len(vectors))
    if cohort > code.cohort:
        raise Refused(
            f"The encoding has room for at most {code.cohort} clients, not {cohort}; make it for that cohort."
        )
    plan = Round.plan(run or os.urandom(8).hex(), number, cohort, code.length, code.modulus_bits, dropout, corruption)
    members = members or Member.enrol(sorted(vectors))
    state = server.open_round(plan, next(iter(members.values())).registry)

    def encoded(name: str) -> np.ndarray:
        vector = vectors[name]
        return code.encode(vector() if callable(vector) else vector, coins and coins(name))

    sent, received = dict.fromkeys(vectors, 0), dict.fromkeys(vectors, 0)
    states: dict[str, client.ClientState] = {}
    inbox: dict[str, bytes] = dict.fromkeys(vectors, b"")
    for phase in PHASES:
        for name, message in inbox.items():
            if name in drop.get(phase, ()):
                continue
            received[name] += len(message)
            if phase == "advert":
                states[name], answer = client.join(members[name], plan)
            else:
                words = encoded(name) if phase == "masked input" else None
                states[name], answer = client.step(members[name], states[name], message, words)
            sent[name] += len(answer)
            state = server.receive(state, answer)
        state, inbox = server.close(state)
    survivors = tuple(state.names(state.survivors))
    assert state.total is not None
    return Aggregate(code.decode(state.total, len(survivors)), survivors, sent, received)
