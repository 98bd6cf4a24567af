"""Logs of a training run: rows of numbers appended to CSV and JSON files."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvmfun.core.array import Array
from tvmfun.data.sources import positive
from tvmfun.errors import ArgumentError, DtypeError, ShapeError

__all__ = ["CSVLogger", "JSONLLogger"]


class Log(ABC):
    """A file to which whole rows are appended."""

    def __init__(self, path: str | os.PathLike[str], every: int) -> None:
        self._where = type(self).__name__
        self._every = positive(self._where, "number of steps", every)
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self.path, "a+b")  # noqa: SIM115  # until close

    def _keep_whole_lines(self) -> bytes:
        """Truncates an incomplete last line, left by a killed process; returns the first line."""
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
        """Writes a row, or skips it by ``every``; arrays of skipped rows are not fetched.

        Args:
            row: numbers, bools, strings and arrays by name.

        Raises:
            ArgumentError: if the log is closed, or the row does not fit in it.
            DtypeError: if a value has another type.
        """
        if self._file.closed:
            raise ArgumentError(self._where, "the log must be open", got=f"{self.path}, which was closed")
        if not row:
            raise ArgumentError(self._where, "a row must have values", got=repr(row))
        if self._every > 1:
            step = row.get("step")
            if not isinstance(step, int):
                what = f"a row must have an integer step to write one of every {self._every}"
                raise ArgumentError(self._where, what, got=repr(step))
            if step % self._every:
                return
        self._write({name: python_value(self._where, name, value) for name, value in row.items()})

    @abstractmethod
    def _write(self, row: dict[str, Any]) -> None: ...

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


def python_value(where: str, name: str, value: Any) -> Any:
    """A value as a Python number, bool, string or list."""
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


def scalar(where: str, name: str, value: Any) -> Any:
    if isinstance(value, list):
        raise ShapeError(where, f"{name} must be one value", got="an array", hint="its mean, or a JSONLLogger")
    return value


class CSVLogger(Log):
    """Appends rows to a CSV file. The first row determines the columns.

    An existing file is continued, without a second header; an incomplete line that a killed process has left is
    removed. Later rows may lack columns, which stay empty, but not add any. Each row reaches the
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

    def __init__(self, path: str | os.PathLike[str], *, every: int = 1) -> None:
        super().__init__(path, every)
        header = self._keep_whole_lines().decode()
        self._columns = next(csv.reader([header])) if header else []

    def _write(self, row: dict[str, Any]) -> None:
        names = self._columns or list(row)
        extra = [name for name in row if name not in names]
        if extra:
            what = f"the columns of {self.path} are {', '.join(names)}"
            raise ArgumentError(self._where, what, got=", ".join(extra), hint="a JSONLLogger, or another file")
        cells = [scalar(self._where, name, row.get(name, "")) for name in names]
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


class JSONLLogger(Log):
    """Appends rows to a file of JSON objects, one in a line. Rows may have any names, and arrays become lists.

    An existing file is continued, as by :class:`CSVLogger`. JSON has no infinities and NaN: they are
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

    def __init__(self, path: str | os.PathLike[str], *, every: int = 1) -> None:
        super().__init__(path, every)
        self._keep_whole_lines()

    def _write(self, row: dict[str, Any]) -> None:
        self._append(json.dumps(_finite(row), ensure_ascii=False, allow_nan=False).encode() + b"\n")


def _finite(value: Any) -> Any:
    """Replaces infinities and NaN by the strings of protobuf's JSON mapping."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
