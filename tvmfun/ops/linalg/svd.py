"""The singular value decomposition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvmfun import dtypes
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.op import Op, register
from tvmfun.errors import GradientError
from tvmfun.ops import pointwise as pw
from tvmfun.ops.linalg.bidiagonal import Iteration, bidiagonalize
from tvmfun.ops.linalg.matrices import check_matrix, matmul, transpose
from tvmfun.ops.linalg.reflections import triangularize
from tvmfun.ops.linalg.rotations import Rotations
from tvmfun.ops.linalg.spectra import (
    each_sorted,
    gaps,
    is_finite,
    iterated,
    largest,
    on_diagonal,
    scaled_columns,
    scaled_rows,
    stable_order,
    transposed_product,
)
from tvmfun.ops.linalg.strips import Loops, Strips, local, number, put
from tvmfun.ops.linalg.tridiagonal import find_singular_values
from tvmfun.ops.tir import block, prim_func


def _svd_shape(a: ShapeDtype, *, full: bool, vectors: bool) -> ShapeDtype | tuple[ShapeDtype, ...]:
    check_matrix("svd", a)
    *lead, m, n = a.shape
    k = min(m, n)
    values = ShapeDtype((*lead, k), a.dtype)
    if not vectors:
        return values
    shapes = ((m, m if full else k), (n if full else k, n))
    left, right = (ShapeDtype((*lead, *shape), a.dtype) for shape in shapes)
    return left, values, right


def _svd(a: ShapeDtype, *, full: bool, vectors: bool) -> tirx.PrimFunc:
    """Reflections make a non-square matrix triangular and any matrix bidiagonal, and rotations make it diagonal."""
    lead, (rows, columns), dtype = a.shape[:-2], a.shape[-2:], dtypes.NAMES[a.dtype]
    m, n = max(rows, columns), min(rows, columns)
    inner = m if full else n

    def write(sources, results):
        (matrix,) = sources
        left, values, right = results if vectors else (None, results, None)
        is_tall = rows >= columns
        # A wide matrix is decomposed transposed.
        element = (lambda at, i, j: matrix[(*at, i, j)]) if is_tall else (lambda at, i, j: matrix[(*at, j, i)])

        def store_long(at: Sequence, i: Any, j: Any, value: Any) -> None:
            T.buffer_store(left if is_tall else right, value, [*at, i, j] if is_tall else [*at, j, i])

        def store_short(at: Sequence, i: Any, j: Any, value: Any) -> None:
            T.buffer_store(right if is_tall else left, value, [*at, j, i] if is_tall else [*at, i, j])

        def factor(at: tuple) -> None:
            loops = Loops(lead, m * n)
            scale = largest(m, n, lambda i, j: element(at, i, j), dtype)
            with T.If(is_finite(scale, dtype)):
                with T.Then():
                    unit = tirx.Select(scale > number(0, dtype), scale, number(1, dtype))
                    square, reflections = Strips(n, n, dtype), None
                    if m == n:
                        square.load(loops, lambda i, j: element(at, i, j) / unit)
                    else:
                        work = Strips(m, n, dtype)
                        work.load(loops, lambda i, j: element(at, i, j) / unit)
                        reflections = triangularize(work, loops)
                        square.load(loops, lambda i, j: work[j // work.width, i, j % work.width])
                    diagonal, beside, of_rows, of_columns = bidiagonalize(square, loops)
                    turned = None
                    if vectors:
                        products = (transposed_product(of, n, loops) for of in (of_rows, of_columns))
                        turned = tuple(Rotations(product, loops) for product in products)
                    if vectors or iterated(dtype) == dtype:
                        Iteration(diagonal, beside, n, dtype, turned).run()
                    else:
                        find_singular_values(diagonal, beside, n)
                    signs = local((n,), dtype)
                    with T.serial(0, n) as j:
                        one = number(1, dtype)
                        is_negative = diagonal[j] < number(0, str(diagonal.dtype))
                        T.buffer_store(signs, tirx.Select(is_negative, -one, one), [j])
                        T.buffer_store(diagonal, tirx.abs(diagonal[j]), [j])
                    order = stable_order(diagonal, n, ascending=False)
                    with T.serial(0, n) as j:
                        put(values, diagonal[order[j]] * unit.astype(str(diagonal.dtype)), *at, j)
                    if turned is not None:
                        of_left, of_right = (rotations.rows for rotations in turned)
                        if reflections is None:
                            each_sorted(of_left, order, loops, lambda j, i, value: store_long(at, i, j, value))
                        else:
                            product = Strips(m, inner, dtype)
                            product.load(loops, lambda i, j: _sorted_or_unit(of_left, order, i, j))
                            reflections.apply(product, loops)
                            product.save(loops, lambda i, j, value: store_long(at, i, j, value))
                        signed = lambda j, i, value: store_short(at, i, j, signs[order[j]] * value)
                        each_sorted(of_right, order, loops, signed)
                with T.Else():
                    nan = number(math.nan, dtype)
                    with T.serial(0, n) as j:
                        T.buffer_store(values, nan, [*at, j])
                    if vectors:
                        with T.serial(0, n) as i, T.serial(0, n) as j:
                            store_short(at, i, j, nan)
                        with T.serial(0, m) as i, T.serial(0, inner) as j:
                            store_long(at, i, j, nan)

        block("svd", sources, results, lead, factor)

    return prim_func([a], _svd_shape(a, full=full, vectors=vectors), write)


def _sorted_or_unit(rows: Strips, order: tirx.Buffer, i: Any, j: Any) -> Any:
    """The rows in their order as columns, completed to the right and below by those of the identity."""
    n = rows.rows
    row, column = tirx.min(i, n - 1), tirx.min(j, n - 1)
    value = rows[row // rows.width, order[column], row % rows.width]
    one, zero = number(1, rows.dtype), number(0, rows.dtype)
    return tirx.Select(tirx.And(i < n, j < n), value, tirx.Select(tirx.EQ(i, j), one, zero))


def _svd_vjp(g: Any, out: Any, a: Array, *, full: bool, vectors: bool) -> Array:
    # Townsend, "Differentiating the singular value decomposition" (2016), transposed.
    m, n = a.shape[-2:]
    if not vectors:
        u, _, vt = svd(a, full=False, vectors=True)
        return scaled_columns(u, g) @ vt
    if full and m != n:
        raise GradientError(
            "svd",
            "the columns that complete an orthogonal matrix are not a function of the argument",
            got=f"a full decomposition of {a.aval}",
            hint="full_matrices=False",
        )
    (g_u, g_s, g_vt), (u, s, vt) = g, out
    apart = gaps(s * s)
    skew = lambda x: apart * (x - transpose(x))
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


def _pruned(used: Sequence[bool], *, full: bool, vectors: bool) -> tuple[Sequence[int], Sequence[int], dict]:
    """Dead code elimination: only the singular values, if the vectors are not used."""
    needs = vectors and (used[0] or used[2])
    outputs = (0, 1, 2) if needs else (1,) if vectors else (0,)
    return (0,), outputs, {"full": full and needs, "vectors": needs}


#: ``svd(a, full=, vectors=)``: ``(u, s, vt)`` with ``u * s @ vt = a``, orthonormal columns in ``u`` and rows in ``vt``,
#: and ``s`` in descending order; ``u`` and ``vt`` are square if ``full``. Without ``vectors`` only ``s``. Equal
#: singular values count as independent of each other's vectors.
svd = register(
    Op(
        "svd",
        "opaque",
        _svd_shape,
        _svd,
        (_svd_vjp,),
        batch=lambda batched, a, **params: svd(a, **params),
        prune=_pruned,
    )
)
