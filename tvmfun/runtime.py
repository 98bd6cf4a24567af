"""Running compiled modules: devices, threads, and the call into the module."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import tvm
from tvm.runtime import Tensor
from tvm.runtime.vm import VirtualMachine

from tvmfun.counters import counters
from tvmfun.errors import ArgumentError, TargetError


def cpu_count() -> int:
    """The number of CPUs this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _configure_threads() -> None:
    """Gives TVM's thread pool all CPUs this process may use; it would take half of them.

    ``TVMFUN_NUM_THREADS`` overrides. All is read by TVM at its first parallel loop.
    """
    # TVM would bind the threads, also the caller's, to the first CPUs of the machine, whosever these are. What the
    # caller starts later would inherit that.
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    # Threads that wait for the next kernel spin before they sleep: for about 5 milliseconds instead of 150.
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "10000")
    wanted = os.environ.get("TVMFUN_NUM_THREADS")
    if wanted is None:
        os.environ.setdefault("TVM_NUM_THREADS", str(cpu_count()))
        return
    if not wanted.isdecimal() or int(wanted) < 1:
        raise ArgumentError("TVMFUN_NUM_THREADS", "it must be a positive integer", got=repr(wanted))
    os.environ["TVM_NUM_THREADS"] = wanted


_configure_threads()


# Reads an array of the FFI. Letting other threads run meanwhile, as calls do by default, costs more than the reading.
_item = tvm.get_global_func("ffi.ArrayGetItem")
_item.release_gil = False


class Executable:
    """A compiled module: call it with one tensor per input to get one tensor per output.

    Args:
        module: what the compiler made or what was loaded from disk.
        device: where it runs; it need not exist until the first call.
    """

    def __init__(self, module: Any, device: Any) -> None:
        self.module = module
        self.device = device
        # A virtual machine has one stack and runs one call at a time: each call takes an idle one, so that any
        # number of threads may call. A call that fails does not bring its machine back.
        self._idle: list[Any] = []
        self._places: range | None = None

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Runs ``main``."""
        counters.calls += 1
        try:
            main = self._idle.pop()
        except IndexError:
            main = self._load()
        results = main(*tensors)
        self._idle.append(main)
        if self._places is None:
            self._places = range(len(results))
        return list(map(_item, repeat(results), self._places))

    def _load(self) -> Any:
        devices: Any = [self.device] if self.device == tvm.cpu() else [self.device, tvm.cpu()]
        return VirtualMachine(self.module, devices)["main"]


def device_of(target: Any) -> Any:
    """The first device of the kind a target is for."""
    return tvm.device(target.kind.name if target.kind.name != "llvm" else "cpu", 0)


def device(name: Any = "cpu") -> Any:
    """Returns a device by name: ``"cpu"``, ``"cuda"``, ``"cuda:1"``.

    Raises:
        TargetError: if this machine has no such device.

    >>> device("cpu")
    device(type='cpu', index=0)
    """
    if isinstance(name, tvm.runtime.Device):
        return name
    try:
        found = tvm.device(name)
    except (ValueError, RuntimeError):
        found = None
    if found is None or not exists(found):
        raise TargetError(
            "device", "this machine has no such device", got=repr(name), hint=" or ".join(map(repr, _names()))
        )
    return found


def exists(candidate: Any) -> bool:
    """Whether the device is there and TVM can use it."""
    try:
        return bool(candidate.exist)
    except (AttributeError, RuntimeError, tvm.error.InternalError):
        return False


def devices(kind: str | None = None) -> list[Any]:
    """Returns the devices of a kind (``"cpu"``, ``"cuda"``), or the best kind there is.

    >>> devices("cpu")
    [device(type='cpu', index=0)]
    """
    if kind == "cpu":
        return [tvm.cpu()]
    found = []
    while len(found) < 64 and exists(tvm.cuda(len(found))):
        found.append(tvm.cuda(len(found)))
    return found or ([] if kind == "cuda" else [tvm.cpu()])


def _names() -> list[str]:
    return ["cpu", *("cuda" for _ in devices("cuda")[:1])]
