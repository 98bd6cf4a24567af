"""What training loops need besides the step: progress, logs, early stopping, evaluation. The loop stays the user's.

>>> import tempfile
>>> stopping = EarlyStopping(patience=2)
>>> with tempfile.TemporaryDirectory() as folder, CSVLogger(f"{folder}/log.csv") as log:
...     for epoch, loss in enumerate(progress([0.9, 0.5, 0.6, 0.7, 0.1], disable=True)):
...         log.write({"epoch": epoch, "loss": loss})
...         stopping = stopping.update(loss)
...         if stopping.should_stop:
...             break
...     print(Path(folder, "log.csv").read_text())
epoch,loss
0,0.9
1,0.5
2,0.6
3,0.7
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tvmfun import tree
from tvmfun.core.array import Array
from tvmfun.data.sources import positive
from tvmfun.errors import ArgumentError, DataError, DtypeError, ShapeError
from tvmfun.metrics import Mean
from tvmfun.names import missing as _missing

__all__ = ["CSVLogger", "EarlyStopping", "JSONLLogger", "Progress", "TensorBoardWriter", "evaluate", "progress"]


# -- progress ---


def progress(
    iterable: Iterable[Any], description: str = "", *, total: int | None = None, disable: bool = False
) -> Progress:
    """A progress bar around what a loop goes through; it disappears at the end of the loop.

    Args:
        iterable: what to go through.
        description: what stands before the bar.
        total: how many items there are, if ``len`` does not tell.
        disable: True for no bar; nothing is printed, and tqdm need not be installed.

    Raises:
        ModuleNotFoundError: if tqdm is not installed.

    >>> bar = progress([0.5, 0.25], disable=True)
    >>> for loss in bar:
    ...     bar.show(loss=loss)
    """
    if disable:
        return Progress(iterable, None)
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        message = "[progress] the bar needs tqdm. Try pip install tqdm, or disable=True."
        raise ModuleNotFoundError(message, name="tqdm") from None
    bar = tqdm(iterable, desc=description, total=total, leave=False)
    return Progress(bar, bar)


class Progress:
    """What :func:`progress` returns: the iterable, and what to show beside its bar."""

    _SECONDS = 0.5

    def __init__(self, iterable: Iterable[Any], bar: Any) -> None:
        self._iterable, self._bar = iterable, bar
        self._next = 0.0

    def __iter__(self) -> Iterator[Any]:
        return iter(self._iterable)

    def show(self, **values: Any) -> None:
        """Shows numbers beside the bar, at most twice a second: in between, arrays stay where they are."""
        if self._bar is None or time.monotonic() < self._next:
            return
        self._bar.set_postfix({name: f"{float(value):.4g}" for name, value in values.items()}, refresh=False)
        self._next = time.monotonic() + self._SECONDS


# -- logs ---


class _Log(ABC):
    """A file to which rows are appended, each of them as a whole."""

    def __init__(self, path: Any, every: int) -> None:
        self._where = type(self).__name__
        self._every = positive(self._where, "number of steps", every)
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self.path, "a+b")  # noqa: SIM115  # until close

    def _keep_whole_lines(self) -> bytes:
        """Cuts off the line that a killed process was writing; returns the first one."""
        self._file.seek(0)
        first = self._file.readline()
        end = size = self._file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 4096)
            self._file.seek(start)
            newline = self._file.read(end - start).rfind(b"\n")
            end = start + newline + 1 if newline >= 0 else start
            if newline >= 0:
                break
        if end < size:
            self._file.truncate(end)
        return first if end else b""

    def _append(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()

    def write(self, row: Mapping[str, Any]) -> None:
        """Writes a row, unless it is one of those between; of them not even the arrays are fetched.

        Args:
            row: numbers, bools, strings and arrays by name.

        Raises:
            ArgumentError: if the log is closed, or the row does not fit in it.
            DtypeError: if a value is none of these.
        """
        if self._file.closed:
            raise ArgumentError(self._where, "the log must be open", got=f"{self.path}, which was closed")
        if not row:
            raise ArgumentError(self._where, "a row must have values", got=repr(row))
        if self._every > 1:
            step = row.get("step")
            if not isinstance(step, int):
                what = f"a row must have an integer step to write those of every {self._every} steps"
                raise ArgumentError(self._where, what, got=repr(step))
            if step % self._every:
                return
        self._write({name: _value(self._where, name, value) for name, value in row.items()})

    @abstractmethod
    def _write(self, row: dict[str, Any]) -> None: ...

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


def _value(where: str, name: str, value: Any) -> Any:
    """A value as Python has it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Array):
        value = value.concrete(where).read(np.array)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        got = type(value).__name__
        raise DtypeError(where, f"{name} must be a number, a bool, a string or an array", got=got)
    return array.astype("float32").tolist() if array.dtype.name == "bfloat16" else array.tolist()


def _scalar(where: str, name: str, value: Any) -> Any:
    if isinstance(value, list):
        raise ShapeError(where, f"{name} must be one value", got="an array", hint="its mean, or a JSONLLogger")
    return value


class CSVLogger(_Log):
    """Appends rows to a file of comma-separated values. The first row ever written names the columns.

    An existing file is gone on with: there is no second header, and half a line that a killed process has left is
    removed. A row may lack columns, which stay empty, but has none that the first row had not. Each row reaches the
    file before ``write`` returns.

    Args:
        path: the name of the file.
        every: write only rows whose ``"step"`` is a multiple of this.

    Raises:
        ArgumentError: if ``every`` is not positive.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for resumed in (False, True):
    ...         with CSVLogger(f"{folder}/log.csv") as log:
    ...             log.write({"step": 2 if resumed else 1, "loss": np.float32(0.5)})
    ...     print(Path(folder, "log.csv").read_text())
    step,loss
    1,0.5
    2,0.5
    """

    def __init__(self, path: Any, *, every: int = 1) -> None:
        super().__init__(path, every)
        header = self._keep_whole_lines().decode()
        self._columns = next(csv.reader([header])) if header else []

    def _write(self, row: dict[str, Any]) -> None:
        names = self._columns or list(row)
        extra = [name for name in row if name not in names]
        if extra:
            what = f"the columns of {self.path} are {', '.join(names)}"
            raise ArgumentError(self._where, what, got=", ".join(extra), hint="a JSONLLogger, or another file")
        cells = [_scalar(self._where, name, row.get(name, "")) for name in names]
        for cell in (*names, *cells):
            if isinstance(cell, str) and ("\n" in cell or "\r" in cell):
                raise ArgumentError(self._where, "a cell must be within a line", got=repr(cell), hint="a JSONLLogger")
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not self._columns:
            writer.writerow(names)
        writer.writerow(cells)
        self._append(text.getvalue().encode())
        self._columns = names


class JSONLLogger(_Log):
    """Appends rows to a file of JSON objects, one in a line. Rows may have any names, and arrays become lists.

    An existing file is gone on with, as by :class:`CSVLogger`. JSON has no numbers that are not finite: they are
    written as the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, which ``float`` reads.

    Args:
        path: the name of the file.
        every: write only rows whose ``"step"`` is a multiple of this.

    Raises:
        ArgumentError: if ``every`` is not positive.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with JSONLLogger(f"{folder}/log.jsonl") as log:
    ...         log.write({"step": 1, "loss": math.inf, "counts": np.arange(2)})
    ...     print(Path(folder, "log.jsonl").read_text())
    {"step": 1, "loss": "Infinity", "counts": [0, 1]}
    """

    def __init__(self, path: Any, *, every: int = 1) -> None:
        super().__init__(path, every)
        self._keep_whole_lines()

    def _write(self, row: dict[str, Any]) -> None:
        self._append(json.dumps(_finite(row), ensure_ascii=False, allow_nan=False).encode() + b"\n")


def _finite(value: Any) -> Any:
    """The value with words for the floats that JSON lacks; they are those of protobuf's JSON mapping."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


class TensorBoardWriter(_Log):
    """Writes scalars that TensorBoard shows. Each writer makes a file of its own in the folder, as TensorBoard expects.

    Rows have a ``step``; their numbers are curves over it. TensorBoard itself is needed only to look at them.

    Args:
        folder: the folder of the run, made if it does not exist.
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

    def __init__(self, folder: Any, *, every: int = 1) -> None:
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
            number = _scalar(self._where, name, value)
            if not isinstance(number, int | float):
                raise DtypeError(self._where, f"{name} must be a number", got=repr(number), hint="a JSONLLogger")
            with np.errstate(over="ignore"):
                simple_value = b"\x15" + np.float32(number).tobytes()
            values += _field(1, _field(1, name.encode()) + simple_value)
        self._append(_event(step, _field(5, values)))


def _event(step: int | None, content: bytes) -> bytes:
    """A protobuf Event (the time is field 1, the step field 2) as a TFRecord."""
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
    """CRC-32C, rotated and moved as TFRecord wants it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


# -- stopping and evaluating ---


@tree.register_dataclass(meta_fields=("patience", "min_delta", "mode"))
@dataclass(frozen=True)
class EarlyStopping:
    """Says when a metric has not improved for a while. It is a tree of two numbers, so a checkpoint can keep it.

    Args:
        patience: after so many updates without an improvement it is time to stop.
        min_delta: an improvement is a change by more than this.
        mode: ``"min"`` if lower is better, ``"max"`` if higher is.
        best: the best metric so far; NaN before the first.
        waited: how many updates have passed since then.

    Raises:
        ArgumentError: if an argument makes no sense.

    >>> stopping = EarlyStopping(patience=2, mode="max")
    >>> for accuracy in (0.5, 0.7, 0.6, 0.7):
    ...     stopping = stopping.update(accuracy)
    >>> stopping.best, stopping.waited, stopping.should_stop
    (0.7, 2, True)
    """

    patience: int
    min_delta: float = 0.0
    mode: Literal["min", "max"] = "min"
    best: float = math.nan
    waited: int = 0

    def __post_init__(self) -> None:
        positive("EarlyStopping", "patience", self.patience)
        if not self.min_delta >= 0:
            raise ArgumentError("EarlyStopping", "min_delta must not be negative", got=repr(self.min_delta))
        if self.mode not in ("min", "max"):
            raise ArgumentError("EarlyStopping", "the mode is unknown", got=repr(self.mode), hint='"min" or "max"')

    def update(self, metric: Any) -> EarlyStopping:
        """Returns the state after one more metric, a number or a 0-d array; NaN is no improvement."""
        value = float(metric)
        gain = self.best - value if self.mode == "min" else value - self.best
        if gain > self.min_delta or (math.isnan(self.best) and not math.isnan(value)):
            return replace(self, best=value, waited=0)
        return replace(self, waited=self.waited + 1)

    @property
    def improved(self) -> bool:
        """Whether the last update was the best so far: the moment to keep the parameters."""
        return self.waited == 0 and not math.isnan(self.best)

    @property
    def should_stop(self) -> bool:
        """Whether there was no improvement for ``patience`` updates."""
        return self.waited >= self.patience


def evaluate(step: Callable[[Any, Any], Any], params: Any, batches: Iterable[Any]) -> Any:
    """Adds up what a step returns over batches, exactly, even if they differ in size.

    Args:
        step: ``step(params, batch)`` returns a tree of sums over the batch, usually a dict of :class:`Mean`; jitted.
            Arrays of counts such as a confusion matrix are sums, too.
        params: the first argument of the step.
        batches: what to go through.

    Returns:
        The tree with a float for each :class:`Mean`, and NumPy arrays of sums elsewhere.

    Raises:
        DataError: if there are no batches.

    >>> step = lambda params, batch: {"loss": Mean.init().add(params * batch)}
    >>> evaluate(step, 2.0, [np.asarray([1.0, 2.0]), np.asarray([6.0])])
    {'loss': 6.0}
    """
    totals = pending = None
    for batch in batches:
        result = step(params, batch)
        # What the step before has returned is fetched only now, so that the device has something to do meanwhile.
        totals, pending = _added(totals, pending), result
    totals = _added(totals, pending)
    if totals is None:
        raise DataError("evaluate", "there must be a batch", got="none", hint='last="keep" for small data')
    with np.errstate(invalid="ignore"):
        return tree.map(
            lambda node: float(node.total / node.count) if isinstance(node, Mean) else node,
            totals,
            is_leaf=lambda node: isinstance(node, Mean),
        )


def _added(totals: Any, results: Any) -> Any:
    if results is None:
        return totals
    fetched = tree.map(_wide, results)
    return fetched if totals is None else tree.map(np.add, totals, fetched)


def _wide(leaf: Any) -> np.ndarray:
    """The elements as numbers that do not overflow when many batches are added."""
    array = np.asarray(leaf)
    return array.astype("int64" if array.dtype.kind in "biu" else "float64")


__getattr__ = _missing(__name__)
