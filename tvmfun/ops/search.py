"""Searching sorted rows."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvmfun import dtypes
from tvmfun.core import expressions
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.op import Op, register
from tvmfun.errors import DtypeError, ShapeError
from tvmfun.ops import index
from tvmfun.ops import shape as shapes
from tvmfun.ops.loops import block, loops


def _shape(x: ShapeDtype, values: ShapeDtype, *, side: str, batch: int = 0) -> ShapeDtype:
    if x.dtype != values.dtype:
        raise DtypeError("searchsorted", "both arrays must have one dtype", got=f"{x} and {values}")
    if x.ndim != batch + 1 or x.shape[:batch] != values.shape[:batch]:
        raise ShapeError(
            "searchsorted", f"there must be a row for each place of the first {batch} axes", got=f"{x} and {values}"
        )
    return ShapeDtype(values.shape, dtypes.int32)


def _compute(x: ShapeDtype, values: ShapeDtype, *, side: str, batch: int = 0) -> tirx.PrimFunc:
    count = x.shape[-1]
    int32 = lambda value: tirx.const(value, "int32")

    def write(sources, result):
        rows, wanted = sources

        def search(point):
            # All elements before `low` come before the value, and none of those from `high` on.
            low = T.sblock_alloc_buffer((1,), "int32", scope="local")
            high = T.sblock_alloc_buffer((1,), "int32", scope="local")
            T.buffer_store(low, int32(0), [0])
            T.buffer_store(high, expressions.scalar(count, "int32"), [0])
            key = index.sort_key(wanted[point])
            with T.serial(0, count.bit_length() if isinstance(count, int) else 31), T.If(low[0] < high[0]), T.Then():
                middle = tirx.indexdiv(low[0] + high[0], 2)
                here = index.sort_key(rows[(*point[:batch], middle)])
                with T.If(here < key if side == "left" else here <= key):
                    with T.Then():
                        T.buffer_store(low, middle + 1, [0])
                    with T.Else():
                        T.buffer_store(high, middle, [0])
            T.buffer_store(result, low[0], list(point))

        block("search", sources, result, values.shape, search)

    return loops([x, values], _shape(x, values, side=side, batch=batch), write)


def _batch(batched: tuple[bool, ...], x: Array, values: Array, *, side: str, batch: int = 0) -> Any:
    if not batched[0]:  # more values for each row
        found = searchsorted(x, shapes.move_axis(values, 0, batch), side=side, batch=batch)
        return shapes.move_axis(found, batch, 0)
    x, values = shapes.repeat_unbatched(batched, (x, values))
    return searchsorted(x, values, side=side, batch=batch + 1)


#: ``searchsorted(x, values, side=, batch=0)``: for each value, the number of elements of its sorted row of ``x`` that
#: come before it; with side ``right`` equal ones do so. NaN comes last. The first ``batch`` axes number the rows.
searchsorted = register(Op("searchsorted", "opaque", _shape, _compute, (None, None), batch=_batch))
