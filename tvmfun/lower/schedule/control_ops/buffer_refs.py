"""References to the buffers of values in control flow, and a pool that reuses buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvmfun import dtypes
from tvmfun.core import expressions
from tvmfun.core.array import ShapeDtype
from tvmfun.core.program import Variable
from tvmfun.lower.tir.build import Axis, bits_of, buffer, flatten, substitute, unflatten
from tvmfun.lower.tir.walk import called, rewrite


@dataclass(frozen=True, eq=False)
class BufferRef:
    """The memory of a value: a buffer or one row of it, which may have another shape than the value.

    Args:
        buffer: the buffer.
        aval: shape and dtype of the value.
        lead: the leading indices that select the row.
    """

    buffer: tirx.Buffer
    aval: ShapeDtype
    lead: tuple = ()

    def row(self, index: Any) -> BufferRef:
        """One row of a stacked value."""
        if self.is_reshaped:
            raise AssertionError("the rows of a buffer are not those of a value of another shape")
        return BufferRef(self.buffer, ShapeDtype(self.aval.shape[1:], self.aval.dtype), (*self.lead, index))

    def load(self, indices: Sequence[Any] = ()) -> Any:
        """The element at ``indices``, or the vector of several in a row, as an expression."""
        value = self.buffer[tuple(self._indices(indices))]
        return tirx.Cast(str(value.ty).replace("int8", "bool"), value) if self.is_widened else value

    def store(self, value: Any, indices: Sequence[Any] = ()) -> tirx.Stmt:
        """The statement that writes the element at ``indices``, or several in a row."""
        value = tirx.Cast(str(value.ty).replace("bool", "int8"), value) if self.is_widened else value
        return tirx.BufferStore(self.buffer, value, self._indices(indices))

    def region(self, ranges: Sequence[ir.Range]) -> tirx.BufferRegion:
        """The elements in ``ranges``; all elements if the buffer has another shape."""
        if self.is_reshaped:
            ranges = [ir.Range(0, size) for size in self._shape]
        return tirx.BufferRegion(self.buffer, [*(ir.Range.from_min_extent(i, 1) for i in self.lead), *ranges])

    def first(self) -> Any:
        """The first element of the buffer or row."""
        return self.buffer[(*self.lead, *(0 for _ in self._shape))]

    def _indices(self, indices: Sequence[Any]) -> list:
        vector = indices[-1] if indices and isinstance(indices[-1], tirx.Ramp) else None
        if self.is_reshaped:
            # The elements of a vector are neighbours in any shape.
            indices = indices if vector is None else [*indices[:-1], vector.base]
            axes = [[Axis(tirx.Var("i", "int32"), size) for size in shape] for shape in (self.aval.shape, self._shape)]
            element = flatten(axes[0], {axis.var: i for axis, i in zip(axes[0], indices, strict=True)})
            position = unflatten(axes[1], element)
            indices = [position[axis.var] for axis in axes[1]]
            if vector is not None:
                indices[-1] = tirx.Ramp(indices[-1], vector.stride, vector.lanes)
        return [*self.lead, *indices]

    @cached_property
    def _shape(self) -> tuple:
        """The shape of the buffer or row."""
        return tuple(map(expressions.to_size, self.buffer.shape[len(self.lead) :]))

    @cached_property
    def is_reshaped(self) -> bool:
        """Whether the memory has another shape than the value."""
        return self._shape != self.aval.shape

    @property
    def is_widened(self) -> bool:
        """Whether bools are stored as int8, because TVM confuses the two types in vectors inside a function."""
        return self.aval.dtype == dtypes.bool_ and str(self.buffer.dtype) != "bool"


class BufferPool:
    """Buffers for the intermediates of a Program, each reused after the last use of its value.

    Args:
        new: allocates a buffer.
        last_use: the position of the last kernel that uses a value.
    """

    def __init__(self, new: Callable[[ShapeDtype], BufferRef], last_use: Mapping[Variable, int | float]) -> None:
        self._new, self._last_use = new, last_use
        self._unused: dict[tuple, list[BufferRef]] = {}
        self._ends: dict[int | float, list[BufferRef]] = {}

    def new(self, value: Variable, any_shape: bool) -> BufferRef:
        """A buffer for a value; with ``any_shape`` only its number of elements has to fit."""
        aval = value.aval
        unused = self._unused.get((aval.size, aval.dtype), [])
        fitting = (ref for ref in unused if any_shape or ref.aval.shape == aval.shape)
        ref = next(fitting, None)
        if ref is None:
            ref = self._new(aval)
        else:
            unused.remove(ref)
        self._ends.setdefault(self._last_use[value], []).append(ref)
        return BufferRef(ref.buffer, aval)

    def finish(self, kernel: int) -> None:
        """Frees the buffers whose last user is this kernel."""
        for ref in self._ends.get(kernel, ()):
            self._unused.setdefault((ref.aval.size, ref.aval.dtype), []).append(ref)


def is_same(source: BufferRef, target: BufferRef) -> bool:
    """Whether both refer to the same memory."""
    same_row = len(source.lead) == len(target.lead) and all(
        tvm_ffi.structural_equal(a, b) for a, b in zip(source.lead, target.lead, strict=True)
    )
    return source.buffer.same_as(target.buffer) and same_row


def redirected(body: tirx.Stmt, refs: Iterable[tuple[Any, BufferRef]]) -> tirx.Stmt:
    """The statement with accesses of each parameter redirected to the value next to it."""
    buffers, others = {}, {}
    for parameter, ref in refs:
        if ref.lead or ref.is_widened or ref.is_reshaped:
            others[hash(parameter)] = ref  # its address
        else:
            buffers[parameter] = ref.buffer
    body = substitute(body, buffers)
    if not others:
        return body

    def load(node: ir.TensorLoad) -> Any:
        ref = others.get(hash(node.source))
        return node if ref is None else ref.load(node.indices)

    def store(node: tirx.BufferStore) -> Any:
        ref = others.get(hash(node.buffer))
        return node if ref is None else ref.store(node.value, node.indices)

    def region(node: ir.TensorRegion) -> Any:
        ref = others.get(hash(node.source))
        return node if ref is None else ref.region(node.region)

    body = rewrite(body, (ir.TensorLoad, load), (tirx.BufferStore, store))
    return rewrite(body, (ir.TensorRegion, region))


def with_bits(body: tirx.Stmt, buffers: Sequence[tirx.Buffer]) -> tuple[tirx.Stmt, list[tirx.Buffer]]:
    """The statement and buffers with uint16 instead of bfloat16.

    TVM would widen buffers of bfloat16 to float32, but kernels read and write their bits.
    """
    bits = {
        b: buffer(list(map(expressions.to_size, b.shape)), "uint16", b.name)
        for b in buffers
        if str(b.dtype) == "bfloat16"
    }
    if not bits:
        return body, list(buffers)

    def load(node: ir.TensorLoad) -> tirx.Expr:
        if node.source not in bits:
            return node
        return tirx.reinterpret(str(node.ty), bits[node.source][tuple(node.indices)])

    def read(call: ir.Call) -> tirx.Expr:
        if called(call) == "tirx.address_of" and called(call.args[0]) == "tirx.reinterpret":
            return tirx.address_of(call.args[0].args[0])
        is_number = called(call) == "tirx.reinterpret" and isinstance(call.ty, ir.PrimType)
        return bits_of(call.args[0], str(call.ty)) if is_number else call

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        if node.buffer not in bits:
            return node
        dtype = str(node.value.ty).replace("bfloat16", "uint16")  # of a vector, too
        return tirx.BufferStore(bits[node.buffer], bits_of(node.value, dtype), node.indices)

    for change in ((ir.TensorLoad, load), (ir.Call, read), (tirx.BufferStore, store)):
        body = rewrite(body, change)
    return body, [bits.get(b, b) for b in buffers]
