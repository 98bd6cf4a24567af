"""Eigenvalues and eigenvectors of symmetric matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvmfun import dtypes
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.op import Op, register
from tvmfun.ops.linalg.matrices import check_matrix, check_square, halved, matmul, transpose
from tvmfun.ops.linalg.reflections import Reflections
from tvmfun.ops.linalg.rotations import Rotations
from tvmfun.ops.linalg.spectra import (
    Values,
    descending,
    each_sorted,
    gaps,
    is_finite,
    iterated,
    largest,
    on_diagonal,
    tolerance,
    transposed_product,
)
from tvmfun.ops.linalg.strips import MANY, WIDTH, Loops, Strips, branch, change_rows, clear, dot, local, number, padded
from tvmfun.ops.tir import block, prim_func

# About two are needed for an eigenvalue; these end a hopeless iteration.
_STEPS = 50


def _eigh_shape(a: ShapeDtype, *, vectors: bool) -> ShapeDtype | tuple[ShapeDtype, ShapeDtype]:
    check_matrix("eigh", a)
    check_square("eigh", a)
    values = ShapeDtype(a.shape[:-1], a.dtype)
    return (values, ShapeDtype(a.shape, a.dtype)) if vectors else values


def _eigh(a: ShapeDtype, *, vectors: bool) -> tirx.PrimFunc:
    """Reflections make the matrix tridiagonal, and rotations make that diagonal."""
    lead, n, dtype = a.shape[:-2], a.shape[-1], dtypes.NAMES[a.dtype]

    def write(sources, results):
        (matrix,) = sources
        values, found = results if vectors else (results, None)

        def factor(at: tuple) -> None:
            loops = Loops(lead, n * n)
            symmetric = lambda i, j: matrix[(*at, tirx.max(i, j), tirx.min(i, j))]
            scale = largest(n, n, symmetric, dtype)
            with T.If(is_finite(scale, dtype)):
                with T.Then():
                    unit = tirx.Select(scale > number(0, dtype), scale, number(1, dtype))
                    work = Strips(n, n, dtype)
                    work.load(loops, lambda i, j: symmetric(i, j) / unit)
                    diagonal, beside, reflections = _tridiagonalize(work, loops)
                    rotations = None
                    if found is not None:
                        rotations = Rotations(transposed_product(reflections, n, loops), loops)
                    _diagonalize(diagonal, beside, n, tolerance(dtype), rotations)
                    order = descending(diagonal, n)
                    with T.serial(0, n) as i:
                        value = diagonal[order[n - 1 - i]] * unit.astype(str(diagonal.dtype))
                        T.buffer_store(values, value.astype(dtype), [*at, i])
                    if found is not None and rotations is not None:
                        store = lambda j, i, value: T.buffer_store(found, value, [*at, i, n - 1 - j])
                        each_sorted(rotations.rows, order, loops, store)
                with T.Else(), T.serial(0, n) as i:
                    T.buffer_store(values, number(math.nan, dtype), [*at, i])
                    if found is not None:
                        with T.serial(0, n) as j:
                            T.buffer_store(found, number(math.nan, dtype), [*at, i, j])

        block("eigh", sources, results, lead, factor)

    return prim_func([a], _eigh_shape(a, vectors=vectors), write)


def _tridiagonalize(work: Strips, loops: Loops) -> tuple[tirx.Buffer, tirx.Buffer, Reflections]:
    """Returns the diagonal, the off-diagonal, and the reflections that make ``work`` tridiagonal.

    A reflection from both sides is ``a - v w^T - w v^T``, with ``w = p - (tau / 2) (p^T v) v`` and ``p = tau a v``. The
    matrix is changed when it is read for the next ``p``, because most of the time goes into reading it.
    """
    n, dtype, width = work.rows, work.dtype, work.width
    count = max(n - 2, 0) if isinstance(n, int) else n - 2
    of = Reflections(n, count, width, dtype)
    diagonal, beside = (local((n,), iterated(dtype)) for _ in range(2))
    before, other, product = (local((padded(n),), dtype) for _ in range(3))  # the last v and w, and p
    square = local((WIDTH,), dtype)  # p^T v
    of.clear(loops)
    for vector in (before, other, product):
        clear(vector)

    def keep(buffer: tirx.Buffer, value: Any, i: Any) -> None:
        T.buffer_store(buffer, value.astype(iterated(dtype)), [i])

    def changed(row: Any, column: Any) -> Any:
        old = work[column // width, row, column % width]
        return old - before[row] * other[column] - other[row] * before[column]

    with T.serial(0, count) as k:
        first = k + 1
        keep(diagonal, changed(k, k), k)
        of.find(k // width, k % width, first, lambda i: changed(i, k))
        keep(beside, of.beta[0], k)
        begin = first // width

        def multiply(strip: Any, begin: Any = begin, first: Any = first) -> None:
            store = lambda column, total: T.buffer_store(product, total, [column])
            change_rows(work, begin + strip, first, (before, other), (other, before), of.vector, store)

        loops.run(work.count - begin, multiply, if_many=n - first >= MANY)
        dot(square, product, of.vector, first, n)
        half = number(0.5, dtype) * of.tau[0] * of.tau[0] * square[0]
        with T.serial(first, n) as i:
            T.buffer_store(other, of.tau[0] * product[i] - half * of.vector[i], [i])
        with T.serial(first, n) as i:
            T.buffer_store(before, of.vector[i], [i])
    with T.serial(tirx.max(count, 0), n) as i:
        keep(diagonal, changed(i, i), i)
    # In loops of at most one iteration, because a dynamic size may be 1.
    with T.serial(tirx.max(count, 0), n - 1) as i:
        keep(beside, changed(i + 1, i), i)
    with T.serial(tirx.max(n - 1, 0), n) as i:
        keep(beside, number(0, dtype), i)
    return diagonal, beside, of


def _diagonalize(d: tirx.Buffer, e: tirx.Buffer, n: int, limit: Any, rotations: Rotations | None) -> None:
    """The implicit QL iteration of Bowdler, Martin, Reinsch and Wilkinson (1968) on a tridiagonal matrix.

    ``d`` becomes the eigenvalues. Elements of ``e`` up to ``limit`` times their neighbours in ``d`` are negligible.
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
            negligible = tirx.abs(e[at.m]) <= limit * (tirx.abs(d[at.m]) + tirx.abs(d[after]))
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
                if rotations is not None:
                    rotations.make_room()
                    rotations.begin(at.m, at.m - 1, -1)
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
                            if rotations is not None:
                                rotations.add(x.c, x.s)
                            at.i = at.i - 1
                with branch(at.i > -2):
                    T.buffer_store(d, d[first] - x.p, [first])
                    T.buffer_store(e, x.g, [first])
                    T.buffer_store(e, zero, [at.m])
    if rotations is not None:
        rotations.run()


def _eigh_vjp(g: Any, out: Any, a: Array, *, vectors: bool) -> Array:
    # Giles, "An extended collection of matrix derivative results for forward and reverse mode" (2008), section 3.1.
    if not vectors:
        _, v = eigh(a, vectors=True)
        inner = on_diagonal(g)
    else:
        (g_w, g_v), (w, v) = g, out
        inner = gaps(w) * matmul(v, g_v, transpose_x=True) + on_diagonal(g_w)
    full = matmul(v @ inner, v, transpose_y=True)
    return halved(full + transpose(full))


def _pruned(used: Sequence[bool], *, vectors: bool) -> tuple[Sequence[int], Sequence[int], dict[str, Any]]:
    """Only the eigenvalues, where nobody reads the eigenvectors."""
    needs = vectors and used[1]
    return (0,), ((0, 1) if needs else (0,)), {"vectors": needs}


#: ``eigh(a, vectors=)``: ``(w, v)``, the eigenvalues of a symmetric ``a`` in ascending order and the eigenvectors in
#: the columns of ``v``; without ``vectors`` only ``w``. Only the lower triangle is read. Equal eigenvalues count as
#: independent of each other's eigenvectors.
eigh = register(
    Op(
        "eigh",
        "opaque",
        _eigh_shape,
        _eigh,
        (_eigh_vjp,),
        batch=lambda batched, a, *, vectors: eigh(a, vectors=vectors),
        prune=_pruned,
    )
)
