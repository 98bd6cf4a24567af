"""The memory plan: the address of every value of a ``main``, decided at compile time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from tvm import ir, relax

from tvmfun import dtypes
from tvmfun.runtime.plan import Address, MemoryAnalysis, Plan

# The alignment of buffers in the block: a multiple of cache lines, and that of CUDA's allocations.
_ALIGNMENT = 256


class Call(NamedTuple):
    """A step of ``main`` that calls a kernel."""

    kernel: str
    arguments: list[Address]


class Store(NamedTuple):
    """A step of ``main`` that writes a constant, given as the integer of its bits."""

    address: Address
    bits: np.integer


@dataclass(eq=False)
class _Buffer:
    """A piece of memory that is in use from its first to its last binding."""

    size: int
    first: int
    last: int
    offset: int = 0


# The memory of a value: that of an input, by position, or a buffer.
_Owner = int | _Buffer


def plan_memory(
    main: relax.Function, workspaces: Mapping[str, Sequence[int]] | None = None
) -> tuple[Plan, list[Call | Store]]:
    """Decides the address of every value of ``main``.

    Args:
        main: calls kernels with ``call_tir`` and ``call_tir_inplace``; all its shapes are static.
        workspaces: for kernels that get memory only for themselves the bytes of each piece. Their addresses are the
            last arguments of a call.

    Returns:
        The plan, and the steps of the native ``main``.
    """
    planner = _Planner(main, workspaces or {})
    return planner.plan, planner.steps()


class _Planner:
    """Reads ``main`` once to find out how long each value is in use."""

    def __init__(self, main: relax.Function, workspaces: Mapping[str, Sequence[int]]) -> None:
        self.workspaces = workspaces
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
        temporaries, inputs = _assign_offsets(intermediates), len(main.params)
        self.addresses = {buffer: Address(inputs + k) for k, buffer in enumerate(fresh)}
        self.addresses |= {buffer: Address(inputs + len(fresh), buffer.offset) for buffer in intermediates}
        sizes = tuple(buffer.size for buffer in fresh)
        arguments = sum(_nbytes(parameter.ty) for parameter in main.params)
        analysis = MemoryAnalysis(arguments, sum(sizes), sum(self.aliased.values()), temporaries)
        self.plan = Plan(inputs, sizes, tuple(self.address(result).slot for result in results), analysis)

    def read(self, i: int, binding: relax.VarBinding) -> None:
        """Records the memory of a binding's value, and the use of its arguments."""
        var, value = binding.var, binding.value
        if isinstance(value, relax.TupleGetItem):
            self.owners[var] = self.owners[value.tuple_value][value.index]
        elif _is_kernel(value):
            arguments = [self.owner(i, argument) for argument in value.args[1].fields]
            results: list[_Owner] = []
            passed = list(arguments)
            for ty, source in zip(_types(var), _sources(value), strict=True):
                if source is None:
                    results.append(self.new(i, _nbytes(ty)))
                    passed.append(results[-1])
                else:
                    results.append(arguments[source])
                    if isinstance(arguments[source], int):
                        self.aliased[arguments[source]] = _nbytes(ty)
            name = value.args[0].name_hint
            passed += [self.new(i, size) for size in self.workspaces.get(name, ())]
            self.calls.append((i, name, passed))
            self.owners[var] = results if isinstance(var.ty, relax.TupleType) else results[0]
        elif value.op.name == "relax.reshape":
            self.owners[var] = self.owner(i, value.args[0])
        else:  # memory of no bytes
            self.owners[var] = self.new(i, _nbytes(var.ty))

    def new(self, i: int, size: int) -> _Buffer:
        """A buffer of a size for the binding at ``i``."""
        self.buffers.append(_Buffer(size, i, i))
        return self.buffers[-1]

    def owner(self, i: int, value: relax.Expr) -> _Owner:
        """The memory of a value that the binding at ``i`` uses; constants are written just before it."""
        if isinstance(value, ir.GenericConst):
            self.constants.append((i, self.new(i, _nbytes(value.ty)), value))
            return self.buffers[-1]
        owner = self.owners[value]
        if isinstance(owner, _Buffer):
            owner.last = i
        return owner

    def address(self, owner: _Owner) -> Address:
        """The address of the memory."""
        return Address(owner) if isinstance(owner, int) else self.addresses[owner]

    def steps(self) -> list[Call | Store]:
        """The steps of ``main``, in order."""
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
    """For each result of a kernel the position of the argument that it is written over, or None."""
    if value.op.name == "relax.call_tir":
        results = value.ty_args[0]
        return [None] * (len(results.fields) if isinstance(results, relax.TupleType) else 1)
    return [i if i >= 0 else None for i in map(int, value.attrs.inplace_indices)]


def _nbytes(ty: relax.TensorType) -> int:
    return math.prod(map(int, ty.shape.values)) * dtypes.canonical(str(ty.dtype)).itemsize


def _assign_offsets(buffers: list[_Buffer]) -> int:
    """Gives each buffer an offset, so that those in use at the same time do not overlap; returns the total size.

    The largest buffers come first, each at the lowest offset where it fits.
    Source: Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020 ("greedy by size").
    """
    count, total = 0, 0
    first, last, begin, end = np.zeros((4, len(buffers)), np.int64)
    for buffer in sorted(buffers, key=lambda buffer: -buffer.size):
        size = -(-buffer.size // _ALIGNMENT) * _ALIGNMENT
        busy = np.nonzero((first[:count] <= buffer.last) & (last[:count] >= buffer.first))[0]
        order = busy[np.argsort(begin[busy], kind="stable")]
        # The gaps between neighbours: from the largest end so far to the next beginning.
        ends = np.maximum.accumulate(np.concatenate([[0], end[order]]))
        gaps = np.concatenate([begin[order], [np.iinfo(np.int64).max]]) - ends
        buffer.offset = int(ends[np.argmax(gaps >= size)])
        first[count], last[count], begin[count], end[count] = (
            buffer.first, buffer.last, buffer.offset, buffer.offset + size
        )  # fmt: skip
        count, total = count + 1, max(total, buffer.offset + size)
    return total
