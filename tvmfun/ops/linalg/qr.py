"""The QR decomposition."""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvmfun import dtypes
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.op import Op, register
from tvmfun.errors import GradientError
from tvmfun.ops import shape as shapes
from tvmfun.ops.linalg.lu import divide_right
from tvmfun.ops.linalg.matrices import check_matrix, columns, matmul, transpose, tril
from tvmfun.ops.linalg.reflections import triangularize
from tvmfun.ops.linalg.strips import Loops, Strips, number
from tvmfun.ops.tir import block, prim_func


def _qr_shape(a: ShapeDtype, *, full: bool) -> tuple[ShapeDtype, ShapeDtype]:
    check_matrix("qr", a)
    *lead, m, n = a.shape
    inner = m if full else min(m, n)
    return ShapeDtype((*lead, m, inner), a.dtype), ShapeDtype((*lead, inner, n), a.dtype)


def _qr(a: ShapeDtype, *, full: bool) -> tirx.PrimFunc:
    """Householder reflections, a strip of columns after the other."""
    lead, (m, n), dtype = a.shape[:-2], a.shape[-2:], dtypes.NAMES[a.dtype]
    inner = m if full else min(m, n)

    def write(sources, results):
        (matrix,) = sources
        q, r = results

        def factor(at: tuple) -> None:
            loops, work, product = Loops(lead, m * n), Strips(m, n, dtype), Strips(m, inner, dtype)
            work.load(loops, lambda i, j: matrix[(*at, i, j)])
            reflections = triangularize(work, loops)
            with T.serial(0, inner) as i, T.serial(0, n) as j:
                T.buffer_store(r, work[j // work.width, i, j % work.width], [*at, i, j])
            product.load(loops, lambda i, j: tirx.Select(tirx.EQ(i, j), number(1, dtype), number(0, dtype)))
            reflections.apply(product, loops, of_columns=True)
            product.save(loops, lambda i, j, value: T.buffer_store(q, value, [*at, i, j]))

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
