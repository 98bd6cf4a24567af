"""The thread pool of kernels, shared by all calling threads, and its size."""

from __future__ import annotations

import atexit
import ctypes
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from threading import RLock, main_thread
from typing import Any

import tvm_ffi
from tvm.target import Target

from tvmfun.errors import ArgumentError
from tvmfun.llvm_modules import empty_module, parsed, with_added


def cpu_count() -> int:
    """The number of CPUs this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _configure() -> None:
    """Sets the number of threads: one for each CPU that this process may use, or ``TVMFUN_NUM_THREADS``.

    TVM's own pools, for modules that tvmfun did not load, read the same variables at their first parallel loop; by
    default they use half of the CPUs.
    """
    # TVM would bind the threads, including the caller's, to the first CPUs of the machine, even if they are busy, and
    # child processes would inherit the affinity.
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    # Idle threads spin before they sleep: about 5 milliseconds instead of 150.
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
    """The number in an environment variable of TVM; as in TVM, anything that is not a number counts as 0."""
    text = os.environ.get(variable, "")
    return max(least, int(text) if text.isdecimal() else 0)


# The functions of TVM's runtime that modules look up when they are loaded, and that the pool replaces.
_REPLACED = "TVMBackendParallelLaunch", "TVMBackendAllocWorkspace", "TVMBackendFreeWorkspace"
_VARIABLES = [f"__{name}" for name in _REPLACED]
#: New names of the variables of modules for these functions: TVM's table of variables only grows, and a module looks up
#: every entry, so the pool is entered once, under names of its own. Names are edited in files in memory.
OWN_VARIABLES = {name: name.replace("TVM", "tvmfun") for name in _VARIABLES} if hasattr(os, "memfd_create") else {}


class _Pool:
    """The pool of ``pool.ll``, compiled by TVM's LLVM when the first module is loaded.

    TVM has one pool per calling thread: several callers oversubscribe the CPUs, and the threads of a pool spin for
    milliseconds after its caller has ended.
    """

    def __init__(self) -> None:
        functions, runtime = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi()), ctypes.CDLL(None)
        self._register = functions.TVMFFIEnvModRegisterContextSymbol
        self._register.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
        self._theirs = [_address(getattr(runtime, name)) for name in _REPLACED]
        text = Path(__file__).with_name("pool.ll").read_text()
        module = parsed(with_added(empty_module(Target("llvm")), text))
        # Never unloaded: the threads run until the process ends, when Python has freed its modules.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
        names = "ErrorMoveFromRaised", "ErrorSetRaised", "ObjectDecRef", "ErrorSetRaisedFromCStr", "EnvCheckSignals"
        module["configure"](
            _number("TVM_NUM_THREADS", 1),
            _number("TVM_THREAD_POOL_SPIN_COUNT", 0),
            *(_address(getattr(functions, f"TVMFFI{name}")) for name in names),
            main_thread().ident,
            *self._theirs[1:],
            *_affinity_functions(runtime),
        )
        self._ours = [module["function"](i) for i in range(len(_REPLACED))]
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=module["forget"])
        atexit.register(module["leave"])
        if OWN_VARIABLES:
            self._enter(OWN_VARIABLES.values(), self._ours)

    def install(self) -> None:
        """Makes modules that are loaded from now on use this pool."""
        self._enter(_VARIABLES, self._ours)

    def uninstall(self) -> None:
        """Makes modules that are loaded from now on use TVM's pool."""
        self._enter(_VARIABLES, self._theirs)

    def _enter(self, variables: Iterable[str], addresses: list[int]) -> None:
        for name, address in zip(variables, addresses, strict=True):
            self._register(name.encode(), address)


def _affinity_functions(library: Any) -> list[int]:
    """The addresses of the functions with which the pool wakes workers on other CPUs; zeros where there are none."""
    names = "sched_getcpu", "pthread_getaffinity_np", "pthread_setaffinity_np"
    functions = [getattr(library, name, None) for name in names]
    return [_address(function) for function in functions] if all(functions) else [0] * len(names)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


_the_pool = cache(_Pool)
_LOADING = RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_LOADING.acquire, after_in_parent=_LOADING.release, after_in_child=_LOADING.release)


@contextmanager
def pooled() -> Iterator[None]:
    """Within this context, modules are loaded for the shared pool of this process.

    A module binds the functions of the runtime when its first function is looked up, as :func:`load` does.
    """
    with _LOADING:
        pool = _the_pool()
        pool.install()
        try:
            yield
        finally:
            pool.uninstall()


def loading() -> AbstractContextManager:
    """Returns the context in which modules that were compiled for this process find the shared pool."""
    if not OWN_VARIABLES:
        return pooled()
    with _LOADING:
        _the_pool()
    return nullcontext()


#: The function with which :func:`bind` reads the address of a module's table of kernels.
TABLE = "tvmfun_kernels"
#: The function with which :func:`bind` has another module write to that table.
WRITE_ADDRESSES = "tvmfun_write_addresses"


def load(module: Any) -> None:
    """Generates the machine code of a module and its imports, bound to the shared pool of this process."""
    with pooled():
        bind(module)


def bind(module: Any) -> None:
    """Generates the machine code of a module and its imports, and gives it the addresses of the kernels in these."""
    with suppress(AttributeError):  # looking up any name generates the code, even a missing one
        module.get_function("main")
    imports = list(module.imports)
    if imports:
        address = module.get_function(TABLE)()
        for imported in imports:
            address += imported.get_function(WRITE_ADDRESSES)(address)
