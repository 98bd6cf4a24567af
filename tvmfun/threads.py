"""Threads for kernels: how many, and one pool of them for all threads that call."""

from __future__ import annotations

import atexit
import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import RLock, main_thread
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from tvmfun.errors import ArgumentError


def cpu_count() -> int:
    """The number of CPUs this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _configure() -> None:
    """Sets the number of threads: one for each CPU that this process may use, or ``TVMFUN_NUM_THREADS``.

    TVM's own pools, which modules of others may use, read the same variables, at their first parallel loop. They would
    take half of the CPUs.
    """
    # TVM would bind the threads, also the caller's, to the first CPUs of the machine, no matter who uses them.
    # Processes that the caller starts later would inherit the binding.
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    # Threads that wait for the next kernel spin before they sleep: for about 5 milliseconds instead of 150.
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "10000")
    wanted = os.environ.get("TVMFUN_NUM_THREADS")
    if not wanted:
        os.environ.setdefault("TVM_NUM_THREADS", str(cpu_count()))
        return
    if not wanted.isdecimal() or int(wanted) < 1:
        raise ArgumentError("TVMFUN_NUM_THREADS", "it must be a positive integer", got=repr(wanted))
    os.environ["TVM_NUM_THREADS"] = wanted


_configure()


def _number(variable: str, least: int) -> int:
    """The number in a variable of TVM, read as TVM does: anything that is not a number counts as 0."""
    said = os.environ.get(variable, "")
    return max(least, int(said) if said.isdecimal() else 0)


# The functions of TVM's runtime that modules look up when they are loaded, and that the pool has its own of.
_REPLACED = "TVMBackendParallelLaunch", "TVMBackendAllocWorkspace", "TVMBackendFreeWorkspace"


class _Pool:
    """The pool of ``pool.ll``, which TVM's LLVM compiles when a module is loaded for the first time.

    TVM has a pool in each thread that calls: its threads outlive the caller by milliseconds, in which they spin, and
    several callers have several times as many threads as there are CPUs.
    """

    def __init__(self) -> None:
        functions, runtime = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi()), ctypes.CDLL(None)
        self._register = functions.TVMFFIEnvModRegisterContextSymbol
        self._register.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
        self._theirs = [_address(getattr(runtime, name)) for name in _REPLACED]
        module = _compiled(Path(__file__).with_name("pool.ll").read_text())
        # Its threads run to the very end of the process, when modules are gone already.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
        names = "ErrorMoveFromRaised", "ErrorSetRaised", "ObjectDecRef", "ErrorSetRaisedFromCStr", "EnvCheckSignals"
        module["configure"](
            _number("TVM_NUM_THREADS", 1),
            _number("TVM_THREAD_POOL_SPIN_COUNT", 0),
            *(_address(getattr(functions, f"TVMFFI{name}")) for name in names),
            main_thread().ident,
            *self._theirs[1:],
        )
        self._ours = [module["function"](i) for i in range(len(_REPLACED))]
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=module["forget"])
        atexit.register(module["leave"])

    def give(self) -> None:
        """Modules loaded from now on use this pool."""
        self._use(self._ours)

    def take_away(self) -> None:
        """Modules loaded from now on use TVM's pool."""
        self._use(self._theirs)

    def _use(self, addresses: list[int]) -> None:
        for name, address in zip(_REPLACED, addresses, strict=True):
            self._register(f"__{name}".encode(), address)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _compiled(text: str) -> Any:
    """A module for this machine, from LLVM IR, in which TVM requires the target to be named."""
    target = Target("llvm")
    nothing = tirx.PrimFunc([], tirx.Evaluate(tirx.IntImm("int32", 0))).with_attr("global_symbol", "nothing")
    empty = tvm.get_global_func("target.build.llvm")(
        tvm.IRModule({"nothing": nothing.with_attr("target", target)}), target
    )
    head = [line for line in empty.inspect_source("ll").splitlines() if line.startswith("target ")]
    kind = ["!llvm.module.flags = !{!0}", '!0 = !{i32 2, !"tvm_target", !"{\\22kind\\22: \\22llvm\\22}"}']
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pool.ll"
        path.write_text("\n".join([*head, text, *kind]))
        return tvm.get_global_func("ffi.Module.load_from_file.ll")(str(path), "ll")


_the_pool = cache(_Pool)
_LOADING = RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_LOADING.acquire, after_in_parent=_LOADING.release, after_in_child=_LOADING.release)


@contextmanager
def pooled() -> Iterator[None]:
    """Within this context, modules are loaded whose parallel loops run in the one pool of this process.

    A module gets what it needs of the runtime when it is asked for a function for the first time, as :func:`load` does.
    """
    with _LOADING:
        pool = _the_pool()
        pool.give()
        try:
            yield
        finally:
            pool.take_away()


def load(module: Any) -> None:
    """Generates the machine code of a module, and of those it imports, for the one pool of this process."""
    with pooled():
        _load(module)


def _load(module: Any) -> None:
    with suppress(AttributeError):  # looking up any name generates the code, even one that does not exist
        module.get_function("main")
    for imported in module.imports:
        _load(imported)
