"""Micro-kernels for the products inside of blocks, whose loops ``ops.tir.PRODUCT`` marks."""

from __future__ import annotations

from tvm import ir, tirx
from tvm.tirx import For, ForKind, Stmt

from tvmfun.lower.machine import Machine
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Expr
from tvmfun.lower.tir.micro_kernels.products import Terms, TileProduct
from tvmfun.lower.tir.walk import rewrite
from tvmfun.ops.tir import PRODUCT

# The terms of a partial sum: rounding errors of long sums grow with the root of the number of terms.
_SUMMED = 64


def with_products(stmt: Stmt, machine: Machine) -> Stmt:
    """The statement with calls of micro-kernels in place of marked loops.

    Loops remain where the elements between two rows or terms depend on a dynamic size.
    """
    return rewrite(stmt, (For, lambda loop: _product(loop, machine) if PRODUCT in loop.annotations else loop))


def _product(loop: For, machine: Machine) -> Stmt:
    """The tiles of a product, each as large as its sums fit in registers."""
    row, term, column = loop, loop.body, loop.body.body
    store = column.body
    sums, (left, right) = store.value.a, (store.value.b.a, store.value.b.b)
    left_row, left_term = _step(left, row.loop_var), _step(left, term.loop_var)
    right_term, sums_row = _step(right, term.loop_var), _step(sums, row.loop_var)
    if left_row is None or left_term is None or right_term is None or sums_row is None:
        return loop
    dtype = str(store.buffer.dtype)
    lanes = machine.lanes(dtype)
    # Two vectors of columns and an element of the left factor are in registers, beside the sums.
    height, width = (machine.registers - 3) // 2, 2 * lanes
    height = max(size for size in (1, 2, 4, 8) if size <= height)
    tiles: list[tuple[TileProduct, dict[ir.Var, Expr]]] = []
    for i in range(0, int(row.extent), height):
        for j in range(0, int(column.extent), width):
            product = TileProduct(
                bits=build.bits(dtype),
                rows=min(height, int(row.extent) - i),
                columns=min(width, int(column.extent) - j),
                lanes=lanes,
                right_columns=int(column.extent) - j,
                left_row=left_row,
                sums_row=sums_row,
                adds=True,
                terms=(Terms(0, left_term, right_term),),
            )
            tiles.append((product, {row.loop_var: tirx.const(i, "int32"), column.loop_var: tirx.const(j, "int32")}))

    def calls(start: Expr, count: Expr) -> Stmt:
        statements = []
        for product, at in tiles:
            first = [build.substitute(load, {**at, term.loop_var: start}) for load in (sums, left, right)]
            statements.append(product.call(first[:1], *first[1:], count=count, adds=tirx.const(1, "int32")))
        return build.seq(*statements)

    size = term.extent
    if isinstance(size, tirx.IntImm) and int(size) <= _SUMMED:
        return calls(tirx.const(0, "int32"), size)
    block = ir.Var("block", term.loop_var.ty)
    start = block * _SUMMED
    return For(block, 0, -(-size // _SUMMED), ForKind.SERIAL, calls(start, tirx.min(size - start, _SUMMED)))


def _step(load: ir.TensorLoad, var: ir.Var) -> int | None:
    """The distance in elements of two elements of a factor or of the sums, if it is a constant."""
    steps = [build.step_of(index, var) for index in load.indices]
    if any(step is None for step in steps):
        return None
    step = build.offset(load.source, [step or 0 for step in steps])
    return step if isinstance(step, int) else None
