"""The memory plan: where every value of a ``main`` lies, decided before anything runs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from tvm import ir, relax

from tvmfun import dtypes

# A cache line on CPUs, and what CUDA's allocations are aligned to.
_ALIGNMENT = 256


@dataclass(frozen=True)
class MemoryAnalysis:
    """The bytes that one call of a compiled function takes.

    Args:
        arguments: of the arguments.
        outputs: of the results that do not lie in donated arguments.
        aliased: of the results that lie in donated arguments.
        temporaries: of the block that all intermediates share.
        workspaces: of what kernels allocate while they run, in all threads.

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
        """The most that is in use at a time."""
        return self.arguments + self.outputs + self.temporaries + self.workspaces


@dataclass(frozen=True)
class Plan:
    """What ``main`` finds in the table of addresses that it is called with, and what comes of it.

    The table has the addresses of the inputs, of fresh memory for results, and of the block of intermediates.

    Args:
        inputs: how many there are.
        fresh: the bytes of each piece of fresh memory, the smallest first.
        results: for each result the place in the table of where it lies.
        analysis: the bytes that a call takes.
    """

    inputs: int
    fresh: tuple[int, ...]
    results: tuple[int, ...]
    analysis: MemoryAnalysis

    @property
    def block(self) -> int:
        """The place in the table of the block of intermediates: the last."""
        return self.inputs + len(self.fresh)

    @property
    def text(self) -> str:
        """The plan as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Plan:
        """The plan that :attr:`text` says."""
        said = json.loads(text)
        return cls(said["inputs"], tuple(said["fresh"]), tuple(said["results"]), MemoryAnalysis(**said["analysis"]))


class Address(NamedTuple):
    """An address: that at a place of the table, and some bytes further."""

    place: int
    offset: int = 0


class Call(NamedTuple):
    """A step of ``main``: a kernel runs."""

    kernel: str
    arguments: list[Address]


class Store(NamedTuple):
    """A step of ``main``: a constant is written, here as the integer of its bits."""

    address: Address
    bits: np.integer


@dataclass(eq=False)
class _Buffer:
    """A piece of memory that is in use from one binding to another."""

    size: int
    first: int
    last: int
    offset: int = 0


# Whose memory a value lies in: that of an input, by its number, or its own.
_Owner = int | _Buffer


def plan_memory(main: relax.Function) -> tuple[Plan, list[Call | Store]]:
    """Decides where every value of ``main`` lies.

    Args:
        main: calls kernels with ``call_tir`` and ``call_tir_inplace``; all its shapes are static.

    Returns:
        The plan, and the steps to take.
    """
    planner = _Planner(main)
    return planner.plan, planner.steps()


class _Planner:
    """Reads ``main`` once to see how long each value is in use."""

    def __init__(self, main: relax.Function) -> None:
        self.owners: dict[ir.Var, Any] = {parameter: i for i, parameter in enumerate(main.params)}
        self.buffers: list[_Buffer] = []
        self.calls: list[tuple[int, str, list[_Owner]]] = []
        self.constants: list[tuple[int, _Buffer, ir.GenericConst]] = []
        self.aliased: dict[_Owner, int] = {}
        bindings = [binding for block in main.body.blocks for binding in block.bindings]
        for i, binding in enumerate(bindings):
            self.read(i, binding)
        results = [self.owner(len(bindings), field) for field in main.body.body.fields]
        fresh = sorted({r: None for r in results if isinstance(r, _Buffer)}, key=lambda buffer: buffer.size)
        kept = set(fresh)
        intermediates = [buffer for buffer in self.buffers if buffer not in kept]
        temporaries, inputs = _place(intermediates), len(main.params)
        self.addresses = {buffer: Address(inputs + k) for k, buffer in enumerate(fresh)}
        self.addresses |= {buffer: Address(inputs + len(fresh), buffer.offset) for buffer in intermediates}
        sizes = tuple(buffer.size for buffer in fresh)
        arguments = sum(_nbytes(parameter.ty) for parameter in main.params)
        analysis = MemoryAnalysis(arguments, sum(sizes), sum(self.aliased.values()), temporaries)
        self.plan = Plan(inputs, sizes, tuple(self.address(result).place for result in results), analysis)

    def read(self, i: int, binding: relax.VarBinding) -> None:
        """Notes who owns what a binding makes, and that it uses its arguments."""
        var, value = binding.var, binding.value
        if isinstance(value, relax.TupleGetItem):
            self.owners[var] = self.owners[value.tuple_value][value.index]
        elif _is_kernel(value):
            arguments = [self.owner(i, argument) for argument in value.args[1].fields]
            results: list[_Owner] = []
            passed = list(arguments)
            for ty, source in zip(_types(var), _sources(value), strict=True):
                if source is None:
                    results.append(self.new(i, ty))
                    passed.append(results[-1])
                else:
                    results.append(arguments[source])
                    if isinstance(arguments[source], int):
                        self.aliased[arguments[source]] = _nbytes(ty)
            self.calls.append((i, value.args[0].name_hint, passed))
            self.owners[var] = results if isinstance(var.ty, relax.TupleType) else results[0]
        elif value.op.name == "relax.reshape":
            self.owners[var] = self.owner(i, value.args[0])
        else:  # memory of no bytes
            self.owners[var] = self.new(i, var.ty)

    def new(self, i: int, ty: relax.TensorType) -> _Buffer:
        """Memory for what the binding at ``i`` makes."""
        self.buffers.append(_Buffer(_nbytes(ty), i, i))
        return self.buffers[-1]

    def owner(self, i: int, value: relax.Expr) -> _Owner:
        """Whose memory a value lies in that the binding at ``i`` uses; constants are written just before."""
        if isinstance(value, ir.GenericConst):
            self.constants.append((i, self.new(i, value.ty), value))
            return self.buffers[-1]
        owner = self.owners[value]
        if isinstance(owner, _Buffer):
            owner.last = i
        return owner

    def address(self, owner: _Owner) -> Address:
        """Where the memory lies."""
        return Address(owner) if isinstance(owner, int) else self.addresses[owner]

    def steps(self) -> list[Call | Store]:
        """What ``main`` does."""
        stores = [(i, Store(self.address(buffer), _bits(value))) for i, buffer, value in self.constants]
        calls = [(i, Call(kernel, list(map(self.address, owners)))) for i, kernel, owners in self.calls]
        return [step for _, step in sorted([*stores, *calls], key=lambda item: item[0])]


def _bits(constant: ir.GenericConst) -> np.integer:
    """The bits of a scalar constant."""
    size = 8 * dtypes.canonical(str(constant.ty.dtype)).itemsize
    return np.from_dlpack(constant.value._create_view((), f"int{size}"))[()]


def _is_kernel(value: relax.Call) -> bool:
    return value.op.name in ("relax.call_tir", "relax.call_tir_inplace")


def _types(var: ir.Var) -> Sequence[relax.TensorType]:
    return var.ty.fields if isinstance(var.ty, relax.TupleType) else [var.ty]


def _sources(value: relax.Call) -> list[int | None]:
    """For each result of a kernel the place of the argument that it is written over, or None."""
    if value.op.name == "relax.call_tir":
        results = value.ty_args[0]
        return [None] * (len(results.fields) if isinstance(results, relax.TupleType) else 1)
    return [i if i >= 0 else None for i in map(int, value.attrs.inplace_indices)]


def _nbytes(ty: relax.TensorType) -> int:
    return math.prod(map(int, ty.shape.values)) * dtypes.canonical(str(ty.dtype)).itemsize


def _place(buffers: list[_Buffer]) -> int:
    """Gives each buffer an offset, so that those in use at the same time do not overlap; returns the size of all.

    The largest first, each at the lowest place where it fits.
    Source: Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020 ("greedy by size").
    """
    count, total = 0, 0
    first, last, begin, end = np.zeros((4, len(buffers)), np.int64)
    for buffer in sorted(buffers, key=lambda buffer: -buffer.size):
        size = -(-buffer.size // _ALIGNMENT) * _ALIGNMENT
        busy = np.nonzero((first[:count] <= buffer.last) & (last[:count] >= buffer.first))[0]
        order = busy[np.argsort(begin[busy], kind="stable")]
        # The ends so far of what lies below each neighbour, and where the next one begins.
        ends = np.maximum.accumulate(np.concatenate([[0], end[order]]))
        gaps = np.concatenate([begin[order], [np.iinfo(np.int64).max]]) - ends
        buffer.offset = int(ends[np.argmax(gaps >= size)])
        first[count], last[count], begin[count], end[count] = (
            buffer.first, buffer.last, buffer.offset, buffer.offset + size
        )  # fmt: skip
        count, total = count + 1, max(total, buffer.offset + size)
    return total
