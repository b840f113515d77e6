"""TensorBoard's event files, read back by the letter of their format, and Weights & Biases without Weights & Biases."""

import struct
import sys
import types

import numpy as np
import pytest

from reticent.errors import Refused
from reticent.training.trackers import TensorBoard, WeightsAndBiases, _checksum

START = {"name": "run", "rounds": 2, "directory": "/somewhere"}
ROUND = {"kind": "round", "round": 0, "rounds": 1, "seconds": 0.5, "epsilon": None, "clients_per_second": 24.0}
EVALUATION = {"kind": "evaluation", "round": 299, "rounds": 300, "top1": 0.25, "users": 7}


def varint(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place


def fields(content: bytes) -> list[tuple[int, object]]:
    """A protocol buffer's fields, by number."""
    found, place = [], 0
    while place < len(content):
        key, place = varint(content, place)
        if key & 7 == 0:
            value, place = varint(content, place)
        else:
            size = {1: 8, 5: 4}.get(key & 7)
            if size is None:
                size, place = varint(content, place)
            value, place = content[place : place + size], place + size
        found.append((key >> 3, value))
    return found


def events(path) -> list[dict]:
    content, place, found = path.read_bytes(), 0, []
    while place < len(content):
        (length,) = struct.unpack_from("<Q", content, place)
        assert content[place + 8 : place + 12] == _checksum(content[place : place + 8])
        event = content[place + 12 : place + 12 + length]
        assert content[place + 12 + length : place + 16 + length] == _checksum(event)
        found.append(dict(fields(event)))
        place += 16 + length
    return found


def test_the_checksum_is_the_masked_one_of_tfrecords():
    # RFC 3720, B.4: the CRC-32C of 32 bytes of zeros is 0x8a9136aa.
    crc = 0x8A9136AA
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert _checksum(bytes(32)) == struct.pack("<I", masked)


def test_tensorboard_reads_what_metrics_get(tmp_path):
    board = TensorBoard(tmp_path / "logs")
    board.on_start(START)
    board.on_round(ROUND)
    board.on_evaluation(EVALUATION)
    board.close()
    (path,) = (tmp_path / "logs").iterdir()
    first, *rest = events(path)
    assert first[3] == b"brain.Event:2"
    told = []
    for event in rest:
        for _, value in fields(event[5]):
            scalar = dict(fields(value))
            told.append((event[2], scalar[1].decode(), struct.unpack("<f", scalar[2])[0]))
    assert told == [
        (1, "round/seconds", 0.5),
        (1, "round/clients_per_second", 24.0),
        (300, "evaluation/top1", 0.25),
        (300, "evaluation/users", 7.0),
    ]


def test_weights_and_biases_gets_the_same(monkeypatch):
    logged = []
    run = types.SimpleNamespace(
        log=lambda values, step: logged.append((step, values)), finish=lambda: logged.append("end")
    )
    module = types.SimpleNamespace(init=lambda **given: logged.append(given) or run)
    monkeypatch.setitem(sys.modules, "wandb", module)
    tracker = WeightsAndBiases("project")
    tracker.on_start(START)
    tracker.on_evaluation(EVALUATION)
    tracker.close()
    tracker.close()
    assert logged == [
        {"project": "project", "name": "run", "config": {"name": "run", "rounds": 2}},
        (300, {"evaluation/top1": 0.25, "evaluation/users": 7.0}),
        "end",
    ]


def test_without_weights_and_biases_it_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(Refused, match="pip install wandb"):
        WeightsAndBiases("project")


def test_head_words_are_counted_as_by_hand(people_store):
    import jax
    import jax.numpy as jnp

    from reticent.models import language_model
    from reticent.training.evaluation import held_out
    from reticent.training.head_words import head_words

    people = held_out(people_store, 5, 6)
    scores = np.random.default_rng(0).normal(size=(40, 40)).astype(np.float32)
    model = language_model(lambda key: jnp.asarray(scores), lambda params, tokens: params[tokens], vocabulary=40)
    found = head_words(model, model.init(jax.random.key(0)), people)
    tokens = np.concatenate(list(people.rows()))
    targets = tokens[:, 1:][tokens[:, 1:] >= 0]
    counts = np.bincount(targets, minlength=40)[4:]
    commonest = 4 + np.argsort(-counts, kind="stable")
    for head in (10, 50, 100):
        inside = np.zeros(11, int)
        for row in tokens:
            for before, target in zip(np.maximum(row[:-1], 0), row[1:], strict=True):
                if target >= 0:
                    likely = [word for word in np.argsort(-scores[before]) if word not in (0, 1, 3)][:10]
                    inside[len(set(likely) & set(commonest[:head].tolist()))] += 1
        assert found[head] == inside.tolist()
    assert found[100] != found[10]
