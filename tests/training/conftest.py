from pathlib import Path

import numpy as np
import pytest

from reticent.data.store import Store, StoreWriter
from reticent.data.tokenizers import WordTokenizer

WORDS = [f"word{number}" for number in range(36)]


def write_people(path: Path, users: int = 60, seed: int = 0) -> Path:
    """A store of people who each repeat a few of 36 words, so that there is something to learn."""
    generator = np.random.default_rng(seed)
    tokenizer = WordTokenizer(WORDS, origin={"source": "given"})
    with StoreWriter(path, tokenizer) as writer:
        for user in range(users):
            start = generator.integers(0, 36)
            examples = []
            for _ in range(int(generator.integers(1, 7))):
                length = int(generator.integers(2, 11))
                inner = 4 + (start + np.arange(length) * (1 + user % 3)) % 36
                examples.append(np.array([1, *inner, 2], np.int32))
            writer.add_user(f"person {user}", examples)
    return path


@pytest.fixture(scope="session")
def people_store(tmp_path_factory) -> Store:
    return Store.open(write_people(tmp_path_factory.mktemp("people") / "store"))


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory):
    """The same small computations are compiled again and again: kept on disk for the session and all its processes."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.getbasetemp().parent / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    yield
    jax.config.update("jax_compilation_cache_dir", None)


@pytest.fixture(scope="module", autouse=True)
def without_pictures():
    """Reports without their plots, which take longer than these runs; tests/report draws them."""
    from reticent.report import page

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "figures", lambda *_: [])
        yield
