"""The memory plan: every intermediate of a module gets a place in one block of memory, before anything runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
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


@dataclass
class _Buffer:
    """A piece of memory that is in use from one binding to another."""

    size: int
    first: int
    last: int
    offset: int = 0


def planned(module: tvm.IRModule) -> tuple[tvm.IRModule, MemoryAnalysis]:
    """Writes down where every intermediate of ``main`` lies.

    Args:
        module: kernels, and a ``main`` of static shapes that calls them with ``call_tir`` and ``call_tir_inplace``.

    Returns:
        The module with a ``main`` that takes one block of memory and calls the kernels directly, and what it takes.
    """
    name = module.get_global_var("main")
    planner = _Planner(module[name])
    return tvm.IRModule({**module.functions, name: planner.rewritten()}, attrs=module.attrs), planner.analysis()


class _Planner:
    """Reads ``main`` once to see how long each value is in use, and writes it anew."""

    def __init__(self, main: relax.Function) -> None:
        self.main = main
        self.bindings = [binding for block in main.body.blocks for binding in block.bindings]
        # The variable in whose memory a value lies; a tuple has one per field.
        self.owners: dict[ir.Var, Any] = {parameter: parameter for parameter in main.params}
        self.buffers: dict[ir.Var, _Buffer] = {}
        self.aliased: set[ir.Var] = set()
        for i, binding in enumerate(self.bindings):
            self.read(i, binding)
        returned = [field for field in main.body.body.fields if isinstance(field, ir.Var)]
        results = {self.owners[field] for field in returned}.intersection(self.buffers)
        self.results = [self.buffers.pop(owner) for owner in results]
        self.total = _place(list(self.buffers.values()))

    def analysis(self) -> MemoryAnalysis:
        """What a call takes."""
        arguments = sum(_nbytes(parameter.ty) for parameter in self.main.params)
        aliased = sum(_nbytes(owner.ty) for owner in self.aliased)
        return MemoryAnalysis(arguments, sum(result.size for result in self.results), aliased, self.total)

    def read(self, i: int, binding: relax.VarBinding) -> None:
        """Notes who owns what a binding makes, and that it uses its arguments."""
        var, value = binding.var, binding.value
        if isinstance(value, relax.TupleGetItem):
            self.owners[var] = self.owners[value.tuple_value][value.index]
            return
        for argument in _arguments(value):
            owner = self.owners.get(argument) if isinstance(argument, ir.Var) else None
            if owner in self.buffers:
                self.buffers[owner].last = i
        if _is_kernel(value):
            owners = [self.owner(i, ty, source) for ty, source in zip(_types(var), _sources(value), strict=True)]
            self.owners[var] = owners if isinstance(var.ty, relax.TupleType) else owners[0]
        else:  # a view, also of a constant, or memory of no bytes
            shown = value.args[0] if value.op.name == "relax.reshape" else None
            self.owners[var] = self.owners[shown] if isinstance(shown, ir.Var) else var

    def owner(self, i: int, ty: relax.TensorType, source: ir.Var | None) -> ir.Var:
        """Whose memory a result of the kernel at ``i`` lies in: that of a donated parameter, or its own."""
        if source is not None:
            self.aliased.add(self.owners[source])
            return self.owners[source]
        owner = relax.Var(f"m{len(self.buffers)}", ty)
        self.buffers[owner] = _Buffer(_nbytes(ty), i, i)
        return owner

    def rewritten(self) -> relax.Function:
        """``main`` with its memory made explicit."""
        body = _Bindings()
        if self.total:
            size = relax.ShapeExpr([self.total])
            storage = relax.op.memory.alloc_storage(size, 0, "global", "uint8")
            self.block = body.add("block", storage, relax.AnyType())
        values: dict[ir.Var, Any] = {}
        for binding in self.bindings:
            var, value = binding.var, binding.value
            if isinstance(value, relax.TupleGetItem):
                values[var] = values[value.tuple_value][value.index]
                continue
            arguments = [values.get(a, a) if isinstance(a, ir.Var) else a for a in _arguments(value)]
            if _is_kernel(value):
                values[var] = self.call(body, var, value, arguments)
            else:
                again = relax.Call(value.op, arguments, value.attrs, value.ty_args)
                values[var] = body.add(var.name, again, var.ty)
        fields = [values.get(f, f) if isinstance(f, ir.Var) else f for f in self.main.body.body.fields]
        sequence = relax.SeqExpr([relax.BindingBlock(body.bindings)] if body.bindings else [], relax.Tuple(fields))
        if sequence.ty.is_missing():
            relax.expr._update_type(sequence, self.main.ret_ty)
        attributes = {**dict(self.main.attrs), "relax.force_pure": True}
        main = relax.Function(self.main.params, sequence, self.main.ret_ty, is_pure=False)
        return main.with_attrs(attributes)

    def call(self, body: _Bindings, var: ir.Var, value: relax.Call, arguments: list) -> Any:
        """Calls a kernel on its arguments and on new memory for the results that have none; returns the results."""
        results, fresh = [], []
        for ty, source, owner in zip(_types(var), _sources(value), _listed(self.owners[var]), strict=True):
            if source is not None:
                results.append(owner)
                continue
            shape, dtype = ty.shape, str(ty.dtype)
            if owner in self.buffers:
                offset = self.buffers[owner].offset
                memory = relax.op.memory.alloc_tensor(self.block, offset, shape, dtype)
            else:
                memory = relax.op.builtin.alloc_tensor(shape, dtype, 0)
            fresh.append(body.add(owner.name, memory, ty))
            results.append(fresh[-1])
        body.add("_", relax.Call(value.args[0], [*arguments, *fresh]), relax.TupleType([]))
        return results if isinstance(var.ty, relax.TupleType) else results[0]


class _Bindings:
    def __init__(self) -> None:
        self.bindings: list[relax.VarBinding] = []

    def add(self, name: str, value: relax.Expr, ty: ir.Type) -> relax.Var:
        """Binds a value to a new variable."""
        if value.ty.is_missing():
            relax.expr._update_type(value, ty)
        var = relax.Var(name, ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var


def _is_kernel(value: relax.Call) -> bool:
    return value.op.name in ("relax.call_tir", "relax.call_tir_inplace")


def _arguments(value: relax.Call) -> Sequence[Any]:
    return value.args[1].fields if _is_kernel(value) else value.args


def _types(var: ir.Var) -> Sequence[relax.TensorType]:
    return var.ty.fields if isinstance(var.ty, relax.TupleType) else [var.ty]


def _listed(owners: Any) -> list:
    return owners if isinstance(owners, list) else [owners]


def _sources(value: relax.Call) -> list[ir.Var | None]:
    """For each result of a kernel the argument that it is written over, or None."""
    if value.op.name == "relax.call_tir":
        results = value.ty_args[0]
        return [None] * (len(results.fields) if isinstance(results, relax.TupleType) else 1)
    return [value.args[1].fields[i] if i >= 0 else None for i in map(int, value.attrs.inplace_indices)]


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
