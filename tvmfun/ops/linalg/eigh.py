"""Eigenvalues and eigenvectors of symmetric matrices."""

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


_STEPS = 50


def _eigh_shape(a: ShapeDtype) -> tuple[ShapeDtype, ShapeDtype]:
    check_matrix("eigh", a)
    check_square("eigh", a)
    return ShapeDtype(a.shape[:-1], a.dtype), ShapeDtype(a.shape, a.dtype)


def _eigh(a: ShapeDtype) -> tirx.PrimFunc:
    """Reflections make the matrix tridiagonal, and rotations make that diagonal."""
    lead, n, dtype = a.shape[:-2], a.shape[-1], dtypes.NAMES[a.dtype]

    def write(sources, results):
        (matrix,) = sources
        values, vectors = results

        def factor(at: tuple) -> None:
            symmetric = lambda i, j: matrix[(*at, tirx.max(i, j), tirx.min(i, j))]
            scale = largest(n, n, symmetric, dtype)
            with T.If(is_finite(scale, dtype)):
                with T.Then():
                    unit = tirx.Select(scale > number(0, dtype), scale, number(1, dtype))
                    work = local((n, padded(n)), dtype)
                    load(work, n, n, lambda i, j: symmetric(i, j) / unit)
                    diagonal, beside, rotated = _tridiagonalize(work, n)
                    _diagonalize(diagonal, beside, rotated, n)
                    order = descending(diagonal, n)
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
    product, dot = local((padded(n),), dtype), Values(dtype, "v")
    with T.serial(0, count) as k:
        with T.serial(0, padded(n)) as i:
            T.buffer_store(reflections, number(0, dtype), [k, i])
        beta = reflector(
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
    load(q, n, n, lambda i, j: tirx.Select(tirx.EQ(i, j), number(1, dtype), number(0, dtype)))
    with T.serial(0, count) as step:
        k = count - 1 - step
        reflect(q, lambda i: reflections[k, i], taus[k], k + 1, n, k + 1, padded(n))
    turned = local((n, padded(n)), dtype)
    load(turned, n, n, lambda i, j: q[j, i])
    return diagonal, beside, turned


def _diagonalize(d: tirx.Buffer, e: tirx.Buffer, vectors: tirx.Buffer, n: int) -> None:
    """The implicit QL iteration of Bowdler, Martin, Reinsch and Wilkinson (1968) on a tridiagonal matrix.

    ``d`` becomes the eigenvalues, and the rows of ``vectors`` take part in the rotations.
    """
    dtype = str(d.dtype)
    x = Values(dtype, "g", "r", "s", "c", "p", "f", "b")
    at = Values("int32", "m", "i", "steps", "active")
    zero, one, two = (number(value, dtype) for value in (0, 1, 2))
    hypotenuse = lambda f, g: tirx.sqrt(f * f + g * g)
    with T.serial(0, n) as first:
        at.steps, at.active = 0, 1
        with T.While(at.active > 0):
            # The block that begins at `first` ends where the off-diagonal is negligible.
            at.m = first
            after = tirx.min(at.m + 1, n - 1)
            negligible = tirx.abs(e[at.m]) <= epsilon(dtype) * (tirx.abs(d[at.m]) + tirx.abs(d[after]))
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
                            rotate(vectors, at.i, at.i + 1, padded(n), turn)
                            at.i = at.i - 1
                with branch(at.i > -2):
                    T.buffer_store(d, d[first] - x.p, [first])
                    T.buffer_store(e, x.g, [first])
                    T.buffer_store(e, zero, [at.m])


def _eigh_vjp(g: tuple[Array, Array], out: tuple[Array, Array], a: Array) -> Array:
    # Giles, "An extended collection of matrix derivative results for forward and reverse mode" (2008), section 3.1.
    (g_w, g_v), (w, v) = g, out
    inner = gaps(w) * matmul(v, g_v, transpose_x=True) + on_diagonal(g_w)
    full = matmul(v @ inner, v, transpose_y=True)
    return halved(full + transpose(full))


#: ``eigh(a)``: ``(w, v)``, the eigenvalues of a symmetric ``a`` in ascending order and the eigenvectors in the columns
#: of ``v``. Only the lower triangle is read. Equal eigenvalues count as independent of each other's eigenvectors.
eigh = register(Op("eigh", "opaque", _eigh_shape, _eigh, (_eigh_vjp,), batch=lambda batched, a: eigh(a)))
