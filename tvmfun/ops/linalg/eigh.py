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
from tvmfun.ops.linalg.rotations import Rotations
from tvmfun.ops.linalg.spectra import (
    each_sorted,
    gaps,
    is_finite,
    largest,
    on_diagonal,
    stable_order,
    tolerance,
    transposed_product,
)
from tvmfun.ops.linalg.strips import Loops, Strips, number, put
from tvmfun.ops.linalg.tridiagonal import diagonalize, find_eigenvalues, tridiagonalize
from tvmfun.ops.tir import block, prim_func


def _eigh_shape(a: ShapeDtype, *, vectors: bool) -> ShapeDtype | tuple[ShapeDtype, ShapeDtype]:
    check_matrix("eigh", a)
    check_square("eigh", a)
    values = ShapeDtype(a.shape[:-1], a.dtype)
    return (values, ShapeDtype(a.shape, a.dtype)) if vectors else values


def _eigh(a: ShapeDtype, *, vectors: bool) -> tirx.PrimFunc:
    """Reflections make the matrix tridiagonal, and rotations make the result diagonal."""
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
                    diagonal, beside, reflections = tridiagonalize(work, loops)
                    rotations = None
                    if found is None:
                        find_eigenvalues(diagonal, beside, n, tolerance(dtype))
                    else:
                        rotations = Rotations(transposed_product(reflections, n, loops), loops)
                        diagonalize(diagonal, beside, n, tolerance(dtype), rotations)
                    order = stable_order(diagonal, n, ascending=True)
                    with T.serial(0, n) as i:
                        put(values, diagonal[order[i]] * unit.astype(str(diagonal.dtype)), *at, i)
                    if found is not None and rotations is not None:
                        store = lambda j, i, value: T.buffer_store(found, value, [*at, i, j])
                        each_sorted(rotations.rows, order, loops, store)
                with T.Else(), T.serial(0, n) as i:
                    T.buffer_store(values, number(math.nan, dtype), [*at, i])
                    if found is not None:
                        with T.serial(0, n) as j:
                            T.buffer_store(found, number(math.nan, dtype), [*at, i, j])

        block("eigh", sources, results, lead, factor)

    return prim_func([a], _eigh_shape(a, vectors=vectors), write)


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
    """Dead code elimination: only the eigenvalues, if the eigenvectors are not used."""
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
