"""Eigenvalues of symmetric matrices and singular values, on the last two axes of float arrays.

The loop programs are built of the same parts as those of ``decompositions``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvmfun import dtypes
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.op import Op, register
from tvmfun.errors import GradientError
from tvmfun.ops import decompositions as parts
from tvmfun.ops import formula
from tvmfun.ops import pointwise as pw
from tvmfun.ops import shape as shapes
from tvmfun.ops.decompositions import WIDTH, branch, local, matmul, number, padded
from tvmfun.ops.tir import block, prim_func

# Both iterations need about two steps per eigenvalue and less than ten sweeps; these end a hopeless one.
_STEPS = 50
_SWEEPS = 40


def _epsilon(dtype: str) -> Any:
    return number(float(np.finfo(dtype).eps), dtype)


class _Values:
    """Scalar variables of one dtype in local memory, by name."""

    def __init__(self, dtype: str, *names: str) -> None:
        object.__setattr__(self, "_dtype", dtype)
        object.__setattr__(self, "_buffers", {name: local((1,), dtype) for name in names})

    def __getattr__(self, name: str) -> Any:
        return self._buffers[name][0]

    def __setattr__(self, name: str, value: Any) -> None:
        value = number(value, self._dtype) if isinstance(value, int | float) else value
        T.buffer_store(self._buffers[name], value, [0])


def _largest(size: int, columns: int, element: Callable[[Any, Any], Any], dtype: str) -> Any:
    """The largest magnitude of a matrix, NaN if there is a NaN."""
    largest = _Values(dtype, "value")
    largest.value = 0
    with T.serial(0, size) as i, T.serial(0, columns) as j:
        largest.value = pw.maximum.compute(largest.value, tirx.abs(element(i, j)))
    return largest.value


def _is_finite(x: Any, dtype: str) -> Any:
    return tirx.And(tirx.Not(formula.is_nan(x)), x < tirx.infinity(dtype))


def _descending(values: tirx.Buffer, size: int) -> tirx.Buffer:
    """The stable order of the values, largest first."""
    order, position = local((size,), "int32"), _Values("int32", "i")
    with T.serial(0, size) as i:
        position.i = i
        before = tirx.max(position.i - 1, 0)
        with T.While(tirx.And(position.i > 0, values[order[before]] < values[i])):
            T.buffer_store(order, order[before], [position.i])
            position.i = position.i - 1
        T.buffer_store(order, i, [position.i])
    return order


# -- eigh ------------------------------------------------------------------------------------------------------


def _eigh_shape(a: ShapeDtype) -> tuple[ShapeDtype, ShapeDtype]:
    parts.check_matrix("eigh", a)
    parts.check_square("eigh", a)
    return ShapeDtype(a.shape[:-1], a.dtype), ShapeDtype(a.shape, a.dtype)


def _eigh(a: ShapeDtype) -> tirx.PrimFunc:
    """Reflections make the matrix tridiagonal, and rotations make that diagonal."""
    lead, n, dtype = a.shape[:-2], a.shape[-1], dtypes.NAMES[a.dtype]

    def write(sources, results):
        (matrix,) = sources
        values, vectors = results

        def factor(at: tuple) -> None:
            symmetric = lambda i, j: matrix[(*at, tirx.max(i, j), tirx.min(i, j))]
            scale = _largest(n, n, symmetric, dtype)
            with T.If(_is_finite(scale, dtype)):
                with T.Then():
                    unit = tirx.Select(scale > number(0, dtype), scale, number(1, dtype))
                    work = local((n, padded(n)), dtype)
                    parts.load(work, n, n, lambda i, j: symmetric(i, j) / unit)
                    diagonal, beside, rotated = _tridiagonalize(work, n)
                    _diagonalize(diagonal, beside, rotated, n)
                    order = _descending(diagonal, n)
                    with T.serial(0, n) as i:
                        source = order[n - 1 - i]
                        T.buffer_store(values, diagonal[source] * unit, [*at, i])
                        with T.serial(0, n) as j:
                            T.buffer_store(vectors, rotated[source, j], [*at, j, i])
                with T.Else(), T.serial(0, n) as i:
                    T.buffer_store(values, number(math.nan, dtype), [*at, i])
                    with T.serial(0, n) as j:
                        T.buffer_store(vectors, number(math.nan, dtype), [*at, i, j])

        block("eigh", sources, results, lead, factor)

    return prim_func([a], _eigh_shape(a), write)


def _tridiagonalize(work: tirx.Buffer, n: int) -> tuple[tirx.Buffer, tirx.Buffer, tirx.Buffer]:
    """The diagonal, the off-diagonal, and the transposed transformation that makes ``work`` tridiagonal."""
    dtype = str(work.dtype)
    count = max(n - 2, 0)
    reflections, taus = local((count, padded(n)), dtype), local((count,), dtype)
    diagonal, beside = local((n,), dtype), local((n,), dtype)
    product, dot = local((padded(n),), dtype), _Values(dtype, "v")
    with T.serial(0, count) as k:
        with T.serial(0, padded(n)) as i:
            T.buffer_store(reflections, number(0, dtype), [k, i])
        beta = parts.reflector(
            lambda i: work[i, k],
            k + 1,
            n,
            lambda i, value: T.buffer_store(reflections, value, [k, i]),
            lambda value: T.buffer_store(taus, value, [k]),
            dtype,
        )
        T.buffer_store(beside, beta[0], [k])
        v = lambda i: reflections[k, i]
        # From both sides: a - v w^T - w v^T with w = p - (tau / 2) (p^T v) v and p = tau a v.
        first = tirx.indexdiv(k + 1, WIDTH)
        with T.serial(first, padded(n) // WIDTH) as strip:
            total = local((WIDTH,), dtype)
            with T.serial(0, WIDTH) as j:
                T.buffer_store(total, number(0, dtype), [j])
            with T.serial(k + 1, n) as i, T.serial(0, WIDTH) as j:
                T.buffer_store(total, total[j] + v(i) * work[i, strip * WIDTH + j], [j])
            with T.serial(0, WIDTH) as j:
                T.buffer_store(product, total[j] * taus[k], [strip * WIDTH + j])
        dot.v = 0
        with T.serial(k + 1, n) as i:
            dot.v = dot.v + product[i] * v(i)
        with T.serial(k + 1, n) as i:
            half = number(0.5, dtype) * taus[k] * dot.v
            T.buffer_store(product, product[i] - half * v(i), [i])
        with T.serial(k + 1, n) as i, T.serial(k + 1, n) as j:
            T.buffer_store(work, work[i, j] - v(i) * product[j] - product[i] * v(j), [i, j])
    with T.serial(0, n) as i:
        T.buffer_store(diagonal, work[i, i], [i])
    if n > 1:
        T.buffer_store(beside, work[n - 1, n - 2], [n - 2])
    T.buffer_store(beside, number(0, dtype), [max(n - 1, 0)])
    q = local((n, padded(n)), dtype)
    parts.load(q, n, n, lambda i, j: tirx.Select(tirx.EQ(i, j), number(1, dtype), number(0, dtype)))
    with T.serial(0, count) as step:
        k = count - 1 - step
        parts.reflect(q, lambda i: reflections[k, i], taus[k], k + 1, n, k + 1, padded(n))
    turned = local((n, padded(n)), dtype)
    parts.load(turned, n, n, lambda i, j: q[j, i])
    return diagonal, beside, turned


def _rotate(rows: tirx.Buffer, p: Any, q: Any, columns: int, turn: Callable[[Any, Any], tuple[Any, Any]]) -> None:
    """Replaces rows ``p`` and ``q`` by what ``turn`` makes of each pair of elements."""
    kept = local((2, WIDTH), str(rows.dtype))  # so that no row can be written while it is read
    with T.serial(0, columns // WIDTH) as strip:
        column = lambda k: strip * WIDTH + k
        with T.serial(0, WIDTH) as k:
            T.buffer_store(kept, rows[p, column(k)], [0, k])
        with T.serial(0, WIDTH) as k:
            T.buffer_store(kept, rows[q, column(k)], [1, k])
        for row, position in enumerate((p, q)):
            with T.serial(0, WIDTH) as k:
                T.buffer_store(rows, turn(kept[0, k], kept[1, k])[row], [position, column(k)])


def _diagonalize(d: tirx.Buffer, e: tirx.Buffer, vectors: tirx.Buffer, n: int) -> None:
    """The implicit QL iteration of Bowdler, Martin, Reinsch and Wilkinson (1968) on a tridiagonal matrix.

    ``d`` becomes the eigenvalues, and the rows of ``vectors`` take part in the rotations.
    """
    dtype = str(d.dtype)
    x = _Values(dtype, "g", "r", "s", "c", "p", "f", "b")
    at = _Values("int32", "m", "i", "steps", "active")
    zero, one, two = (number(value, dtype) for value in (0, 1, 2))
    hypotenuse = lambda f, g: tirx.sqrt(f * f + g * g)
    with T.serial(0, n) as first:
        at.steps, at.active = 0, 1
        with T.While(at.active > 0):
            # The block that begins at `first` ends where the off-diagonal is negligible.
            at.m = first
            after = tirx.min(at.m + 1, n - 1)
            negligible = tirx.abs(e[at.m]) <= _epsilon(dtype) * (tirx.abs(d[at.m]) + tirx.abs(d[after]))
            with T.While(tirx.And(at.m < n - 1, tirx.Not(negligible))):
                at.m = at.m + 1
            at.active = tirx.Cast("int32", tirx.And(at.m > first, at.steps < _STEPS))
            with branch(at.active > 0):
                at.steps = at.steps + 1
                x.g = (d[first + 1] - d[first]) / (two * e[first])
                x.r = hypotenuse(x.g, one)
                x.g = d[at.m] - d[first] + e[first] / (x.g + tirx.Select(x.g < zero, -x.r, x.r))
                x.s, x.c, x.p = 1, 1, 0
                at.i = at.m - 1
                with T.While(at.i >= first):
                    x.f = x.s * e[at.i]
                    x.b = x.c * e[at.i]
                    x.r = hypotenuse(x.f, x.g)
                    T.buffer_store(e, x.r, [at.i + 1])
                    with T.If(tirx.EQ(x.r, zero)):
                        with T.Then():  # the block falls apart here: begin again
                            T.buffer_store(d, d[at.i + 1] - x.p, [at.i + 1])
                            T.buffer_store(e, zero, [at.m])
                            at.i = -2
                        with T.Else():
                            x.s = x.f / x.r
                            x.c = x.g / x.r
                            x.g = d[at.i + 1] - x.p
                            x.r = (d[at.i] - x.g) * x.s + two * x.c * x.b
                            x.p = x.s * x.r
                            T.buffer_store(d, x.g + x.p, [at.i + 1])
                            x.g = x.c * x.r - x.b
                            turn = lambda p, q: (x.c * p - x.s * q, x.s * p + x.c * q)
                            _rotate(vectors, at.i, at.i + 1, padded(n), turn)
                            at.i = at.i - 1
                with branch(at.i > -2):
                    T.buffer_store(d, d[first] - x.p, [first])
                    T.buffer_store(e, x.g, [first])
                    T.buffer_store(e, zero, [at.m])


def _gaps(values: Array) -> Array:
    """``1 / (values[j] - values[i])`` at ``i, j``, and 0 where they are equal."""
    row = shapes.reshape(values, shape=(*values.shape[:-1], 1, values.shape[-1]))
    column = shapes.reshape(values, shape=(*values.shape, 1))
    difference = row - column
    same = difference == 0
    inverse = 1 / pw.where(same, pw.constant(1, values), difference)
    return pw.where(same, pw.constant(0, values), inverse)


def _scaled_columns(x: Array, factors: Array) -> Array:
    return x * shapes.reshape(factors, shape=(*factors.shape[:-1], 1, factors.shape[-1]))


def _scaled_rows(x: Array, factors: Array) -> Array:
    return x * shapes.reshape(factors, shape=(*factors.shape, 1))


def _on_diagonal(values: Array) -> Array:
    full = shapes.broadcast_to(
        shapes.reshape(values, shape=(*values.shape, 1)), shape=(*values.shape, values.shape[-1])
    )
    row, column = parts.row_and_column(full)
    return pw.where(row == column, full, pw.constant(0, full))


def _eigh_vjp(g: tuple[Array, Array], out: tuple[Array, Array], a: Array) -> Array:
    # Giles, "An extended collection of matrix derivative results for forward and reverse mode" (2008), section 3.1.
    (g_w, g_v), (w, v) = g, out
    inner = _gaps(w) * matmul(v, g_v, transpose_x=True) + _on_diagonal(g_w)
    full = matmul(v @ inner, v, transpose_y=True)
    return parts.halved(full + parts.transpose(full))


#: ``eigh(a)``: ``(w, v)``, the eigenvalues of a symmetric ``a`` in ascending order and the eigenvectors in the columns
#: of ``v``. Only the lower triangle is read. Equal eigenvalues count as independent of each other's eigenvectors.
eigh = register(Op("eigh", "opaque", _eigh_shape, _eigh, (_eigh_vjp,), batch=lambda batched, a: eigh(a)))

# -- svd -------------------------------------------------------------------------------------------------------


def _svd_shape(a: ShapeDtype, *, full: bool) -> tuple[ShapeDtype, ...]:
    parts.check_matrix("svd", a)
    *lead, m, n = a.shape
    k = min(m, n)
    shapes_out = ((m, m if full else k), (k,), (n if full else k, n))
    return tuple(ShapeDtype((*lead, *shape), a.dtype) for shape in shapes_out)


def _svd(a: ShapeDtype, *, full: bool) -> tirx.PrimFunc:
    """One-sided Jacobi rotations of the rows of the triangular factor (Drmač and Veselić, 2008, without pivoting)."""
    lead, (rows, columns), dtype = a.shape[:-2], a.shape[-2:], dtypes.NAMES[a.dtype]
    m, n = max(rows, columns), min(rows, columns)
    inner = m if full else n

    def write(sources, results):
        (matrix,) = sources
        left, values, right = results
        is_tall = rows >= columns
        # The long side is factored; a wide matrix is decomposed transposed.
        element = (lambda at, i, j: matrix[(*at, i, j)]) if is_tall else (lambda at, i, j: matrix[(*at, j, i)])
        long = lambda at, i, j: (left, [*at, i, j]) if is_tall else (right, [*at, j, i])
        short = lambda at, i, j: (right, [*at, j, i]) if is_tall else (left, [*at, i, j])

        def store(position: tuple, value: Any) -> None:
            buffer, indices = position
            T.buffer_store(buffer, value, indices)

        def factor(at: tuple) -> None:
            scale = _largest(m, n, lambda i, j: element(at, i, j), dtype)
            with T.If(_is_finite(scale, dtype)):
                with T.Then():
                    unit = tirx.Select(scale > number(0, dtype), scale, number(1, dtype))
                    work = local((m, padded(n)), dtype)
                    parts.load(work, m, n, lambda i, j: element(at, i, j) / unit)
                    reflections, taus = parts.triangularize(work, m, n)
                    turns = local((n, padded(n)), dtype)
                    parts.load(turns, n, n, lambda i, j: tirx.Select(tirx.EQ(i, j), number(1, dtype), number(0, dtype)))
                    norms = _orthogonalize(work, turns, n)
                    order = _descending(norms, n)
                    with T.serial(0, n) as j:
                        T.buffer_store(values, tirx.sqrt(norms[order[j]]) * unit, [*at, j])
                    # Long side: the reflections of the rotations.
                    turned = local((m, padded(inner)), dtype)
                    with T.serial(0, m) as i, T.serial(0, padded(inner)) as j:
                        rotated = turns[order[tirx.min(j, n - 1)], tirx.min(i, n - 1)]
                        rest = tirx.Select(tirx.EQ(i, j), number(1, dtype), number(0, dtype))
                        inside = tirx.And(i < n, j < n)
                        T.buffer_store(turned, tirx.Select(inside, rotated, rest), [i, j])
                    with T.serial(0, n) as step:
                        k = n - 1 - step
                        parts.reflect(turned, lambda i: reflections[k, i], taus[k], k, m, 0, padded(inner))
                    with T.serial(0, m) as i, T.serial(0, inner) as j:
                        store(long(at, i, j), turned[i, j])
                    # Short side: the rotated rows are orthogonal. Reflections norm them, also those that are 0.
                    base = local((n, padded(n)), dtype)
                    parts.load(base, n, n, lambda i, j: work[order[j], i])
                    reflections, taus = parts.triangularize(base, n, n)
                    normed = parts.accumulate(reflections, taus, n, n, n)
                    with T.serial(0, n) as i, T.serial(0, n) as j:
                        signed = tirx.Select(base[j, j] < number(0, dtype), -normed[i, j], normed[i, j])
                        store(short(at, i, j), signed)
                with T.Else():
                    nan = number(math.nan, dtype)
                    with T.serial(0, n) as j:
                        T.buffer_store(values, nan, [*at, j])
                        with T.serial(0, n) as i:
                            store(short(at, i, j), nan)
                    with T.serial(0, m) as i, T.serial(0, inner) as j:
                        store(long(at, i, j), nan)

        block("svd", sources, results, lead, factor)

    return prim_func([a], _svd_shape(a, full=full), write)


def _dot(x: tirx.Buffer, p: Any, q: Any, columns: int) -> Any:
    """The inner product of two rows."""
    dtype = str(x.dtype)
    total, result = local((WIDTH,), dtype), _Values(dtype, "value")
    with T.serial(0, WIDTH) as k:
        T.buffer_store(total, number(0, dtype), [k])
    with T.serial(0, columns // WIDTH) as strip, T.serial(0, WIDTH) as k:
        T.buffer_store(total, total[k] + x[p, strip * WIDTH + k] * x[q, strip * WIDTH + k], [k])
    result.value = 0
    with T.serial(0, WIDTH) as k:
        result.value = result.value + total[k]
    return result.value


def _orthogonalize(work: tirx.Buffer, turns: tirx.Buffer, n: int) -> tirx.Buffer:
    """Rotates pairs of the first ``n`` rows, and those of ``turns``, until all are orthogonal; their squared norms."""
    dtype = str(work.dtype)
    norms, x = local((n,), dtype), _Values(dtype, "dot", "zeta", "t", "c", "s", "tau")
    state = _Values("int32", "sweep", "active")
    one, half = number(1, dtype), number(0.5, dtype)
    large = number(1e8 if dtype == "float32" else 1e80, dtype)
    tolerance = number(float(np.finfo(dtype).eps) * math.sqrt(n), dtype)
    # Rows whose squares would soon underflow are as good as 0, because the largest element is 1.
    smallest = number(float(np.finfo(dtype).tiny / np.finfo(dtype).eps), dtype)
    # Close to the identity this is more accurate than cosine and sine (Rutishauser, 1966).
    turn = lambda p, q: (p - x.s * (q + x.tau * p), q + x.s * (p - x.tau * q))

    def measure(row: Any) -> None:
        T.buffer_store(norms, _dot(work, row, row, padded(n)), [row])

    def update(row: Any, change: Any) -> None:
        with T.If(norms[row] + change < half * norms[row]):
            with T.Then():
                measure(row)
            with T.Else():
                T.buffer_store(norms, norms[row] + change, [row])

    state.sweep, state.active = 0, 1
    with T.While(tirx.And(state.active > 0, state.sweep < _SWEEPS)):
        state.sweep, state.active = state.sweep + 1, 0
        with T.serial(0, n) as i:
            measure(i)
        with T.serial(0, n) as p, T.serial(p + 1, n) as q:
            x.dot = _dot(work, p, q, padded(n))
            bound = tolerance * tirx.sqrt(norms[p]) * tirx.sqrt(norms[q])
            with branch(tirx.And(tirx.abs(x.dot) > bound, tirx.min(norms[p], norms[q]) > smallest)):
                state.active = 1
                x.zeta = (norms[q] - norms[p]) / (x.dot + x.dot)
                size = tirx.abs(x.zeta)
                x.t = tirx.Select(size > large, half / size, one / (size + tirx.sqrt(one + x.zeta * x.zeta)))
                x.t = tirx.Select(x.zeta < number(0, dtype), -x.t, x.t)
                x.c = one / tirx.sqrt(one + x.t * x.t)
                x.s = x.c * x.t
                x.tau = x.s / (one + x.c)
                _rotate(work, p, q, padded(n), turn)
                _rotate(turns, p, q, padded(n), turn)
                update(p, -x.t * x.dot)
                update(q, x.t * x.dot)
    with T.serial(0, n) as i:
        measure(i)
    return norms


def _svd_vjp(g: tuple[Array, ...], out: tuple[Array, ...], a: Array, *, full: bool) -> Array:
    # Townsend, "Differentiating the singular value decomposition" (2016), transposed.
    m, n = a.shape[-2:]
    if full and m != n:
        raise GradientError(
            "svd",
            "the columns that complete an orthogonal matrix are not a function of the argument",
            got=f"a full decomposition of {a.aval}",
            hint="full_matrices=False",
        )
    (g_u, g_s, g_vt), (u, s, vt) = g, out
    gaps = _gaps(s * s)
    skew = lambda x: gaps * (x - parts.transpose(x))
    of_u, of_v = matmul(u, g_u, transpose_x=True), matmul(vt, g_vt, transpose_y=True)
    inner = _scaled_columns(skew(of_u), s) + _scaled_rows(skew(of_v), s) + _on_diagonal(g_s)
    is_zero = s == 0
    inverse = 1 / pw.where(is_zero, pw.constant(1, s), s)
    inverse = pw.where(is_zero, pw.constant(0, s), inverse)
    result = u @ inner
    if m > n:
        result = result + _scaled_columns(g_u - u @ of_u, inverse)
    result = result @ vt
    if n > m:
        beside = g_vt - matmul(of_v, vt, transpose_x=True)
        result = result + u @ _scaled_rows(beside, inverse)
    return result


#: ``svd(a, full=)``: ``(u, s, vt)`` with ``u * s @ vt = a``, orthonormal columns in ``u`` and rows in ``vt``, and ``s``
#: in descending order; ``u`` and ``vt`` are square if ``full``. Equal singular values count as independent of each
#: other's vectors.
svd = register(Op("svd", "opaque", _svd_shape, _svd, (_svd_vjp,), batch=lambda batched, a, *, full: svd(a, full=full)))
