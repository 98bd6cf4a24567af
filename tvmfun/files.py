"""Atomic writes of files, checks that no other user can have written them, and files in memory."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

try:
    import grp
    import pwd
except ImportError:  # systems without POSIX owners
    grp = pwd = None  # type: ignore[assignment]


def require_folder(path: str | os.PathLike[str]) -> None:
    """Checks that the folder of a file exists; the error names the file, not one that is to replace it.

    Raises:
        FileNotFoundError: if it does not.
    """
    if not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yields a temporary path to write to; the file is renamed to ``path`` if the context ends without an error."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        partial = Path(folder, path.name)
        yield partial
        partial.replace(path)


@contextmanager
def files_in_memory(count: int, suffix: str) -> Iterator[list[str]]:
    """Yields the paths of new files, in memory if the system has such files.

    On a full disk LLVM would end the process.
    """
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryDirectory() as folder:
            yield [f"{folder}/{i}{suffix}" for i in range(count)]
        return
    with ExitStack() as opened:
        numbers = [os.memfd_create(f"{i}{suffix}") for i in range(count)]
        for number in numbers:
            opened.callback(os.close, number)
        yield [f"/proc/{os.getpid()}/fd/{number}" for number in numbers]


class UntrustedError(Exception):
    """Another user can write or replace a file; the message says why."""


def check_directory(directory: Path) -> None:
    """Checks that no other user can create files in a directory or replace it.

    Raises:
        UntrustedError: if another user can.
        OSError: if it does not exist, or cannot be read.
    """
    if pwd is None:
        return
    # Users who may write a directory on the path can replace its entries, including symbolic links.
    _check(directory, directory.stat(), {os.geteuid()}, sticky=False)
    above = dict.fromkeys([*Path(os.path.abspath(directory)).parents, *directory.resolve().parents])
    # The owner of the root directory can do anything; in a container that may be a user without a name.
    trusted = {os.geteuid(), 0, Path("/").stat().st_uid}
    for parent in above:
        _check(parent, parent.stat(), trusted, sticky=True)


def read_trusted(path: Path) -> bytes:
    """The bytes of a file in a checked directory, checked and read through one descriptor.

    Raises:
        UntrustedError: if another user owns the file or may write it.
        OSError: if it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0))
    with open(descriptor, "rb") as file:
        if pwd is not None:
            _check(path, os.fstat(descriptor), {os.geteuid()}, sticky=False)
        return file.read()


def _check(path: Path, status: os.stat_result, owners: set[int], sticky: bool) -> None:
    """Checks that one of the owners has a file or directory, and that no other user may write it.

    With ``sticky``, directories such as ``/tmp`` pass, in which users can only replace their own files.
    """
    if status.st_uid not in owners:
        raise UntrustedError(f"{path} belongs to user {status.st_uid}")
    if sticky and status.st_mode & stat.S_ISVTX:
        return
    if status.st_mode & stat.S_IWOTH:
        raise UntrustedError(f"everybody may write {path}")
    if status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid, os.geteuid()):
        raise UntrustedError(f"group {status.st_gid} may write {path}")


@cache
def _is_own_group(group: int, user: int) -> bool:
    """Whether this user is the only member of a group; some systems make such a group for each user."""
    assert pwd is not None and grp is not None
    try:
        account, members = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    is_primary = group == account.pw_gid and members.gr_name == account.pw_name
    return is_primary and set(members.gr_mem) <= {account.pw_name}
