"""Files replaced in one step: a crash leaves the old file or the new one."""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tvmfun.files import require_folder


def replace_file(path: str | os.PathLike[str], write: Callable[[IO[bytes]], None]) -> None:
    """Writes a new file and renames it, so that the path never names half a file.

    Args:
        path: the name of the file.
        write: writes the contents into an open file.
    """
    # A symbolic link stays; the file it points to is replaced.
    target = Path(os.path.realpath(path))
    require_folder(target)
    remove_abandoned(target.parent, _escaped(target.name))
    with _new_file(target) as (file, name):
        if target.exists():
            os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
        write(file)
        file.flush()
        os.fsync(file.fileno())
        os.replace(name, target)
    # The directory entry has to reach the disk, too.
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_abandoned(folder: Path, pattern: str) -> None:
    """Removes what killed processes left of files whose names match a pattern."""
    for leftover in folder.glob(f".{pattern}.*.partial"):
        _remove_if_abandoned(leftover)


@contextmanager
def _new_file(target: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """A new file beside ``target``, locked while it is written, and deleted if writing fails."""
    while True:
        name = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
        with open(name, "xb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                # Until it was locked, another process may have removed it as abandoned.
                if not name.exists():
                    continue
                yield file, name
            except BaseException:
                name.unlink(missing_ok=True)
                raise
            return


def _remove_if_abandoned(path: Path) -> None:
    """Removes the file of a killed process; a process that still writes it holds its lock."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    except OSError:
        pass  # another process writes it, or has removed it already


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
