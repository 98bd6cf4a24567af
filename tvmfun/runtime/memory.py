"""Memory of arrays: reference-counted allocations, huge pages, and a pool of large blocks for results."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from sys import getrefcount
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import tvm
import tvm_ffi

from tvmfun import dtypes
from tvmfun.errors import OutOfMemoryError
from tvmfun.runtime.devices import CPU


def without_gil_release(name: str) -> Any:
    """Returns a function of the FFI that keeps the GIL: releasing it would take longer than the function."""
    function = tvm.get_global_func(name)
    function.release_gil = False
    return function


_allocate = without_gil_release("runtime.TVMTensorAllocWithScope")
_BYTE = tvm_ffi.dtype("uint8")


class Memory:
    """A reference-counted allocation, shared by the arrays stored in it.

    Args:
        tensor: its elements.
        aval: the type of the only array in it; None for bytes on the CPU.
    """

    __slots__ = ("_tensor", "aval", "is_seen")

    def __init__(self, tensor: tvm.runtime.Tensor, aval: Any = None) -> None:
        self._tensor = tensor
        self.aval = aval
        self.is_seen = False

    @property
    def address(self) -> int:
        """The address of the first byte; negative on other devices than the CPU, where it must not be read.

        Each access makes a new integer, whose reference count is the number of calls that read the array.
        """
        pointer = self._tensor.data_ptr()
        return pointer if self.aval is None or self._tensor.device == CPU else ~pointer

    @property
    def device(self) -> Any:
        """The device that the tensor is on."""
        return self._tensor.device

    def of(self, aval: Any) -> Memory:
        """Views the elements as an array of another type."""
        return Memory(self.tensor._create_view(aval.shape, dtypes.NAMES[aval.dtype]), aval)

    def fill(self, value: np.ndarray | np.generic, dtype: np.dtype) -> None:
        """Copies a NumPy array of any layout to the first bytes, converted to ``dtype``."""
        np.copyto(np.ndarray(value.shape, dtype, np.from_dlpack(self._tensor)), value)  # type: ignore[arg-type]

    @property
    def tensor(self) -> tvm.runtime.Tensor:
        """The tensor. Once handed out it may outlive this object, so its memory is not recycled."""
        self.is_seen = True
        return self._tensor


# Without huge pages, gathers are dominated by TLB misses. The bytes of a huge page.
_HUGE_PAGE = 2 << 20
# Linux's number of the advice to use huge pages.
_MADV_HUGEPAGE = 14
_advise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None


def with_huge_pages(tensor: tvm.runtime.Tensor, nbytes: int) -> tvm.runtime.Tensor:
    """Puts a tensor that is not yet written to into huge pages, if it is large and the system has them."""
    if _advise is not None and nbytes >= 2 * _HUGE_PAGE:
        first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (tensor.data_ptr() + nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
        _advise(ctypes.c_void_p(first), ctypes.c_size_t(length), _MADV_HUGEPAGE)
    return tensor


class _Pool:
    """Free large blocks, kept for results of the same size.

    Page faults on new memory, which the system clears page by page, cost more than most kernels that fill the memory.
    """

    def __init__(self) -> None:
        self.limit = 256 << 20
        self.blocks: dict[int, list[tvm.runtime.Tensor]] = {}

    def put(self, nbytes: int, tensor: tvm.runtime.Tensor) -> None:
        """Keeps a block, up to the limit. Needs no lock: each step is atomic under the GIL."""
        if nbytes > self.limit:
            return
        if nbytes + sum(size * len(kept) for size, kept in list(self.blocks.items())) > self.limit:
            self.blocks.clear()
        self.blocks.setdefault(nbytes, []).append(tensor)


_POOL = _Pool()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of TVM, LLVM or CUDA says that an allocation failed."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in ("bad_alloc", "out of memory"))


def out_of_memory(nbytes: int, what: str) -> OutOfMemoryError:
    """The error for a request of ``nbytes`` bytes for ``what``."""
    hint = "smaller arrays, or donated ones; memory_analysis() of a compiled function for its bytes"
    return OutOfMemoryError("jit", f"there is no memory for {what}", got=f"a request for {nbytes:,} bytes", hint=hint)


def _new_bytes(shape: tvm_ffi.Shape) -> tvm.runtime.Tensor:
    """New bytes; if there is no memory for them, the pool is emptied first."""
    try:
        return _allocate(shape, _BYTE, CPU, None)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    clear_memory()
    try:
        return _allocate(shape, _BYTE, CPU, None)
    except (MemoryError, RuntimeError):
        raise out_of_memory(shape[0], "an array") from None


class _LargeMemory(Memory):
    """A block on the CPU that returns to the pool when no array is stored in it."""

    __slots__ = ("nbytes",)
    # An attribute, because globals are gone before `__del__` runs at interpreter shutdown.
    pool = _POOL

    def __init__(self, shape: tvm_ffi.Shape) -> None:
        self.nbytes, self.is_seen = shape[0], True  # nothing to return before there is a tensor
        try:
            tensor = self.pool.blocks[self.nbytes].pop()
        except (KeyError, IndexError):
            tensor = with_huge_pages(_new_bytes(shape), self.nbytes)
        super().__init__(tensor)

    def __del__(self) -> None:
        if not self.is_seen:
            self.pool.put(self.nbytes, self._tensor)


# Results of at most this many bytes share blocks, because the allocation would cost more than all their other work.
_SMALL = 1024
# The bytes of a shared block. It is small, too, because one result that is alive keeps its whole block.
_COMMON = 4096
_ALIGNMENT = 64
# Blocks of at most this many bytes are recycled by size; larger ones come from the pool.
_RECYCLED = 256 << 10
# The most recent blocks of each size that are kept for this: enough for a loop with three live results of a size.
_LATEST = 4
_Blocks = deque[tuple[Memory, int]]
_BLOCKS_BY_SIZE: WeakValueDictionary[int, _Blocks] = WeakValueDictionary()


def _aligned(nbytes: int) -> int:
    return max(1, -(-nbytes // _ALIGNMENT)) * _ALIGNMENT


def _references(block: tuple[Memory, int]) -> int:
    """The number of references to the memory of a block, including the block's own."""
    return getrefcount(block[0])


_UNUSED = _references((Memory(tvm.runtime.empty((1,), "uint8")), 0))


def allocate(nbytes: int) -> Memory:
    """New memory on the CPU for one array, from the pool if it is large.

    Raises:
        OutOfMemoryError: if the allocation fails.
    """
    shape = tvm_ffi.Shape((_aligned(nbytes),))
    return _LargeMemory(shape) if shape[0] > _RECYCLED else Memory(_new_bytes(shape))


def clear_memory() -> None:
    """Returns the pool of free blocks to the system."""
    _POOL.blocks.clear()
    for blocks in list(_BLOCKS_BY_SIZE.values()):
        blocks.clear()


class ResultBuffers:
    """Memory for some of the results of each call: one block, or slots of one that several calls share.

    Args:
        sizes: the bytes of each result.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        ends = list(accumulate(map(_aligned, sizes)))
        calls = max(1, _COMMON // ends[-1]) if ends[-1] <= _SMALL else 1
        self.offsets = [0, *ends[:-1]]
        self._slots = [ends[-1] * i for i in range(1, calls)]
        self._shape = tvm_ffi.Shape((ends[-1] * calls,))
        self._unused: list[tuple[Memory, int]] = []
        self._latest = _BLOCKS_BY_SIZE.setdefault(self._shape[0], _Blocks()) if self._shape[0] <= _RECYCLED else None

    def take(self) -> tuple[Memory, int]:
        """Unused memory and the address of the slot in it."""
        if self._unused:
            try:
                return self._unused.pop()
            except IndexError:
                pass  # another thread was faster
        memory, address = self._block()
        if self._slots:
            self._unused += [(memory, address + start) for start in self._slots]
        # A new integer for each result, whose reference count is the number of readers.
        return memory, address + 0

    def _block(self) -> tuple[Memory, int]:
        """A block that stores no array, and its address."""
        latest = self._latest
        if latest is None:
            large = _LargeMemory(self._shape)
            return large, large.address
        try:
            block = latest.popleft() if len(latest) >= _LATEST else None
        except IndexError:  # other threads were faster
            block = None
        if block is None or _references(block) != _UNUSED or block[0].is_seen:
            memory = Memory(_new_bytes(self._shape))
            block = memory, memory.address
        latest.append(block)
        return block

    def put_back(self, taken: tuple[Memory, int]) -> None:
        """Makes memory that :meth:`take` returned available to the next call."""
        self._unused.append(taken)


_LEAST_SCRATCH = 1 << 20


class Scratch:
    """Memory for intermediates whose size differs between calls.

    Calls that run at the same time have a block each, which grows to the most that was needed, and is then kept.

    Args:
        nbytes: the bytes that a call needs.
        idle: the blocks that no call uses; calls with other sizes share them.
    """

    def __init__(self, nbytes: int, idle: list[tuple[Memory, int]]) -> None:
        self._nbytes = max(nbytes, _LEAST_SCRATCH)
        self._idle = idle

    def take(self) -> tuple[Memory, int]:
        """Unused memory and its address."""
        try:
            block = self._idle.pop()
            if isinstance(block[0], _LargeMemory) and block[0].nbytes >= self._nbytes:
                return block
            del block  # freed before the larger one is allocated
        except IndexError:
            pass
        memory = _LargeMemory(tvm_ffi.Shape((self._nbytes,)))
        return memory, memory.address

    def put_back(self, taken: tuple[Memory, int]) -> None:
        """Makes memory that :meth:`take` returned available to the next call."""
        self._idle.append(taken)


def result_buffers(sizes: Sequence[int]) -> Iterator[ResultBuffers]:
    """Groups results into buffers, neighbours together: their sizes should be in ascending order."""
    together: list[int] = []
    for size in sizes:
        if together and (size > _SMALL or sum(together) + len(together) * _ALIGNMENT + size > _COMMON):
            yield ResultBuffers(together)
            together = []
        together.append(size)
    if together:
        yield ResultBuffers(together)
