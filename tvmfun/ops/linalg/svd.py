"""The singular value decomposition."""

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
from tvmfun.ops import formula
from tvmfun.ops import pointwise as pw
from tvmfun.ops import shape as shapes
from tvmfun.ops.linalg.matrices import check_matrix, check_square, halved, matmul, transpose
from tvmfun.ops.linalg.spectra import *
from tvmfun.ops.linalg.strips import WIDTH, branch, local, number, padded
from tvmfun.ops.tir import block, prim_func


_SWEEPS = 40


def _svd_shape(a: ShapeDtype, *, full: bool) -> tuple[ShapeDtype, ...]:
    check_matrix("svd", a)
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
            scale = largest(m, n, lambda i, j: element(at, i, j), dtype)
            with T.If(is_finite(scale, dtype)):
                with T.Then():
                    unit = tirx.Select(scale > number(0, dtype), scale, number(1, dtype))
                    work = local((m, padded(n)), dtype)
                    load(work, m, n, lambda i, j: element(at, i, j) / unit)
                    reflections, taus = triangularize(work, m, n)
                    turns = local((n, padded(n)), dtype)
                    load(turns, n, n, lambda i, j: tirx.Select(tirx.EQ(i, j), number(1, dtype), number(0, dtype)))
                    norms = _orthogonalize(work, turns, n)
                    order = descending(norms, n)
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
                        reflect(turned, lambda i: reflections[k, i], taus[k], k, m, 0, padded(inner))
                    with T.serial(0, m) as i, T.serial(0, inner) as j:
                        store(long(at, i, j), turned[i, j])
                    # Short side: the rotated rows are orthogonal. Reflections norm them, also those that are 0.
                    base = local((n, padded(n)), dtype)
                    load(base, n, n, lambda i, j: work[order[j], i])
                    reflections, taus = triangularize(base, n, n)
                    normed = accumulate(reflections, taus, n, n, n)
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
    total, result = local((WIDTH,), dtype), Values(dtype, "value")
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
    norms, x = local((n,), dtype), Values(dtype, "dot", "zeta", "t", "c", "s", "tau")
    state = Values("int32", "sweep", "active")
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
                rotate(work, p, q, padded(n), turn)
                rotate(turns, p, q, padded(n), turn)
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
    gaps = gaps(s * s)
    skew = lambda x: gaps * (x - transpose(x))
    of_u, of_v = matmul(u, g_u, transpose_x=True), matmul(vt, g_vt, transpose_y=True)
    inner = scaled_columns(skew(of_u), s) + scaled_rows(skew(of_v), s) + on_diagonal(g_s)
    is_zero = s == 0
    inverse = 1 / pw.where(is_zero, pw.constant(1, s), s)
    inverse = pw.where(is_zero, pw.constant(0, s), inverse)
    result = u @ inner
    if m > n:
        result = result + scaled_columns(g_u - u @ of_u, inverse)
    result = result @ vt
    if n > m:
        beside = g_vt - matmul(of_v, vt, transpose_x=True)
        result = result + u @ scaled_rows(beside, inverse)
    return result


#: ``svd(a, full=)``: ``(u, s, vt)`` with ``u * s @ vt = a``, orthonormal columns in ``u`` and rows in ``vt``, and ``s``
#: in descending order; ``u`` and ``vt`` are square if ``full``. Equal singular values count as independent of each
#: other's vectors.
svd = register(Op("svd", "opaque", _svd_shape, _svd, (_svd_vjp,), batch=lambda batched, a, *, full: svd(a, full=full)))
