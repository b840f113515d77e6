"""The server's side of the protocol, as pure functions.

    receive(state, message) -> state            takes one client's message, or names its fault and changes nothing
    close(state)            -> state, messages  ends the step: whoever has not answered has dropped out

Both leave the state they were given as it was. After five closes `state.total` is the sum modulo 2^m of the survivors'
vectors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from reticent.errors import Refused
from reticent.secagg import shamir
from reticent.secagg.client import (
    COMMITMENT_BYTES,
    SEALED_BYTES,
    agreement_body,
    pair_seed,
    presence_signed,
    seed_digest,
    share_digest,
)
from reticent.secagg.faults import Aborted, Fault
from reticent.secagg.keys import SIGNATURE_BYTES, Registry, exchange_key, public_key, signed_by
from reticent.secagg.masks import with_masks
from reticent.secagg.packing import packed_size, unpack
from reticent.secagg.roster import Advert, Roster, check_keys, check_signature, make_roster, read_advert, roster_body
from reticent.secagg.round import Round
from reticent.secagg.wire import Kind, Reader, number, open_client_message, server_message, set_bytes


@dataclass(frozen=True)
class Dealt:
    """The two shares that one client dealt another: their digests, and the text only the other can read."""

    digests: bytes
    sealed: bytes


@dataclass(frozen=True)
class ServerState:
    """What the server knows. Nothing in it tells one client's vector; the masked sum is not shown all the same."""

    round: Round
    registry: Registry = field(repr=False)
    collects: Kind | None = Kind.ADVERT
    adverts: Mapping[str, tuple[Advert, bytes]] = field(default_factory=dict, repr=False)
    roster: Roster | None = field(default=None, repr=False)
    dealt: Mapping[int, Mapping[int, Dealt]] = field(default_factory=dict, repr=False)
    statements: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    agreements: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    opened: Mapping[int, Mapping[int, bytes]] = field(default_factory=dict, repr=False)
    masked: np.ndarray | None = field(default=None, repr=False)
    total: np.ndarray | None = field(default=None, repr=False)

    @property
    def present(self) -> frozenset[int]:
        """Those whose shares came: the ones that masks are made with."""
        return frozenset(self.dealt)

    @property
    def survivors(self) -> frozenset[int]:
        """Those whose masked input came: the ones that are summed."""
        return frozenset(self.statements)

    def names(self, places: frozenset[int]) -> list[str]:
        return [_roster(self).adverts[place].name for place in sorted(places)]


def open_round(round: Round, registry: Registry) -> ServerState:
    """The state before the first advert."""
    return ServerState(round, registry)


def receive(state: ServerState, message: bytes) -> ServerState:
    """The state with one more client's answer. A Fault names the client and what is wrong; the state without it stays
    good, and the client counts as dropped out unless a good message of it comes before the step is closed."""
    if state.collects is None:
        raise Refused("The round is over; it takes no more messages.")
    if state.collects == Kind.ADVERT:
        return _take_advert(state, message)
    name, body = open_client_message(message, state.collects, state.round.digest, state.registry)
    place = _roster(state).places.get(name)
    if place is None:
        raise Fault(name, "is not in this attempt's roster")
    due, answered = _answers(state)
    if place in answered:
        raise Fault(name, f"sent a second {state.collects} (replayed)")
    if place not in due:
        raise Fault(name, f"sent a {state.collects} after it had dropped out")
    if state.collects == Kind.SHARES:
        return replace(state, dealt={**state.dealt, place: _read_dealt(state, place, body)})
    if state.collects == Kind.MASKED_INPUT:
        return _take_input(state, place, name, body)
    if state.collects == Kind.AGREEMENT:
        if body.take(32) != agreement_body(_roster(state), state.present, state.survivors):
            raise Fault(name, "agrees to other survivors than those it was told of")
        body.end()
        return replace(state, agreements={**state.agreements, place: message[-SIGNATURE_BYTES:]})
    return replace(state, opened={**state.opened, place: _read_opened(state, place, name, body)})


def close(state: ServerState) -> tuple[ServerState, dict[str, bytes]]:
    """Ends the step, and says what to send to whom; after the last step there is nothing to send and `total` is there.
    Aborted, with the reason and the names, if fewer are left than were agreed on."""
    if state.collects is None:
        raise Refused("The round is over.")
    _check_enough(state)
    if state.collects == Kind.ADVERT:
        return _send_roster(state)
    if state.collects == Kind.SHARES:
        return replace(state, collects=Kind.MASKED_INPUT), _deliveries(state)
    if state.collects == Kind.MASKED_INPUT:
        return replace(state, collects=Kind.AGREEMENT), _survivor_lists(state)
    if state.collects == Kind.AGREEMENT:
        signatures = sorted(state.agreements.items())[: state.round.quorum]
        parts = [number(len(signatures))]
        parts += [number(place) + signature for place, signature in signatures]
        message = server_message(Kind.QUORUM, state.round.digest, *parts)
        # Nobody is asked for a share who did not agree.
        return replace(state, collects=Kind.UNMASKING), dict.fromkeys(state.names(frozenset(state.agreements)), message)
    return replace(state, collects=None, total=_unmasked(state), masked=None), {}


def retry(state: ServerState) -> Round:
    """The next attempt at this round, with new keys, a new identity and a new cohort: clients whose input was made for
    this one will not join. Refused once shares have been asked for: a sum over other survivors would show the
    difference."""
    if state.collects in (Kind.UNMASKING, None):
        raise Refused(
            f"Unmasking shares of round {state.round.number} have been asked for: it is completed or burnt. Go on to "
            f"round {state.round.number + 1} with a new cohort."
        )
    return state.round.next_attempt()


def _take_advert(state: ServerState, message: bytes) -> ServerState:
    check_signature(message, state.round, state.registry)
    advert = read_advert(message, state.round)
    check_keys(advert)
    if advert.name in state.adverts:
        raise Fault(advert.name, f"sent a second {Kind.ADVERT} (replayed)")
    if len(state.adverts) == state.round.cohort:
        raise Fault(advert.name, f"comes after the {state.round.cohort} clients that the modulus has room for")
    known = {key for other, _ in state.adverts.values() for key in (other.mask_key, other.share_key)}
    if {advert.mask_key, advert.share_key} & known or advert.mask_key == advert.share_key:
        raise Fault(advert.name, "advertises a key that is already in use")
    return replace(state, adverts={**state.adverts, advert.name: (advert, message)})


def _send_roster(state: ServerState) -> tuple[ServerState, dict[str, bytes]]:
    ordered = [state.adverts[name] for name in sorted(state.adverts)]
    messages = [message for _, message in ordered]
    roster = make_roster(tuple(advert for advert, _ in ordered), messages, state.round)
    message = server_message(Kind.ROSTER, state.round.digest, roster_body(messages))
    return replace(state, collects=Kind.SHARES, roster=roster, adverts={}), dict.fromkeys(
        sorted(state.adverts), message
    )


def _read_dealt(state: ServerState, place: int, body: Reader) -> dict[int, Dealt]:
    roster = _roster(state)
    partners = state.round.graph.partners(len(roster))
    if body.take(32) != roster.digest:
        raise body.fault("is for another roster than was sent")
    if body.number() != partners:
        raise body.fault(f"does not deal to {partners} partners")
    dealt: dict[int, Dealt] = {}
    for _ in range(partners):
        holder = body.number()
        if holder >= len(roster) or holder == place or holder in dealt:
            raise body.fault("deals to a client that does not exist, to itself, or twice")
        dealt[holder] = Dealt(body.take(2 * COMMITMENT_BYTES), body.take(SEALED_BYTES))
    body.end()
    return dealt


def _deliveries(state: ServerState) -> dict[str, bytes]:
    roster = _roster(state)
    parcels: dict[int, list[bytes]] = {place: [] for place in state.present}
    for owner in sorted(state.dealt):
        for holder, dealt in state.dealt[owner].items():
            if holder in parcels:
                parcels[holder].append(number(owner) + dealt.digests + dealt.sealed)
    present = set_bytes(state.present, len(roster))
    return {
        roster.adverts[place].name: server_message(
            Kind.DELIVERY, state.round.digest, present, number(len(parcel)), *parcel
        )
        for place, parcel in parcels.items()
    }


def _take_input(state: ServerState, place: int, name: str, body: Reader) -> ServerState:
    round = state.round
    statement = body.take(SIGNATURE_BYTES)
    if not signed_by(state.registry[name], statement, presence_signed(_roster(state), state.present)):
        raise Fault(name, "masked its input against other peers than those present")
    if body.left != packed_size(round.length, round.modulus_bits):
        raise Fault(name, f"sent a vector of another size than {round.length} words of {round.modulus_bits} bits")
    try:
        words = unpack(body.view(body.left), round.length, round.modulus_bits)
    except ValueError as error:
        raise Fault(name, f"sent a vector that is out of range: {error}") from None
    # The sum so far goes into the new array, which nobody else has: the old state keeps its own.
    if state.masked is not None:
        words += state.masked
    return replace(state, masked=words, statements={**state.statements, place: statement})


def _survivor_lists(state: ServerState) -> dict[str, bytes]:
    roster = _roster(state)
    holds: dict[int, list[bytes]] = {place: [] for place in state.survivors}
    for owner in sorted(state.survivors):
        for holder in state.dealt[owner]:
            if holder in holds:
                holds[holder].append(number(owner) + state.statements[owner])
    survivors = set_bytes(state.survivors, len(roster))
    return {
        roster.adverts[place].name: server_message(Kind.SURVIVORS, state.round.digest, survivors, *parts)
        for place, parts in holds.items()
    }


def _read_opened(state: ServerState, place: int, name: str, body: Reader) -> dict[int, bytes]:
    roster = _roster(state)
    owners = [owner for owner in sorted(state.present) if place in state.dealt[owner]]
    if body.number() != len(owners):
        raise body.fault(f"has not the {len(owners)} shares that are due")
    opened: dict[int, bytes] = {}
    for owner in owners:
        if body.number() != owner:
            raise body.fault("has a share of another client than is due")
        share = body.take(shamir.SHARE_BYTES)
        digests = state.dealt[owner][place].digests
        expected = digests[:COMMITMENT_BYTES] if owner in state.survivors else digests[COMMITMENT_BYTES:]
        if share_digest(roster.digest, owner, place, share) != expected:
            raise Fault(name, f"sent a wrong share of {roster.adverts[owner].name}'s secret")
        opened[owner] = share
    body.end()
    return opened


def _unmasked(state: ServerState) -> np.ndarray:
    """Takes off the survivors' self masks, and the masks that survivors share with the dropped."""
    roster, round = _roster(state), state.round
    survivors = state.survivors
    signed_seeds: list[tuple[bytes, int]] = []
    for owner in sorted(state.present):
        shares = {holder + 1: opened[owner] for holder, opened in state.opened.items() if owner in opened}
        advert = roster.adverts[owner]
        if len(shares) < round.graph.threshold:
            raise Aborted(
                f"Only {len(shares)} of {advert.name}'s partners are left; {round.graph.threshold} are needed to go on."
            )
        chosen = dict(sorted(shares.items())[: round.graph.threshold])
        secret = _reconstructed(chosen, advert.name)
        if owner in survivors:
            if seed_digest(secret) != advert.seed_digest:
                raise Fault(advert.name, "dealt shares that do not give the seed it committed to; the round is burnt")
            signed_seeds.append((secret, -1))
            continue
        if public_key(secret) != advert.mask_key:
            raise Fault(advert.name, "dealt shares that do not give its mask key; the round is burnt")
        private_key = exchange_key(secret)
        for peer in sorted(survivors):
            if peer in state.dealt[owner] or owner in state.dealt[peer]:
                seed = pair_seed(private_key, roster.adverts[peer].mask_key, roster, owner, peer)
                if seed is None:
                    raise Fault(roster.adverts[peer].name, "advertises a key of small order")
                signed_seeds.append((seed, -1 if peer < owner else 1))
    assert state.masked is not None
    return with_masks(state.masked, signed_seeds, round.modulus_bits).astype(np.uint32, copy=False)


def _reconstructed(shares: dict[int, bytes], owner: str) -> bytes:
    try:
        return shamir.open_secret(shares)
    except ValueError:
        raise Fault(owner, "dealt shares that do not belong together; the round is burnt") from None


def _answers(state: ServerState) -> tuple[frozenset[int], frozenset[int]]:
    """(who is asked, who has answered) in this step."""
    if state.collects == Kind.SHARES:
        return frozenset(range(len(_roster(state)))), state.present
    if state.collects == Kind.MASKED_INPUT:
        return state.present, state.survivors
    if state.collects == Kind.AGREEMENT:
        return state.survivors, frozenset(state.agreements)
    return frozenset(state.agreements), frozenset(state.opened)


def _check_enough(state: ServerState) -> None:
    if state.collects == Kind.ADVERT:
        answered, missing = len(state.adverts), ""
    else:
        due, done = _answers(state)
        gone = state.names(due - done)
        answered = len(done)
        missing = f" (dropped out here: {', '.join(gone[:5])}{', ...' if len(gone) > 5 else ''})" if gone else ""
    if answered < state.round.fewest:
        raise Aborted(
            f"Round {state.round.number}, attempt {state.round.attempt}: only {answered} clients sent their "
            f"{state.collects}{missing}; {state.round.fewest} of the cohort of {state.round.cohort} are needed."
        )


def _roster(state: ServerState) -> Roster:
    assert state.roster is not None
    return state.roster
