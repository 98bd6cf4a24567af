"""The LU decomposition with exchanges of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvmfun import dtypes
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.derivative import zeros
from tvmfun.core.op import Op, register
from tvmfun.ops import index
from tvmfun.ops import pointwise as pw
from tvmfun.ops import shape as shapes
from tvmfun.ops.linalg.matrices import check_matrix, columns, matmul, rows, transpose, tril, triu, with_diagonal
from tvmfun.ops.linalg.strips import Loops, Strips, branch, lanes, local, number
from tvmfun.ops.linalg.triangular_solve import substitute, triangular_solve
from tvmfun.ops.tir import block, prim_func


def _lu_shape(a: ShapeDtype) -> tuple[ShapeDtype, ...]:
    check_matrix("lu", a)
    *lead, m, n = a.shape
    return (
        ShapeDtype(a.shape, a.dtype),
        ShapeDtype((*lead, min(m, n)), dtypes.int32),
        ShapeDtype((*lead, m), dtypes.int32),
    )


def _lu(a: ShapeDtype) -> tirx.PrimFunc:
    """Eliminates strip after strip of columns, and subtracts its products from the strips on its right."""
    lead, (m, n), dtype = a.shape[:-2], a.shape[-2:], dtypes.NAMES[a.dtype]
    inner = min(m, n)

    def write(sources, results):
        (matrix,) = sources
        lu, pivots, permutation = results

        def factor(at: tuple) -> None:
            loops, work = Loops(lead, m * n), Strips(m, n, dtype)
            width = work.width
            pivot = lambda column: pivots[(*at, column)]
            work.load(loops, lambda i, j: matrix[(*at, i, j)])
            with T.serial(0, m) as i:
                T.buffer_store(permutation, i, [*at, i])
            with T.serial(0, -(-inner // width)) as step:
                begin = step * width
                size = tirx.min(width, inner - begin)
                with T.serial(0, size) as k:
                    T.buffer_store(pivots, _pivot(work, step, k), [*at, begin + k])
                    _exchange(permutation, (*at, begin + k), (*at, pivot(begin + k)))
                    _exchange_rows(work, step, begin + k, pivot(begin + k))
                    _eliminate(work, step, k)
                if not work.is_single:
                    _update(work, step, size, pivot, loops)
            if not work.is_single:
                with loops.each(work.count) as strip, T.serial((strip + 1) * width, inner) as column:
                    _exchange_rows(work, strip, column, pivot(column))
            work.save(loops, lambda i, j, value: T.buffer_store(lu, value, [*at, i, j]))

        block("lu", sources, results, lead, factor)

    return prim_func([a], _lu_shape(a), write)


def _pivot(work: Strips, step: Any, k: Any) -> Any:
    """Finds the row, from the diagonal on, with the largest magnitude in a column of a strip."""
    column = step * work.width + k
    best, pivot = local((1,), work.dtype), local((1,), "int32")
    T.buffer_store(best, tirx.abs(work[step, column, k]), [0])
    T.buffer_store(pivot, column, [0])
    with T.serial(column + 1, work.rows) as i, branch(tirx.abs(work[step, i, k]) > best[0]):
        T.buffer_store(best, tirx.abs(work[step, i, k]), [0])
        T.buffer_store(pivot, i, [0])
    return pivot[0]


def _exchange(buffer: tirx.Buffer, first: tuple, second: tuple) -> None:
    """Exchanges two elements."""
    kept = local((1,), str(buffer.dtype))
    T.buffer_store(kept, buffer[first], [0])
    T.buffer_store(buffer, buffer[second], list(first))
    T.buffer_store(buffer, kept[0], list(second))


def _exchange_rows(work: Strips, strip: Any, first: Any, second: Any) -> None:
    """Exchanges two rows of a strip, unless they are the same."""
    kept = local((work.count, work.width), work.dtype)  # for each strip, because strips run in parallel
    with branch(tirx.NE(first, second)):
        with lanes(work.width) as k:
            T.buffer_store(kept, work[strip, first, k], [strip, k])
        with lanes(work.width) as k:
            work.store((strip, first, k), work[strip, second, k])
        with lanes(work.width) as k:
            work.store((strip, second, k), kept[strip, k])


def _eliminate(work: Strips, step: Any, k: Any) -> None:
    """Eliminates a column of a strip below the diagonal, unless all its elements are 0."""
    column = step * work.width + k
    zero = number(0, work.dtype)
    upper, factor = local((work.width,), work.dtype), local((1,), work.dtype)
    with lanes(work.width) as j:
        T.buffer_store(upper, work[step, column, j], [j])
    with branch(tirx.abs(upper[k]) > zero), T.serial(column + 1, work.rows) as i:
        T.buffer_store(factor, work[step, i, k] / upper[k], [0])
        with lanes(work.width) as j:
            change = tirx.Select(j > k, factor[0] * upper[j], zero)
            work.store((step, i, j), work[step, i, j] - change)
        work.store((step, i, k), factor[0])


def _update(work: Strips, step: Any, size: Any, pivot: Callable[[Any], Any], loops: Loops) -> None:
    """Applies the elimination of a strip to the strips on its right."""
    width, begin = work.width, step * work.width
    negative = local((work.count, width, width), work.dtype)
    with loops.each(work.count - step - 1) as other:
        strip = step + 1 + other
        with T.serial(0, size) as k:
            _exchange_rows(work, strip, begin + k, pivot(begin + k))
        substitute(work, work, strip, step, negative, unit_diagonal=True)


def _solve_lower(lu: Array, x: Array, *, transposed: bool) -> Array:
    """``l^-1 @ x`` or ``l^-T @ x`` with the unit lower triangle of ``lu``."""
    return triangular_solve(lu, x, lower=True, transpose_a=transposed, unit_diagonal=True)


def divide_right(x: Array, u: Array) -> Array:
    """``x @ u^-T`` for an upper triangular ``u``."""
    return transpose(triangular_solve(u, transpose(x), lower=False, transpose_a=False, unit_diagonal=False))


def _lu_vjp(g: tuple[Array, ...], out: tuple[Array, ...], a: Array) -> Array:
    # With p @ a = l @ u: l^-1 @ dl is strictly lower and du @ u^-1 upper triangular, and their sum is
    # l^-1 @ p @ da @ u^-1. The code transposes that; the non-square part of a matrix is linear.
    (lu, _, permutation), g = out, g[0]  # type: ignore[reportAssignmentType]
    m, n = a.shape[-2:]
    k = min(m, n)
    square, g_square = rows(columns(lu, 0, k), 0, k), rows(columns(g, 0, k), 0, k)
    unit, u = with_diagonal(tril(square, strict=True), pw.constant(1, a)), triu(square)
    left = matmul(unit, tril(g_square, strict=True), transpose_x=True)
    right = matmul(triu(g_square), u, transpose_y=True)
    if m < n:
        rest, g_rest = columns(lu, m, n), columns(g, m, n)
        left = left - matmul(g_rest, rest, transpose_y=True)
    if m > n:
        rest, g_rest = rows(lu, n, m), rows(g, n, m)
        right = right - matmul(rest, g_rest, transpose_x=True)
    inner = tril(left, strict=True) + triu(right)
    if m <= n:
        inner = divide_right(inner, u)
        if m < n:
            inner = shapes.concat(inner, g_rest, axis=a.ndim - 1)
        permuted = _solve_lower(square, inner, transposed=True)
    else:
        inner = shapes.concat(_solve_lower(square, inner, transposed=True), g_rest, axis=a.ndim - 2)
        permuted = divide_right(inner, u)
    positions = shapes.reshape(permutation, shape=(*permutation.shape, 1))
    return index.scatter(zeros(a), positions, permuted, mode="set", batch=a.ndim - 2, unique=True)


#: ``lu(a)``: ``(lu, pivots, permutation)`` with ``a[permutation] = l @ u``, the unit lower and the upper triangle of
#: ``lu``. Row ``i`` was exchanged with row ``pivots[i]``, the one with the largest element in its column.
lu = register(Op("lu", "opaque", _lu_shape, _lu, (_lu_vjp,), batch=lambda batched, a: lu(a)))
