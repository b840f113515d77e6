"""Thousands of devices through Flower's messages, and messages that no device would send."""

import json
import logging
import random

import numpy as np
import pytest

from reticent.deploy.budget import Budget
from reticent.deploy.coordinator import Coordinator, Hooks
from reticent.deploy.device import Device
from reticent.deploy.flower import FlowerPost, client_app
from reticent.deploy.grid import InProcessGrid
from reticent.deploy.letters import no, read_letter
from reticent.deploy.post import InProcess
from reticent.deploy.settings import DeviceSettings, read_registry
from reticent.secagg import Aborted, Member
from tests.deploy.made import enrolled, random_update, terms_of
from tests.deploy.test_coordinator import RUN, Crowd


def crowd_of(folder, count, terms):
    """Many device directories that share one text and one registry file."""
    first = enrolled(folder / "first", ["text"], terms)["text"]
    members = Member.enrol([f"device-{number:05d}" for number in range(count)])
    registry = {name: key.hex() for name, key in next(iter(members.values())).registry.items()}
    (folder / "registry.json").write_text(json.dumps({"devices": registry}))
    made = {}
    for number, (name, member) in enumerate(members.items()):
        directory = folder / name
        directory.mkdir()
        (directory / "registry.json").symlink_to(folder / "registry.json")
        (directory / "terms").symlink_to(first / "terms")
        (directory / "signing.key").touch(0o600)
        (directory / "signing.key").write_text(member.signing_key.hex())
        DeviceSettings(directory, name, first / "text", 1, Budget(100.0, 1e-6), directory / "compiled").save()
        made[number + 10] = directory
    return made


def load(folder, devices, goal, rounds, size):
    terms = terms_of(goal=goal, over_selection=1.2, separation=2, rounds=2 * rounds, size=size)
    directories = crowd_of(folder, devices, terms)
    learner = random_update()
    grid = InProcessGrid(client_app(learner), directories)
    registry = read_registry(folder / "registry.json")
    office = Coordinator(terms, registry, FlowerPost(grid, 3600.0))
    model = np.zeros(terms.size, "<f4").tobytes()
    for number in range(rounds):
        summed: list[list[str]] = []
        attempt = terms.round(RUN, number, 0, bytes([number]) * 16)
        hooks = Hooks(lambda names: None, summed.append)
        total = office.attempt(attempt, RUN, lambda name: True, lambda: model, hooks)
        names = {path.name: path for path in directories.values()}
        expected = sum(learner(DeviceSettings.load(names[name]), terms, b"", number) for name in summed[0])
        np.testing.assert_array_equal(total, expected)
        assert len(summed[0]) == goal
    return office


def test_devices_through_flowers_messages(tmp_path):
    office = load(tmp_path, devices=60, goal=12, rounds=2, size=64)
    assert office.tally.invited >= 30
    assert not office.tally.nonsense


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_two_thousand_devices_in_one_process(tmp_path):
    load(tmp_path, devices=2000, goal=1500, rounds=1, size=512)


def bent(generator: random.Random, valid: list[bytes]) -> bytes:
    """A message made from valid ones, as no device would send it."""
    one, other = generator.choice(valid), generator.choice(valid)
    at = generator.randrange(len(one) + 1)
    how = generator.randrange(9)
    if how == 0:
        flipped = bytearray(one)
        flipped[generator.randrange(len(one))] ^= 1 << generator.randrange(8)
        return bytes(flipped)
    if how == 1:
        return one[:at]
    if how == 2:
        return one + generator.randbytes(generator.randrange(1, 100))
    if how == 3:
        return one[:at] + other[at:]
    if how == 4:
        return generator.randbytes(generator.randrange(200))
    if how == 5:  # another kind of message, of another round, somebody else's name
        changed = bytearray(one)
        for place in range(1, min(len(changed), 60)):
            if generator.random() < 0.1:
                changed[place] = generator.randrange(256)
        return bytes(changed)
    if how == 6:
        return one[:at] + generator.randbytes(8) + one[at:]
    if how == 7:
        return b"\x00" + generator.choice([b"no", b"other terms", b"", b"\xff" * 20, b"no" * 50])
    return other  # a replay, perhaps of another step or of another device


class Hostile(InProcess):
    """Whatever a device answers, a number of bent messages come before and after it, from anywhere."""

    def __init__(self, devices, generator, each):
        super().__init__(devices)
        self.generator, self.each, self.valid, self.sent_bent = generator, each, [], 0

    def answers(self, seconds):
        for node, answer in super().answers(seconds):
            self.valid.append(answer)
            yield from self._bent()
            yield node, answer
            yield from self._bent()

    def _bent(self):
        for _ in range(self.each):
            self.sent_bent += 1
            yield self.generator.choice([*self.devices, 999_999]), bent(self.generator, self.valid)


def fuzz_the_server(tmp_path, caplog, messages, each, seed=0):
    caplog.set_level(logging.DEBUG)
    crowd = Crowd(tmp_path, 16, terms_of(goal=5, over_selection=1.6, rounds=10_000, separation=1))
    post = Hostile(crowd.post.devices, random.Random(seed), each)
    crowd.round(number=0)  # who is where is known from here on
    crowd.office.post = post
    number = 1
    while post.sent_bent < messages:
        crowd.answers.clear()
        summed: list[list[str]] = []
        attempt = crowd.terms.round(RUN, number, 0, number.to_bytes(16))
        model = np.zeros(crowd.terms.size, "<f4").tobytes()
        hooks = Hooks(lambda names: None, summed.append)
        total = crowd.office.attempt(attempt, RUN, lambda name: True, lambda: model, hooks)  # noqa: B023
        np.testing.assert_array_equal(total, crowd.expected(summed[0], number))
        post.valid = post.valid[-200:]
        number += 1
    tally = crowd.office.tally
    assert tally.nonsense > messages / 10
    assert tally.late
    assert tally.twice
    told = caplog.text.encode()
    assert not [message for message in post.valid if len(message) > 40 and message[60:90] in told]
    for name in crowd.names:
        assert (tmp_path / name / "signing.key").read_bytes() not in told


def test_some_hundred_hostile_messages(tmp_path, caplog):
    fuzz_the_server(tmp_path, caplog, messages=800, each=5)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_ten_thousand_hostile_messages(tmp_path, caplog):
    fuzz_the_server(tmp_path, caplog, messages=10_000, each=20, seed=1)


def fuzz_a_device(tmp_path, letters, seed):
    """A hostile server: a device answers with a word or not at all too soon, and never raises."""
    crowd = Crowd(tmp_path)
    sent: list[tuple[bytes, bytes]] = []
    for node, device in list(crowd.post.devices.items()):

        def answer(letter, model, device=device):
            sent.append((letter, model))
            return device(letter, model)

        crowd.post.devices[node] = answer
    crowd.round()
    generator = random.Random(seed)
    victim = crowd.devices[crowd.names[0]]
    valid = [letter for letter, _ in sent]
    before = victim.diary.rounds(RUN)
    for _ in range(letters):
        letter = bent(generator, valid)
        model = generator.choice([b"", generator.choice(sent)[1], generator.randbytes(100)])
        answer = victim.answer(letter, model)
        if answer[:1] == b"\x01":  # only what is an invitation of a later round, or what was asked for before
            read_letter(letter)
        else:
            assert answer in (no(), no("other terms"), no("other version"))
    rounds = victim.diary.rounds(RUN)
    assert rounds[: len(before)] == before
    assert all(later - earlier >= 2 for earlier, later in zip(rounds, rounds[1:], strict=False))  # noqa: RUF007


def test_some_hundred_hostile_letters(tmp_path):
    fuzz_a_device(tmp_path, 300, 0)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_ten_thousand_hostile_letters(tmp_path):
    fuzz_a_device(tmp_path, 10_000, 1)


def test_a_node_without_a_device_answers_no(tmp_path):
    """Flower's messages with other records than ours, to a node that was started without its directory."""
    from flwr.app import ConfigRecord, Context, Message, RecordDict

    from reticent.deploy.flower import MESSAGE, answer

    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    assert answer(Message(RecordDict(), 1, MESSAGE), context) == no()
    wrong = RecordDict({"letter": ConfigRecord({"content": [1, 2, 3]})})
    configured = Context(run_id=1, node_id=1, node_config={"device": str(tmp_path)}, state=RecordDict(), run_config={})
    assert answer(Message(wrong, 1, MESSAGE), configured) == no()


def test_everybody_unreachable_ends_the_attempt(tmp_path):
    crowd = Crowd(tmp_path)
    crowd.silent = {"advert": set(crowd.names)}
    with pytest.raises(Aborted, match="0 devices sent their adverts"):
        crowd.round()
    assert Device(tmp_path / crowd.names[0]).diary.rounds(RUN) == []
