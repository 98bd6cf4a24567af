"""Compiling Programs, with a cache in this process and one on disk.

Disk entries are shared libraries named by a hash of the Program's text, the target, the versions of tvm and
tvmfun, and the database of tuned schedules in use. A checksum at their end guards against truncation, and they appear
under their name in one step, so any number of processes can share a directory. Linking needs a C compiler; without
one only the cache in this process works.
"""

from __future__ import annotations

import atexit
import hashlib
import itertools
import os
import shutil
import struct
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import RLock
from typing import Any

import tvm
from tvm.target import Target

from tvmfun.core import dims
from tvmfun.core.inline import inlined
from tvmfun.core.program import Program
from tvmfun.counters import counters
from tvmfun.errors import ArgumentError, DimensionError, PerformanceWarning, ShapeError
from tvmfun.files import UntrustedError, check_directory, read_trusted, written
from tvmfun.lower import kernel_cache, pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.codegen.memory_plan import Plan
from tvmfun.lower.tuning import database
from tvmfun.runtime.devices import device_of
from tvmfun.runtime.executables import Executable, NativeExecutable
from tvmfun.threads import pooled

# About a megabyte each.
_KEPT = 512
_EXECUTABLES: OrderedDict[str, Executable | NativeExecutable] = OrderedDict()
# TVM's compiler is not thread-safe, and two threads must not compile the same Program twice.
_LOCK = RLock()
# The child of a fork would wait for ever for a thread that compiles, or find TVM's compiler in the middle of something.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)
# What the compiler needs is destroyed when the process ends: a thread that compiles then gets some time to finish.
atexit.register(_LOCK.acquire, timeout=30)


def compile_program(program: Program, target: Target, donated: Sequence[int] = ()) -> Executable | NativeExecutable:
    """Returns the Program compiled for ``target``: from this process, from disk, or anew.

    Args:
        program: what to compile.
        target: what for.
        donated: the places of inputs that may be overwritten with results.
    """
    program = inlined(program)
    unknown = [name for name in program.sizes if name not in dims.known(aval.shape for aval in program.in_avals)]
    if unknown:
        raise DimensionError(
            program.name, "a dynamic size must be the size of an axis of an argument", got=", ".join(unknown)
        )
    key = _key(program, target, donated)
    with _LOCK:
        if key in _EXECUTABLES:
            _EXECUTABLES.move_to_end(key)
            return _EXECUTABLES[key]
        native = targets.is_cpu(target) and not program.sizes
        executable = _load(key, target, native) or _build(program, target, donated, key, native)
        _EXECUTABLES[key] = executable
        if len(_EXECUTABLES) > _KEPT:
            _EXECUTABLES.popitem(last=False)
        return executable


def check_sizes(program: Program, sizes: Mapping[str, int]) -> None:
    """Checks that no value of a Program is too large for the 32-bit indices of kernels with dynamic sizes.

    Raises:
        ShapeError: if one is.
    """
    variables = (*program.inputs, *(out for equation in program.equations for out in equation.outputs))
    for aval in dict.fromkeys(variable.aval for variable in variables):
        if dims.at(aval.size, sizes) >= 2**31:
            given = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            raise ShapeError(
                program.name, f"{aval} must have less than 2**31 elements", got=given, hint="smaller sizes"
            )


def clear_caches() -> None:
    """Forgets everything compiled in this process; the disk cache stays."""
    with _LOCK:
        _EXECUTABLES.clear()
        kernel_cache.clear_cache()


def cache_directory() -> Path | None:
    """Where compiled Programs are kept on disk, or None.

    ``TVMFUN_CACHE_DIR`` names the directory; empty turns the disk cache off. By default it is ``tvmfun`` in the
    user's cache directory.
    """
    configured = os.environ.get("TVMFUN_CACHE_DIR")
    if configured == "":
        return None
    try:
        if configured:
            return Path(configured).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tvmfun"
    except RuntimeError:  # the user has no home
        return None


def _least_seconds() -> float:
    """What takes less time to compile is not kept on disk: ``TVMFUN_CACHE_MIN_SECONDS``, by default 0.5."""
    said = os.environ.get("TVMFUN_CACHE_MIN_SECONDS") or "0.5"
    try:
        return float(said)
    except ValueError:
        raise ArgumentError("TVMFUN_CACHE_MIN_SECONDS", "it must be a number", got=repr(said)) from None


def _own_version() -> str:
    try:
        return version("tvmfun")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "source"


def _sources_digest() -> str:
    """Changes whenever the lowering or an op record does, also between two releases."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for folder in ("core", "ops", "lower"):
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


_VERSIONS: list[str] = []


def _key(program: Program, target: Target, donated: Sequence[int]) -> str:
    if not _VERSIONS:
        _VERSIONS.append(f"{tvm.__version__} {_own_version()} {_sources_digest()}")
    parts = (program.text, str(target), str(target.host), str(tuple(donated)), _VERSIONS[0], database.ACTIVE.key)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _build(
    program: Program, target: Target, donated: Sequence[int], key: str, native: bool
) -> Executable | NativeExecutable:
    started = time.perf_counter()
    plan = None
    if native:
        built, plan = pipeline.build(program, target, donated)
        export, load = built.export, built.load
    else:
        module = pipeline.scheduled_module(program, target, donated)
        built = pipeline.build_for_vm(module, target, dynamic=bool(program.sizes))
        export, load = built.export_library, lambda: built.mod
    counters.compiles += 1
    if time.perf_counter() - started >= _least_seconds():
        stored = _store(export, plan, key, target)
        if stored is not None:
            return stored
    return _executable(load(), plan, target)


def _executable(module: Any, plan: Plan | None, target: Target) -> Executable | NativeExecutable:
    return NativeExecutable(module, plan) if plan else Executable(module, device_of(target))


# -- the disk ----------------------------------------------------------------------------------------------------


def _path(key: str) -> Path | None:
    directory = cache_directory()
    return directory / f"{key}.so" if directory else None


def _load(key: str, target: Target, native: bool) -> Executable | NativeExecutable | None:
    path = _path(key)
    try:
        if path is None or not path.is_file() or not _is_ours(path.parent):
            return None
        executable = _read(path, target, native)
        if executable is None:
            path.unlink(missing_ok=True)
            return None
    except UntrustedError as error:
        _refuse(path, str(error))
        return None
    except OSError:
        return None  # a directory of somebody else's
    counters.loads += 1
    return executable


_REFUSED: set[str] = set()


def _is_ours(directory: Path) -> bool:
    """Whether only this user can put code into a directory, or a warning once for each that is not so."""
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


# Counts the libraries that have been loaded.
_LOADED = itertools.count(1)

# What follows the library's bytes: its plan, the number of bytes of that, and the checksum of everything.
_SIZE = struct.Struct("<Q")
_CHECKSUM_BYTES = 32


def _trailer(content: bytes, plan: Plan | None) -> bytes:
    text = plan.text.encode() if plan else b""
    trailer = text + _SIZE.pack(len(text))
    return trailer + hashlib.sha256(content + trailer).digest()


def _read(path: Path, target: Target, native: bool) -> Executable | NativeExecutable | None:
    """What was stored, unless it is damaged or of another form.

    Raises:
        UntrustedError: if others may have written it.
    """
    try:
        content, checksum = (whole := read_trusted(path))[:-_CHECKSUM_BYTES], whole[-_CHECKSUM_BYTES:]
        # Loading a damaged library can crash the process, so the checksum comes first.
        if hashlib.sha256(content).digest() != checksum:
            return None
        end = len(content) - _SIZE.size
        text = content[end - _SIZE.unpack_from(content, end)[0] : end]
        plan = Plan.parse(text.decode()) if native else None
        with pooled():
            module = _library(content, path)
            module.get_function("main" if native else "vm_load_executable")  # is there one?
            return _executable(module, plan, target)
    except (OSError, RuntimeError, AttributeError, ValueError, KeyError, TypeError, struct.error):
        return None


def _library(content: bytes, path: Path) -> Any:
    """The library that was read from a path: where the system can, from a copy in memory, which nobody can change."""
    load = tvm.get_global_func("ffi.Module.load_from_file.so")
    if not hasattr(os, "memfd_create"):
        return load(str(path), "so")
    number = os.memfd_create(path.name)
    try:
        with open(number, "wb", closefd=False) as file:
            file.write(content)
        # The system takes libraries of one name for the same, and numbers of files are used again: so each gets a name
        # of its own for the same place, with a count in it of which the ones are detours.
        count = f"{next(_LOADED):b}".replace("1", "./").replace("0", "/")
        return load(f"/proc/{os.getpid()}/fd/{count}{number}", "so")
    except (OSError, RuntimeError):  # the system lets no code run that is in memory only
        return load(str(path), "so")
    finally:
        os.close(number)


def _store(
    export: Callable[[str], None], plan: Plan | None, key: str, target: Target
) -> Executable | NativeExecutable | None:
    """Writes the module to disk and reads it back, if there is a place for it."""
    path = _path(key)
    if path is None or not _has_linker():
        return None
    try:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        if not _is_ours(path.parent):
            return None
        with written(path) as partial:
            export(str(partial))
            content = partial.read_bytes()
            partial.write_bytes(content + _trailer(content, plan))
            partial.chmod(0o700)
        return _read(path, target, plan is not None)
    except (OSError, RuntimeError, UntrustedError):
        return None  # a full or read-only disk must not stop a computation


def _has_linker() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++", "c++"))


def text(program: Program, target: Target | None = None, donated: Sequence[int] = ()) -> str:
    """The scheduled module as TVMScript."""
    return pipeline.scheduled_module(inlined(program), target or targets.host(), donated).script(show_meta=False)
