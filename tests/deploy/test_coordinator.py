"""One round over devices that do as they like, in this process: real secure aggregation, random updates."""

import itertools

import numpy as np
import pytest

from reticent.deploy.coordinator import Coordinator, Hooks, Tally
from reticent.deploy.device import Device
from reticent.deploy.letters import NO, OTHER_TERMS, no, read_letter, yes
from reticent.deploy.post import InProcess
from reticent.deploy.settings import read_registry
from reticent.secagg import Aborted, Fault
from reticent.secagg.wire import Kind, kind_of
from tests.deploy.made import enrolled, random_update, terms_of

RUN = "f" * 32
STEPS = {Kind.ROSTER: "shares", Kind.DELIVERY: "masked input", Kind.SURVIVORS: "agreement", Kind.QUORUM: "unmasking"}


class Crowd:
    """A coordinator and devices that it reaches in this process; time passes as letters are waited for."""

    def __init__(self, folder, count=8, terms=None):
        self.terms = terms or terms_of(goal=5, over_selection=1.6)
        self.names = [f"device-{place:03d}" for place in range(count)]
        directories = enrolled(folder, self.names, self.terms)
        self.learner = random_update()
        self.devices = {name: Device(path, self.learner) for name, path in directories.items()}
        self.registry = read_registry(directories[self.names[0]] / "registry.json")
        self.silent: dict[str, set[str]] = {}  # step: devices that vanish there
        self.bent = {}  # step: function of (name, answer)
        self.answers = []
        self.now = 0.0
        self.post = InProcess({node: self.at(name) for node, name in enumerate(self.names, start=100)})
        self.office = Coordinator(self.terms, self.registry, self.post, self.clock)
        self.begun, self.asked = [], 0
        self.eligible = set(self.names)

    def clock(self):
        self.now += 1.0
        return self.now

    def step_of(self, letter):
        read = read_letter(letter)
        return "advert" if read.kind == "invite" else STEPS[kind_of(read.body)]

    def at(self, name):
        def answer(letter, model):
            step = self.step_of(letter)
            if name in self.silent.get(step, ()):
                raise ConnectionError
            found = self.devices[name].answer(letter, model)
            self.answers.append((step, name, found))
            return self.bent[step](name, found) if step in self.bent else found

        return answer

    def ask(self, names):
        assert len(names) == self.terms.report_goal
        self.asked += 1

    def round(self, number=0, attempt=0, nonce=bytes(16)):
        made = self.terms.round(RUN, number, attempt, nonce)
        model = np.zeros(self.terms.size, "<f4").tobytes()
        hooks = Hooks(self.begun.append, self.ask)
        return self.office.attempt(made, RUN, self.eligible.__contains__, lambda: model, hooks)

    def expected(self, names, number=0):
        return np.sum([self.learner(self.devices[name].settings, self.terms, b"", number) for name in names], axis=0)

    def in_sum(self):
        """The devices whose masked input came in time: the first that there were."""
        sent = [name for step, name, found in self.answers if step == "masked input" and found[:1] == b"\x01"]
        return sent[: self.terms.report_goal]


@pytest.fixture
def crowd(tmp_path):
    return Crowd(tmp_path)


def test_a_round_is_the_sum_of_exactly_the_report_goal(crowd):
    total = crowd.round()
    assert crowd.office.tally.late == 3  # the others' came when there were enough
    np.testing.assert_array_equal(total, crowd.expected(crowd.in_sum()))
    assert crowd.office.tally.invited == 8
    assert [sorted(names) for names in crowd.begun] == [crowd.names]
    assert crowd.asked == 1


@pytest.mark.parametrize("step", ["advert", "shares", "masked input"])
def test_devices_that_vanish_before_their_update_is_in(crowd, step):
    crowd.silent = {step: set(crowd.names[:3])}
    total = crowd.round()
    assert set(crowd.in_sum()) == set(crowd.names[3:])
    np.testing.assert_array_equal(total, crowd.expected(crowd.names[3:]))


@pytest.mark.parametrize("step", ["agreement", "unmasking"])
def test_devices_that_vanish_after_their_update_is_in(tmp_path, step):
    crowd = Crowd(tmp_path, 16, terms_of(goal=10, over_selection=1.6))
    seen = []

    def first_vanishes(name, answer):
        seen.append(name)
        if len(seen) == 1:
            return b""  # an answer, and not one
        return answer

    crowd.bent = {step: first_vanishes}
    total = crowd.round()
    np.testing.assert_array_equal(total, crowd.expected(crowd.in_sum()))
    assert crowd.office.tally.nonsense == 1


def test_too_few_is_never_summed(crowd):
    crowd.silent = {"masked input": set(crowd.names[:4])}
    with pytest.raises(Aborted, match="4 devices sent their masked inputs, and the report goal is 5"):
        crowd.round()
    assert crowd.begun
    assert not crowd.asked
    # Those that were in it made an input of this round: none joins another attempt at it, whoever asks.
    crowd.silent = {}
    with pytest.raises(Aborted, match="devices sent their adverts"):
        crowd.round(attempt=1, nonce=b"1" * 16)


def test_too_few_to_begin_with_asks_for_no_update(crowd):
    crowd.silent = {"advert": set(crowd.names[:4])}
    with pytest.raises(Aborted, match="4 devices sent their adverts"):
        crowd.round()
    assert not crowd.begun
    crowd.silent = {}
    crowd.round(nonce=b"1" * 16)  # nothing had left: the same devices may do it


def test_unmasking_that_fails_is_known_to_have_been_asked_for(crowd):
    crowd.silent = {"unmasking": set(crowd.names)}
    with pytest.raises(Aborted):
        crowd.round()
    assert crowd.asked == 1


def test_only_the_eligible_begin(crowd):
    crowd.eligible = set(crowd.names[:6])
    total = crowd.round()
    assert set(crowd.begun[0]) <= crowd.eligible
    np.testing.assert_array_equal(total, crowd.expected(crowd.in_sum()))
    # Who is where is known now: those that rest are not even asked.
    crowd.eligible, crowd.answers = set(crowd.names[6:]), []
    with pytest.raises(Aborted):
        crowd.round(number=1)
    assert {name for _, name, _ in crowd.answers} <= set(crowd.names[6:])


def test_whatever_the_server_asks_no_device_is_in_two_rounds_too_near(crowd):
    """The server's own timers are wrong here: it thinks that everybody may always take part."""
    for number in range(6):
        try:
            crowd.round(number=number, nonce=bytes([number]) * 16)
        except Aborted:
            continue
    for device in crowd.devices.values():
        rounds = device.diary.rounds(RUN)
        assert rounds
        assert all(later - earlier >= 2 for earlier, later in itertools.pairwise(rounds))
        assert any("rests until" in why for why in device.diary.refusals())


def test_a_declining_device_is_replaced(tmp_path):
    crowd = Crowd(tmp_path, 12, terms_of(goal=5, over_selection=1.6))
    decliners = set(crowd.names[:4])
    crowd.bent = {"advert": lambda name, answer: no() if name in decliners else answer}
    crowd.round()
    assert not decliners & set(crowd.begun[0])
    assert len(crowd.begun[0]) == 8
    assert crowd.office.tally.declined == crowd.office.tally.invited - 8


def test_refusals_look_alike_and_the_reason_stays_on_the_device(tmp_path):
    from reticent.deploy.budget import Budget
    from reticent.deploy.letters import INVITE, Letter

    terms = terms_of(noise=0.3)
    poor = enrolled(tmp_path / "poor", ["a", "b"], terms, Budget(0.5, 1e-6))["a"]
    other = enrolled(tmp_path / "other", ["a", "b"], terms)["a"]
    settings = (other / "device.toml").read_text()
    (other / "device.toml").write_text(settings.replace("least_words = 1", "least_words = 1000"))
    letter = Letter(INVITE, RUN, 0, terms.digest, 0, bytes(16)).to_bytes()
    for directory, why in ((poor, "lifetime budget of 0.5"), (other, "has 4 words of text")):
        device = Device(directory, random_update())
        assert device.answer(letter) == no(NO)
        assert why in device.diary.refusals()[-1]


def test_a_device_without_these_terms_says_so(tmp_path, caplog):
    crowd = Crowd(tmp_path)
    stranger = terms_of(goal=5, over_selection=1.6, rounds=7)
    crowd.office = Coordinator(stranger, crowd.registry, crowd.post, crowd.clock)
    crowd.terms = stranger
    with pytest.raises(Aborted):
        crowd.round()
    assert crowd.office.tally.other_terms == 8
    assert caplog.text.count("ship it this app's terms.json") == 1
    device = crowd.devices[crowd.names[0]]
    assert "was not shipped with" in device.diary.refusals()[-1]
    assert crowd.answers[0][2] == no(OTHER_TERMS)


def test_late_double_and_senseless_answers_are_counted_and_change_nothing(tmp_path):
    crowd = Crowd(tmp_path, 16, terms_of(goal=5, over_selection=1.6))
    earlier = {}
    crowd.bent = {
        step: lambda name, answer, step=step: earlier.setdefault((step, name), answer) for step in STEPS.values()
    }
    crowd.eligible = set(crowd.names[:8])
    crowd.round()

    class Noisy(InProcess):
        """Before each answer comes one of round 0, and nonsense; each comes twice."""

        def answers(self, seconds):
            for node, answer in super().answers(seconds):
                yield node, next(iter(earlier.values()))
                yield node, answer
                yield node, answer
                yield node, b"\xffnonsense"
                yield node, yes(answer)

    crowd.bent, crowd.answers, crowd.eligible = {}, [], set(crowd.names[8:])
    crowd.office.post = Noisy(crowd.post.devices)
    crowd.office.tally = Tally()
    total = crowd.round(number=1)
    np.testing.assert_array_equal(total, crowd.expected(crowd.in_sum(), number=1))
    tally = crowd.office.tally
    assert min(tally.late, tally.twice, tally.nonsense) >= 5


def test_an_update_of_another_shape_or_not_finite_never_leaves(crowd):
    for device, wrong in zip(
        crowd.devices.values(),
        [
            np.zeros(3, np.int32),
            np.full(crowd.terms.size, np.nan, np.float32),
            np.full(crowd.terms.size, 2**30, np.int64),
        ],
        strict=False,
    ):
        device.learner = lambda *_, wrong=wrong: wrong
    bad = list(crowd.devices)[:3]
    total = crowd.round()
    np.testing.assert_array_equal(total, crowd.expected(crowd.in_sum()))
    assert not set(bad) & set(crowd.in_sum())
    for name in bad:
        assert crowd.devices[name].diary.rounds(RUN) == [0]  # it counts all the same


def test_a_mistake_on_a_device_tells_the_server_nothing(crowd):
    def fails(*_):
        raise ValueError("the text was: I love you")

    name = crowd.names[0]
    crowd.devices[name].learner = fails
    crowd.round()
    assert ("masked input", name, no(NO)) in crowd.answers or name not in crowd.begun[0]
    assert all("love" not in why for why in crowd.devices[name].diary.refusals())


def test_a_fault_that_opens_nothing_is_not_told_whose_it_was(crowd):
    """Shares that do not belong together: the sum cannot be opened, and the caller learns that it had been asked for."""
    from reticent.secagg import server

    def broken(state):
        raise Fault("device-001", "dealt shares that do not give its mask key; the round is burnt")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "_unmasked", broken)
        with pytest.raises(Fault):
            crowd.round()
    assert crowd.asked == 1


@pytest.mark.parametrize("number", [10**30, -1, True, 1.5, None, "1"])
def test_a_letter_with_a_senseless_number_is_answered_with_a_word(crowd, number):
    import json

    device = crowd.devices[crowd.names[0]]
    head = {"version": 1, "kind": "step", "run": RUN, "round": number}
    assert device.answer(json.dumps(head).encode() + b"\n") == no(NO)
    assert device.answer(json.dumps({**head, "round": 0, "run": "../../elsewhere"}).encode() + b"\n") == no(NO)
    assert device.answer(json.dumps({**head, "version": 99}).encode() + b"\n") == no("other version")
    assert "install the same version" in device.diary.refusals()[-1]
