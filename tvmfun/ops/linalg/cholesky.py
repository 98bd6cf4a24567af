"""The Cholesky decomposition."""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvmfun import dtypes
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.op import Op, register
from tvmfun.ops import formula
from tvmfun.ops.linalg.matrices import check_matrix, check_square, halved, matmul, transpose
from tvmfun.ops.linalg.strips import ROWS, Loops, Strips, add_product, branch, lanes, local, number
from tvmfun.ops.linalg.triangular_solve import triangular_solve
from tvmfun.ops.tir import block, prim_func


def _cholesky_shape(a: ShapeDtype) -> ShapeDtype:
    check_matrix("cholesky", a)
    check_square("cholesky", a)
    return ShapeDtype(a.shape, a.dtype)


def _cholesky(a: ShapeDtype) -> tirx.PrimFunc:
    """The upper factor ``u = l.T``, some rows at a time, whose products are subtracted from the rest of the matrix."""
    lead, n, dtype = a.shape[:-2], a.shape[-1], dtypes.NAMES[a.dtype]

    def write(sources, result):
        (matrix,) = sources

        def factor(at: tuple) -> None:
            loops, failed = Loops(lead, n * n), local((1,), "int32")
            u = Strips(n, n, dtype, whole_blocks=True)
            T.buffer_store(failed, number(0, "int32"), [0])
            with loops.each(u.count) as strip, u.each_column(strip) as k, T.serial(0, strip * u.width + k + 1) as i:
                u.store((strip, i, k), matrix[(*at, strip * u.width + k, i)])
            with T.serial(0, u.count) as step:
                _factor_block(u, step, failed)
                if not u.is_single:
                    _update(u, step, loops)
            with loops.each(u.count) as strip, u.each_column(strip) as k:
                row = strip * u.width + k
                with T.serial(0, row + 1) as j:
                    value = tirx.Select(failed[0] > 0, number(math.nan, dtype), u[strip, j, k])
                    T.buffer_store(result, value, [*at, row, j])
                with T.serial(row + 1, n) as j:
                    T.buffer_store(result, number(0, dtype), [*at, row, j])

        block("cholesky", sources, result, lead, factor)

    return prim_func([a], a, write)


def _factor_block(u: Strips, step: Any, failed: tirx.Buffer) -> None:
    """Factors a block on the diagonal."""
    begin = step * u.width
    size = tirx.min(u.width, u.rows - begin)
    pivot, zero = local((1,), u.dtype), number(0, u.dtype)
    with T.serial(0, size) as j:
        T.buffer_store(pivot, u[step, begin + j, j], [0])
        # Not `not pivot > 0`: TVM takes that for `pivot <= 0`, which NaN is not.
        with branch(tirx.Or(pivot[0] <= zero, formula.is_nan(pivot[0]))):
            T.buffer_store(failed, number(1, "int32"), [0])
        T.buffer_store(pivot, tirx.sqrt(pivot[0]), [0])
        with lanes(u.width) as k:
            u.store((step, begin + j, k), u[step, begin + j, k] / pivot[0])
        u.store((step, begin + j, j), pivot[0])
        _eliminate(u, step, step, j, size)


def _eliminate(u: Strips, strip: Any, step: Any, j: Any, size: Any) -> None:
    """Subtracts row ``j`` of a block, times a column of the factor, from the rows of the block below it."""
    begin = step * u.width
    with T.serial(j + 1, size) as i, lanes(u.width) as k:
        change = u[step, begin + j, i] * u[strip, begin + j, k]
        u.store((strip, begin + i, k), u[strip, begin + i, k] - change)


def _update(u: Strips, step: Any, loops: Loops) -> None:
    """Computes the rows of the factor beside a diagonal block, and subtracts their products from all rows below."""
    width, begin = u.width, step * u.width
    negative = local((u.count, width, width), u.dtype)
    others = u.count - step - 1
    with loops.each(others) as other:
        strip = step + 1 + other
        with T.serial(0, width) as j:
            with lanes(width) as k:
                u.store((strip, begin + j, k), u[strip, begin + j, k] / u[step, begin + j, j])
            with lanes(width) as k:
                T.buffer_store(negative, -u[strip, begin + j, k], [strip, j, k])
            _eliminate(u, strip, step, j, width)
    with loops.each(others) as other:
        # The later a strip, the more rows it has: each thread gets early and late ones.
        folded = tirx.Select(tirx.EQ(other % 2, 0), other // 2, others - 1 - other // 2)
        strip = step + 1 + folded
        with T.serial(0, folded + 1) as above, T.serial(0, width // ROWS) as tile:
            left, first = step + 1 + above, tile * ROWS
            add_product(
                lambda i, j: (u.buffer, (strip, left * width + first + i, j)),
                lambda i, k: u[left, begin + k, first + i],
                lambda k, j: negative[strip, k, j],
                rows=ROWS,
                columns=width,
                terms=width,
            )


def _cholesky_vjp(g: Array, out: Array, a: Array) -> Array:
    # Murray, "Differentiation of the Cholesky decomposition" (2016), equation 10. Only the lower triangle is read.
    inner = halved(matmul(out, g, transpose_x=True))
    solve = lambda y: triangular_solve(out, y, lower=True, transpose_a=True, unit_diagonal=False)
    outer = solve(transpose(solve(transpose(inner))))
    return halved(outer + transpose(outer))


#: ``cholesky(a)``: the lower triangular ``l`` with ``l @ l.T = a`` for a symmetric positive definite ``a``, of which
#: only the lower triangle is read. The lower triangle is NaN if ``a`` is not positive definite.
cholesky = register(
    Op(
        "cholesky",
        "opaque",
        _cholesky_shape,
        _cholesky,
        (_cholesky_vjp,),
        batch=lambda batched, a: cholesky(a),
    )
)
