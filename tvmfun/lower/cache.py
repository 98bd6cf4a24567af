"""The cache of compiled Programs: in this process, and on disk.

The key is a hash of the Program's text, the target, the versions of TVM and tvmfun with their sources, and the database
of tuned schedules in use.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any, TypeAlias

import tvm
from tvm.target import Target

from tvmfun.core import dims
from tvmfun.core.array import ShapeDtype
from tvmfun.core.inline import inlined
from tvmfun.core.program import Program
from tvmfun.counters import counters
from tvmfun.errors import DimensionError, ShapeError, TargetError, TvmfunError
from tvmfun.lower import disk_cache, kernel_cache, pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.codegen.native import Emission, NativeModule
from tvmfun.lower.compile_log import compiling, stage
from tvmfun.lower.machine import Machine
from tvmfun.lower.tuning import database
from tvmfun.manifest.entries import package_version
from tvmfun.runtime.cuda.executable import CudaExecutable, DynamicCudaExecutable
from tvmfun.runtime.cuda_module import CudaModule
from tvmfun.runtime.devices import device_of
from tvmfun.runtime.plan import DynamicPlan, Plan

# Elements of an array that kernels of dynamic sizes cannot index, which use 32-bit integers.
_MOST_INDEXED = 2**31
# Executables take about a megabyte each.
_KEPT = 512
#: A compiled Program.
Executable: TypeAlias = disk_cache.Stored | CudaExecutable | DynamicCudaExecutable
_EXECUTABLES: OrderedDict[str, Executable] = OrderedDict()
# TVM's compiler is not thread-safe, and two threads must not compile the same Program twice.
_LOCK = RLock()
# Held across a fork: the child must not inherit a half-finished compilation, or a lock that is never released.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)
# The compiler's globals are destroyed at exit; a thread that is compiling gets 30 seconds to finish.
atexit.register(_LOCK.acquire, timeout=30)


def compile_program(program: Program, target: Target, donated: Sequence[int] = ()) -> Executable:
    """Returns the Program compiled for ``target``: from this process, from disk, or newly compiled.

    Args:
        program: the Program.
        target: the target.
        donated: the positions of inputs that may be overwritten with results.
    """
    program = inlined(program, targets.platform(target))
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
        if targets.is_cpu(target):
            executable = disk_cache.load(key, DynamicPlan if program.sizes else Plan)
            if executable is None:
                with compiling(program.name), _explaining_large_arrays(program):
                    executable = _build(program, target, donated, key)
        else:
            form = DynamicCudaExecutable if program.sizes else CudaExecutable
            module = _cuda_module(program, target, donated, key)
            executable = form(module, donated, program.name, device_of(target))
        _EXECUTABLES[key] = executable
        if len(_EXECUTABLES) > _KEPT:
            _EXECUTABLES.popitem(last=False)
        return executable


def native_module(
    program: Program, target: Target, donated: Sequence[int] = ()
) -> tuple[NativeModule, Plan | DynamicPlan]:
    """Returns the Program compiled for a CPU and other processes, and the layout of its table."""
    with _LOCK:
        return pipeline.build(
            inlined(program, targets.platform(target)), target, donated, exported=True, emission=lambda: Emission.OBJECT
        )


def check_sizes(program: Program, sizes: Mapping[str, int]) -> None:
    """Checks that kernels with dynamic sizes can index all values of a Program by 32-bit integers.

    Raises:
        ShapeError: if a size, the number of elements of a value, or an integer computed from sizes is too large.
    """
    for name, size in sizes.items():
        if size >= 2**31:
            raise ShapeError(program.name, "a size must be less than 2**31", got=f"{name} = {size}")
    got = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    for aval in types_of_values(program):
        if dims.at(aval.size, sizes) >= _MOST_INDEXED:
            raise ShapeError(program.name, f"{aval} must have less than 2**31 elements", got=got, hint="smaller sizes")
    for size in sizes_as_integers(program):
        if not -(2**31) <= dims.at(size, sizes) < 2**31:
            what = f"{size} = {dims.at(size, sizes)}, which is computed as an int32, must be less than 2**31"
            raise ShapeError(program.name, what, got=got, hint="arithmetic with floats, such as 1.0 * x.shape[0]")


def types_of_values(program: Program) -> list[ShapeDtype]:
    """The types of all values of a Program, each once, without those inside of loops and branches."""
    variables = (*program.inputs, *(out for equation in program.equations for out in equation.outputs))
    return list(dict.fromkeys(variable.aval for variable in variables))


def sizes_as_integers(program: Program) -> set[Any]:
    """The sizes whose values a Program computes as int32, also in loops and branches."""
    found: set[Any] = set()
    for equation in program.equations:
        if equation.op.name == "dim_size" and equation.params["dtype"] == "int32":
            found.update(dims.with_quotients(equation.params["size"]))
        elif equation.op.runs is not None:
            for alternative in equation.op.runs(**equation.params):
                for inner, _ in alternative:
                    found |= sizes_as_integers(inner)
    return found


@contextmanager
def _explaining_large_arrays(program: Program) -> Iterator[None]:
    """Replaces TVM's error about an array that 32-bit integers cannot index by an error of this library."""
    try:
        yield
    except TvmfunError:
        raise
    except Exception as error:
        large = [aval for aval in types_of_values(program) if dims.typical(aval.size) >= _MOST_INDEXED]
        if not large:
            raise
        what = f"no kernel of this Program can index arrays of {_MOST_INDEXED:,} or more elements"
        raise ShapeError(program.name, what, got=str(large[0]), hint="smaller arrays") from error


def clear_caches() -> None:
    """Forgets all Programs compiled in this process; the disk cache stays."""
    with _LOCK:
        _EXECUTABLES.clear()
        kernel_cache.clear_cache()


def _sources_digest() -> str:
    """A hash of the sources of lowering and op records, which may change between releases."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for folder in ("core", "ops", "lower"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".ll"):
                digest.update(path.read_bytes())
    return digest.hexdigest()


_VERSIONS: list[str] = []


def _key(program: Program, target: Target, donated: Sequence[int]) -> str:
    if not _VERSIONS:
        _VERSIONS.append(f"{tvm.__version__} {package_version('tvmfun')} {_sources_digest()}")
    machine = str(Machine.of(target)) if targets.is_cpu(target) else ""
    parts = (
        program.text,
        str(target),
        str(target.host),
        machine,
        str(tuple(donated)),
        _VERSIONS[0],
        database.ACTIVE.key,
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _build(program: Program, target: Target, donated: Sequence[int], key: str) -> disk_cache.Stored:
    started, stores = time.perf_counter(), disk_cache.can_store()

    def is_stored() -> bool:
        return stores and time.perf_counter() - started >= disk_cache.least_seconds()

    def emission() -> Emission | None:
        if is_stored():
            return Emission.OBJECT
        # Compilation may turn out to take so long that the code is stored.
        return None if stores else Emission.MEMORY

    built, plan = pipeline.build(program, target, donated, emission=emission)
    counters.compiles += 1
    with stage("machine code"):
        if is_stored():
            stored = disk_cache.store(built.export, plan, key, target)
            if stored is not None:
                return stored
        return disk_cache.executable(built.load(), plan, is_loaded=built.is_generated)


def _cuda_module(program: Program, target: Target, donated: Sequence[int], key: str) -> CudaModule:
    """The module of a Program for a GPU: from disk, or anew."""
    name = f"{key}.cuda"
    stored = disk_cache.load_bytes(name)
    if stored is not None:
        try:
            module = CudaModule.unpack(stored, name)
            counters.loads += 1
            return module
        except TargetError:
            pass  # of another version: it is compiled again
    started = time.perf_counter()
    with compiling(program.name), _explaining_large_arrays(program):
        module = pipeline.build_for_cuda(program, target, donated)
    counters.compiles += 1
    if not module.missing and time.perf_counter() - started >= disk_cache.least_seconds():
        disk_cache.store_bytes(name, module.pack())
    return module


def lines_of(program: Program, target: Target, donated: Sequence[int], kernel: str) -> list[str]:
    """The user's lines whose ops are in a kernel, which is known by its name; several kernels may have the same.

    A kernel that joins several has their names, with two underscores in between.
    """
    kernels = pipeline.fused_kernels(inlined(program, targets.platform(target)), target, donated)
    lines = [
        equation.source
        for candidate, _ in kernels
        if any(name.startswith(candidate.name) for name in kernel.split("__"))
        for equation in candidate.equations
        if equation.source
    ]
    return list(dict.fromkeys(map(str, lines)))


def text(program: Program, target: Target | None = None, donated: Sequence[int] = ()) -> str:
    """Returns the scheduled module of a Program as TVMScript."""
    target = target or targets.host()
    program = inlined(program, targets.platform(target))
    return pipeline.scheduled_module(program, target, donated).script(show_meta=False)
