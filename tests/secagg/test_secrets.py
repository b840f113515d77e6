"""Nothing secret in reprs, logs and exceptions; no mask twice; masked vectors that look like nothing."""

import base64
import hashlib
import hmac
import itertools
import logging
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from reticent.secagg import Device, Fault, Member, client, server
from reticent.secagg.keys import agree, derive, exchange_key
from reticent.secagg.masks import expand
from reticent.secagg.packing import unpack
from reticent.secagg.roster import Roster
from tests.secagg.table import Table


def faces(secret):
    """How a secret might show in a text."""
    return (secret.hex(), base64.b64encode(secret).decode(), repr(secret)[2:-1], str(int.from_bytes(secret)))


def secrets_of(table):
    for name, state in table.states.items():
        yield table.members[name].signing_key
        if state.secret:
            yield state.secret
            yield from (derive(state.secret, purpose) for purpose in ("mask key", "share key", "self mask"))
        for held in state.held.values():
            yield from held


def test_reprs_and_logs_have_no_secrets(caplog, capsys):
    texts = []
    secrets = set()
    with caplog.at_level(logging.DEBUG):
        table = Table.lay(clients=6, dropouts=1, corrupted=0, length=4)
        for _ in range(5):
            table.play(1)
            secrets.update(secrets_of(table))
            texts += [repr(table.server), str(table.server), repr(table.states), str(list(table.members.values()))]
            texts += [repr(held) for state in table.states.values() for held in state.held.values()]
    assert len(secrets) > 60
    output = capsys.readouterr()
    text = "\n".join([*texts, caplog.text, output.out, output.err])
    assert not [secret for secret in secrets if any(face in text for face in faces(secret))]
    # A vector is a secret as well, and so is the masked sum to anybody but the server.
    assert not any(
        str(int(word)) in repr(table.states) for words in table.words.values() for word in words if word > 99
    )


def refusal(table, name, message):
    try:
        client.step(table.members[name], table.states[name], message, table.words[name])
    except Fault as fault:
        return fault
    return None


@pytest.mark.parametrize("step", range(1, 5))
def test_no_exception_has_secrets(step):
    """A server's message bent at a hundred and fifty places: the texts, with their causes."""
    table = Table.lay(clients=5, dropouts=1, corrupted=0, length=3).play(step)
    name = table.names[1]
    message = table.inbox[name]
    secrets = set(secrets_of(table))
    faults = 0
    for at in range(0, len(message), max(1, len(message) // 150)):
        changed = bytearray(message)
        changed[at] ^= 4
        fault = refusal(table, name, bytes(changed))
        if fault is None:
            continue
        faults += 1
        assert fault.__cause__ is None
        assert fault.__context__ is None or fault.__suppress_context__
        text = f"{fault} {fault!r} {fault.args} {vars(fault)}"
        assert not [secret for secret in secrets if any(face in text for face in faces(secret))]
    assert faults > 3


def recorded(monkeypatch, table, steps):
    """Every (place, seed, sign) that clients mask with."""
    seeds = []
    real = client.with_masks

    def record(words, signed_seeds, bits):
        seeds.extend(signed_seeds)
        return real(words, signed_seeds, bits)

    with monkeypatch.context() as patch:
        patch.setattr(client, "with_masks", record)
        table.play(steps)
    return seeds


def test_no_mask_repeats_over_rounds_attempts_or_pairs(monkeypatch):
    members = Member.enrol([f"c{place}" for place in range(7)])
    everything = Counter()
    for number, attempts in ((0, 2), (1, 1)):
        table = Table.lay(members=members, dropouts=1, corrupted=1, number=number)
        for _ in range(attempts):
            seeds = recorded(monkeypatch, table, 3)
            counts = Counter(seed for seed, _ in seeds)
            # A pair's seed is used by both of the pair, with opposite signs; a self mask once.
            signs = {seed: sum(sign for other, sign in seeds if other == seed) for seed in counts}
            pairs = [seed for seed, count in counts.items() if count == 2]
            assert all(signs[seed] == 0 for seed in pairs)
            assert sum(1 for count in counts.values() if count == 1) == 7
            assert len(pairs) == len(
                {frozenset({at, peer}) for at, name in enumerate(table.names) for peer in partners_of(table, at, name)}
            )
            everything.update(counts.keys())
            again = server.retry(table.server)
            table = Table.lay(members=members, dropouts=1, corrupted=1, number=number)
            table.round, table.server = again, server.open_round(again, table.server.registry)
    assert max(everything.values()) == 1


def partners_of(table, at, name):
    state = table.states[name]
    return (state.partners | state.held.keys()) - {at}


def test_a_pair_has_another_seed_in_every_roster_and_nobody_else_has_it():
    one, other, third = (exchange_key(bytes([value]) * 32) for value in (1, 2, 3))
    keys = [key.public_key().public_bytes_raw() for key in (one, other, third)]
    rosters = [Roster((), bytes([value]) * 32) for value in (1, 2)]
    seeds = {
        client.pair_seed(one, keys[1], rosters[0], 4, 9),
        client.pair_seed(other, keys[0], rosters[0], 9, 4),
    }
    assert len(seeds) == 1
    # HKDF-SHA256 of the X25519 secret, the roster's digest and the two places, written out.
    parts = [b"pair mask", rosters[0].digest, (4).to_bytes(4), (9).to_bytes(4)]
    context = hashlib.sha256(b"".join(len(part).to_bytes(8) + part for part in parts)).digest()
    extracted = hmac.digest(bytes(32), agree(one, keys[1]), "sha256")
    assert seeds == {hmac.digest(extracted, b"reticent.secagg.1 " + context + b"\x01", "sha256")}
    seeds |= {
        client.pair_seed(one, keys[1], rosters[1], 4, 9),
        client.pair_seed(one, keys[1], rosters[0], 4, 8),
        client.pair_seed(one, keys[2], rosters[0], 4, 9),
        client.pair_seed(third, keys[1], rosters[0], 4, 9),
    }
    assert len(seeds) == 5


@pytest.mark.parametrize("bits", [5, 16, 20, 31])
def test_masked_vectors_are_uniform(bits):
    """Of a client whose vector is all zeros: chi-squared of its high and low bits, at six standard deviations."""
    length = 60_000
    table = Table.lay(clients=4, dropouts=0, corrupted=0, length=length, bits=bits).play(2)
    name = table.names[0]
    answer = table.answer(name, words=np.zeros(length, np.uint32))
    masked = unpack(answer[37 + 1 + len(name) + 64 : -64], length, bits)
    used = min(bits, 8)
    for part in (masked >> (bits - used), masked & (2**used - 1)):
        counts = np.bincount(part, minlength=2**used)
        expected = length / 2**used
        cells = 2**used - 1
        assert abs(float(np.sum((counts - expected) ** 2) / expected) - cells) < 6 * np.sqrt(2 * cells)
    neighbours = np.corrcoef(masked[1:].astype(float), masked[:-1].astype(float))[0, 1]
    assert abs(neighbours) < 6 / np.sqrt(length)


def test_masks_of_different_seeds_are_unrelated():
    masks = [expand(bytes([value]) * 32, 40_000, 32).astype(float) for value in range(6)]
    for one, other in itertools.combinations(masks, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 6 / np.sqrt(40_000)


def test_secrets_are_forgotten_when_no_longer_needed():
    table = Table.lay().play(3)
    assert all(state.secret == b"" for state in table.states.values())
    table.play(2)
    assert all(not state.held and state.over for state in table.states.values())


def test_a_device_keeps_its_state_to_itself_and_erases_it(tmp_path):
    members = Member.enrol(["a", "b", "c"])
    table = Table.lay(members=members, dropouts=0, corrupted=0)
    devices = {name: Device(tmp_path / name, member) for name, member in members.items()}
    for step in range(5):
        for name in table.names:
            # A new object each time, as in a new process.
            device = Device(tmp_path / name, members[name])
            answer = device.join(table.round) if step == 0 else device.step(table.inbox[name], table.words[name])
            table.server = server.receive(table.server, answer)
            path = tmp_path / name / "attempt.json"
            assert path.exists() == (step < 4)
            if path.exists():
                assert path.stat().st_mode & 0o777 == 0o600
                assert path.parent.stat().st_mode & 0o777 == 0o700
        table.close()
    np.testing.assert_array_equal(table.server.total, table.expected())
    for name, device in devices.items():
        left = b"".join(path.read_bytes() for path in (tmp_path / name).iterdir())
        assert b"secret" not in left
        assert device.last_input("table") == 0
        assert device.last_input("another run") == -1


def test_a_device_overwrites_what_it_erases(tmp_path):
    members = Member.enrol(["a", "b", "c"])
    device = Device(tmp_path / "a", members["a"])
    table = Table.lay(members=members, dropouts=0, corrupted=0)
    device.join(table.round)
    with (tmp_path / "a" / "attempt.json").open("rb") as handle:
        before = handle.read()
        device.leave()
        handle.seek(0)
        assert b"secret" in before
        assert handle.read() == bytes(len(before))
    assert not (tmp_path / "a" / "attempt.json").exists()
    with pytest.raises(ValueError, match="join one first"):
        device.step(b"")


def test_what_a_killed_process_left_behind_is_erased_too(tmp_path, monkeypatch):
    members = Member.enrol(["a", "b", "c"])
    device = Device(tmp_path / "a", members["a"])
    table = Table.lay(members=members, dropouts=0, corrupted=0)
    with monkeypatch.context() as patch:
        # As in a process that is killed before its new file has its name: nothing of it is undone.
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            device.join(table.round)
    left = [path for path in (tmp_path / "a").iterdir() if b"secret" in path.read_bytes()]
    assert [path.name.startswith(".attempt.json.") for path in left] == [True]
    assert left[0].stat().st_mode & 0o777 == 0o600
    with left[0].open("rb") as handle:
        device.join(table.round)
        assert set(handle.read()) == {0}
    assert not left[0].exists()
    assert (tmp_path / "a" / "attempt.json").exists()
