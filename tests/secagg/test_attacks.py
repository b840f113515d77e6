"""What a server, a client or the network may try: each attempt detected, and its author named."""

import dataclasses

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from reticent.errors import Refused
from reticent.secagg import Aborted, Device, Fault, Member, client, server, shamir
from reticent.secagg.client import Held
from reticent.secagg.keys import derive, public_key
from reticent.secagg.packing import packed_size
from reticent.secagg.roster import roster_body
from reticent.secagg.wire import Kind, client_message, number, open_server_message, server_message, set_bytes
from tests.secagg.table import Table


def bent(message, at=-1):
    changed = bytearray(message)
    changed[at] ^= 1
    return bytes(changed)


def blame(fault, culprit, what):
    assert fault.value.culprit == culprit, str(fault.value)
    assert what in str(fault.value)


def finish(table):
    """The rest of the round, which must come out right."""
    while table.server.collects is not None:
        table.play(1)
    np.testing.assert_array_equal(table.server.total, table.expected())


# --- what clients and the network may try ---


@pytest.mark.parametrize("step", range(5))
def test_a_tampered_message_of_a_client(step):
    table = Table.lay().play(step)
    name = table.names[3]
    answer = table.answer(name)
    for at in (0, 5, 45, len(answer) // 2, -70, -1):
        with pytest.raises(Fault):
            server.receive(table.server, bent(answer, at))
    with pytest.raises(Fault) as fault:
        server.receive(table.server, bent(answer, -70))
    blame(fault, name, "not signed with its registered key")
    with pytest.raises(Fault):
        server.receive(table.server, answer[:-65])
    table.server = server.receive(table.server, answer)


@pytest.mark.parametrize("step", range(5))
def test_a_replayed_message(step):
    table = Table.lay().play(step)
    name = table.names[0]
    answer = table.answer(name)
    once = server.receive(table.server, answer)
    with pytest.raises(Fault) as fault:
        server.receive(once, answer)
    blame(fault, name, "second")
    for other in table.names[1:]:
        once = server.receive(once, table.answer(other))
    later, _ = server.close(once)
    if later.collects:
        with pytest.raises(Fault) as fault:
            server.receive(later, answer)
        blame(fault, name, "replayed or out of order")


def test_a_message_of_another_round_or_attempt():
    table = Table.lay().play(1)
    for other in (
        Table.lay(members=table.members, number=1).play(1),
        dataclasses.replace(Table.lay(members=table.members), round=table.round.next_attempt()),
    ):
        if other.server.round != other.round:
            other.server = server.open_round(other.round, table.members[table.names[0]].registry)
            other.play(1)
        with pytest.raises(Fault) as fault:
            server.receive(table.server, other.answer(table.names[2]))
        blame(fault, table.names[2], "of another round or attempt")
        with pytest.raises(Fault) as fault:
            table.answer(table.names[2], other.inbox[table.names[2]])
        blame(fault, "the server", "of another round or attempt")


def test_a_message_in_the_name_of_another():
    table = Table.lay()
    thief = Member(table.names[1], table.members[table.names[0]].signing_key, table.members[table.names[0]].registry)
    _, advert = client.join(thief, table.round)
    with pytest.raises(Fault) as fault:
        server.receive(table.server, advert)
    blame(fault, table.names[1], "forged")


def test_a_stranger():
    table = Table.lay()
    stranger = Member.enrol(["stranger"])["stranger"]
    _, advert = client.join(stranger, table.round)
    with pytest.raises(Fault) as fault:
        server.receive(table.server, advert)
    blame(fault, "stranger", "registry")
    with pytest.raises(Refused, match="register"):
        client.join(Member("x", stranger.signing_key, stranger.registry), table.round)


def test_a_copied_key():
    table = Table.lay()
    first = table.answer(table.names[0])
    table.server = server.receive(table.server, first)
    keys = first[37 + 1 + len(table.names[0]) : -64]
    copied = client_message(table.members[table.names[1]], Kind.ADVERT, table.round.digest, keys)
    with pytest.raises(Fault) as fault:
        server.receive(table.server, copied)
    blame(fault, table.names[1], "already in use")


def test_more_clients_than_the_modulus_has_room_for():
    table = Table.lay(clients=5, dropouts=1, corrupted=0)
    members = Member.enrol([*table.names, "late"])
    crowd = Table.lay(members=members, dropouts=1, corrupted=0)
    crowd.round = dataclasses.replace(crowd.round, cohort=5)
    crowd.server = server.open_round(crowd.round, members["late"].registry)
    for name in table.names:
        crowd.server = server.receive(crowd.server, crowd.answer(name))
    with pytest.raises(Fault) as fault:
        server.receive(crowd.server, crowd.answer("late"))
    blame(fault, "late", "5 clients")


@pytest.mark.parametrize("change", ["short", "long", "behind the end", "empty"])
def test_short_and_out_of_range_vectors_on_the_wire(change):
    table = Table.lay(length=33, bits=9).play(2)
    name = table.names[4]
    answer = table.answer(name)
    size = packed_size(33, 9)
    body = answer[37 + 1 + len(name) : -64]
    statement, packed = body[:64], bytearray(body[64:])
    assert len(packed) == size
    if change == "behind the end":
        packed[-1] |= 0x80
    packed = {"short": packed[:-4], "long": packed + b"\0\0\0\0", "empty": b""}.get(change, packed)
    message = client_message(table.members[name], Kind.MASKED_INPUT, table.round.digest, statement, bytes(packed))
    with pytest.raises(Fault) as fault:
        server.receive(table.server, message)
    blame(fault, name, "out of range" if change == "behind the end" else "another size")


@pytest.mark.parametrize(
    "words", [np.zeros(19, np.uint32), np.zeros(20), np.full(20, 2**16, np.uint32), np.zeros((20, 1), np.uint32)]
)
def test_an_honest_client_does_not_send_them(words):
    table = Table.lay(length=20, bits=16).play(2)
    with pytest.raises(Refused, match=r"20 words|16 bits"):
        table.answer(table.names[0], words=words)


def test_a_vector_masked_against_other_peers():
    table = Table.lay().play(2)
    name = table.names[4]
    body = table.answer(name)[37 + 1 + len(name) : -64]
    lie = table.members[name].sign(b"somebody else was present")
    message = client_message(table.members[name], Kind.MASKED_INPUT, table.round.digest, lie, body[64:])
    with pytest.raises(Fault) as fault:
        server.receive(table.server, message)
    blame(fault, name, "other peers")


def test_a_share_off_by_one():
    """Named, left out, and the sum still exact."""
    table = Table.lay(clients=10, dropouts=2, corrupted=1).play(4)
    liar = table.names[6]
    held = dict(table.states[liar].held)
    owner = min(held)
    off = (int.from_bytes(held[owner].of_seed) + 1) % shamir.PRIME
    honest = table.states[liar]
    table.states[liar] = dataclasses.replace(
        honest, held={**held, owner: Held(off.to_bytes(33), held[owner].of_mask_key)}
    )
    wrong = table.answer(liar)
    with pytest.raises(Fault) as fault:
        server.receive(table.server, wrong)
    blame(fault, liar, f"wrong share of {table.names[owner]}'s secret")
    for name in table.names:
        if name != liar:
            table.server = server.receive(table.server, table.answer(name))
    table.close()
    np.testing.assert_array_equal(table.server.total, table.expected())


@pytest.mark.parametrize("change", ["one less", "twice", "to itself", "to nobody"])
def test_crooked_dealing(change):
    table = Table.lay(clients=6, dropouts=1, corrupted=1).play(1)
    name = table.names[2]
    body = table.answer(name)[37 + 1 + len(name) : -64]
    head, entries = body[:36], [body[36:][at : at + 150] for at in range(0, len(body) - 36, 150)]
    assert len(entries) == 5
    last = {"twice": entries[0], "to itself": number(2) + entries[4][4:], "to nobody": number(6) + entries[4][4:]}
    if change == "one less":
        head, entries = body[:32] + number(4), entries[:4]
    else:
        entries[4] = last[change]
    message = client_message(table.members[name], Kind.SHARES, table.round.digest, head, *entries)
    with pytest.raises(Fault) as fault:
        server.receive(table.server, message)
    blame(fault, name, "does not deal to 5 partners" if change == "one less" else "to itself, or twice")


def test_shares_that_are_not_those_committed_to(monkeypatch):
    """Sealed under the right key, to the digests that everybody saw, but others: the holder names the dealer."""
    table = Table.lay(clients=5, dropouts=1, corrupted=0).play(1)
    liar = table.names[3]
    honest = client.share_digest
    with monkeypatch.context() as patch:
        patch.setattr(client, "share_digest", lambda *parts: honest(*parts[:-1], bytes(33)))
        table.server = server.receive(table.server, table.answer(liar))
    for name in table.names:
        if name != liar:
            table.server = server.receive(table.server, table.answer(name))
    table.close()
    with pytest.raises(Fault) as fault:
        table.answer(table.names[0])
    blame(fault, liar, "not those it committed to")


@pytest.mark.parametrize("change", ["one less", "of another", "twice"])
def test_crooked_unmasking(change):
    table = Table.lay(clients=6, dropouts=1, corrupted=1).play(4)
    name = table.names[2]
    body = table.answer(name)[37 + 1 + len(name) : -64]
    entries = [body[4:][at : at + 37] for at in range(0, len(body) - 4, 37)]
    assert len(entries) == 5
    if change == "one less":
        entries = entries[1:]
    else:
        entries[1] = (number(2) if change == "of another" else number(0)) + entries[1][4:]
    body = [number(len(entries)), *entries]
    with pytest.raises(Fault) as fault:
        server.receive(table.server, client_message(table.members[name], Kind.UNMASKING, table.round.digest, *body))
    blame(fault, name, "not the 5 shares" if change == "one less" else "another client than is due")


def test_signatures_told_twice_are_no_quorum():
    table = Table.lay(clients=9, dropouts=2, corrupted=1).play(4)
    body = open_server_message(table.inbox[table.names[0]], Kind.QUORUM, table.round.digest)
    assert body.number() == table.round.quorum == 6
    entries = [body.take(68) for _ in range(6)]
    message = server_message(Kind.QUORUM, table.round.digest, number(6), *entries[:5], entries[0])
    with pytest.raises(Fault) as fault:
        table.answer(table.names[0], message)
    blame(fault, "the server", "has 5 signatures")


def test_shares_delivered_twice_or_of_somebody_absent():
    table = Table.lay(clients=6, dropouts=1, corrupted=1).play(1)
    table.play(1, drop=[table.names[5]])
    message = table.inbox[table.names[0]]
    head, first = message[: 37 + 1], message[37 + 1 + 4 :][:150]
    for parcel in ([first, first], [number(5) + first[4:]], [number(0) + first[4:]]):
        with pytest.raises(Fault) as fault:
            table.answer(table.names[0], head + number(len(parcel)) + b"".join(parcel))
        blame(fault, "the server", "not present, or twice")


def test_a_state_of_somebody_else():
    table = Table.lay().play(1)
    with pytest.raises(Refused, match="This state is"):
        client.step(table.members[table.names[1]], table.states[table.names[0]], table.inbox[table.names[0]])


def test_the_other_share_than_is_due():
    """A client that gives a survivor's mask key is caught, as its digest is that of the other share."""
    table = Table.lay().play(4)
    name = table.names[0]
    held = {owner: Held(one.of_mask_key, one.of_seed) for owner, one in table.states[name].held.items()}
    table.states[name] = dataclasses.replace(table.states[name], held=held)
    with pytest.raises(Fault, match="wrong share"):
        server.receive(table.server, table.answer(name))


@pytest.mark.parametrize("secret", ["self mask", "mask key"])
def test_a_dealer_of_inconsistent_shares(secret, monkeypatch):
    """Every share matches its digest, but they lie on no polynomial through the secret: the dealer is named."""
    table = Table.lay(clients=10, dropouts=2, corrupted=1).play(1)
    liar = table.names[6]
    honest = shamir.deal
    with monkeypatch.context() as patch:
        turn = iter([secret == "self mask", secret == "mask key"])

        def crooked(value, *rest):
            return honest(bytes(32) if next(turn) else value, *rest)

        patch.setattr(shamir, "deal", crooked)
        table.server = server.receive(table.server, table.answer(liar))
    for name in table.names:
        if name != liar:
            table.server = server.receive(table.server, table.answer(name))
    table.close()
    table.play(1, drop=[liar] if secret == "mask key" else [])
    table.play(1)
    for name in table.inbox:
        table.server = server.receive(table.server, table.answer(name))
    with pytest.raises(Fault) as fault:
        table.close()
    blame(fault, liar, "burnt")
    assert table.server.total is None


def test_a_client_that_comes_back_is_told_so():
    table = Table.lay(clients=10, dropouts=2, corrupted=1).play(1)
    gone = table.names[3]
    late = table.answer(gone)
    for name in table.names:
        if name != gone:
            table.server = server.receive(table.server, table.answer(name))
    table.close()
    with pytest.raises(Fault):
        server.receive(table.server, late)
    state = table.states[gone]
    message = client_message(table.members[gone], Kind.MASKED_INPUT, table.round.digest, bytes(64))
    with pytest.raises(Fault) as fault:
        server.receive(table.server, message)
    blame(fault, gone, "after it had dropped out")
    assert state.awaits == Kind.DELIVERY
    finish(table)


def test_what_is_no_message_at_all():
    table = Table.lay()
    for junk in (b"", b"RSA1", b"hello" * 20, bytes(200), b"RSA1\x63" + bytes(100)):
        with pytest.raises(Fault, match="not a message"):
            server.receive(table.server, junk)
        table.play(0)
        state, _ = client.join(table.members[table.names[0]], table.round)
        with pytest.raises(Fault, match="not a message"):
            client.step(table.members[table.names[0]], state, junk)


# --- what a server may try ---


def test_a_tampered_ciphertext():
    table = Table.lay().play(2)
    victim, message = table.names[5], table.inbox[table.names[5]]
    with pytest.raises(Fault) as fault:
        table.answer(victim, bent(message))
    owner = max(set(range(8)) - {5})
    blame(fault, table.names[owner], "do not open")
    finish(table)


def test_a_roster_with_a_forged_key():
    """The server puts its own keys in a client's place: whoever draws that client leaves, the rest are not touched."""
    table = Table.lay(clients=30, dropouts=2, corrupted=2)
    adverts = [table.answer(name) for name in table.names]
    forger = Ed25519PrivateKey.generate()
    impostor = Member(table.names[2], forger.private_bytes_raw(), table.members[table.names[2]].registry)
    _, forged = client.join(impostor, table.round)
    roster = server_message(Kind.ROSTER, table.round.digest, roster_body([*adverts[:2], forged, *adverts[3:]]))
    left = 0
    for name in table.names[:2] + table.names[3:]:
        try:
            table.answer(name, roster)
        except Fault as fault:
            assert fault.culprit == table.names[2]  # noqa: PT017
            assert "forged" in str(fault)  # noqa: PT017
            left += 1
        else:
            assert 2 not in table.states[name].partners
    assert 0 < left < 29
    with pytest.raises(Fault) as fault:
        table.answer(table.names[2], roster)
    blame(fault, "the server", "own advert")


@pytest.mark.parametrize("change", ["without me", "another of mine", "twice", "too few", "unsorted", "cut short"])
def test_a_crooked_roster(change):
    table = Table.lay()
    adverts = [table.answer(name) for name in table.names]
    if change == "another of mine":
        _, adverts[0] = client.join(table.members[table.names[0]], table.round)
    bodies = {
        "without me": adverts[1:],
        "twice": [*adverts[:2], adverts[1], *adverts[3:]],
        "too few": adverts[:5],
        "unsorted": adverts[::-1],
    }
    body = roster_body(bodies.get(change, adverts))
    body = body[:-1] if change == "cut short" else body
    with pytest.raises(Fault) as fault:
        table.answer(table.names[0], server_message(Kind.ROSTER, table.round.digest, body))
    assert fault.value.culprit in ("the server", table.names[7])


def test_different_rosters_for_different_clients():
    """Their shares do not open for one another. (To an honest server, with a roster bent on its way, they are no use.)"""
    table = Table.lay(clients=3, dropouts=0, corrupted=0)
    first, second, third = table.names
    adverts = [table.answer(name) for name in table.names]
    for advert in adverts:
        table.server = server.receive(table.server, advert)
    table.close()
    # The third client's accomplice has a second advert, which only the first client is shown.
    _, second_advert = client.join(table.members[third], table.round)
    other = server_message(Kind.ROSTER, table.round.digest, roster_body([*adverts[:2], second_advert]))
    messages = {first: table.answer(first, other), second: table.answer(second)}
    with pytest.raises(Fault) as fault:
        server.receive(table.server, messages[first])
    blame(fault, first, "another roster")
    # A server that lies passes them on all the same.
    start = 37 + 1 + len(first) + 32 + 4
    entries = [messages[first][start + at * 150 :][:150] for at in range(2)]
    parcel = next(one for one in entries if int.from_bytes(one[:4]) == 1)
    lie = server_message(Kind.DELIVERY, table.round.digest, set_bytes(range(3), 3), number(1), number(0) + parcel[4:])
    with pytest.raises(Fault) as fault:
        table.answer(second, lie)
    blame(fault, first, "do not open")


def survivors_message(table, holder, survivors, statements=None):
    """A survivors message that the server might make up."""
    held = table.states[holder].held
    parts = [
        number(owner) + (statements or table.server.statements)[owner] for owner in sorted(set(held) & set(survivors))
    ]
    return server_message(Kind.SURVIVORS, table.round.digest, set_bytes(survivors, len(table.names)), *parts)


def test_different_survivors_for_different_clients():
    """The classical attack: one half is told that the victim dropped, the other that it did not, so that both of its
    secrets open. No honest client gets past the signatures of the others."""
    table = Table.lay(clients=9, dropouts=2, corrupted=1).play(3)
    victim = 4
    full = list(range(9))
    agreements = {}
    for place, name in enumerate(table.names):
        if place == victim:
            continue
        told = full if place % 2 else [one for one in full if one != victim]
        agreements[place] = table.answer(name, survivors_message(table, name, told))[-64:]
    for place in sorted(agreements):
        quorum = [number(len(agreements))]
        quorum += [number(one) + signature for one, signature in sorted(agreements.items())]
        with pytest.raises(Fault) as fault:
            table.answer(table.names[place], server_message(Kind.QUORUM, table.round.digest, *quorum))
        blame(fault, "the server", "of other survivors")
        same = {one: signature for one, signature in agreements.items() if one % 2 == place % 2}
        quorum = [number(len(same)), *(number(one) + signature for one, signature in sorted(same.items()))]
        with pytest.raises(Fault) as fault:
            table.answer(table.names[place], server_message(Kind.QUORUM, table.round.digest, *quorum))
        blame(fault, "the server", f"{len(same)} signatures")
        padded = [number(2 * len(same)), *(number(one) + signature for one, signature in sorted(same.items()))] * 2
        with pytest.raises(Fault):
            table.answer(table.names[place], server_message(Kind.QUORUM, table.round.digest, *padded))


def test_one_client_is_told_of_others_present():
    """The victim masks against fewer peers than the rest believe; its partners notice before they give its seed."""
    table = Table.lay(clients=9, dropouts=2, corrupted=1).play(2)
    victim = 4
    message = table.inbox[table.names[victim]]
    present = frozenset(range(9)) - {7, 8}
    body = open_server_message(message, Kind.DELIVERY, table.round.digest)
    body.set_of(9)
    count = body.number()
    entry = 4 + 64 + 82
    parcel = [body.take(entry) for _ in range(count)]
    parcel = [one for one in parcel if int.from_bytes(one[:4]) in present]
    lie = server_message(Kind.DELIVERY, table.round.digest, set_bytes(present, 9), number(len(parcel)), *parcel)
    statements = {}
    for place, name in enumerate(table.names):
        answer = table.answer(name, lie if place == victim else None)
        statements[place] = answer[37 + 1 + len(name) :][:64]
        if place == victim:
            with pytest.raises(Fault, match="other peers"):
                server.receive(table.server, answer)
    refusing = 0
    for place, name in enumerate(table.names):
        if victim in table.states[name].held:
            with pytest.raises(Fault) as fault:
                table.answer(name, survivors_message(table, name, range(9), statements))
            blame(fault, "the server", f"told {table.names[victim]} something else")
            refusing += 1
        elif place != victim:
            table.answer(name, survivors_message(table, name, range(9), statements))
    assert refusing >= table.round.graph.threshold


@pytest.mark.parametrize(
    ("survivors", "what"),
    [([1, 2, 3, 4, 5, 6, 7, 8], "calls this client dropped"), ([0, 1, 2, 3, 4, 5], "6 survivors")],
)
def test_crooked_survivors(survivors, what):
    table = Table.lay(clients=9, dropouts=2, corrupted=1).play(3)
    with pytest.raises(Fault) as fault:
        table.answer(table.names[0], survivors_message(table, table.names[0], survivors))
    blame(fault, "the server", what)


def test_survivors_that_were_never_present():
    table = Table.lay(clients=9, dropouts=2, corrupted=1).play(1)
    table.play(1, drop=[table.names[8]])
    for name in table.names[:8]:
        table.answer(name)
    message = server_message(Kind.SURVIVORS, table.round.digest, set_bytes(range(9), 9))
    with pytest.raises(Fault, match="of those present"):
        table.answer(table.names[0], message)


def test_too_few_present():
    table = Table.lay(clients=9, dropouts=2, corrupted=1).play(2)
    for present in ([0, 1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8]):
        message = server_message(Kind.DELIVERY, table.round.digest, set_bytes(present, 9), number(0))
        with pytest.raises(Fault, match="present"):
            table.answer(table.names[0], message)


def test_both_shares_of_one_peer():
    """After its answer a client answers nothing, whatever is asked and however often."""
    table = Table.lay().play(4)
    name = table.names[0]
    table.answer(name)
    for message in (table.inbox[name], survivors_message_after(table)):
        with pytest.raises(Fault) as fault:
            table.answer(name, message)
        blame(fault, "the server", "a share is given once")
    assert table.states[name].over
    assert not table.states[name].held


def survivors_message_after(table):
    return server_message(Kind.SURVIVORS, table.round.digest, set_bytes(range(7), 8))


def test_a_second_set_of_survivors_before_the_answer():
    table = Table.lay().play(4)
    with pytest.raises(Fault) as fault:
        table.answer(table.names[0], survivors_message_after(table))
    blame(fault, "the server", "replayed or out of order")


def test_no_message_carries_both_shares():
    """Of each peer, exactly one of the two shares is in the bytes that a client sends."""
    table = Table.lay(clients=10, dropouts=2, corrupted=1).play(2)
    table.play(2, drop=[table.names[9]])
    seen = 0
    for name in table.inbox:
        held = table.states[name].held
        answer = table.answer(name)
        for owner, shares in held.items():
            assert (shares.of_seed in answer) == (owner != 9)
            assert (shares.of_mask_key in answer) == (owner == 9)
            seen += owner == 9
    assert seen >= table.round.graph.threshold


@pytest.mark.parametrize("key", [bytes(32), (1).to_bytes(32, "little")])
@pytest.mark.parametrize("place", [0, 1])
def test_a_key_of_small_order(key, place, monkeypatch):
    """A key that would make a shared secret public: no server takes it, and no client from a server that does."""
    table = Table.lay(clients=3, dropouts=0, corrupted=0)
    first, second, name = table.names
    keys = [public_key(derive(bytes(32), purpose)) for purpose in ("one", "two")]
    keys[place] = key
    bad = client_message(table.members[name], Kind.ADVERT, table.round.digest, *keys, bytes(32))
    with pytest.raises(Fault) as fault:
        server.receive(table.server, bad)
    blame(fault, name, "small order")
    monkeypatch.setattr(server, "check_keys", lambda advert: None)
    for advert in (table.answer(first), table.answer(second), bad):
        table.server = server.receive(table.server, advert)
    table.close()
    if place == 0:
        for message in (table.answer(first), table.answer(second), shares_of_nothing(table, name, (0, 1))):
            table.server = server.receive(table.server, message)
        table.close()
        # Without the shares, which do not open: what is left is the mask to be shared with a partner.
        table.inbox[first] = table.inbox[first][:38] + number(0)
    with pytest.raises(Fault) as fault:
        table.answer(first)
    blame(fault, name, "small order")


def shares_of_nothing(table, name, peers):
    parts = [number(peer) + bytes(64 + 82) for peer in peers]
    return client_message(
        table.members[name], Kind.SHARES, table.round.digest, table.server.roster.digest, number(len(peers)), *parts
    )


def test_a_server_cannot_go_on_with_too_few_partners():
    table = Table.lay(clients=12, dropouts=3, corrupted=1).play(4)
    for name in table.names[:9]:
        table.server = server.receive(table.server, table.answer(name))
    thinned = {place: opened for place, opened in table.server.opened.items() if place < 5}
    table.server = dataclasses.replace(table.server, opened={**thinned, 9: {}, 10: {}, 11: {}, 8: {}})
    with pytest.raises(Aborted, match="partners are left"):
        table.close()


# --- a retry ---


def test_a_retry_after_shares_would_show_a_difference_and_is_refused(tmp_path):
    members = Member.enrol([f"client-{place}" for place in range(9)])
    devices = {name: Device(tmp_path / name, member) for name, member in members.items()}
    table = Table.lay(members=members, dropouts=2, corrupted=1, number=4)
    victim = table.names[8]

    def attempt(round, missing, join):
        state, inbox = server.open_round(round, members[victim].registry), dict.fromkeys(members, b"")
        for step in range(5):
            for name, message in inbox.items():
                if step == 2 and name in missing:
                    continue
                state = server.receive(state, join[name](round, step, message))
            state, inbox = server.close(state)
        return state

    def honest(name):
        words = table.words[name]
        return lambda round, step, message: devices[name].step(message, words) if step else devices[name].join(round)

    first = attempt(table.round, [], {name: honest(name) for name in members})
    with pytest.raises(Refused, match="completed or burnt"):
        server.retry(first)
    # A server that does not care tries a new attempt, a new nonce, an old round: no device joins.
    for round in (table.round, table.round.next_attempt(), dataclasses.replace(table.round, number=3)):
        for device in devices.values():
            with pytest.raises(Refused, match="completed or burnt"):
                device.join(round)
    # What it would have seen, had they joined (fresh directories forget).
    devices = {name: Device(tmp_path / "amnesiac" / name, member) for name, member in members.items()}
    second = attempt(table.round.next_attempt(), [victim], {name: honest(name) for name in members})
    difference = (first.total - second.total) % np.uint32(2**table.round.modulus_bits)
    np.testing.assert_array_equal(difference, table.words[victim])
    # The next round is another matter.
    devices = {name: Device(tmp_path / name, member) for name, member in members.items()}
    following = dataclasses.replace(table.round.next_attempt(), number=5, attempt=0)
    attempt(following, [], {name: honest(name) for name in members})


def test_two_attempts_at_once_do_not_both_get_an_input(tmp_path):
    """The server opens two attempts at one round side by side, to have the input of one device in two sums: once a
    device's input is made, it is in no other attempt, whether its shares were asked for or not."""
    members = Member.enrol(["a", "b", "c", "d"])
    table = Table.lay(members=members, dropouts=1, corrupted=0, number=7)
    devices = {name: Device(tmp_path / name, member) for name, member in members.items()}
    other = table.round.next_attempt()
    for name, device in devices.items():
        # Before its input it may change over, and the attempt it leaves has nothing of it.
        device.join(other)
        table.server = server.receive(table.server, device.join(table.round))
        assert device.last_input("table") == -1, name
    table.close()
    for step in (1, 2, 3):
        for name, device in devices.items():
            table.server = server.receive(table.server, device.step(table.inbox[name], table.words[name]))
            if step == 1:
                assert device.last_input("table") == -1
                continue
            for round in (other, table.round, dataclasses.replace(table.round, number=6)):
                with pytest.raises(Refused, match="completed or burnt for it"):
                    device.join(round)
        table.close()
    # Not even after it has left, or was killed.
    devices["a"].leave()
    with pytest.raises(Refused, match="completed or burnt for it"):
        Device(tmp_path / "a", members["a"]).join(other)
    for name in "bcd":
        table.server = server.receive(table.server, devices[name].step(table.inbox[name]))
    table.close()
    np.testing.assert_array_equal(table.server.total, table.expected())
    devices["a"].join(dataclasses.replace(table.round, number=8))


def test_a_device_killed_while_its_input_was_made_goes_on_with_the_same_one(tmp_path, monkeypatch):
    """Between the journal and the state: the input has not left, and is made again."""
    members = Member.enrol(["a", "b", "c"])
    table = Table.lay(members=members, dropouts=0, corrupted=0)
    devices = {name: Device(tmp_path / name, member) for name, member in members.items()}
    for device in devices.values():
        table.server = server.receive(table.server, device.join(table.round))
    table.close()
    for name, device in devices.items():
        table.server = server.receive(table.server, device.step(table.inbox[name]))
    table.close()

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Device, "_write", killed)
        with pytest.raises(KeyboardInterrupt):
            devices["a"].step(table.inbox["a"], table.words["a"])
    assert devices["a"].last_input("table") == 0
    for step in (2, 3, 4):
        for name, device in devices.items():
            words = table.words[name] if step == 2 else None
            table.server = server.receive(table.server, device.step(table.inbox[name], words))
        table.close()
    np.testing.assert_array_equal(table.server.total, table.expected())


def test_a_retry_before_shares_is_another_attempt_with_other_keys():
    table = Table.lay().play(3)
    again = server.retry(table.server)
    assert again.digest != table.round.digest
    assert (again.number, again.attempt) == (table.round.number, 1)
    second = dataclasses.replace(Table.lay(members=table.members), round=again)
    second.server = server.open_round(again, table.server.registry)
    second.play(5)
    np.testing.assert_array_equal(second.server.total, second.expected())
    assert table.round.next_attempt().digest != table.round.next_attempt().digest
    with pytest.raises(Refused, match="at most 16"):
        dataclasses.replace(table.round, attempt=16)


def test_shares_once_asked_for_burn_the_round_even_if_none_came():
    table = Table.lay().play(4)
    with pytest.raises(Refused, match="completed or burnt"):
        server.retry(table.server)
    with pytest.raises(Aborted):
        server.close(table.server)


def test_a_round_that_is_over_takes_nothing():
    table = Table.lay()
    table.play(5)
    with pytest.raises(Refused, match="over"):
        server.receive(table.server, b"")
    with pytest.raises(Refused, match="over"):
        server.close(table.server)
