"""Settings of schedules for CPUs: derived from the caches, or measured on this machine and kept on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import local
from typing import NamedTuple

from tvmfun.errors import ArgumentError
from tvmfun.lower import disk_cache

#: With fewer vector registers, the tiles of products are narrower.
MANY_REGISTERS = 32
# Panels are for L2 if it is large enough, else for L1: docs/decisions/0035-machine.md has the measurements. This is
# the least L2 for panels of narrow tiles, in bytes.
_SMALL_BYTES = 512 << 10
# The most bytes of an L1 cache for which an L2 cache of ``_FAR_BYTES`` is enough; with a larger one, ``LARGE_BYTES``.
_NEAR_BYTES = 48 << 10
# The least L2 beside a small L1, in bytes.
_FAR_BYTES = 1 << 20
#: The bytes of a large L2 cache.
LARGE_BYTES = 2 << 20


class ScheduleSettings(NamedTuple):
    """The numbers that schedules depend on and that suit one machine better than another.

    Args:
        panel_level: the level of the cache that the packed panel of a matrix product fits.
        serial_work: the work, in scalar operations, below which waking the thread pool costs more than it saves.
        tasks_per_core: the number of tasks into which parallel loops are cut, for each core.
        winograd_channels: the fewest channels of a 3x3 convolution that is computed by Winograd's algorithm.
    """

    panel_level: int = 1
    serial_work: int = 1 << 15
    tasks_per_core: int = 8
    winograd_channels: int = 32

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self._asdict().items())


DEFAULT = ScheduleSettings()


def derived(registers: int, near: int, far: int) -> ScheduleSettings:
    """Returns the settings for a machine without measurements.

    Args:
        registers: the number of vector registers.
        near: the bytes of the L1 cache.
        far: the bytes of the L2 cache.
    """
    needed = LARGE_BYTES if near > _NEAR_BYTES else _FAR_BYTES
    if registers < MANY_REGISTERS:
        needed = _SMALL_BYTES
    return ScheduleSettings(panel_level=2 if far >= needed else 1)


class _Active(local):
    """The settings that a calibration is trying in a thread, if any."""

    settings: ScheduleSettings | None = None


_ACTIVE = _Active()


@contextmanager
def using(settings: ScheduleSettings) -> Iterator[None]:
    """Compiles for this machine with these settings in the context."""
    before = _ACTIVE.settings
    _ACTIVE.settings = settings
    try:
        yield
    finally:
        _ACTIVE.settings = before


def measured(machine: str) -> ScheduleSettings | None:
    """Returns the settings that were measured on this machine; None if there are none, or they are disabled.

    Args:
        machine: a description of the processor and of the versions that measurements depend on.

    Raises:
        ArgumentError: if ``TVMFUN_CALIBRATION`` is neither 0 nor 1.
    """
    if _ACTIVE.settings is not None:
        return _ACTIVE.settings
    wanted = os.environ.get("TVMFUN_CALIBRATION") or "1"
    if wanted not in ("0", "1"):
        raise ArgumentError("TVMFUN_CALIBRATION", "it must be 0 or 1", got=repr(wanted))
    directory = disk_cache.cache_directory()
    return None if wanted == "0" or directory is None else _stored(machine, directory)


def store(machine: str, settings: ScheduleSettings) -> Path | None:
    """Writes settings for this machine, and returns the file; None if there is no directory that can be trusted."""
    name, directory = _name(machine), disk_cache.cache_directory()
    if directory is None:
        return None
    content = json.dumps({"machine": machine, **settings._asdict()}, indent=1).encode()
    disk_cache.store_bytes(name, content)
    _stored.cache_clear()
    return directory / name if disk_cache.load_bytes(name) == content else None


@cache
def _stored(machine: str, directory: Path) -> ScheduleSettings | None:
    """The settings in a directory; each process reads them once."""
    content = disk_cache.load_bytes(_name(machine))
    try:
        values = json.loads(content or b"null")
    except ValueError:
        return None
    if (
        not isinstance(values, dict)
        or values.pop("machine", None) != machine
        or values.keys() != {*ScheduleSettings._fields}
    ):
        return None
    is_valid = all(type(value) is int and value > 0 for value in values.values()) and values["panel_level"] <= 2
    return ScheduleSettings(**values) if is_valid else None


def _name(machine: str) -> str:
    return f"calibration-{sha256(machine.encode()).hexdigest()[:16]}.json"
