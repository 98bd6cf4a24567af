"""The database of tuned schedules: a file of JSON lines, and the selection of the one in use.

The first line is a header, each other one a record. The key of a record is the text of a kernel and the target. It also
holds a hash of the kernel's TIR and the version of TVM: records that do not match are skipped with a warning.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from threading import local
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from tvmfun.errors import ArgumentError, PerformanceWarning
from tvmfun.files import atomic_write
from tvmfun.lower.tuning import space

_HEADER = {"format": "tvmfun tuning", "version": 1}


@dataclass(frozen=True)
class Record:
    """A schedule that was measured to be faster than that of our rules.

    Args:
        kernel: the text of the kernel.
        target: the text of the target.
        tvm: the version of TVM.
        code: the hash of the unscheduled kernel in TIR.
        rule: the name of the rule for comparison.
        before: microseconds with the schedule of the rule.
        after: microseconds with this schedule, measured in the same session.
        trials: the number of schedules tried.
        schedule: the trace of the schedule as JSON.
    """

    kernel: str
    target: str
    tvm: str
    code: str
    rule: str
    before: float
    after: float
    trials: int
    schedule: str

    @classmethod
    def of(cls, function: tirx.PrimFunc, target: Target, **fields: Any) -> Record:
        """A record of an unscheduled kernel for this version of TVM."""
        return cls(target=str(target), tvm=tvm.__version__, code=code(function), **fields)

    @property
    def ratio(self) -> float:
        """The speedup."""
        return self.before / self.after


def code(function: tirx.PrimFunc) -> str:
    """The hash of an unscheduled kernel."""
    return hashlib.sha256(space.source(function).encode()).hexdigest()


class Database:
    """Records by kernel and target.

    Args:
        records: for each key the record with the largest speedup counts.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.records: dict[tuple[str, str], Record] = {}
        for record in records:
            key = (record.kernel, record.target)
            if key not in self.records or record.ratio > self.records[key].ratio:
                self.records[key] = record

    @classmethod
    def read(cls, path: str | os.PathLike, where: str) -> Database:
        """Reads a file.

        Raises:
            ArgumentError: if it cannot be read, or is not a database.
        """
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError(where, "the database cannot be read", got=f"{path} ({error})") from error
        try:
            if not lines or json.loads(lines[0]) != _HEADER:
                raise ValueError("line 1 is not its header")
            return cls(_record(line, number) for number, line in enumerate(lines[1:], 2))
        except ValueError as error:
            raise ArgumentError(
                where,
                "this file is not a database of this version, or it is damaged",
                got=f"{path} ({error})",
                hint="another path; tune writes a new file",
            ) from error

    def find(self, kernel: str, target: Target) -> Record | None:
        """The record of a kernel, if there is one for this target."""
        return self.records.get((kernel, str(target)))

    @cached_property
    def key(self) -> str:
        """A hash that identifies the content."""
        return hashlib.sha256(self._text().encode()).hexdigest()

    def _text(self) -> str:
        lines = [_HEADER, *(asdict(record) for _, record in sorted(self.records.items()))]
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)

    def write(self, path: Path) -> None:
        """Writes a file atomically."""
        with atomic_write(path) as partial:
            partial.write_text(self._text(), encoding="utf-8")


def _record(line: str, number: int) -> Record:
    values = json.loads(line)
    types = {field.name: field.type for field in fields(Record)}
    if not isinstance(values, dict) or values.keys() != types.keys():
        raise ValueError(f"line {number} is not a record")
    for name, value in values.items():
        if type(value).__name__ != types[name] or (types[name] == "float" and not value > 0):
            raise ValueError(f"line {number} has a wrong {name!r}")
    return Record(**values)


def merge(path: str | os.PathLike, records: Iterable[Record], where: str, replaced: Record | None = None) -> None:
    """Adds records to a file, under a lock for processes that do so at the same time.

    Args:
        path: the file.
        records: the records to add. If two have the same key, the one with the larger speedup stays.
        where: the name of the caller, for errors.
        replaced: a record to remove, because the new one was compared with it.

    Raises:
        ArgumentError: if the file exists and is not a database.
    """
    path = Path(path).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        known = Database.read(path, where) if path.exists() else Database()
        kept = (record for record in known.records.values() if record != replaced)
        Database([*kept, *records]).write(path)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds a lock on a folder, which leaves no lock file."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


# -- the database in use ---------------------------------------------------------------------------------------------


def _from_environment() -> Database | None:
    path = os.environ.get("TVMFUN_TUNING")
    return Database.read(path, "TVMFUN_TUNING") if path else None


class _Active(local):
    """The database in use in a thread, and its ``key``, which is empty if there is none."""

    database = _from_environment()
    key = database.key if database else ""


ACTIVE = _Active()


@contextmanager
def using(database: Database | None) -> Iterator[None]:
    """Selects the database for Programs that this thread compiles in the context; None for none."""
    before = ACTIVE.database, ACTIVE.key
    ACTIVE.database, ACTIVE.key = database, database.key if database else ""
    try:
        yield
    finally:
        ACTIVE.database, ACTIVE.key = before


def find(kernel: str, target: Target) -> Record | None:
    """The record of a kernel in the database in use."""
    return ACTIVE.database.find(kernel, target) if ACTIVE.database else None


def tuned(record: Record, function: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """The kernel with the schedule of a record, or None if that does not apply.

    Warns:
        PerformanceWarning: if the record is for another TVM, or the kernel's TIR has changed.
    """
    if record.tvm != tvm.__version__:
        reason = f"it is from TVM {record.tvm}, and this is {tvm.__version__}"
    elif record.code != code(function):
        reason = "the kernel was written differently then"
    else:
        try:
            return space.applied(function, record.schedule)
        except (RuntimeError, ValueError, TypeError, KeyError, IndexError) as error:
            reason = f"the schedule does not fit the kernel ({type(error).__name__})"
    text = f"[tuned] a record of the database is passed over: {reason}. Try tune again."
    warnings.warn(text, PerformanceWarning, stacklevel=2)
    return None
