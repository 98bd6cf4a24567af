"""Compiled Programs on disk, and the machine code of single kernels for GPUs.

Programs are shared libraries named by a key of :mod:`tvmfun.lower.cache`. Files are containers, as exported libraries
are (:mod:`tvmfun.manifest.container`): the manifest has the plan, and a checksum detects damage. Entries get their
names when they are complete, so that any number of processes can share a directory. Linking needs a C compiler;
without one nothing is stored.
"""

from __future__ import annotations

import itertools
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import tvm
from tvm.target import Target

from tvmfun.counters import counters
from tvmfun.errors import ArgumentError, PerformanceWarning
from tvmfun.files import UntrustedError, atomic_write, check_directory, read_trusted
from tvmfun.manifest.container import opened, sealed
from tvmfun.manifest.entries import versions
from tvmfun.runtime.executables import DynamicExecutable, NativeExecutable
from tvmfun.runtime.plan import DynamicPlan, Plan
from tvmfun.threads import loading

_T = TypeVar("_T")

#: An executable that can be stored.
Stored: TypeAlias = NativeExecutable | DynamicExecutable
#: The form of an executable's plan.
Form: TypeAlias = type[Plan] | type[DynamicPlan]

# The directories and files about which there was a warning.
_REFUSED: set[str] = set()

# A counter of loaded libraries.
_LOADED = itertools.count(1)


def cache_directory() -> Path | None:
    """The directory of compiled Programs, or None.

    ``TVMFUN_CACHE_DIR`` names the directory; an empty value turns the disk cache off. By default it is ``tvmfun`` in
    the user's cache directory.
    """
    configured = os.environ.get("TVMFUN_CACHE_DIR")
    if configured == "":
        return None
    try:
        if configured:
            return Path(configured).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tvmfun"
    except RuntimeError:  # the user has no home directory
        return None


def least_seconds() -> float:
    """The minimum seconds of compilation for a Program to be stored: ``TVMFUN_CACHE_MIN_SECONDS``, 0.5 by default."""
    text = os.environ.get("TVMFUN_CACHE_MIN_SECONDS") or "0.5"
    try:
        return float(text)
    except ValueError:
        raise ArgumentError("TVMFUN_CACHE_MIN_SECONDS", "it must be a number", got=repr(text)) from None


def load(key: str, form: Form) -> Stored | None:
    """Returns the stored executable of a key; None without a trustworthy one."""
    executable = _trusted(f"{key}.so", lambda path: _load(path, form))
    if executable is not None:
        counters.loads += 1
    return executable


def can_store() -> bool:
    """Whether there are a directory and a linker for executables."""
    return cache_directory() is not None and has_linker()


def store(export: Callable[[str], None], plan: Plan | DynamicPlan, key: str, target: Target) -> Stored | None:
    """Writes a module to disk and reads it back; None if that fails, or if :func:`can_store` is False."""
    path = _path(f"{key}.so")
    if path is None or not can_store():
        return None
    try:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        if not _is_ours(path.parent):
            return None
        with atomic_write(path) as partial:
            export(str(partial))
            partial.write_bytes(sealed(partial.read_bytes(), _manifest(path.name, target, plan)))
            partial.chmod(0o700)
        return _load(path, type(plan))
    except (OSError, RuntimeError, UntrustedError):
        return None  # a full or read-only disk must not stop a computation


def load_bytes(name: str) -> bytes | None:
    """Returns the bytes that :func:`store_bytes` stored under a name; None without trustworthy ones."""
    found = _trusted(name, _undamaged)
    return found[0] if found else None


def _trusted(name: str, read: Callable[[Path], _T | None]) -> _T | None:
    """Reads a stored file; None if there is none that can be trusted. ``read`` returns None for a damaged one."""
    path = _path(name)
    try:
        if path is None or not path.is_file() or not _is_ours(path.parent):
            return None
        found = read(path)
        if found is None:
            path.unlink(missing_ok=True)
        return found
    except UntrustedError as error:
        _refuse(path, str(error))
        return None
    except OSError:
        return None  # another user's directory


def store_bytes(name: str, content: bytes) -> None:
    """Writes bytes and their checksum to the cache directory, if there is one that can be trusted."""
    directory = cache_directory()
    if directory is None:
        return
    try:
        directory.mkdir(0o700, parents=True, exist_ok=True)
        if _is_ours(directory):
            with atomic_write(directory / name) as partial:
                partial.write_bytes(sealed(content, _manifest(name)))
                partial.chmod(0o600)
    except OSError:
        pass  # a full or read-only disk must not stop a computation


def _undamaged(path: Path) -> tuple[bytes, dict[str, Any]] | None:
    """The content of a file, and its manifest; None if it is damaged, or was stored under another name.

    Raises:
        UntrustedError: if others may have written it.
    """
    try:
        content, manifest = opened(read_trusted(path))
    except ValueError:
        return None
    return (content, manifest) if manifest.get("name") == path.name else None


def executable(module: Any, plan: Plan | DynamicPlan, is_loaded: bool = False) -> Stored:
    """The executable of a module, which may have been loaded for the shared pool."""
    form = DynamicExecutable if isinstance(plan, DynamicPlan) else NativeExecutable
    return form(module, plan, is_loaded)  # type: ignore[arg-type]


def _path(name: str) -> Path | None:
    directory = cache_directory()
    return directory / name if directory else None


def _is_ours(directory: Path) -> bool:
    """Whether only this user can put code into a directory; warns once per directory if not."""
    try:
        check_directory(directory)
    except UntrustedError as error:
        _refuse(directory, str(error))
        return False
    return True


def _refuse(path: Path | None, why: str) -> None:
    if str(path) in _REFUSED:
        return
    _REFUSED.add(str(path))
    warnings.warn(
        f"[jit] compiled code at {path} is not used, because others could have put it there: {why}. "
        "Try chmod go-w on it, or TVMFUN_CACHE_DIR for a directory that is yours alone.",
        PerformanceWarning,
        stacklevel=2,
    )


def _manifest(name: str, target: Target | None = None, plan: Plan | DynamicPlan | None = None) -> dict[str, Any]:
    """The manifest of a stored file: like that of an export, without the signature, which is a part of the name."""
    code = {"targets": [{"target": str(target)}], "plan": plan.text if plan else None} if target else {}
    return {"name": name, "versions": versions(), **code}


def _load(path: Path, form: Form) -> Stored | None:
    """Reads a stored executable; None if it is damaged or of another form.

    Raises:
        UntrustedError: if others may have written it.
    """
    try:
        found = _undamaged(path)
        if found is None:  # loading a damaged library can crash the process
            return None
        content, manifest = found
        plan = form.parse(manifest["plan"])
        with loading():
            module = _library(content, path)
            module.get_function("main")  # is there one?
            return executable(module, plan, is_loaded=True)
    except (OSError, RuntimeError, AttributeError, ValueError, KeyError, TypeError):
        return None


def _library(content: bytes, path: Path) -> Any:
    """Loads a library from an immutable copy of its content in memory, if the system has such files."""
    load = tvm.get_global_func("ffi.Module.load_from_file.so")
    if not hasattr(os, "memfd_create"):
        return load(str(path), "so")
    number = os.memfd_create(path.name)
    try:
        with open(number, "wb", closefd=False) as file:
            file.write(content)
        # The loader identifies libraries by path, and file descriptors are reused. Detours in the path make it unique:
        # they encode a count, with "./" for a one and "/" for a zero.
        count = f"{next(_LOADED):b}".replace("1", "./").replace("0", "/")
        return load(f"/proc/{os.getpid()}/fd/{count}{number}", "so")
    except (OSError, RuntimeError):  # the system forbids code in memory files
        return load(str(path), "so")
    finally:
        os.close(number)


def has_linker() -> bool:
    """Whether there is a C compiler, which links libraries."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++", "c++"))
