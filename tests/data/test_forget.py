import os
import subprocess
import sys

import numpy as np
import pytest

from reticent.data.forget import forget
from reticent.data.store import Store
from reticent.errors import Refused


@pytest.mark.parametrize("gone", [["one"], ["user-59"], ["ann"], ["one", "Ann", "ann"], ["user-3", "žofie", "user-59"]])
def test_everything_but_the_forgotten_stays(store, people, gone):
    result = forget(store.path, gone)
    left = {user: examples for user, examples in people.items() if user not in gone}
    opened = Store.open(store.path)
    opened.verify()
    assert list(opened.user_ids) == list(left)
    for index, (user, examples) in enumerate(left.items()):
        assert opened.index(user) == index
        assert all(map(np.array_equal, opened.examples(index), examples))
    assert result["users_left"] == opened.users == len(left)
    assert opened.header["forgotten"] == len(gone)
    assert opened.header["examples"] == sum(map(len, left.values()))
    assert opened.header["about"] == store.header["about"]
    opened.tokenizer()


def test_no_byte_of_the_forgotten_is_left_in_the_folder(tmp_path, tokenizer, store, people):
    forget(store.path, ["žofie"])
    for file in store.path.iterdir():
        content = file.read_bytes()
        assert "žofie".encode() not in content
        assert people["žofie"][0].astype("<u2").tobytes() not in content


def test_forgetting_again_and_again(store, people):
    for user in list(people)[:10]:
        forget(store.path, [user])
    opened = Store.open(store.path)
    assert list(opened.user_ids) == list(people)[10:]
    assert opened.header["forgotten"] == 10
    assert len(list(store.path.glob("*.bin"))) == 8


def test_unknown_users_and_all_users_are_refused(store, people):
    with pytest.raises(Refused, match="no user 'nobody'"):
        forget(store.path, ["ann", "nobody"])
    assert "ann" in Store.open(store.path).user_ids
    with pytest.raises(Refused, match="delete the store"):
        forget(store.path, list(people))
    assert Store.open(store.path).digest == store.digest


@pytest.mark.parametrize("crash", ["write_id_order", "write_store_files", "_remove_strangers"])
def test_a_crash_leaves_the_old_store_or_the_new(store, people, crash):
    # Killed at the call named; of `_remove_strangers` at the second, after the header has changed.
    code = f"""
import os, sys
from reticent.data import forget
real, calls = forget.{crash}, []
def die(*arguments):
    calls.append(1)
    if len(calls) > {1 if crash == "_remove_strangers" else 0}:
        os.kill(os.getpid(), 9)
    return real(*arguments)
forget.{crash} = die
forget.forget(sys.argv[1], ["ann"])
"""
    done = subprocess.run([sys.executable, "-c", code, str(store.path)], check=False, env={**os.environ})
    assert done.returncode == -9
    opened = Store.open(store.path)
    opened.verify()
    if crash == "_remove_strangers":
        assert "ann" not in opened.user_ids
        assert (store.path / "tokens.bin").exists()
        with pytest.raises(Refused, match="interrupted `forget` was completed"):
            forget(store.path, ["ann"])
    else:
        assert opened.digest == store.digest
        forget(store.path, ["ann"])
    opened = Store.open(store.path)
    opened.verify()
    assert opened.users == len(people) - 1
    assert len(list(store.path.glob("*.bin"))) == 8
