import numpy as np
import pytest

from reticent.data.store import Store, StoreWriter
from reticent.data.tokenizers import WordTokenizer

WORDS = [f"w{index}" for index in range(50)]


@pytest.fixture
def tokenizer():
    return WordTokenizer(WORDS)


@pytest.fixture
def people():
    """Users with framed examples: one word, many examples, a long one, ids that differ in case or are not ASCII."""
    generator = np.random.default_rng(0)

    def example(length):
        return np.concatenate([[1], generator.integers(3, 54, length), [2]])

    made = {"one": [example(1)], "Ann": [example(5)], "ann": [example(7), example(2)], "žofie": [example(100)]}
    made |= {
        f"user-{index}": [example(int(n)) for n in generator.integers(1, 30, index % 9 + 1)] for index in range(60)
    }
    return made


@pytest.fixture
def store(tmp_path, tokenizer, people):
    with StoreWriter(tmp_path / "store", tokenizer, about={"made": "here"}) as writer:
        for user, examples in people.items():
            writer.add_user(user, examples)
    return Store.open(tmp_path / "store")
