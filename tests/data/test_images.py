"""Images as stores: what is read back is what was in the files, and files that are none are refused."""

import gzip

import numpy as np
import pytest

from reticent.data.images import FIRST, make_cifar10, make_digits
from reticent.data.store import Store
from reticent.errors import Refused


def write_digits(path, images=12):
    rows = np.random.default_rng(0).integers(0, 17, (images, 65))
    rows[:, -1] %= 10
    with gzip.open(path, "wt") as file:
        np.savetxt(file, rows, fmt="%d", delimiter=",")
    return rows


def test_digits_come_back_as_they_were(tmp_path):
    rows = write_digits(tmp_path / "digits.csv.gz")
    facts = make_digits(tmp_path / "store", source=tmp_path / "digits.csv.gz")
    store = Store.open(tmp_path / "store")
    assert (facts["images"], facts["sequence_length"], store.users) == (12, 64, 12)
    for image, row in enumerate(rows):
        (found,) = store.examples(image)
        np.testing.assert_array_equal(found, row + FIRST)


def test_cifar_is_read_from_a_folder(tmp_path):
    draw = np.random.default_rng(0)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    content = draw.integers(0, 256, (5, 3, 3073)).astype(np.uint8)
    content[..., 0] %= 10
    for number, rows in enumerate(content, start=1):
        rows.tofile(folder / f"data_batch_{number}.bin")
    assert make_cifar10(tmp_path / "store", tmp_path)["images"] == 15
    (found,) = Store.open(tmp_path / "store").examples(4)
    np.testing.assert_array_equal(found - FIRST, np.append(content[1, 1, 1:], content[1, 1, 0]))
    with pytest.raises(Refused, match="has no test_batch.bin"):
        make_cifar10(tmp_path / "test", tmp_path, part="test")
    (folder / "data_batch_3.bin").write_bytes(b"short")
    with pytest.raises(Refused, match="cut short"):
        make_cifar10(tmp_path / "again", tmp_path)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "digits.csv.gz").write_bytes(b"no")
    with pytest.raises(Refused, match=r"is not scikit-learn's digits\.csv\.gz"):
        make_digits(tmp_path / "store", source=tmp_path / "digits.csv.gz")
    with pytest.raises(Refused, match="has no data_batch_1.bin"):
        make_cifar10(tmp_path / "store", tmp_path)
