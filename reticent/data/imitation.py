"""Text in the manner of given speakers, for many people at once: n-gram models sampled by pointing into their text.

To sample the next word after a context is to choose one of the places where that context occurs and to say what follows
there; so a model is a list of places, sorted by context, and a person is a pointer. Each person is a mixture of a few
speakers, and each speech imitates one of them: two words of context in that speaker's text, backing off to everybody's,
then to one word of context in each, then to any word, with Witten and Bell's weights (a context seen n times with t
different followers is trusted n / (n + t)).

Habits: where a person has a choice of two words, they lean towards the one they like better. Who likes what is a hash
of person and word, so that people differ and the crowd as a whole does not.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reticent.data.mixing import mix, salt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
SPEAKERS_PER_PERSON = 4
MEDIAN_TOKENS, SPREAD, FEWEST, MOST = 160.0, 0.75, 40, 1000
LONGEST_LAST_SPEECH = 400


@dataclass(frozen=True, eq=False)
class _Contexts:
    """The places of each context: those of number c are `places[start[c] : start[c] + size[c]]`, trusted `trust[c]`.

    `number` is the context at each place, and -1 where nothing follows; `keys` are the sorted (speaker, context) pairs
    where the speakers are kept apart.
    """

    number: np.ndarray
    start: np.ndarray
    size: np.ndarray
    trust: np.ndarray
    keys: np.ndarray


@dataclass(frozen=True, eq=False)
class Speakers:
    """What `speak` needs of the speakers' text; `words[place]` is the word there, 0 begins and 1 ends a speech.

    `orders` has, from the longest context to the shortest, each speaker's own and everybody's; `anywhere` is the part
    of `places` that has every place once.
    """

    words: np.ndarray
    places: np.ndarray
    orders: tuple[tuple[_Contexts, _Contexts], ...]
    anywhere: tuple[int, int]
    speeches: np.ndarray
    first_speech: np.ndarray
    share: np.ndarray

    @classmethod
    def of(cls, speeches: Sequence[Sequence[np.ndarray]]) -> "Speakers":
        """Speakers, each of whom made these speeches: word numbers from 2 on, framed by 0 and 1."""
        flat = [speech for speaker in speeches for speech in speaker]
        words = np.concatenate(flat).astype(np.int64)
        lengths = np.array([len(speech) for speech in flat])
        counts = np.array([len(speaker) for speaker in speeches])
        speaker = np.repeat(np.repeat(np.arange(len(speeches)), counts), lengths)
        size = int(words.max()) + 1
        before = np.where(words == 0, size, np.concatenate([[0], words[:-1]]))
        follows = np.flatnonzero(words != 1)
        orders, lists, base = [], [], 0
        for context in (before * size + words, words):
            pair = []
            number = np.full(len(words), -1, np.int64)
            _, number[follows] = np.unique(context[follows], return_inverse=True)
            several = int(number.max()) + 1
            for keys in (speaker * several + number, number):
                contexts, places = _contexts(keys, number, follows, words, base, separate=keys is not number)
                pair.append(contexts)
                lists.append(places)
                base += len(places)
            orders.append((pair[0], pair[1]))
        return cls(
            words=words.astype(np.int32),
            places=np.concatenate([*lists, follows]).astype(np.int32),
            orders=tuple(orders),
            anywhere=(base, len(follows)),
            speeches=np.flatnonzero(words == 0).astype(np.int32),
            first_speech=np.concatenate([[0], np.cumsum(counts)]),
            share=np.cumsum(np.bincount(speaker)) / len(words),
        )


def _contexts(
    keys: np.ndarray, number: np.ndarray, follows: np.ndarray, words: np.ndarray, base: int, *, separate: bool
) -> tuple[_Contexts, np.ndarray]:
    places = follows[np.argsort(keys[follows], kind="stable")]
    unique, start, size = np.unique(keys[places], return_index=True, return_counts=True)
    group = np.repeat(np.arange(len(unique)), size)
    followers = np.unique(group * (int(words.max()) + 1) + words[places + 1])
    different = np.bincount(followers // (int(words.max()) + 1), minlength=len(unique))
    trust = size / (size + different)
    # A speech has a word: what begins one is never anything but what began another.
    trust[words[places[start]] == 0] = 1.0
    kept = unique if separate else np.empty(0, np.int64)
    return _Contexts(number, base + start, size, trust.astype(np.float32), kept), places


@dataclass(frozen=True, eq=False)
class _People:
    """What each person is, all of it from (seed, person) alone."""

    key: np.ndarray
    target: np.ndarray
    speakers: np.ndarray
    mixture: np.ndarray
    loyalty: np.ndarray
    habit: np.ndarray

    @classmethod
    def of(cls, people: np.ndarray, speakers: Speakers, seed: int) -> "_People":
        from scipy.special import ndtri

        key = mix(mix(people.astype(np.uint64) + np.uint64(1)) ^ salt("crowd", seed))
        draws = itertools.count()

        def uniform() -> np.ndarray:
            return _unit(mix(key ^ salt(f"person {next(draws)}", seed)))

        target = np.clip(MEDIAN_TOKENS * np.exp(SPREAD * ndtri(uniform())), FEWEST, MOST).astype(np.int64)
        chosen = [np.searchsorted(speakers.share, uniform()) for _ in range(SPEAKERS_PER_PERSON)]
        weights = np.cumsum([-np.log(uniform()) for _ in range(SPEAKERS_PER_PERSON)], axis=0)
        return cls(
            key=key,
            target=target,
            speakers=np.minimum(np.stack(chosen, 1), len(speakers.share) - 1),
            mixture=(weights / weights[-1]).T,
            loyalty=(0.2 + 0.7 * uniform()).astype(np.float32),
            habit=(0.9 * uniform()).astype(np.float32),
        )


def speak(speakers: Speakers, people: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """What these people (numbers) say: all words end to end, framed, and the number of words of each person.

    A person's text follows from the seed and the person's number, whoever else is asked for.
    """
    crowd = _People.of(people, speakers, seed)
    said = np.zeros((len(people), int(crowd.target.max(initial=0)) + LONGEST_LAST_SPEECH), np.int32)
    length = np.zeros(len(people), np.int64)
    active = np.arange(len(people))
    place = np.full(len(people), -1, np.int64)  # -1: about to begin a speech
    speaker = np.zeros(len(people), np.int64)
    for step in range(said.shape[1]):
        key = crowd.key[active] + _GOLDEN * np.arange(2 * step, 2 * step + 2, dtype=np.uint64)[:, None]
        first, second = mix(key)
        now = np.empty(len(active), np.int64)
        begin = place < 0
        now[begin], speaker[begin] = _begin(speakers, crowd, active[begin], first[begin], second[begin])
        go_on = ~begin
        now[go_on] = _next(speakers, crowd, active[go_on], place[go_on], speaker[go_on], first[go_on], second[go_on])
        beyond = step + 1 - crowd.target[active]
        word = np.where(beyond < LONGEST_LAST_SPEECH, speakers.words[now], 1)
        said[active, step] = word
        ended = word == 1
        done = ended & (beyond >= 0)
        length[active[done]] = step + 1
        place = np.where(ended, -1, now)
        if done.any():
            active, place, speaker = active[~done], place[~done], speaker[~done]
            if not len(active):
                break
    return said[np.arange(said.shape[1]) < length[:, None]], length


def _begin(
    speakers: Speakers, crowd: _People, who: np.ndarray, first: np.ndarray, second: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The place of a speech's beginning, and whose speech is imitated."""
    slot = (_unit(first)[:, None] > crowd.mixture[who]).sum(1)
    speaker = crowd.speakers[who, np.minimum(slot, SPEAKERS_PER_PERSON - 1)]
    start = speakers.first_speech[speaker]
    count = speakers.first_speech[speaker + 1] - start
    return speakers.speeches[start + _pick(second >> _HALF, count)], speaker


def _next(
    speakers: Speakers,
    crowd: _People,
    who: np.ndarray,
    place: np.ndarray,
    speaker: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
) -> np.ndarray:
    """The place of the next word."""
    loyalty = crowd.loyalty[who]
    chance = ((second >> np.uint64(40)).astype(np.float32)) * np.float32(2.0**-24)
    start = np.full(len(place), speakers.anywhere[0], np.int64)
    size = np.full(len(place), speakers.anywhere[1], np.int64)
    passed = np.zeros(len(place), np.float32)
    open_ = np.ones(len(place), bool)
    for own, everybody in speakers.orders:
        number = everybody.number[place]
        several = len(everybody.start)
        key = speaker * several + number
        row = np.minimum(np.searchsorted(own.keys, key), len(own.keys) - 1)
        known = own.keys[row] == key
        for contexts, group, trust in (
            (own, row, np.where(known, own.trust[row] * loyalty, np.float32(0))),
            (everybody, number, everybody.trust[number]),
        ):
            passed += (1 - passed) * trust
            here = open_ & (chance < passed)
            start[here], size[here] = contexts.start[group[here]], contexts.size[group[here]]
            open_ &= ~here
    one, other = (
        speakers.places[start + _pick(bits, size)] + 1 for bits in (first >> _HALF, first & np.uint64(0xFFFFFFFF))
    )
    likes = crowd.key[who]
    leaning = ((second & np.uint64(0xFFFF)).astype(np.float32)) * np.float32(2.0**-16) < crowd.habit[who]
    better = mix(likes ^ speakers.words[other].astype(np.uint64)) > mix(likes ^ speakers.words[one].astype(np.uint64))
    return np.where(leaning & better, other, one)


def _pick(bits: np.ndarray, count: np.ndarray) -> np.ndarray:
    """A number below `count`, from 32 random bits."""
    return ((bits * count.astype(np.uint64)) >> _HALF).astype(np.int64)


def _unit(numbers: np.ndarray) -> np.ndarray:
    """64-bit numbers as fractions strictly between 0 and 1."""
    return ((numbers >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
