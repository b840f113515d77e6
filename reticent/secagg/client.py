"""A client's side of the protocol, as pure functions: (state, message) -> (state, message).

    join            -> advert
    roster          -> shares: its two secrets, dealt to partners it draws itself
    delivery        -> masked input
    survivors       -> agreement: a signature under who survived
    quorum          -> unmasking: one share per peer, of the self mask or of the mask key, never both

All randomness comes from one secret of the attempt, drawn in `join`, so that a step done again gives the same message.
A caller must nevertheless let only one vector be masked per state: see `device.py`, which writes the new state before a
message leaves. From its masked input on (`committed`) the client takes part in no other attempt at the same round: it
cannot know whether the others open the sum without it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from reticent.errors import Refused
from reticent.secagg import shamir
from reticent.secagg.faults import SERVER, Fault
from reticent.secagg.keys import (
    SIGNATURE_BYTES,
    Member,
    agree,
    derive,
    digest,
    exchange_key,
    public_key,
    seal,
    signed_by,
    unseal,
)
from reticent.secagg.masks import key_stream, with_masks
from reticent.secagg.packing import pack
from reticent.secagg.roster import Roster, check_signature, read_roster
from reticent.secagg.round import Round
from reticent.secagg.wire import (
    Kind,
    Reader,
    agreement_signed,
    client_message,
    kind_of,
    number,
    open_server_message,
    set_bytes,
)

COMMITMENT_BYTES = 32
SEALED_BYTES = 2 * shamir.SHARE_BYTES + 16
NOTHING: frozenset[int] = frozenset()


class Held(NamedTuple):
    """A peer's two shares. One of them, at most, will ever leave this client."""

    of_seed: bytes
    of_mask_key: bytes

    def __repr__(self) -> str:
        return "Held(...)"


@dataclass(frozen=True)
class ClientState:
    """What a client remembers between two messages of an attempt. Secrets are not in its `repr`."""

    round: Round
    name: str
    awaits: Kind | None
    secret: bytes = field(repr=False)
    roster: Roster | None = field(default=None, repr=False)
    partners: frozenset[int] = field(default=NOTHING, repr=False)
    held: Mapping[int, Held] = field(default_factory=dict, repr=False)
    present: frozenset[int] = field(default=NOTHING, repr=False)
    survivors: frozenset[int] = field(default=NOTHING, repr=False)

    @property
    def committed(self) -> bool:
        """Whether this client's masked input was made: it may be in a sum, with it or without it to the end."""
        return self.awaits not in (Kind.ROSTER, Kind.DELIVERY)

    @property
    def over(self) -> bool:
        """Whether unmasking shares were given: this client has nothing left to do or to hide."""
        return self.awaits is None


def join(member: Member, round: Round, last_input: int = -1) -> tuple[ClientState, bytes]:
    """Fresh keys for one attempt. `last_input` is the last round of this run in which this client made a masked input
    (-1: none); an attempt at it or at an earlier one is refused, because two sums over different survivors would show
    their difference."""
    if round.number <= last_input:
        raise Refused(
            f"An input of round {last_input} has left this client: round {round.number} is completed or burnt for it, "
            "and only a later round can be joined."
        )
    if member.name not in member.registry:
        raise Refused(f"{member.name!r} is not in the registry of clients; register its public key first.")
    if not 1 <= len(member.name.encode()) <= 255:
        raise Refused("A client's name has 1 to 255 bytes.")
    state = ClientState(round, member.name, Kind.ROSTER, os.urandom(32))
    return state, _advert(member, state)


def step(
    member: Member, state: ClientState, message: bytes, words: np.ndarray | None = None
) -> tuple[ClientState, bytes]:
    """The answer to the server's next message, and the state after it. `words`, the encoded vector (uint32 below the
    modulus), is needed for the delivery only. A Fault for a message that the protocol does not allow here."""
    if state.awaits is None:
        what = kind_of(message)
        raise Fault(SERVER, f"sent a {what or 'message'} after this client's last answer (a share is given once)")
    if member.name != state.name:
        raise Refused(f"This state is {state.name!r}'s, not {member.name!r}'s.")
    body = open_server_message(message, state.awaits, state.round.digest)
    if state.awaits == Kind.ROSTER:
        return _deal(member, state, body)
    if state.awaits == Kind.DELIVERY:
        return _mask(member, state, body, words)
    if state.awaits == Kind.SURVIVORS:
        return _agree(member, state, body)
    return _unmask(member, state, body)


def _mask_private(state: ClientState) -> bytes:
    return derive(state.secret, "mask key")


def _share_private(state: ClientState) -> bytes:
    return derive(state.secret, "share key")


def _seed(state: ClientState) -> bytes:
    return derive(state.secret, "self mask")


def seed_digest(seed: bytes) -> bytes:
    """What an advert tells of the self-mask seed, so that a wrong reconstruction is seen."""
    return digest(b"seed", seed)


def share_digest(round_digest: bytes, owner: int, holder: int, share: bytes) -> bytes:
    """What the server is told of a share in advance, so that a wrong one is seen and its sender named."""
    return digest(b"share", round_digest, number(owner), number(holder), share)


def pair_seed(private_key: X25519PrivateKey, peer_key: bytes, roster: Roster, one: int, other: int) -> bytes | None:
    """The seed of the mask that two clients share in this attempt."""
    secret = agree(private_key, peer_key)
    if secret is None:
        return None
    return derive(secret, "pair mask", roster.digest, number(min(one, other)), number(max(one, other)))


def presence_signed(roster: Roster, present: frozenset[int]) -> bytes:
    """What a client signs with its masked input: whom it took to be present."""
    return b"reticent.secagg.1 present " + digest(roster.digest, set_bytes(present, len(roster)))


def agreement_body(roster: Roster, present: frozenset[int], survivors: frozenset[int]) -> bytes:
    """What a client signs before it unmasks: the roster, who was present, who survived."""
    return digest(b"survivors", roster.digest, set_bytes(present, len(roster)), set_bytes(survivors, len(roster)))


def _advert(member: Member, state: ClientState) -> bytes:
    keys = (public_key(_mask_private(state)), public_key(_share_private(state)), seed_digest(_seed(state)))
    return client_message(member, Kind.ADVERT, state.round.digest, *keys)


def _deal(member: Member, state: ClientState, body: Reader) -> tuple[ClientState, bytes]:
    roster, messages = read_roster(body, state.round)
    me = roster.places.get(member.name)
    if me is None or messages[me] != _advert(member, state):
        raise Fault(SERVER, "the roster does not have this client's own advert")
    partners = _draw_partners(state, roster, me)
    for place in partners:
        check_signature(messages[place], state.round, member.registry)
    points = [place + 1 for place in partners]
    threshold = state.round.graph.threshold
    shares = []
    for purpose, secret in (("self mask", _seed(state)), ("mask key", _mask_private(state))):
        randomness = key_stream(
            derive(state.secret, f"coefficients of the {purpose}", roster.digest),
            (threshold - 1) * shamir.COEFFICIENT_BYTES,
        )
        shares.append(shamir.deal(secret, threshold, points, randomness))

    # The server sees from the digest whether the roster came over whole; its partners could only see shares not open.
    parts = [roster.digest, number(len(partners))]
    share_private = exchange_key(_share_private(state))
    for place, of_seed, of_mask_key in zip(partners, *shares, strict=True):
        key = _sealing_key(share_private, roster, me, place, place)
        if key is None:
            raise Fault(roster.adverts[place].name, "advertises a key of small order")
        digests = b"".join(share_digest(roster.digest, me, place, share) for share in (of_seed, of_mask_key))
        parts += [number(place), digests, seal(key, of_seed + of_mask_key, digests)]
    state = replace(state, awaits=Kind.DELIVERY, roster=roster, partners=frozenset(partners))
    return state, client_message(member, Kind.SHARES, state.round.digest, *parts)


def _draw_partners(state: ClientState, roster: Roster, me: int) -> list[int]:
    """A uniform choice among the others that nobody else can foresee or steer."""
    others = np.delete(np.arange(len(roster)), me)
    stream = key_stream(derive(state.secret, "partners", roster.digest), 16 * len(others))
    # Sorting by 128 random bits is a uniform permutation.
    high, low = np.frombuffer(stream, "<u8").reshape(2, -1)
    order = np.lexsort((low, high))
    return sorted(int(place) for place in others[order[: state.round.graph.partners(len(roster))]])


def _sealing_key(private_key: X25519PrivateKey, roster: Roster, owner: int, holder: int, peer: int) -> bytes | None:
    secret = agree(private_key, roster.adverts[peer].share_key)
    return secret and derive(secret, "shares", roster.digest, number(owner), number(holder))


def _mask(member: Member, state: ClientState, body: Reader, words: np.ndarray | None) -> tuple[ClientState, bytes]:
    round, roster = state.round, _roster(state)
    if words is None or words.shape != (round.length,) or words.dtype != np.uint32:
        raise Refused(f"The masked input needs this client's {round.length} words as uint32.")
    if round.modulus_bits < 32 and int(words.max()) >> round.modulus_bits:
        raise Refused(f"A word of the vector does not fit the {round.modulus_bits} bits of the modulus.")
    me = roster.places[member.name]
    present = body.set_of(len(roster))
    if me not in present or len(present) < round.fewest:
        raise Fault(
            SERVER, f"names {len(present)} clients as present; this one and {round.fewest} in all are agreed on"
        )
    if len(state.partners & present) < round.graph.threshold:
        raise Fault(SERVER, "leaves this client fewer partners than could open its masks")
    held = _read_shares(state, body, me, present)

    signed_seeds = [(_seed(state), 1)]
    mask_private = exchange_key(_mask_private(state))
    for place in sorted((state.partners & present) | held.keys()):
        seed = pair_seed(mask_private, roster.adverts[place].mask_key, roster, me, place)
        if seed is None:
            raise Fault(roster.adverts[place].name, "advertises a key of small order")
        signed_seeds.append((seed, 1 if me < place else -1))
    message = client_message(
        member,
        Kind.MASKED_INPUT,
        round.digest,
        member.sign(presence_signed(roster, present)),
        pack(with_masks(words, signed_seeds, round.modulus_bits), round.modulus_bits),
    )
    # What this client needs from here on is its peers' shares; its own secrets are forgotten.
    return replace(state, awaits=Kind.SURVIVORS, secret=b"", held=held, present=present), message


def _read_shares(state: ClientState, body: Reader, me: int, present: frozenset[int]) -> dict[int, Held]:
    roster = _roster(state)
    share_private = exchange_key(_share_private(state))
    held: dict[int, Held] = {}
    for _ in range(body.number()):
        owner, digests = body.number(), body.take(2 * COMMITMENT_BYTES)
        sealed = body.take(SEALED_BYTES)
        if owner not in present or owner == me or owner in held:
            raise body.fault("has shares of a client that is not present, or twice")
        name = roster.adverts[owner].name
        key = _sealing_key(share_private, roster, owner, me, owner)
        text = unseal(key, sealed, digests) if key else None
        if text is None:
            raise Fault(name, "the shares in its name do not open: tampered with, or made for another roster")
        share = Held(text[: shamir.SHARE_BYTES], text[shamir.SHARE_BYTES :])
        if digests != b"".join(share_digest(roster.digest, owner, me, part) for part in share):
            raise Fault(name, "sent shares that are not those it committed to")
        held[owner] = share
    body.end()
    return held


def _agree(member: Member, state: ClientState, body: Reader) -> tuple[ClientState, bytes]:
    round, roster = state.round, _roster(state)
    survivors = body.set_of(len(roster))
    if roster.places[member.name] not in survivors:
        raise Fault(SERVER, "calls this client dropped, which has sent its input")
    if not survivors <= state.present or len(survivors) < round.fewest:
        raise Fault(SERVER, f"names {len(survivors)} survivors; {round.fewest} of those present are agreed on")
    # An owner's shares are given only if the owner masked against the same peers as this client did.
    statement = presence_signed(roster, state.present)
    for owner in sorted(state.held.keys() & survivors):
        if body.number() != owner:
            raise body.fault("lacks a survivor's statement of who was present")
        name = roster.adverts[owner].name
        if not signed_by(member.registry.get(name), body.take(SIGNATURE_BYTES), statement):
            raise Fault(SERVER, f"told {name} something else about who was present, or forged its statement")
    body.end()
    agreement = agreement_body(roster, state.present, survivors)
    state = replace(state, awaits=Kind.QUORUM, survivors=survivors)
    return state, client_message(member, Kind.AGREEMENT, round.digest, agreement)


def _unmask(member: Member, state: ClientState, body: Reader) -> tuple[ClientState, bytes]:
    round, roster = state.round, _roster(state)
    agreement = agreement_body(roster, state.present, state.survivors)
    signers: set[int] = set()
    for _ in range(min(body.number(), round.cohort)):
        place, signature = body.number(), body.take(SIGNATURE_BYTES)
        if place not in state.survivors:
            raise body.fault("has a signature of a client that is not a survivor")
        name = roster.adverts[place].name
        if not agreement_signed(name, round.digest, agreement, signature, member.registry):
            raise Fault(SERVER, f"told {name} of other survivors, or forged its signature")
        signers.add(place)
    body.end()
    if len(signers) < round.quorum:
        raise Fault(SERVER, f"has {len(signers)} signatures under the survivors; {round.quorum} are needed")
    parts = [number(len(state.held))]
    for owner, held in sorted(state.held.items()):
        survived = owner in state.survivors
        parts += [number(owner), held.of_seed if survived else held.of_mask_key]
    spent = ClientState(round, state.name, None, b"")
    return spent, client_message(member, Kind.UNMASKING, round.digest, *parts)


def _roster(state: ClientState) -> Roster:
    assert state.roster is not None
    return state.roster
