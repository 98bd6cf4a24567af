"""The layout of the memory of a call: the table of addresses that compiled code gets, decided at compile time.

If sizes are dynamic, the table has slots for sizes and offsets as well, which are computed for each set of sizes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

from tvmfun.runtime.formulas import Formula, evaluate
from tvmfun.runtime.offsets import Lifetime, assign_offsets
from tvmfun.runtime.workspaces import Allocation, kept_by_threads


@dataclass(frozen=True)
class MemoryAnalysis:
    """The memory of one call of a compiled function, in bytes.

    Args:
        arguments: the size of the arguments.
        outputs: the size of the results that are not written over donated arguments.
        aliased: the size of the results that are written over donated arguments.
        temporaries: the size of the block that all intermediates share.
        workspaces: the size of the allocations of kernels while they run, in all threads.

    >>> MemoryAnalysis(arguments=4096, outputs=8, aliased=2048, temporaries=1024).peak
    5128
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    workspaces: int = 0

    @property
    def peak(self) -> int:
        """The most bytes in use at a time."""
        return self.arguments + self.outputs + self.temporaries + self.workspaces


@dataclass(frozen=True)
class Plan:
    """The layout of the table of addresses that ``main`` is called with, and the slots of its results.

    The table holds the addresses of the inputs, of new memory for results, and of the block of intermediates.

    Args:
        inputs: the number of inputs.
        fresh: the bytes of each piece of new memory, the smallest first.
        results: for each result the slot of its address.
        analysis: the memory of a call.
    """

    inputs: int
    fresh: tuple[int, ...]
    results: tuple[int, ...]
    analysis: MemoryAnalysis

    @property
    def block(self) -> int:
        """The slot of the block of intermediates: the last one."""
        return self.inputs + len(self.fresh)

    @property
    def slots(self) -> int:
        """The number of slots."""
        return self.block + 1

    @property
    def text(self) -> str:
        """The plan as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Plan:
        """The inverse of :attr:`text`."""
        fields = json.loads(text)
        analysis = MemoryAnalysis(**fields["analysis"])
        return cls(fields["inputs"], tuple(fields["fresh"]), tuple(fields["results"]), analysis)


@dataclass(frozen=True)
class DynamicPlan:
    """A memory plan for dynamic sizes: byte counts as formulas, from which :meth:`at` makes a :class:`Plan`.

    After the block of intermediates, the table holds the sizes and the offset of each intermediate in the block.

    Args:
        sizes: the names of the sizes.
        inputs: the number of inputs.
        fresh: the bytes of each piece of new memory: first pieces of static size, the smallest first.
        results: for each result the slot of its address.
        buffers: the bytes of each intermediate.
        lifetimes: the steps that use each intermediate.
        arguments: the bytes of the arguments.
        aliased: the bytes of the results that are written over donated arguments.
        allocations: the workspaces of kernels, in the order in which they are allocated and freed.
        threads: the number of threads that kernels use.
    """

    sizes: tuple[str, ...]
    inputs: int
    fresh: tuple[Formula, ...]
    results: tuple[int, ...]
    buffers: tuple[Formula, ...]
    lifetimes: tuple[Lifetime, ...]
    arguments: Formula
    aliased: Formula
    allocations: tuple[Allocation, ...] = ()
    threads: int = 1

    @property
    def block(self) -> int:
        """The slot of the block of intermediates."""
        return self.inputs + len(self.fresh)

    @property
    def slots(self) -> int:
        """The number of slots."""
        return self.block + 1 + len(self.sizes) + len(self.buffers)

    def size_slot(self, name: str) -> int:
        """The slot of a size."""
        return self.block + 1 + self.sizes.index(name)

    def offset_slot(self, i: int) -> int:
        """The slot of the offset of intermediate ``i``."""
        return self.block + 1 + len(self.sizes) + i

    @property
    def static_fresh(self) -> int:
        """The number of pieces of new memory with a static size; they come first."""
        return sum(isinstance(size, int) for size in self.fresh)

    def at(self, sizes: Mapping[str, int]) -> tuple[Plan, list[int]]:
        """The plan for these sizes, and the values of the slots after the block."""
        formulas = dict.fromkeys((*self.fresh, *self.buffers, self.arguments, self.aliased))
        values = {formula: evaluate(formula, sizes) for formula in formulas}
        fresh = tuple(values[formula] for formula in self.fresh)
        offsets, temporaries = assign_offsets([values[formula] for formula in self.buffers], self.lifetimes)
        allocations = [None if a is None else (evaluate(a[0], sizes), a[1]) for a in self.allocations]
        workspaces = kept_by_threads(allocations, self.threads)
        analysis = MemoryAnalysis(values[self.arguments], sum(fresh), values[self.aliased], temporaries, workspaces)
        return Plan(self.inputs, fresh, self.results, analysis), [*(sizes[name] for name in self.sizes), *offsets]

    @property
    def text(self) -> str:
        """The plan as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> DynamicPlan:
        """The inverse of :attr:`text`."""
        fields = json.loads(text)
        lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
        lists["lifetimes"] = tuple(Lifetime(*pair) for pair in fields["lifetimes"])
        lists["allocations"] = tuple(None if pair is None else tuple(pair) for pair in fields["allocations"])
        return cls(**{**fields, **lists})


class Address(NamedTuple):
    """The address in a slot of the table, plus an offset in bytes, plus the offset in another slot if there is one."""

    slot: int
    offset: int = 0
    offset_slot: int | None = None


class Size(NamedTuple):
    """A dynamic size, by its slot in the table."""

    slot: int
