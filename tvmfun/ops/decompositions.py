"""Linear algebra on the last two axes of float arrays: triangular systems, Cholesky, LU and QR.

Every op is a loop program that works on one matrix after the other, in parallel over the leading axes, and needs
nothing but the compiled module. Innermost loops run along rows, so that they vectorize.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.derivative import zeros
from tvmfun.core.op import Op, register
from tvmfun.errors import DtypeError, GradientError, ShapeError
from tvmfun.ops import formula, index
from tvmfun.ops import pointwise as pw
from tvmfun.ops import shape as shapes
from tvmfun.ops.dot import dot_general
from tvmfun.ops.parameters import Ints
from tvmfun.ops.tir import block, prim_func

# -- matrices as arrays: what derivative rules are written with ------------------------------------------------


def check_matrix(name: str, *avals: ShapeDtype) -> None:
    """Raises unless the arguments are float32 or float64 matrices of one dtype with the same leading axes."""
    if any(a.dtype not in (dtypes.float32, dtypes.float64) or a.dtype != avals[0].dtype for a in avals):
        raise DtypeError(
            name,
            "the matrices must be float32 or float64, and of one dtype",
            got=", ".join(map(str, avals)),
            hint="x.astype('float32')",
        )
    if any(a.ndim < 2 for a in avals) or any(a.shape[:-2] != avals[0].shape[:-2] for a in avals):
        raise ShapeError(
            name, "the last two axes are a matrix; all before them must agree", got=", ".join(map(str, avals))
        )


def check_square(name: str, a: ShapeDtype) -> None:
    """Raises unless the matrix is square."""
    if a.shape[-1] != a.shape[-2]:
        raise ShapeError(name, "the matrix must be square", got=repr(a))


def matmul(x: Array, y: Array, *, transpose_x: bool = False, transpose_y: bool = False) -> Array:
    """The matrix product of ``x`` and ``y``, either of them transposed."""
    lead = tuple(range(x.ndim - 2))
    contract = (x.ndim - 2 if transpose_x else x.ndim - 1,), (x.ndim - 1 if transpose_y else x.ndim - 2,)
    return dot_general(x, y, contract=contract, batch=(lead, lead))


def transpose(x: Array) -> Array:
    """The transposed matrix."""
    return shapes.permute_dims(x, axes=(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def row_and_column(x: Array) -> tuple[Array, Array]:
    """The row and the column of each element of a matrix."""
    row, column = (shapes.iota(shape=x.shape[-2:], axis=axis, dtype="int32") for axis in (0, 1))
    return row, column


def tril(x: Array, *, strict: bool = False) -> Array:
    """The lower triangle of ``x``, with zeros above."""
    row, column = row_and_column(x)
    return pw.where(row > column if strict else row >= column, x, pw.constant(0, x))


def triu(x: Array, *, strict: bool = False) -> Array:
    """The upper triangle of ``x``, with zeros below."""
    row, column = row_and_column(x)
    return pw.where(row < column if strict else row <= column, x, pw.constant(0, x))


def with_diagonal(x: Array, value: Any) -> Array:
    """The matrix ``x`` with the diagonal of ``value``, a matrix or a number."""
    row, column = row_and_column(x)
    return pw.where(row == column, value, x)


def columns(x: Array, begin: int, end: int) -> Array:
    """``x[..., begin:end]``."""
    return _slice_along(x, x.ndim - 1, begin, end)


def rows(x: Array, begin: int, end: int) -> Array:
    """``x[..., begin:end, :]``."""
    return _slice_along(x, x.ndim - 2, begin, end)


def _slice_along(x: Array, axis: int, begin: int, end: int) -> Array:
    start = tuple(begin if i == axis else 0 for i in range(x.ndim))
    stop = tuple(end if i == axis else size for i, size in enumerate(x.shape))
    return shapes.slice(x, start=start, stop=stop, step=(1,) * x.ndim)


# -- building blocks of loop programs --------------------------------------------------------------------------

# Columns that are computed together, in vector registers.
WIDTH = 32


def local(shape: Ints, dtype: str) -> tirx.Buffer:
    """Memory of one point of a block."""
    return T.sblock_alloc_buffer(tuple(max(1, size) for size in shape), dtype, scope="local")


def number(value: float, dtype: str) -> Any:
    """A constant."""
    return tirx.const(value, dtype)


@contextmanager
def branch(condition: Any) -> Iterator[None]:
    """Statements that run if the condition holds."""
    with T.If(condition), T.Then():
        yield


def strips(size: int) -> list[tuple[int, int, int]]:
    """``size`` columns cut into strips: ``(first column, width, count)`` of the full strips, and of the rest.

    The rest of a dynamic size is one column at a time.
    """
    count, rest = divmod(size, WIDTH)
    if dims.is_dynamic(size):
        return [(0, WIDTH, count), (count * WIDTH, 1, rest)]
    return [(0, WIDTH, count)] * (count > 0) + [(count * WIDTH, rest, 1)] * (rest > 0)


# -- triangular_solve ------------------------------------------------------------------------------------------


def _solve_shape(a: ShapeDtype, b: ShapeDtype, *, lower: bool, transpose_a: bool, unit_diagonal: bool) -> ShapeDtype:
    check_matrix("triangular_solve", a, b)
    check_square("triangular_solve", a)
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError("triangular_solve", "there must be one row for each unknown", got=f"{a} and {b}")
    return ShapeDtype(b.shape, b.dtype)


def _solve(a: ShapeDtype, b: ShapeDtype, *, lower: bool, transpose_a: bool, unit_diagonal: bool) -> tirx.PrimFunc:
    """Substitution, one row of unknowns after the other, for a strip of columns at a time."""
    lead, (n, m), dtype = b.shape[:-2], b.shape[-2:], dtypes.NAMES[b.dtype]
    forward = lower != transpose_a
    position = (lambda i: i) if forward else (lambda i: n - 1 - i)

    def write(sources, x):
        left, right = sources

        def substitute(point: tuple, first: int, width: int) -> None:
            *at, strip = point
            total = local((width,), dtype)
            column = lambda k: first + strip * width + k
            with T.serial(0, n) as step:
                i = position(step)
                with T.serial(0, width) as k:
                    T.buffer_store(total, right[(*at, i, column(k))], [k])
                with T.serial(0, step) as earlier:
                    j = position(earlier)
                    factor = left[(*at, j, i)] if transpose_a else left[(*at, i, j)]
                    with T.serial(0, width) as k:
                        T.buffer_store(total, total[k] - factor * x[(*at, j, column(k))], [k])
                with T.serial(0, width) as k:
                    value = total[k] if unit_diagonal else total[k] / left[(*at, i, i)]
                    T.buffer_store(x, value, [*at, i, column(k)])

        for first, width, count in strips(m):
            body = lambda point, first=first, width=width: substitute(point, first, width)
            block("solve", sources, x, (*lead, count), body)

    return prim_func([a, b], b, write)


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

# -- cholesky --------------------------------------------------------------------------------------------------


def _cholesky_shape(a: ShapeDtype) -> ShapeDtype:
    check_matrix("cholesky", a)
    check_square("cholesky", a)
    return ShapeDtype(a.shape, a.dtype)


def _cholesky(a: ShapeDtype) -> tirx.PrimFunc:
    """Row after row of the transposed factor, a strip of columns at a time."""
    lead, n, dtype = a.shape[:-2], a.shape[-1], dtypes.NAMES[a.dtype]
    width = min(WIDTH, n)
    count = -(-n // width) if n else 0

    def write(sources, result):
        (matrix,) = sources

        def factor(at: tuple) -> None:
            u = local((n, count * width), dtype)
            total = local((width,), dtype)
            failed = local((1,), "int32")
            T.buffer_store(failed, number(0, "int32"), [0])
            with T.serial(0, n) as i:
                with T.serial(tirx.indexdiv(i, width), count) as strip:
                    with T.serial(0, width) as k:
                        row = tirx.min(strip * width + k, n - 1)
                        T.buffer_store(total, matrix[(*at, row, i)], [k])
                    with T.serial(0, i) as j, T.serial(0, width) as k:
                        T.buffer_store(total, total[k] - u[j, i] * u[j, strip * width + k], [k])
                    with T.serial(0, width) as k:
                        T.buffer_store(u, total[k], [i, strip * width + k])
                pivot = local((1,), dtype)
                T.buffer_store(pivot, u[i, i], [0])
                # Not `not pivot > 0`: TVM takes that for `pivot <= 0`, which NaN is not.
                with branch(tirx.Or(pivot[0] <= number(0, dtype), formula.is_nan(pivot[0]))):
                    T.buffer_store(failed, number(1, "int32"), [0])
                T.buffer_store(pivot, tirx.sqrt(pivot[0]), [0])
                with T.serial(i, n) as j:
                    T.buffer_store(u, u[i, j] / pivot[0], [i, j])
                T.buffer_store(u, pivot[0], [i, i])
            with T.serial(0, n) as i, T.serial(0, n) as j:
                value = tirx.Select(failed[0] > 0, number(math.nan, dtype), u[j, i])
                T.buffer_store(result, tirx.Select(j <= i, value, number(0, dtype)), [*at, i, j])

        block("cholesky", sources, result, lead, factor)

    return prim_func([a], a, write)


def halved(x: Array) -> Array:
    """The lower triangle with half the diagonal."""
    return tril(with_diagonal(x, x * 0.5))


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

# -- lu --------------------------------------------------------------------------------------------------------


def _lu_shape(a: ShapeDtype) -> tuple[ShapeDtype, ...]:
    check_matrix("lu", a)
    *lead, m, n = a.shape
    return (
        ShapeDtype(a.shape, a.dtype),
        ShapeDtype((*lead, min(m, n)), dtypes.int32),
        ShapeDtype((*lead, m), dtypes.int32),
    )


def _lu(a: ShapeDtype) -> tirx.PrimFunc:
    """Strip after strip of columns: the factors on its left are applied to it, then it is eliminated."""
    lead, (m, n), dtype = a.shape[:-2], a.shape[-2:], dtypes.NAMES[a.dtype]

    def write(sources, results):
        (matrix,) = sources
        lu, pivots, permutation = results

        def swap(buffer: tirx.Buffer, first: tuple, second: tuple) -> None:
            kept = local((1,), str(buffer.dtype))
            T.buffer_store(kept, buffer[first], [0])
            T.buffer_store(buffer, buffer[second], list(first))
            T.buffer_store(buffer, kept[0], list(second))

        def eliminate(at: tuple, column: Any, begin: Any, width: int) -> None:
            best, pivot = local((1,), dtype), local((1,), "int32")
            T.buffer_store(best, tirx.abs(lu[(*at, column, column)]), [0])
            T.buffer_store(pivot, column, [0])
            with T.serial(column + 1, m) as i, branch(tirx.abs(lu[(*at, i, column)]) > best[0]):
                T.buffer_store(best, tirx.abs(lu[(*at, i, column)]), [0])
                T.buffer_store(pivot, i, [0])
            T.buffer_store(pivots, pivot[0], [*at, column])
            with branch(tirx.NE(pivot[0], column)):
                swap(permutation, (*at, column), (*at, pivot[0]))
                with T.serial(0, n) as j:
                    swap(lu, (*at, column, j), (*at, pivot[0], j))
            upper = local((width,), dtype)  # so that no row can be written while it is read
            with T.serial(column, begin + width) as j:
                T.buffer_store(upper, lu[(*at, column, j)], [j - begin])
            with branch(best[0] > number(0, dtype)), T.serial(column + 1, m) as i:
                factor = local((1,), dtype)
                T.buffer_store(factor, lu[(*at, i, column)] / upper[column - begin], [0])
                T.buffer_store(lu, factor[0], [*at, i, column])
                with T.serial(column + 1, begin + width) as j:
                    T.buffer_store(lu, lu[(*at, i, j)] - factor[0] * upper[j - begin], [*at, i, j])

        def factor(at: tuple) -> None:
            with T.serial(0, m) as i:
                T.buffer_store(permutation, i, [*at, i])
                with T.serial(0, n) as j:
                    T.buffer_store(lu, matrix[(*at, i, j)], [*at, i, j])
            for first, width, count in strips(n):
                total = local((width,), dtype)
                with T.serial(0, count) as strip:
                    begin = first + strip * width
                    with T.serial(0, m) as i:
                        with T.serial(0, width) as k:
                            T.buffer_store(total, lu[(*at, i, begin + k)], [k])
                        with T.serial(0, tirx.min(i, begin)) as j, T.serial(0, width) as k:
                            T.buffer_store(total, total[k] - lu[(*at, i, j)] * lu[(*at, j, begin + k)], [k])
                        with T.serial(0, width) as k:
                            T.buffer_store(lu, total[k], [*at, i, begin + k])
                    with T.serial(0, width) as k, branch(begin + k < m):
                        eliminate(at, begin + k, begin, width)

        block("lu", sources, results, lead, factor)

    return prim_func([a], _lu_shape(a), write)


def _solve_lower(lu: Array, x: Array, *, transposed: bool) -> Array:
    """``l^-1 @ x`` or ``l^-T @ x`` with the unit lower triangle of ``lu``."""
    return triangular_solve(lu, x, lower=True, transpose_a=transposed, unit_diagonal=True)


def divide_right(x: Array, u: Array) -> Array:
    """``x @ u^-T`` for an upper triangular ``u``."""
    return transpose(triangular_solve(u, transpose(x), lower=False, transpose_a=False, unit_diagonal=False))


def _lu_vjp(g: tuple[Array, ...], out: tuple[Array, ...], a: Array) -> Array:
    # With p @ a = l @ u: l^-1 @ dl is strictly lower and du @ u^-1 upper triangular, and their sum is
    # l^-1 @ p @ da @ u^-1. What follows transposes that; the part of a matrix that is not square is linear.
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

# -- qr --------------------------------------------------------------------------------------------------------


def _qr_shape(a: ShapeDtype, *, full: bool) -> tuple[ShapeDtype, ShapeDtype]:
    check_matrix("qr", a)
    *lead, m, n = a.shape
    inner = m if full else min(m, n)
    return ShapeDtype((*lead, m, inner), a.dtype), ShapeDtype((*lead, inner, n), a.dtype)


def padded(size: int) -> int:
    """``size`` rounded up to whole strips."""
    return -(-size // WIDTH) * WIDTH


def reflector(x: Callable[[Any], Any], first: Any, size: int, v: Callable, tau: Callable, dtype: str) -> tirx.Buffer:
    """Finds the reflection ``1 - tau v v^T`` that maps ``x[first:size]`` to a multiple ``beta`` of a unit vector.

    As in LAPACK ``v`` begins with 1, ``beta`` has the sign opposite to the first element, and nothing is reflected if
    the other elements are 0. ``v(i, value)`` and ``tau(value)`` store the results; ``beta`` is returned.
    """
    scale, total, beta, head = (local((1,), dtype) for _ in range(4))
    T.buffer_store(scale, number(0, dtype), [0])
    T.buffer_store(total, number(0, dtype), [0])
    T.buffer_store(beta, x(first), [0])
    tau(number(0, dtype))
    v(first, number(1, dtype))
    with T.serial(first + 1, size) as i:
        # Also NaN where there is one.
        T.buffer_store(scale, pw.maximum.compute(scale[0], tirx.abs(x(i))), [0])
        v(i, number(0, dtype))
    with branch(tirx.Not(tirx.EQ(scale[0], number(0, dtype)))):
        # Scaled, so that squares neither overflow nor lose digits.
        T.buffer_store(scale, pw.maximum.compute(scale[0], tirx.abs(x(first))), [0])
        with T.serial(first, size) as i:
            T.buffer_store(total, total[0] + (x(i) / scale[0]) * (x(i) / scale[0]), [0])
        T.buffer_store(head, x(first) / scale[0], [0])
        norm = tirx.sqrt(total[0])
        T.buffer_store(beta, tirx.Select(head[0] < number(0, dtype), norm, -norm), [0])
        with T.serial(first + 1, size) as i:
            v(i, x(i) / scale[0] / (head[0] - beta[0]))
        tau((beta[0] - head[0]) / beta[0])
        T.buffer_store(beta, beta[0] * scale[0], [0])
    return beta


def reflect(a: tirx.Buffer, v: Callable[[Any], Any], tau: Any, first: Any, size: int, begin: Any, end: int) -> None:
    """Applies a reflection to rows ``first:size`` of ``a``, in the strips that hold its columns ``begin:end``."""
    total = local((WIDTH,), str(a.dtype))
    with T.serial(tirx.indexdiv(begin, WIDTH), end // WIDTH) as strip:
        column = lambda k: strip * WIDTH + k
        with T.serial(0, WIDTH) as k:
            T.buffer_store(total, number(0, str(a.dtype)), [k])
        with T.serial(first, size) as i, T.serial(0, WIDTH) as k:
            T.buffer_store(total, total[k] + v(i) * a[i, column(k)], [k])
        with T.serial(0, WIDTH) as k:
            T.buffer_store(total, total[k] * tau, [k])
        with T.serial(first, size) as i, T.serial(0, WIDTH) as k:
            T.buffer_store(a, a[i, column(k)] - v(i) * total[k], [i, column(k)])


def triangularize(work: tirx.Buffer, m: int, n: int) -> tuple[tirx.Buffer, tirx.Buffer]:
    """Makes ``m`` by ``n`` elements of ``work`` upper triangular; returns the reflections that did it."""
    k, dtype = min(m, n), str(work.dtype)
    vectors, taus = local((k, m), dtype), local((k,), dtype)
    with T.serial(0, k) as j:
        beta = reflector(
            lambda i: work[i, j],
            j,
            m,
            lambda i, value: T.buffer_store(vectors, value, [j, i]),
            lambda value: T.buffer_store(taus, value, [j]),
            dtype,
        )
        reflect(work, lambda i: vectors[j, i], taus[j], j, m, j, padded(n))
        T.buffer_store(work, beta[0], [j, j])
        with T.serial(j + 1, m) as i:
            T.buffer_store(work, number(0, dtype), [i, j])
    return vectors, taus


def accumulate(vectors: tirx.Buffer, taus: tirx.Buffer, m: int, k: int, size: int) -> tirx.Buffer:
    """The first ``size`` columns of the product of ``k`` reflections."""
    dtype = str(vectors.dtype)
    q = local((m, padded(size)), dtype)
    with T.serial(0, m) as i, T.serial(0, padded(size)) as j:
        T.buffer_store(q, tirx.Select(tirx.EQ(i, j), number(1, dtype), number(0, dtype)), [i, j])
    with T.serial(0, k) as step:
        j = k - 1 - step
        reflect(q, lambda i: vectors[j, i], taus[j], j, m, j, padded(size))
    return q


def load(work: tirx.Buffer, m: int, n: int, element: Callable[[Any, Any], Any]) -> None:
    """Fills ``m`` by ``n`` elements of ``work``, and the rest of their strips with zeros."""
    with T.serial(0, m) as i, T.serial(0, padded(n)) as j:
        inside = tirx.if_then_else(j < n, element(i, tirx.min(j, n - 1)), number(0, str(work.dtype)))
        T.buffer_store(work, inside, [i, j])


def _qr(a: ShapeDtype, *, full: bool) -> tirx.PrimFunc:
    """Householder reflections, one column after the other."""
    lead, (m, n), dtype = a.shape[:-2], a.shape[-2:], dtypes.NAMES[a.dtype]
    k = min(m, n)
    inner = m if full else k

    def write(sources, results):
        (matrix,) = sources
        q, r = results

        def factor(at: tuple) -> None:
            work = local((m, padded(n)), dtype)
            load(work, m, n, lambda i, j: matrix[(*at, i, j)])
            vectors, taus = triangularize(work, m, n)
            with T.serial(0, inner) as i, T.serial(0, n) as j:
                T.buffer_store(r, work[i, j], [*at, i, j])
            product = accumulate(vectors, taus, m, k, inner)
            with T.serial(0, m) as i, T.serial(0, inner) as j:
                T.buffer_store(q, product[i, j], [*at, i, j])

        block("qr", sources, results, lead, factor)

    return prim_func([a], _qr_shape(a, full=full), write)


def _qr_vjp(g: tuple[Array, Array], out: tuple[Array, Array], a: Array, *, full: bool) -> Array:
    # Walter, Lehmann and Lamour, "On evaluating higher-order derivatives of the QR decomposition of tall matrices
    # with full column rank in forward and reverse mode" (2012), section 4.
    (g_q, g_r), (q, r) = g, out
    m, n = a.shape[-2:]
    if full and m > n:
        raise GradientError(
            "qr",
            "the columns that complete an orthogonal matrix are not a function of the argument",
            got=f"a full decomposition of {a.aval}",
            hint="full_matrices=False",
        )
    if m < n:  # the first columns determine q, and r is linear in the others
        wide, g_wide = columns(a, m, n), columns(g_r, m, n)
        g_q = g_q + matmul(wide, g_wide, transpose_y=True)
        g_r, r = columns(g_r, 0, m), columns(r, 0, m)
    inner = matmul(r, g_r, transpose_y=True) - matmul(g_q, q, transpose_x=True)
    symmetric = tril(inner) + transpose(tril(inner, strict=True))
    result = divide_right(g_q + q @ symmetric, r)
    return shapes.concat(result, q @ g_wide, axis=a.ndim - 1) if m < n else result


def _qr_batch(batched: tuple[bool, ...], a: Array, *, full: bool) -> tuple[Array, Array]:
    return qr(a, full=full)


#: ``qr(a, full=)``: ``(q, r)`` with ``q @ r = a``, orthonormal columns in ``q`` and an upper triangular ``r``; ``q`` is
#: square if ``full``. Signs are those of LAPACK.
qr = register(Op("qr", "opaque", _qr_shape, _qr, (_qr_vjp,), batch=_qr_batch))
