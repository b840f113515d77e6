"""Mechanisms survive their file, and a file that is none is one clear error."""

import json

import numpy as np
import pytest

from reticent.errors import Refused
from reticent.mechanisms import KINDS, Participation, load, make


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_survives_its_file(kind, tmp_path):
    mechanism = make(kind, Participation(12, 4))
    mechanism.save(tmp_path / "mechanism")
    again = load(tmp_path / "mechanism")
    assert type(again) is type(mechanism)
    assert again.digest == mechanism.digest
    np.testing.assert_array_equal(again.matrix(12), mechanism.matrix(12))


def good(tmp_path):
    path = tmp_path / "good.json"
    make("blt-100", Participation(12, 4)).save(path)
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"version": 2}, "version 2"),
        ({"format": "something"}, "not a mechanism file"),
        ({"kind": "cake"}, "no mechanism kind"),
        ({"parameters": {}}, "damaged"),
        ({"parameters": {"decays": [0.9], "scales": [2.0]}}, "increase"),
        ({"parameters": {"decays": ["x"], "scales": [1]}}, "could not convert|damaged"),
    ],
)
def test_a_foreign_file_is_one_clear_error(change, word, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(good(tmp_path) | change))
    with pytest.raises(Refused, match=word):
        load(path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"PK\x03\x04 not a zip", b"3"])
def test_a_corrupt_file_is_one_clear_error(content, tmp_path):
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(Refused, match="damaged|not a mechanism"):
        load(path)


def test_a_missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(Refused, match="optimize"):
        load(tmp_path / "none.json")
    with pytest.raises(Refused, match="does not exist"):
        make("tree", Participation(3)).save(tmp_path / "nowhere" / "file")


def test_digests_tell_mechanisms_apart():
    participation = Participation(12, 4)
    digests = {make(kind, participation).digest for kind in KINDS}
    assert len(digests) == len(KINDS)
