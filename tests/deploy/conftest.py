import shutil
import tempfile
from pathlib import Path

import pytest

from tests.training.conftest import compiled_once, without_pictures

__all__ = ["compiled_once", "without_pictures"]


@pytest.fixture
def tmp_path():
    """A folder in memory, where there is one: devices write through to the disk at every step, and a shared disk is slow."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="reticent-", dir=shared if shared.is_dir() else None))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def people_store(tmp_path_factory):
    from reticent.data.store import Store
    from tests.training.conftest import write_people

    return Store.open(write_people(tmp_path_factory.mktemp("people") / "store"))
