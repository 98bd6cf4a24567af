"""Systems of equations with a triangular matrix, by substitution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvmfun import dtypes
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.op import Op, register
from tvmfun.errors import ShapeError
from tvmfun.ops import shape as shapes
from tvmfun.ops.linalg.matrices import check_matrix, check_square, matmul, tril, triu
from tvmfun.ops.linalg.strips import WIDTH, Loops, Strips, add_products, add_up, lanes, local, number
from tvmfun.ops.tir import block, prim_func

# With fewer columns than this each one is solved separately, with vectors along the rows of the matrix.
_FEW = 4


def _solve_shape(a: ShapeDtype, b: ShapeDtype, *, lower: bool, transpose_a: bool, unit_diagonal: bool) -> ShapeDtype:
    check_matrix("triangular_solve", a, b)
    check_square("triangular_solve", a)
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError("triangular_solve", "there must be one row for each unknown", got=f"{a} and {b}")
    return ShapeDtype(b.shape, b.dtype)


def _solve(a: ShapeDtype, b: ShapeDtype, *, lower: bool, transpose_a: bool, unit_diagonal: bool) -> tirx.PrimFunc:
    """Substitution, for a strip of columns at a time."""
    lead, (n, m), dtype = b.shape[:-2], b.shape[-2:], dtypes.NAMES[b.dtype]
    # Unknowns are numbered in the order in which they are computed.
    position = (lambda i: i) if lower != transpose_a else (lambda i: n - 1 - i)

    def write(sources, x):
        left, right = sources

        def factor(at: Sequence, i: Any, j: Any) -> Any:
            row, column = position(i), position(j)
            return left[(*at, column, row)] if transpose_a else left[(*at, row, column)]

        def by_strips(at: tuple) -> None:
            loops = Loops(lead, n * n + n * m)
            triangle, found = Strips(n, n, dtype), Strips(n, m, dtype)
            negative = local((found.count, triangle.width, found.width), dtype)
            triangle.load(loops, lambda i, j: factor(at, i, j))
            found.load(loops, lambda i, j: right[(*at, position(i), j)])
            with loops.each(found.count) as strip, T.serial(0, triangle.count) as step:
                substitute(triangle, found, strip, step, negative, unit_diagonal=unit_diagonal)
            found.save(loops, lambda i, j, value: T.buffer_store(x, value, [*at, position(i), j]))

        def by_rows(point: tuple) -> None:
            """A single column, whose sums are over vectors of terms."""
            *at, column = point
            found, total = local((n,), dtype), local((WIDTH,), dtype)
            with T.serial(0, n) as i:
                with lanes(WIDTH) as k:
                    T.buffer_store(total, number(0, dtype), [k])
                full = i // WIDTH
                with T.serial(0, full) as part, lanes(WIDTH) as k:
                    j = part * WIDTH + k
                    T.buffer_store(total, total[k] + factor(at, i, j) * found[j], [k])
                with T.serial(0, i - full * WIDTH) as k:
                    j = full * WIDTH + k
                    T.buffer_store(total, total[k] + factor(at, i, j) * found[j], [k])
                add_up(total)
                value = right[(*at, position(i), column)] - total[0]
                T.buffer_store(found, value if unit_diagonal else value / factor(at, i, i), [i])
                T.buffer_store(x, found[i], [*at, position(i), column])

        def by_columns(point: tuple) -> None:
            """A single column, where columns of the matrix are contiguous."""
            *at, column = point
            found, value = local((n,), dtype), local((1,), dtype)
            with T.serial(0, n) as i:
                T.buffer_store(found, right[(*at, position(i), column)], [i])
            with T.serial(0, n) as j:
                T.buffer_store(value, found[j] if unit_diagonal else found[j] / factor(at, j, j), [0])
                T.buffer_store(x, value[0], [*at, position(j), column])
                with T.serial(j + 1, n) as i:
                    T.buffer_store(found, found[i] - factor(at, i, j) * value[0], [i])

        if isinstance(m, int) and m < _FEW:
            block("solve", sources, x, (*lead, m), by_columns if transpose_a else by_rows)
        else:
            block("solve", sources, x, lead, by_strips)

    return prim_func([a, b], b, write)


def substitute(
    triangle: Strips, found: Strips, strip: Any, step: Any, negative: tirx.Buffer, *, unit_diagonal: bool
) -> None:
    """Computes some rows of a strip of unknowns, and subtracts their products from the rows below.

    Args:
        triangle: the lower triangle.
        found: the right sides, which become the unknowns.
        strip: the strip.
        step: the strip of the triangle, whose columns belong to the computed rows.
        negative: memory for these rows of each strip.
        unit_diagonal: whether the triangle's diagonal is assumed to be ones.
    """
    height = triangle.width
    begin = step * height
    size = tirx.min(height, found.rows - begin)
    with T.serial(0, size) as j:
        if not unit_diagonal:
            with lanes(found.width) as k:
                found.store((strip, begin + j, k), found[strip, begin + j, k] / triangle[step, begin + j, j])
        with lanes(found.width) as k:
            T.buffer_store(negative, -found[strip, begin + j, k], [strip, j, k])
        with T.serial(j + 1, size) as i, lanes(found.width) as k:
            change = triangle[step, begin + i, j] * found[strip, begin + j, k]
            found.store((strip, begin + i, k), found[strip, begin + i, k] - change)
    # Where there are rows below, the block is full.
    left, right = lambda i, k: triangle[step, i, k], lambda k, j: negative[strip, k, j]
    add_products(found, strip, begin + height, left, right, terms=height)


def _solve_vjp_matrix(
    g: Array, x: Array, a: Array, b: Array, *, lower: bool, transpose_a: bool, unit_diagonal: bool
) -> Array:
    solved = _solve_vjp_right(g, x, a, b, lower=lower, transpose_a=transpose_a, unit_diagonal=unit_diagonal)
    product = matmul(x, solved, transpose_y=True) if transpose_a else matmul(solved, x, transpose_y=True)
    triangle = tril if lower else triu
    return triangle(-product, strict=unit_diagonal)


def _solve_vjp_right(
    g: Array, x: Array, a: Array, b: Array, *, lower: bool, transpose_a: bool, unit_diagonal: bool
) -> Array:
    return triangular_solve(a, g, lower=lower, transpose_a=not transpose_a, unit_diagonal=unit_diagonal)


def _solve_batch(batched: tuple[bool, ...], a: Array, b: Array, **params: bool) -> Array:
    if batched[0] or a.ndim > 2:
        return triangular_solve(*shapes.repeat_unbatched(batched, (a, b)), **params)
    # One matrix for all: the batch is more columns.
    size, n, m = b.shape
    wide = shapes.reshape(shapes.permute_dims(b, axes=(1, 0, 2)), shape=(n, size * m))
    x = shapes.reshape(triangular_solve(a, wide, **params), shape=(n, size, m))
    return shapes.permute_dims(x, axes=(1, 0, 2))


#: ``triangular_solve(a, b, lower=, transpose_a=, unit_diagonal=)``: the ``x`` with ``a @ x = b``, or ``a.T @ x = b``.
#: Only the triangle of ``a`` that ``lower`` names is read, without its diagonal if that is taken for ones.
triangular_solve = register(
    Op("triangular_solve", "opaque", _solve_shape, _solve, (_solve_vjp_matrix, _solve_vjp_right), batch=_solve_batch)
)
