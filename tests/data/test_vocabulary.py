import collections
import contextlib
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from reticent.data import vocabulary
from reticent.data.importing import import_store
from reticent.data.sources import Source
from reticent.data.store import Store
from reticent.data.tokenizers import WordTokenizer
from reticent.data.vocabulary import UNIT, discover, discovery_threshold, leaking_tokenizer, secure_normals
from reticent.errors import Refused


def test_normals_are_standard_and_differ():
    draws = secure_normals(200_001)
    assert len(draws) == 200_001
    assert stats.kstest(draws, "norm").pvalue > 1e-6
    assert abs(np.corrcoef(draws[:100_000], draws[100_001:])[0, 1]) < 0.02
    assert not np.array_equal(secure_normals(10), secure_normals(10))


def test_normals_reach_nine_sigma(monkeypatch):
    monkeypatch.setattr(vocabulary.os, "urandom", lambda size: bytes(size))
    assert 9 < secure_normals(1)[0] < 10


@pytest.mark.parametrize(("sigma", "delta", "most"), [(3.0, 1e-10, 100), (0.7, 1e-5, 1), (10.0, 1e-3, 400)])
def test_the_threshold_gives_delta_and_no_less(sigma, delta, most):
    threshold = discovery_threshold(sigma, delta, most)

    def chance(limit):
        # 1 - Phi(...)^t for every t, with mpmath-free care for small tails.
        return max(
            -math.expm1(t * math.log1p(-stats.norm.sf((limit - 1 / math.sqrt(t)) / sigma))) for t in range(1, most + 1)
        )

    assert chance(threshold) == pytest.approx(delta, rel=1e-6)
    assert chance(threshold - 0.01 * sigma) > delta


@pytest.fixture
def quick_sums(monkeypatch):
    """The sums without a database, for tests that need many releases."""

    def summed(weighted):
        total = collections.Counter()
        for words, weight in weighted:
            total.update(dict.fromkeys(words, weight))
        yield list(total), np.array(list(total.values()))

    monkeypatch.setattr(vocabulary, "_sums", summed)


def times_released(users, trials, **options):
    released = 0
    for _ in range(trials):
        with contextlib.suppress(Refused):
            released += bool(discover(users, **options).words)
    return released


@pytest.mark.parametrize("words", [1, 5])
def test_one_user_alone_is_released_as_seldom_as_promised(quick_sums, words):
    # The worst case, in the open: a database of one user, of whom any word appears with probability delta at most.
    delta, trials = 0.2, 3000
    user = [f"w{index}" for index in range(words)]
    released = times_released([user], trials, rho=0.5, delta=delta, words_per_user=words)
    assert stats.binomtest(released, trials, delta, alternative="greater").pvalue > 1e-6
    if words == 1:
        assert stats.binomtest(released, trials, delta).pvalue > 1e-6


@pytest.mark.parametrize("words", [1, 2, 3, 7, 50, 99])
def test_one_user_changes_sums_by_a_norm_of_one(words):
    # Removing any user from any database: exact sums before the noise.
    others = [["a", "b"], ["b", "c", "d"], [f"v{index}" for index in range(40)]]
    user = [f"v{index}" for index in range(words)]
    before, after = sums(others), sums([*others, user])
    difference = [after[word] - before.get(word, 0) for word in after]
    assert all(change >= 0 for change in difference)
    norm = math.sqrt(sum(change**2 for change in difference)) / UNIT
    assert 0.999 < norm <= 1


def sums(users, cap=1000):
    return {
        word: int(total)
        for words, totals in vocabulary._sums(vocabulary._weights(users, cap))
        for word, total in zip(words, totals, strict=True)
    }


def test_a_shared_word_is_released_as_the_exact_gaussian_says(quick_sums):
    rho, trials = 2.0, 3000
    sigma = 1 / math.sqrt(2 * rho)
    threshold = discovery_threshold(sigma, 1e-9, 1)
    for count in (3, 4, 5):
        released = times_released([["x"]] * count, trials, rho=rho, delta=1e-9, words_per_user=1)
        assert stats.binomtest(released, trials, stats.norm.sf((threshold - count) / sigma)).pvalue > 1e-6


def test_words_are_bounded_and_distinct():
    weighted = list(vocabulary._weights([["a"] * 50 + ["b"], [f"w{index}" for index in range(1000)], []], 10))
    assert [len(words) for words, _ in weighted] == [2, 10]
    assert len(set(weighted[1][0])) == 10
    assert weighted[1][1] == int(UNIT / math.sqrt(10))
    chosen = {tuple(words) for _ in range(5) for words, _ in vocabulary._weights([map(str, range(1000))], 10)}
    assert len(chosen) == 5


def test_frequent_words_are_found_and_rare_ones_are_not():
    users = [["the", "of", f"secret{index}", *(["rare"] if index < 3 else [])] for index in range(3000)]
    found = discover(users, rho=0.5, delta=1e-9, words_per_user=4, size=100)
    assert set(found.words) == {"the", "of"}
    guarantee = found.guarantee
    assert (guarantee["rho"], guarantee["delta"], guarantee["unit"]) == (0.5, 1e-9, "user")
    assert guarantee["noise_multiplier"] == pytest.approx(1.0)
    ranked = [[word for place, word in enumerate("abcdefgh") if place <= index % 8] for index in range(8000)]
    assert discover(ranked, rho=1, delta=1e-9, words_per_user=8, size=3).words == ["a", "b", "c"]


def test_refusals():
    for options in ({"rho": 0}, {"rho": math.inf}, {"delta": 0}, {"delta": 1}, {"words_per_user": 0}, {"size": 0}):
        with pytest.raises(Refused, match="Discovery needs"):
            discover([["a"]], **{"rho": 1, "delta": 1e-6, **options})
    with pytest.raises(Refused, match=r"This attempt was a release: it cost rho 0\.1 and delta 1e-10"):
        discover([["a"]] * 3, rho=0.1, delta=1e-10)


def test_the_leak_is_exact_and_labelled():
    texts = [(["u1", "u1", "u2"], ["the cat the", "the dog", "the dog a"])]
    tokenizer = leaking_tokenizer(lambda: iter(texts), "words", 3)
    assert tokenizer.words == ("dog", "the", "a")
    assert tokenizer.origin["source"] == "leak"
    assert "without privacy" in tokenizer.origin["meaning"]


def write(path, users=400):
    lines = [f"user{index},the cat sat on mat{index % 3}" for index in range(users)]
    path.write_text("user,text\n" + "\n".join(lines) + "\n")


def test_the_store_keeps_the_guarantee(tmp_path):
    write(tmp_path / "a.csv")
    made, recipe = vocabulary.choose(
        tokenizer=None,
        vocabulary=None,
        discover={"rho": 5.0, "delta": 1e-6, "words_per_user": 5},
        leak=False,
        size=1000,
        split="words",
    )
    import_store(Source(str(tmp_path / "a.csv"), "user", "text"), tmp_path / "store", made, recipe=recipe)
    store = Store.open(tmp_path / "store")
    origin = store.header["vocabulary"]
    assert origin["source"] == "private discovery"
    assert (origin["guarantee"]["rho"], origin["guarantee"]["delta"]) == (5.0, 1e-6)
    assert store.tokenizer().origin == origin
    assert {"the", "cat", "sat", "on"} <= set(store.tokenizer().words)
    # Another store encoded with this one's tokenizer owes the same guarantee.
    again, _ = vocabulary.choose(
        tokenizer=tmp_path / "store", vocabulary=None, discover=None, leak=False, size=10, split="words"
    )
    assert again.origin == origin


def test_a_resumed_import_does_not_discover_twice(tmp_path, monkeypatch):
    from reticent.data import importing

    write(tmp_path / "a.csv")
    made = []

    def make(texts):
        made.append(sum(len(users) for users, _ in texts()))
        return WordTokenizer(["the", f"draw{len(made)}"])

    def interrupt(*arguments):
        raise KeyboardInterrupt

    def run(recipe):
        import_store(Source(str(tmp_path / "a.csv"), "user", "text"), tmp_path / "store", make, recipe=recipe)

    with monkeypatch.context() as patch:
        patch.setattr(importing, "_encode", interrupt)
        for recipe in ("one", "one", "two", "two"):
            with pytest.raises(KeyboardInterrupt):
                run(recipe)
    run("two")
    assert made == [400, 400]
    assert Store.open(tmp_path / "store").tokenizer().words == ("the", "draw2")


def test_exactly_one_source_of_words(tmp_path):
    given = {"tokenizer": tmp_path, "vocabulary": tmp_path, "discover": {}, "leak": True}
    for chosen in itertools.chain([()], itertools.combinations(given, 2)):
        options = {name: value if name in chosen else ({"leak": False}.get(name)) for name, value in given.items()}
        with pytest.raises(Refused, match="--discover"):
            vocabulary.choose(**options, size=10, split="words")
