"""Compiled modules that are called with arrays: native ones, and those for TVM's virtual machine on GPUs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any

import tvm
from tvm.runtime.vm import VirtualMachine

from tvmfun import threads
from tvmfun.counters import counters
from tvmfun.errors import TargetError
from tvmfun.runtime.memory import (
    Memory,
    ResultBuffers,
    Scratch,
    is_out_of_memory,
    out_of_memory,
    result_buffers,
    without_gil_release,
)
from tvmfun.runtime.plan import DynamicPlan, Plan

_CPU: Any = tvm.cpu()
_MEMORY, _ADDRESS = attrgetter("memory"), attrgetter("address")
_item = without_gil_release("ffi.ArrayGetItem")

#: The memory and the address of each result.
Results = tuple[Sequence[Memory], Sequence[int]]


class NativeExecutable:
    """A compiled ``main`` that takes a table of addresses.

    Args:
        module: compiled, or read from disk.
        plan: the layout of the table.
        is_loaded: whether the module has been loaded for the shared pool.
        of: what it shares with executables for other sizes.
        words: the values of the slots after that of the block of intermediates.
    """

    device = _CPU

    def __init__(
        self,
        module: Any,
        plan: Plan,
        is_loaded: bool = False,
        of: DynamicExecutable | None = None,
        words: Sequence[int] = (),
    ) -> None:
        self.module = module
        self.plan = plan
        self._is_loaded = is_loaded
        self._main: Any = None
        self._words = words
        self._results = items_at(plan.results)
        self._reuses_inputs = any(slot < plan.inputs for slot in plan.results)
        nbytes = plan.analysis.temporaries
        # Each running call has its own block of intermediates, so that any number of threads may call.
        self._temporaries = Scratch(nbytes, of.idle) if of else ResultBuffers([nbytes])
        shared = of.buffers if of else []
        self._buffers = [*shared, *result_buffers(plan.fresh[of.plan.static_fresh if of else 0 :])]
        # Small functions have one result in new memory and no intermediates: less is asked at each call.
        is_small = plan.results == (plan.inputs,) and not (nbytes or words)
        self._only = self._buffers[0] if is_small else None

    def at(self, device: Any) -> NativeExecutable:
        """Returns this executable, because there is one CPU."""
        return self

    def __call__(self, arrays: Sequence[Any], addresses: list[int], avals: Sequence[Any]) -> Results:
        """Runs ``main`` on arrays at these addresses; returns the memory and the address of each result."""
        counters.calls += 1
        if self._only is not None:
            memory, start = self._only.take()
            self._run([*addresses, start, 0])
            return (memory,), (start,)
        owners: list[Any] = list(map(_MEMORY, arrays)) if self._reuses_inputs else [None] * len(arrays)
        table = addresses.copy()
        for buffers in self._buffers:
            memory, start = buffers.take()
            if len(buffers.offsets) == 1:
                table.append(start)
                owners.append(memory)
            else:
                table += [start + offset for offset in buffers.offsets]
                owners += [memory] * len(buffers.offsets)
        block = self._temporaries.take()
        table.append(block[1])
        table += self._words
        try:
            self._run(table)
        finally:
            self._temporaries.put_back(block)
        return self._results(owners), self._results(table)

    def _run(self, table: list[int]) -> None:
        """Runs ``main`` on a table of addresses."""
        main = self._main or self._load()
        try:
            words = array("Q", table)
            main(words.buffer_info()[0])
        except OverflowError:
            raise TargetError(
                "jit", "all arrays must be on the CPU", got="one that is elsewhere", hint="tvmfun.device_put(tree)"
            ) from None
        except (MemoryError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise out_of_memory(self.plan.analysis.workspaces, "the workspaces of kernels") from None
            raise

    def _load(self) -> Any:
        if not self._is_loaded:
            threads.load(self.module)
        self._main = self.module["main"]
        return self._main


class DynamicExecutable:
    """A compiled ``main`` for arguments of all sizes.

    Args:
        module: compiled, or read from disk.
        plan: the layout of the table.
        is_loaded: whether the module has been loaded for the shared pool.
    """

    device = _CPU

    def __init__(self, module: Any, plan: DynamicPlan, is_loaded: bool = False) -> None:
        self.module = module
        self.plan = plan
        self._is_loaded = is_loaded
        #: Memory for the results of static size.
        self.buffers = list(result_buffers([size for size in plan.fresh if isinstance(size, int)]))
        #: Blocks for intermediates that no call uses.
        self.idle: list[tuple[Memory, int]] = []

    def at(self, device: Any) -> DynamicExecutable:
        """Returns this executable, because there is one CPU."""
        return self

    def at_sizes(self, sizes: Mapping[str, int]) -> NativeExecutable:
        """Returns the executable for these sizes."""
        plan, words = self.plan.at(sizes)
        if not self._is_loaded:
            threads.load(self.module)
            self._is_loaded = True
        return NativeExecutable(self.module, plan, True, self, words)


def items_at(indices: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that returns the items of a list at these indices."""
    if len(indices) > 1 and list(indices) != list(range(indices[0], indices[0] + len(indices))):
        return itemgetter(*indices)
    return itemgetter(slice(indices[0], indices[0] + len(indices)) if indices else slice(0))


class Executable:
    """A module for TVM's virtual machine: for dynamic sizes on a GPU.

    Args:
        module: compiled, or loaded from disk.
        device: where it runs; it need not exist until the first call.
    """

    def __init__(self, module: Any, device: Any) -> None:
        self.module = module
        self.device = device
        # A virtual machine has one stack and runs one call at a time: each call takes an idle one, so that any
        # number of threads may call. A call that fails drops its machine.
        self._idle: list[Any] = []

    def at(self, device: Any) -> Executable:
        """Returns the same module for another device."""
        return self if device == self.device else Executable(self.module, device)

    def __call__(self, arrays: Sequence[Any], addresses: list[int], avals: Sequence[Any]) -> Results:
        """Runs ``main`` on arrays; returns the memory and the address of each result, of the types ``avals``."""
        counters.calls += 1
        try:
            main = self._idle.pop()
        except IndexError:
            main = self._load()
        try:
            results = main(*[array.tensor_at(address) for array, address in zip(arrays, addresses, strict=True)])
        except (MemoryError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise out_of_memory(sum(aval.nbytes for aval in avals), "results and workspaces") from None
            raise
        self._idle.append(main)
        memories = list(map(Memory, map(_item, repeat(results), range(len(results))), avals))
        return memories, list(map(_ADDRESS, memories))

    def _load(self) -> Any:
        if self.device != _CPU and not tvm.get_global_func("device_api.cuda", allow_missing=True):
            hint = "static sizes, or libcudart.so, which TVM's runtime for CUDA needs"
            raise TargetError("jit", "dynamic sizes on a GPU need TVM's runtime for CUDA", hint=hint)
        threads.load(self.module)
        devices: Any = [self.device] if self.device == _CPU else [self.device, _CPU]
        return VirtualMachine(self.module, devices)["main"]
