"""Merging of similar functions: kernels that differ only in numbers become one, with the numbers as arguments.

Layers of a network apply the same map to arrays of several sizes. Once scheduled, such maps differ in the extents of
loops, in multiples of indices, and in a constant or two, so they share their machine code. LLVM has passes of this name
and of this kind (``MergeFunctions``, ``MergeSimilarFunctions``), which would run on what is generated already.

Divisors of indices stay constants, and so do the lanes of vectors: code for any number would be slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import tvm_ffi
from tvm import ir, tirx

from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Expr
from tvmfun.lower.tir.walk import called, find, rewrite

_SYMBOL = "global_symbol"
# The bits of floats are passed as integers of the same size.
_BITS = {"float32": "int32", "float64": "int64"}
# Calls of micro-kernels, and the bits of constants.
_NUMBERED = ("tirx.call_extern", "tirx.reinterpret")
# All merged functions allocate the memory that the largest one needs.
_MOST_ALLOCATED = 1 << 18


class Merged(NamedTuple):
    """The function that replaces another one, with further arguments."""

    name: str
    numbers: tuple[int, ...] = ()


def merge(
    functions: Mapping[ir.GlobalVar, tirx.PrimFunc],
) -> tuple[dict[ir.GlobalVar, tirx.PrimFunc], dict[str, Merged]]:
    """Merges similar functions of buffers of static shapes.

    Args:
        functions: scheduled kernels.

    Returns:
        The remaining functions, and for each merged function its replacement.
    """
    kept: dict[ir.GlobalVar, tirx.PrimFunc] = {}
    merged: dict[str, Merged] = {}
    for alike in _groups(functions.items(), lambda item: (_name_of_ops(item[0]), len(item[1].params))):
        if len(alike) == 1:
            kept.update(alike)
            continue
        forms = [(name, _abstracted(function)) for name, function in alike]
        for same in _groups(forms, lambda item: item[1].key):
            names, members = [name for name, _ in same], [form for _, form in same]
            if len(same) == 1 or not _fit_together(members):
                kept.update((name, functions[name]) for name in names)
                continue
            function, arguments = _function_of(members)
            kept[names[0]] = function.with_attrs(functions[names[0]].attrs)
            merged.update((n.name_hint, Merged(names[0].name_hint, a)) for n, a in zip(names, arguments, strict=True))
    return kept, merged


def _groups(items: Any, key: Callable[[Any], Any]) -> list[list]:
    found: dict[Any, list] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.values())


def _name_of_ops(name: ir.GlobalVar) -> str:
    """The name of a kernel without its number."""
    return name.name_hint.rpartition("_")[0]


class _Form(NamedTuple):
    """A function with variables instead of numbers.

    Args:
        body: its buffers are flat, and of one element.
        params: the buffers that are its parameters.
        key: a key that is equal for similar functions.
        numbers: the numbers that the variables stand for.
        allocated: the private buffers, with their numbers of elements.
    """

    body: tirx.Stmt
    params: list[tirx.Buffer]
    key: tvm_ffi.StructuralKey
    numbers: dict[tirx.Var, Any]
    allocated: dict[tirx.Buffer, int]


@cache
def _number(position: int, dtype: str) -> tirx.Var:
    """The variable for a number of a function; functions share the variables, because creating one takes long."""
    return tirx.Var("number", dtype)


@cache
def _flat(position: int, dtype: str) -> tirx.Buffer:
    """The parameter of a function, or a buffer of its own."""
    return build.buffer([1], dtype, f"x{position}")


def _abstracted(function: tirx.PrimFunc) -> _Form:
    """The form of a function."""
    private = [stmt.buffer for stmt in find(function.body, tirx.AllocBuffer)]
    buffers = [*function.params, *private]
    flat = {old: _flat(position, str(old.dtype)) for position, old in enumerate(buffers)}
    numbers: dict[tirx.Var, Any] = {}
    count = iter(range(1 << 31))

    def variable(number: Any) -> tirx.Var:
        var = _number(next(count), str(number.ty))
        numbers[var] = number
        return var

    def restored(value: Expr) -> Expr:
        """The value with numbers again."""
        return value if isinstance(value, int) else rewrite(value, (ir.Var, lambda var: numbers.pop(var, var)))

    def with_divisor(quotient: Any) -> Any:
        return type(quotient)(quotient.a, restored(quotient.b))

    def abstracted(index: Any) -> Expr:
        if isinstance(index, int):
            return variable(tirx.const(index, "int32"))
        if isinstance(index, ir.Var):
            return index
        return rewrite(
            index,
            (tirx.IntImm, variable),
            *((kind, with_divisor) for kind in (tirx.FloorDiv, tirx.FloorMod)),
            (tirx.Ramp, lambda ramp: tirx.Ramp(ramp.base, restored(ramp.stride), restored(ramp.lanes))),
        )

    def position(buffer: tirx.Buffer, indices: Sequence[Expr]) -> Expr:
        return abstracted(indices[0] if len(indices) == 1 else build.offset(buffer, indices))

    def loop(node: tirx.For) -> tirx.Stmt:
        if node.kind not in build.COUNTED:
            return node
        extent = abstracted(node.extent)
        return tirx.For(node.loop_var, node.min, extent, node.kind, node.body, node.thread_binding, node.annotations)

    def call(node: ir.Call) -> Expr:
        """A call of a micro-kernel with other distances, or other bits of a constant."""
        if called(node) not in _NUMBERED or not any(isinstance(a, tirx.IntImm) for a in node.args):
            return node
        arguments = [variable(a) if isinstance(a, tirx.IntImm) else a for a in node.args]
        return ir.Call(node.op, arguments, ret_ty=node.ty)

    body = rewrite(
        function.body,
        (ir.TensorLoad, lambda node: flat[node.source][position(node.source, node.indices)]),
        (
            tirx.BufferStore,
            lambda node: tirx.BufferStore(flat[node.buffer], node.value, [position(node.buffer, node.indices)]),
        ),
        (tirx.For, loop),
        (ir.Call, call),
        (tirx.FloatImm, lambda number: variable(number) if str(number.ty) in _BITS else number),
        (tirx.AllocBuffer, lambda node: tirx.AllocBuffer(flat[node.buffer])),
    )
    key = tvm_ffi.StructuralKey([function.without_attr(_SYMBOL).attrs, body])
    allocated = {flat[old]: math.prod(map(int, old.shape)) for old in private}
    return _Form(body, [flat[old] for old in function.params], key, numbers, allocated)


def _fit_together(members: Sequence[_Form]) -> bool:
    """Whether no member allocates much more memory than before it was merged."""
    return all(
        len(set(sizes)) == 1 or max(sizes) * build.bits(str(buffer.dtype)) // 8 <= _MOST_ALLOCATED
        for buffer, sizes in _allocations(members)
    )


def _allocations(members: Sequence[_Form]) -> list[tuple[tirx.Buffer, tuple[int, ...]]]:
    sizes = zip(*(member.allocated.values() for member in members), strict=True)
    return list(zip(members[0].allocated, sizes, strict=True))


def _function_of(members: Sequence[_Form]) -> tuple[tirx.PrimFunc, list[tuple[int, ...]]]:
    """The function for all members, and for each of them the numbers that are its last arguments."""
    first = members[0]
    params: dict[tuple, tirx.Var] = {}
    values: dict[tirx.Var, Expr] = {}
    for var, column in zip(first.numbers, zip(*(m.numbers.values() for m in members), strict=True), strict=True):
        dtype = str(var.ty)
        integers = tuple(_integer(number) for number in column)
        if len(set(integers)) == 1:
            values[var] = column[0]
            continue
        kind = _BITS.get(dtype, dtype)
        param = params.setdefault((kind, integers), tirx.Var(f"n{len(params)}", kind))
        values[var] = param if kind == dtype else tirx.reinterpret(dtype, param)
    largest = {old: build.buffer([max(sizes)], str(old.dtype), old.name) for old, sizes in _allocations(members)}
    own = {old: build.buffer([1], str(old.dtype), old.name) for old in first.params}
    body = build.replace_buffers(build.substitute(first.body, values), {**own, **largest})
    numbers = list(zip(*(integers for _, integers in params), strict=True)) or [()] * len(members)
    return tirx.PrimFunc([*own.values(), *params.values()], body), numbers


def _integer(number: Any) -> int:
    """The value of an integer, or of the bits of a float."""
    if isinstance(number, tirx.IntImm):
        return int(number.value)
    dtype = str(number.ty)
    return int(np.array(number.value, dtype).view(_BITS[dtype]))
