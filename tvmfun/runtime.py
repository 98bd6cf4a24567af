"""Running compiled modules: devices, memory, and the call into the module."""

from __future__ import annotations

import ctypes
import mmap
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, repeat
from operator import attrgetter, itemgetter
from typing import Any

import tvm
import tvm_ffi
from tvm.runtime.vm import VirtualMachine

from tvmfun import threads
from tvmfun.counters import counters
from tvmfun.errors import OutOfMemoryError, TargetError


def _quick(name: str) -> Any:
    """A function of the FFI that takes less time than it takes to let other threads run meanwhile."""
    function = tvm.get_global_func(name)
    function.release_gil = False
    return function


_item = _quick("ffi.ArrayGetItem")
_allocate = _quick("runtime.TVMTensorAllocWithScope")
_BYTE = tvm_ffi.dtype("uint8")
_CPU: Any = tvm.cpu()
_MEMORY, _ADDRESS = attrgetter("memory"), attrgetter("address")


class Memory:
    """What arrays lie in, given back when none of them is left.

    Args:
        tensor: has it as its elements.
        aval: the type of an array with just these elements; None for bytes on the CPU.
    """

    __slots__ = ("_tensor", "aval", "is_seen")

    def __init__(self, tensor: tvm.runtime.Tensor, aval: Any = None) -> None:
        self._tensor = tensor
        self.aval = aval
        self.is_seen = False

    @property
    def address(self) -> int:
        """Where it begins; negative on other devices than the CPU, so that nothing is read there.

        Each time another object: arrays tell by the references to their address who reads them.
        """
        pointer = self._tensor.data_ptr()
        return pointer if self.aval is None or self._tensor.device == _CPU else ~pointer

    @property
    def tensor(self) -> tvm.runtime.Tensor:
        """The tensor; whoever has seen it may keep it longer than this."""
        self.is_seen = True
        return self._tensor


# Without large pages most of the time that it takes to read scattered rows is spent to find out where they lie.
_HUGE_PAGE, _MADV_HUGEPAGE = 2 << 20, 14
_advise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None


def with_huge_pages(tensor: tvm.runtime.Tensor, nbytes: int) -> tvm.runtime.Tensor:
    """The tensor, of which nothing has been written yet, in large pages if it is large and the system has them."""
    if _advise is not None and nbytes >= 2 * _HUGE_PAGE:
        first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (tensor.data_ptr() + nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
        _advise(ctypes.c_void_p(first), ctypes.c_size_t(length), _MADV_HUGEPAGE)
    return tensor


class _GivenBack:
    """Large pieces of memory that no array needs, for results of the same size.

    New memory costs more than most kernels that fill it, because the system hands it out page by page, cleared.
    """

    def __init__(self) -> None:
        self.limit = 256 << 20
        self.pieces: dict[int, list[tvm.runtime.Tensor]] = {}

    def put(self, nbytes: int, tensor: tvm.runtime.Tensor) -> None:
        """Keeps a piece, unless that were too much. Without a lock: each step is one that threads do not divide."""
        if nbytes > self.limit:
            return
        if nbytes + sum(size * len(kept) for size, kept in list(self.pieces.items())) > self.limit:
            self.pieces.clear()
        self.pieces.setdefault(nbytes, []).append(tensor)


_LARGE = 1 << 20
_given_back = _GivenBack()


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or any(words in str(error) for words in ("bad_alloc", "out of memory"))


def _out_of_memory(nbytes: int, what: str) -> OutOfMemoryError:
    hint = "smaller arrays, or donated ones; memory_analysis() of a compiled function tells what it takes"
    return OutOfMemoryError("jit", f"there is no memory for {what}", got=f"a request for {nbytes:,} bytes", hint=hint)


def _new_bytes(shape: tvm_ffi.Shape) -> tvm.runtime.Tensor:
    try:
        return _allocate(shape, _BYTE, _CPU, None)
    except (MemoryError, RuntimeError) as error:
        return _again(error, shape[0], lambda: _allocate(shape, _BYTE, _CPU, None))


def _again(error: Exception, nbytes: int, allocate: Callable[[], tvm.runtime.Tensor]) -> tvm.runtime.Tensor:
    """What ``allocate`` returns, which has failed, when no memory is kept for later any more."""
    if not _is_out_of_memory(error):
        raise error
    clear_memory()
    try:
        return allocate()
    except (MemoryError, RuntimeError):
        raise _out_of_memory(nbytes, "an array") from None


def empty(shape: Sequence[int], dtype: str, nbytes: int, device: Any = _CPU) -> tvm.runtime.Tensor:
    """A new tensor, of which nothing has been written yet.

    Raises:
        OutOfMemoryError: if there is no memory for it.
    """
    try:
        tensor = tvm.runtime.empty(shape, dtype, device)
    except (MemoryError, RuntimeError) as error:
        tensor = _again(error, nbytes, lambda: tvm.runtime.empty(shape, dtype, device))
    return with_huge_pages(tensor, nbytes) if device == _CPU else tensor


class _LargeMemory(Memory):
    """Bytes on the CPU that are kept for the next result of this size when no array needs them."""

    __slots__ = ("nbytes",)
    # Found by way of the class, which is still there when the names of a module are gone: at the end of the process.
    others = _given_back

    def __init__(self, shape: tvm_ffi.Shape) -> None:
        self.nbytes, self.is_seen = shape[0], True  # until there is something to give back
        try:
            tensor = self.others.pieces[self.nbytes].pop()
        except (KeyError, IndexError):
            tensor = with_huge_pages(_new_bytes(shape), self.nbytes)
        super().__init__(tensor)

    def __del__(self) -> None:
        if not self.is_seen:
            self.others.put(self.nbytes, self._tensor)


def clear_memory() -> None:
    """Gives memory that is kept for later results back to the system."""
    _given_back.pieces.clear()


Results = tuple[Sequence[Memory], Sequence[int]]

# Small results lie in common memory, because an allocation costs more than all else that is done for a result.
# A small result that is kept keeps that memory, so it must be small as well.
_SMALL, _COMMON = 1024, 4096
_ALIGNMENT = 64


class _Fresh:
    """Memory for a few results of every call.

    Args:
        sizes: the bytes of each result.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        ends = list(accumulate(max(1, -(-size // _ALIGNMENT)) * _ALIGNMENT for size in sizes))
        calls = max(1, _COMMON // ends[-1]) if ends[-1] <= _SMALL else 1
        self.offsets = [0, *ends[:-1]]
        self._others = [ends[-1] * i for i in range(1, calls)]
        self._shape = tvm_ffi.Shape((ends[-1] * calls,))
        self._spare: list[tuple[Memory, int]] = []

    def take(self) -> tuple[Memory, int]:
        """Memory that nobody uses, and the address where it may be used."""
        try:
            return self._spare.pop()
        except IndexError:
            memory = _LargeMemory(self._shape) if self._shape[0] >= _LARGE else Memory(_new_bytes(self._shape))
            address = memory.address
            if self._others:
                self._spare += [(memory, address + start) for start in self._others]
            return memory, address

    def give_back(self, taken: tuple[Memory, int]) -> None:
        """Nobody uses it any more."""
        self._spare.append(taken)


def _fresh(sizes: Sequence[int]) -> Iterator[_Fresh]:
    """Memory for results of these sizes, the smallest first."""
    together: list[int] = []
    for size in sizes:
        if together and (size > _SMALL or sum(together) + len(together) * _ALIGNMENT + size > _COMMON):
            yield _Fresh(together)
            together = []
        together.append(size)
    if together:
        yield _Fresh(together)


class NativeExecutable:
    """A compiled ``main`` that takes a table of addresses.

    Args:
        module: what the compiler made or what was loaded from disk.
        plan: what is in the table: a ``Plan`` of the lowering.
    """

    device = _CPU

    def __init__(self, module: Any, plan: Any) -> None:
        self.module = module
        self.plan = plan
        self._main: Any = None
        self._results = getter(plan.results)
        self._reuses = any(place < plan.inputs for place in plan.results)
        self._fresh = list(_fresh(plan.fresh))
        # Memory for the intermediates of one call at a time, so that any number of threads may call.
        self._idle = _Fresh([plan.analysis.temporaries])

    def __call__(self, arrays: Sequence[Any], addresses: list[int], avals: Sequence[Any]) -> Results:
        """Runs ``main`` on arrays that are at these addresses; returns the memory and the address of each result."""
        counters.calls += 1
        main = self._main or self._load()
        owners: list[Any] = list(map(_MEMORY, arrays)) if self._reuses else [None] * len(arrays)
        table = addresses.copy()
        for fresh in self._fresh:
            memory, start = fresh.take()
            if len(fresh.offsets) == 1:
                table.append(start)
                owners.append(memory)
            else:
                table += [start + offset for offset in fresh.offsets]
                owners += [memory] * len(fresh.offsets)
        block = self._idle.take()
        table.append(block[1])
        try:
            words = array("Q", table)
        except OverflowError:
            raise TargetError(
                "jit", "all arrays must be on the CPU", got="one that is elsewhere", hint="tvmfun.device_put(tree)"
            ) from None
        try:
            main(words.buffer_info()[0])
        except (MemoryError, RuntimeError) as error:
            if _is_out_of_memory(error):
                raise _out_of_memory(self.plan.analysis.workspaces, "the workspaces of kernels") from None
            raise
        finally:
            self._idle.give_back(block)
        return self._results(owners), self._results(table)

    def _load(self) -> Any:
        threads.load(self.module)
        self._main = self.module["main"]
        return self._main


def getter(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that returns what a list has at these places."""
    if len(places) > 1 and list(places) != list(range(places[0], places[0] + len(places))):
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + len(places)) if places else slice(0))


class Executable:
    """A module for TVM's virtual machine: for sizes that are known at call time only, and for GPUs.

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

    def __call__(self, arrays: Sequence[Any], addresses: list[int], avals: Sequence[Any]) -> Results:
        """Runs ``main`` on arrays; returns the memory and the address of each result, which are of these types."""
        counters.calls += 1
        try:
            main = self._idle.pop()
        except IndexError:
            main = self._load()
        try:
            results = main(*[array.tensor_at(address) for array, address in zip(arrays, addresses, strict=True)])
        except (MemoryError, RuntimeError) as error:
            if _is_out_of_memory(error):
                raise _out_of_memory(sum(aval.nbytes for aval in avals), "results and what they take") from None
            raise
        self._idle.append(main)
        memories = list(map(Memory, map(_item, repeat(results), range(len(results))), avals))
        return memories, list(map(_ADDRESS, memories))

    def _load(self) -> Any:
        threads.load(self.module)
        devices: Any = [self.device] if self.device == _CPU else [self.device, _CPU]
        return VirtualMachine(self.module, devices)["main"]


def device_of(target: Any) -> Any:
    """The first device of the kind a target is for."""
    return tvm.device(target.kind.name if target.kind.name != "llvm" else "cpu", 0)


def device(name: Any = "cpu") -> Any:
    """Returns a device by name: ``"cpu"``, ``"cuda"``, ``"cuda:1"``; ``None`` is the CPU.

    Raises:
        TargetError: if this machine has no such device.

    >>> device("cpu")
    device(type='cpu', index=0)
    """
    if isinstance(name, tvm.runtime.Device):
        return name
    try:
        found = tvm.device(name or "cpu")
    except (TypeError, ValueError, RuntimeError):
        found = None
    if found is not None and found.dlpack_device_type() == tvm.cpu().dlpack_device_type() and found.index:
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
    """Returns the devices of a kind (``"cpu"``, or ``"cuda"`` or ``"gpu"``), or the best kind there is.

    Raises:
        TargetError: if there is no such kind.

    >>> devices("cpu")
    [device(type='cpu', index=0)]
    """
    if kind not in (None, "cpu", "cuda", "gpu"):
        raise TargetError("devices", "the kind is unknown", got=repr(kind), hint='"cpu" or "cuda"')
    if kind == "cpu":
        return [tvm.cpu()]
    found = []
    while len(found) < 64 and exists(tvm.cuda(len(found))):
        found.append(tvm.cuda(len(found)))
    return found or ([tvm.cpu()] if kind is None else [])


def device_count(kind: str | None = None) -> int:
    """Returns how many devices of a kind there are, or of the best kind; see :func:`devices`.

    >>> device_count("cpu")
    1
    """
    return len(devices(kind))


def default_backend() -> str:
    """Returns the best kind of device that this machine has: ``"gpu"`` or ``"cpu"``.

    Source: ``jax.default_backend``.

    >>> default_backend() in ("cpu", "gpu")
    True
    """
    return "cpu" if devices() == [tvm.cpu()] else "gpu"


def local_devices(
    process_index: int | None = None, backend: str | None = None, host_id: int | None = None
) -> list[Any]:
    """Returns the devices of this process, which are all that it knows; see :func:`devices`.

    Args:
        process_index: None or 0, the only process.
        backend: the kind of devices.
        host_id: None or 0.

    Raises:
        TargetError: for another process.

    Source: ``jax.local_devices``.

    >>> local_devices(backend="cpu")
    [device(type='cpu', index=0)]
    """
    if process_index or host_id:
        raise TargetError("local_devices", "there is one process", got=f"process_index={process_index or host_id!r}")
    return devices(backend)


def local_device_count(backend: str | None = None) -> int:
    """Returns how many devices this process has; see :func:`local_devices`.

    >>> local_device_count("cpu")
    1
    """
    return len(local_devices(backend=backend))


def process_count(backend: str | None = None) -> int:
    """Returns the number of processes that a program runs in, which is 1.

    Args:
        backend: has no effect.

    Source: ``jax.process_count``.

    >>> process_count()
    1
    """
    return 1


def process_index(backend: str | None = None) -> int:
    """Returns the position of this process among all, which is 0.

    Args:
        backend: has no effect.

    Source: ``jax.process_index``.

    >>> process_index()
    0
    """
    return 0


def process_indices(backend: str | None = None) -> list[int]:
    """Returns the positions of all processes.

    Args:
        backend: has no effect.

    Source: ``jax.process_indices``.

    >>> process_indices()
    [0]
    """
    return [0]


def _names() -> list[str]:
    return ["cpu", *("cuda" for _ in devices("cuda")[:1])]
