import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.data.columns import COLUMNS
from reticent.data.store import Store, StoreWriter
from reticent.data.tokenizers import WordTokenizer
from reticent.data.writer import partial_path
from reticent.errors import Refused


def same(found, expected):
    return len(found) == len(expected) and all(map(np.array_equal, found, expected))


def test_what_was_written_is_read(store, people):
    assert store.users == len(people)
    assert list(store.user_ids) == list(people)
    for index, (user, examples) in enumerate(people.items()):
        assert store.index(user) == index
        assert store.user_ids[index] == user
        assert same(store.examples(index), examples)
    assert store.examples_per_user.tolist() == [len(examples) for examples in people.values()]
    assert store.tokens_per_user.tolist() == [sum(map(len, examples)) for examples in people.values()]
    assert store.header["about"] == {"made": "here"}
    assert store.header["tokens"] == sum(len(example) for examples in people.values() for example in examples)
    store.verify()


def test_views_are_not_copies_and_cannot_be_written(store):
    example = store.examples(3)[0]
    assert not example.flags.writeable
    assert not example.flags.owndata
    assert np.shares_memory(example, store._columns["tokens"].data)


def test_caps_on_reading(store, people):
    index = list(people).index("user-8")
    examples = people["user-8"]
    assert same(store.examples(index, max_examples=2), examples[:2])
    capped = store.examples(index, max_tokens=len(examples[0]) + 2)
    assert same(capped, [examples[0], examples[1][:2]])


def test_ids_are_exact(store):
    assert store.index("Ann") != store.index("ann")
    assert "ANN" not in store.user_ids
    with pytest.raises(Refused, match="no user 'ANN'"):
        store.index("ANN")


ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
token_lists = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=4)


@settings(deadline=None, max_examples=25)
@given(people=st.dictionaries(ids, token_lists, min_size=1, max_size=20))
def test_any_people_survive(people, tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / "store"
    with StoreWriter(path, WordTokenizer("abcdef")) as writer:
        for user, examples in people.items():
            writer.add_user(user, [np.array(example) for example in examples])
    store = Store.open(path)
    assert {
        user: [example.tolist() for example in store.examples(store.index(user))] for user in store.user_ids
    } == people
    shutil.rmtree(path)


def test_bulk_and_single_give_the_same_store(tmp_path, tokenizer, people, store):
    with StoreWriter(tmp_path / "bulk", tokenizer, about={"made": "here"}) as writer:
        flat = [example for examples in people.values() for example in examples]
        counts = np.array([len(examples) for examples in people.values()])
        writer.add_users(list(people), counts, np.array([len(example) for example in flat]), np.concatenate(flat))
    assert Store.open(tmp_path / "bulk").digest == store.digest


@pytest.mark.parametrize(
    ("user", "examples", "message"),
    [
        ("a", [], "no example"),
        ("a", [[]], "without a token"),
        ("a", [[54]], "token id is 54"),
        ("a", [[-1]], "token id is -1"),
        ("", [[1]], "empty"),
        ("\ud800", [[1]], "not valid Unicode"),
    ],
)
def test_bad_users_are_refused_and_leave_nothing(tmp_path, tokenizer, user, examples, message):
    with pytest.raises(Refused, match=message), StoreWriter(tmp_path / "store", tokenizer) as writer:
        writer.add_user(user, [np.array(example, int) for example in examples])
    assert list(tmp_path.iterdir()) == []


def test_a_user_twice_is_refused(tmp_path, tokenizer):
    writer = StoreWriter(tmp_path / "store", tokenizer)
    writer.__enter__()
    for user in ("a", "b", "a"):
        writer.add_user(user, [np.array([1])])
    with pytest.raises(Refused, match="'a' was added twice"):
        writer.__exit__(None, None, None)
    assert list(tmp_path.iterdir()) == []


def test_no_users_is_refused(tmp_path, tokenizer):
    with pytest.raises(Refused, match="no user"), StoreWriter(tmp_path / "store", tokenizer):
        pass


def test_an_existing_store_is_not_overwritten(store, tokenizer):
    with pytest.raises(Refused, match="exists"), StoreWriter(store.path, tokenizer):
        pass
    store.verify()


def test_two_writers_of_one_store(tmp_path, tokenizer):
    with StoreWriter(tmp_path / "store", tokenizer) as writer:
        with pytest.raises(Refused, match="Another program"), StoreWriter(tmp_path / "store", tokenizer):
            pass
        writer.add_user("a", [np.array([1])])
    assert Store.open(tmp_path / "store").users == 1


@pytest.mark.parametrize("column", [*COLUMNS, "checksums"])
def test_truncation_is_found_on_opening(store, column):
    path = store.path / f"{column}.bin"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(Refused, match=f"{column}.bin"):
        Store.open(store.path)
    path.unlink()
    with pytest.raises(Refused, match=f"{column}.bin is missing"):
        Store.open(store.path)


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("column", list(COLUMNS))
@pytest.mark.parametrize("place", [0, -1])
def test_a_flipped_bit_is_found_by_verify(store, column, place):
    flip(store.path / f"{column}.bin", place)
    opened = Store.open(store.path)
    with pytest.raises(Refused, match=f"{column}.bin is damaged"):
        opened.verify()


def test_a_flipped_bit_is_found_at_first_use(store):
    flip(store.path / "tokens.bin", 0)
    opened = Store.open(store.path)
    with pytest.raises(Refused, match=r"tokens\.bin is damaged"):
        opened.examples(0)
    flip(store.path / "id_hashes.bin", 0)
    with pytest.raises(Refused, match=r"id_hashes\.bin is damaged"):
        Store.open(store.path).index("ann")


def test_only_the_damaged_page_is_refused(tmp_path, tokenizer):
    with StoreWriter(tmp_path / "store", tokenizer) as writer:
        for user in range(100):
            writer.add_user(str(user), [np.full(1000, user % 50)])
    flip(tmp_path / "store" / "tokens.bin", 150_001)
    opened = Store.open(tmp_path / "store")
    assert opened.examples(0)[0].tolist() == [0] * 1000
    with pytest.raises(Refused, match=r"tokens\.bin is damaged"):
        opened.examples(75)


def json_or_none(content):
    try:
        return json.loads(content)
    except ValueError:
        return None


def test_every_flip_of_the_header_is_found(store):
    path = store.path / "header.json"
    content = path.read_bytes()
    generator = np.random.default_rng(0)
    for place in generator.integers(len(content), size=300).tolist():
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(generator.integers(8))
        path.write_bytes(damaged)
        # Space between things may change; nothing else.
        if json_or_none(damaged) != store.header:
            with pytest.raises(Refused, match=r"header\.json"):
                Store.open(store.path)
    path.write_bytes(content)
    Store.open(store.path).verify()


def test_checksums_and_tokenizer_are_checked(store):
    flip(store.path / "tokenizer.json", 40)
    with pytest.raises(Refused, match=r"tokenizer\.json is damaged"):
        store.tokenizer()
    flip(store.path / "checksums.bin", 3)
    with pytest.raises(Refused, match=r"checksums\.bin is damaged"):
        Store.open(store.path)


def test_another_tokenizer_does_not_match(store, tokenizer):
    store.check_tokenizer(tokenizer)
    with pytest.raises(Refused, match="does not match"):
        store.check_tokenizer(WordTokenizer(["other"]))
    (store.path / "tokenizer.json").write_bytes(WordTokenizer(["other"]).to_bytes())
    with pytest.raises(Refused, match="not the tokenizer that this store was made with"):
        store.tokenizer()


def test_what_is_no_store(tmp_path, store):
    with pytest.raises(Refused, match="no store"):
        Store.open(tmp_path / "nothing")
    header = json.loads((store.path / "header.json").read_bytes())
    (store.path / "header.json").write_text(json.dumps({**header, "version": 99}))
    with pytest.raises(Refused, match="version 99"):
        Store.open(store.path)
    partial_path(tmp_path / "half").mkdir()
    with pytest.raises(Refused, match="not finished"):
        Store.open(tmp_path / "half")


def test_an_interrupted_writer_resumes(tmp_path, tokenizer, people, store):
    def write(path, resume, stop=None):
        with StoreWriter(path, tokenizer, about={"made": "here"}, resume=resume) as writer:
            begun = writer.users
            for index, (user, examples) in enumerate(people.items()):
                if index < begun:
                    continue
                if index == stop:
                    raise KeyboardInterrupt
                writer.add_user(user, examples)
                if index % 7 == 0:
                    writer.checkpoint()
        return begun

    path = tmp_path / "resumed"
    with pytest.raises(KeyboardInterrupt):
        write(path, "key", stop=30)
    assert not path.exists()
    with pytest.raises(KeyboardInterrupt):
        write(path, "key", stop=45)
    assert write(path, "key") == 43
    assert Store.open(path).digest == store.digest
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "again", "key", stop=30)
    assert write(tmp_path / "again", "another key") == 0
    assert Store.open(tmp_path / "again").digest == store.digest


def test_a_killed_writer_leaves_no_store(tmp_path):
    code = (
        "import os, sys, numpy as np; from reticent.data.store import StoreWriter;"
        "from reticent.data.tokenizers import WordTokenizer\n"
        "with StoreWriter(sys.argv[1], WordTokenizer(['a']), resume='k') as writer:\n"
        "    for user in range(1000): writer.add_user(str(user), [np.array([1, 4, 2])])\n"
        "    writer.checkpoint(); writer.add_user('last', [np.array([1, 2])]); os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "store")], check=False, env={**os.environ})
    assert done.returncode == -9
    with pytest.raises(Refused, match="not finished"):
        Store.open(tmp_path / "store")
    with StoreWriter(tmp_path / "store", WordTokenizer(["a"]), resume="k") as writer:
        assert writer.users == 1000
    assert Store.open(tmp_path / "store").users == 1000
