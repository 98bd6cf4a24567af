"""Files that appear whole or not at all, however many processes write them, and who else may have written them."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

try:
    import grp
    import pwd
except ImportError:  # files have no such owners
    grp = pwd = None  # type: ignore[assignment]


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """Gives the path of a file to write, which takes the place of another when all went well."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        partial = Path(folder, path.name)
        yield partial
        partial.replace(path)


class UntrustedError(Exception):
    """Others than this user may have written a file, or put it in its place; the message says what lets them."""


def check_directory(directory: Path) -> None:
    """Checks that nobody else can put a file into a directory, or another directory in its place.

    Raises:
        UntrustedError: if somebody can.
        OSError: if it is not there, or cannot be seen.
    """
    if pwd is None:
        return
    # A link on the way can be replaced by who may write where it is: all directories on the way, and where it leads.
    own = directory.stat()
    _check(directory, own, {os.geteuid()}, sticky=False)
    above = dict.fromkeys([*Path(os.path.abspath(directory)).parents, *directory.resolve().parents])
    # Who has the root has everything; in a container that may be a user without a name.
    trusted = {os.geteuid(), 0, Path("/").stat().st_uid}
    for parent in above:
        _check(parent, parent.stat(), trusted, sticky=True)


def read_trusted(path: Path) -> bytes:
    """The bytes of a file in a checked directory, from one descriptor, so that what is checked is what is read.

    Raises:
        UntrustedError: if the file is somebody else's, or others may write it.
        OSError: if it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0))
    with open(descriptor, "rb") as file:
        if pwd is not None:
            _check(path, os.fstat(descriptor), {os.geteuid()}, sticky=False)
        return file.read()


def _check(path: Path, found: os.stat_result, owners: set[int], sticky: bool) -> None:
    """Checks that it belongs to one of the owners and that nobody else may write it.

    ``sticky`` says that all may write a directory in which each can only replace what is his own, such as ``/tmp``.
    """
    if found.st_uid not in owners:
        raise UntrustedError(f"{path} belongs to user {found.st_uid}")
    if sticky and found.st_mode & stat.S_ISVTX:
        return
    if found.st_mode & stat.S_IWOTH:
        raise UntrustedError(f"everybody may write {path}")
    if found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid, os.geteuid()):
        raise UntrustedError(f"group {found.st_gid} may write {path}")


@cache
def _is_own_group(group: int, user: int) -> bool:
    """Whether only this user is in a group: some systems make one for each user, who lets it write everything."""
    assert pwd is not None and grp is not None
    try:
        account, members = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    own = group == account.pw_gid and members.gr_name == account.pw_name
    return own and set(members.gr_mem) <= {account.pw_name}
