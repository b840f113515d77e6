"""Runs in TensorBoard and Weights & Biases: what `metrics.jsonl` gets, and nothing else, through the callback protocol."""

import os
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reticent.errors import Refused
from reticent.training.events import Callback, Record

LEFT_OUT = {"round", "rounds", "kind"}


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """What can be drawn of a record."""
    return {
        name: float(value)
        for name, value in record.items()
        if name not in LEFT_OUT and isinstance(value, (int, float)) and not isinstance(value, bool)
    }


class TensorBoard(Callback):
    """Writes an event file into a folder; `tensorboard --logdir` reads it. Needs nothing to be installed."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._file: Any = None

    def on_start(self, facts: Record) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() // 10**9}.{os.getpid()}.reticent"
        self._file = (self.folder / name).open("ab")
        self._write(_field(3, b"brain.Event:2"))

    def on_round(self, record: Record) -> None:
        self._scalars("round", record)

    def on_evaluation(self, record: Record) -> None:
        self._scalars("evaluation", record)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _scalars(self, group: str, record: Record) -> None:
        values = b"".join(
            _field(1, _field(1, f"{group}/{name}".encode()) + b"\x15" + struct.pack("<f", value))
            for name, value in numbers(record).items()
        )
        self._write(b"\x10" + _varint(record["rounds"]) + _field(5, values))

    def _write(self, rest: bytes) -> None:
        # An Event of tensorboard's event.proto, as a TFRecord: its length, the event, and a checksum of each.
        event = b"\x09" + struct.pack("<d", time.time()) + rest
        length = struct.pack("<Q", len(event))
        self._file.write(length + _checksum(length) + event + _checksum(event))
        self._file.flush()


class WeightsAndBiases(Callback):
    """Sends a run to Weights & Biases; refuses where `wandb` is not installed."""

    def __init__(self, project: str) -> None:
        try:
            import wandb
        except ImportError:
            raise Refused("Weights & Biases is not installed here; pip install wandb, or leave --wandb out.") from None
        self._wandb, self.project, self._run = wandb, project, None

    def on_start(self, facts: Record) -> None:
        told = {name: value for name, value in facts.items() if name != "directory"}
        self._run = self._wandb.init(project=self.project, name=facts["name"], config=told)

    def on_round(self, record: Record) -> None:
        self._log("round", record)

    def on_evaluation(self, record: Record) -> None:
        self._log("evaluation", record)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None

    def _log(self, group: str, record: Record) -> None:
        assert self._run is not None
        self._run.log({f"{group}/{name}": value for name, value in numbers(record).items()}, step=record["rounds"])


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes of a protocol buffer."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def _table() -> Iterator[int]:
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        yield byte


TABLE = tuple(_table())


def _checksum(content: bytes) -> bytes:
    """The CRC-32C of TFRecords, turned and shifted as they have it."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
