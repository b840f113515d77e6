"""Who takes part in an attempt: the signed adverts, in the order of their names."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from reticent.secagg.faults import SERVER, Fault
from reticent.secagg.keys import KEY_BYTES, Registry, agree, digest, exchange_key
from reticent.secagg.round import Round
from reticent.secagg.wire import Kind, Reader, number, open_client_message, read_client_message

_ANY_KEY = exchange_key(bytes(KEY_BYTES))


@dataclass(frozen=True)
class Advert:
    """What a client tells of itself: its keys for masks and for shares, and the digest of its self-mask seed."""

    name: str
    mask_key: bytes
    share_key: bytes
    seed_digest: bytes


@dataclass(frozen=True)
class Roster:
    """The cohort of an attempt. A client is known by its place."""

    adverts: tuple[Advert, ...]
    digest: bytes

    @cached_property
    def places(self) -> Mapping[str, int]:
        return {advert.name: place for place, advert in enumerate(self.adverts)}

    def __len__(self) -> int:
        return len(self.adverts)


def read_advert(message: bytes, round: Round) -> Advert:
    """An advert of this attempt as it claims to be; `check_signature` says whether it is genuine."""
    name, body = read_client_message(message, Kind.ADVERT, round.digest)
    advert = Advert(name, body.take(KEY_BYTES), body.take(KEY_BYTES), body.take(KEY_BYTES))
    body.end()
    return advert


def check_signature(message: bytes, round: Round, registry: Registry) -> None:
    """A Fault for an advert that is not signed with its registered key."""
    open_client_message(message, Kind.ADVERT, round.digest, registry)


def check_keys(advert: Advert) -> None:
    """A Fault for keys with which every shared secret would be known to everybody."""
    if any(agree(_ANY_KEY, key) is None for key in (advert.mask_key, advert.share_key)):
        raise Fault(advert.name, "advertises a key of small order")


def roster_body(messages: Iterable[bytes]) -> bytes:
    """The roster as it travels: the adverts, as they were signed."""
    parts = list(messages)
    return number(len(parts)) + b"".join(number(len(part)) + part for part in parts)


def read_roster(body: Reader, round: Round) -> tuple[Roster, list[bytes]]:
    """The roster and its messages. Who draws partners from it checks theirs: adverts that nobody draws guard nobody."""
    messages = [body.take(body.number()) for _ in range(min(body.number(), round.cohort + 1))]
    body.end()
    if not round.fewest <= len(messages) <= round.cohort:
        raise Fault(SERVER, f"the roster has {len(messages)} clients; {round.fewest} to {round.cohort} are agreed on")
    adverts = tuple(read_advert(message, round) for message in messages)
    return make_roster(adverts, messages, round), messages


def make_roster(adverts: tuple[Advert, ...], messages: Iterable[bytes], round: Round) -> Roster:
    """The roster of these adverts; a Fault if a client or a key is in it twice."""
    names = [advert.name for advert in adverts]
    if any(first >= second for first, second in itertools.pairwise(names)):
        raise Fault(SERVER, "the roster is not in the order of the names, each once")
    owner: dict[bytes, str] = {}
    for advert in adverts:
        for key in (advert.mask_key, advert.share_key):
            if owner.setdefault(key, advert.name) != advert.name or advert.mask_key == advert.share_key:
                raise Fault(advert.name, "advertises a key that is already in use")
    return Roster(adverts, digest(b"roster", round.digest, *messages))
