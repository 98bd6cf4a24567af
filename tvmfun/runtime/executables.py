"""Compiled native modules that are called with arrays."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

from tvmfun import threads
from tvmfun.counters import counters
from tvmfun.errors import TargetError
from tvmfun.runtime.devices import CPU
from tvmfun.runtime.memory import (
    Memory,
    ResultBuffers,
    Scratch,
    is_out_of_memory,
    out_of_memory,
    result_buffers,
)
from tvmfun.runtime.plan import DynamicPlan, Plan

_MEMORY = attrgetter("memory")

#: The memory and the address of each result.
Results = tuple[Sequence[Memory], Sequence[int]]


class NativeExecutable:
    """A compiled ``main`` that takes a table of addresses.

    Args:
        module: compiled, or read from disk.
        plan: the layout of the table.
        is_loaded: whether the module has been loaded for the shared pool.
        of: the executable of all sizes, which it shares memory with.
        words: the values of the slots after the block of intermediates.
    """

    device = CPU

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
        # Small functions have one result in new memory and no intermediates, so each call has fewer checks.
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

    device = CPU

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
