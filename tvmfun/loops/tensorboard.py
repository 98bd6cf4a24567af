"""Logs that TensorBoard shows: scalars as protobuf messages in TFRecord files."""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np

from tvmfun.errors import ArgumentError, DtypeError
from tvmfun.loops.logs import Log, scalar

__all__ = ["TensorBoardWriter"]


class TensorBoardWriter(Log):
    """Writes scalars for TensorBoard. Each writer makes a new file in the folder, as TensorBoard expects.

    Rows have a ``step``; their numbers are curves over it. Writing does not need TensorBoard.

    Args:
        folder: the folder of the run, created if it does not exist.
        every: write only rows whose ``"step"`` is a multiple of this.

    Raises:
        ArgumentError: if ``every`` is not positive.

    Source: TensorFlow's ``event.proto``, ``summary.proto`` and TFRecord files, of which this writes the three messages
    that scalars need.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, TensorBoardWriter(folder) as log:
    ...     log.write({"step": 1, "loss/train": 0.5})
    ...     log.path.name.startswith("events.out.tfevents.")
    True
    """

    def __init__(self, folder: str | os.PathLike[str], *, every: int = 1) -> None:
        name = (
            f"events.out.tfevents.{time.time_ns() // 10**9:010d}.{socket.gethostname()}.{os.getpid()}.{time.time_ns()}"
        )
        super().__init__(Path(folder) / name, every)
        self._append(_event(None, _field(3, b"brain.Event:2")))

    def _write(self, row: dict[str, Any]) -> None:
        step = row.pop("step", None)
        if not isinstance(step, int):
            raise ArgumentError(self._where, "a row must have an integer step", got=repr(step))
        values = b""
        for name, value in row.items():
            number = scalar(self._where, name, value)
            if not isinstance(number, int | float):
                raise DtypeError(self._where, f"{name} must be a number", got=repr(number), hint="a JSONLLogger")
            with np.errstate(over="ignore"):
                simple_value = b"\x15" + np.float32(number).tobytes()
            values += _field(1, _field(1, name.encode()) + simple_value)
        self._append(_event(step, _field(5, values)))


def _event(step: int | None, content: bytes) -> bytes:
    """A protobuf Event as a TFRecord; its field 1 is the time, field 2 the step."""
    number = b"" if step is None else b"\x10" + _varint(step % 2**64)
    event = b"\x09" + struct.pack("<d", time.time()) + number + content
    length = struct.pack("<Q", len(event))
    return length + _masked_crc(length) + event + _masked_crc(event)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


def _crc_table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [value >> 1 ^ (0x82F63B78 if value & 1 else 0) for value in table]
    return table


_CRC_TABLE = _crc_table()


def _masked_crc(data: bytes) -> bytes:
    """The masked CRC-32C of a TFRecord."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
