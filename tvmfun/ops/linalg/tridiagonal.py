"""The tridiagonal form of a symmetric matrix, and the iterations that diagonalize it."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvmfun.ops.linalg.reflections import Reflections
from tvmfun.ops.linalg.rotations import Rotations
from tvmfun.ops.linalg.spectra import Values, iterated
from tvmfun.ops.linalg.strips import (
    MANY,
    WIDTH,
    Loops,
    Strips,
    branch,
    change_rows,
    clear,
    dot,
    local,
    number,
    padded,
    put,
)

# The most steps per eigenvalue, which needs about two: ends an iteration that does not converge.
_STEPS = 50


def tridiagonalize(work: Strips, loops: Loops) -> tuple[tirx.Buffer, tirx.Buffer, Reflections]:
    """Returns the diagonal, the off-diagonal, and the reflections that make ``work`` tridiagonal.

    A reflection from both sides is ``a - v w^T - w v^T``, with ``w = p - (tau / 2) (p^T v) v`` and ``p = tau a v``. The
    change is made when the matrix is read for the next ``p``, because most of the time goes into reading it.
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

    def changed(row: Any, column: Any) -> Any:
        old = work[column // width, row, column % width]
        return old - before[row] * other[column] - other[row] * before[column]

    with T.serial(0, count) as k:
        first = k + 1
        put(diagonal, changed(k, k), k)
        of.find(k // width, k % width, first, lambda i: changed(i, k))
        put(beside, of.beta[0], k)
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
        put(diagonal, changed(i, i), i)
    # In loops of at most one iteration, because a dynamic size may be 1.
    with T.serial(tirx.max(count, 0), n - 1) as i:
        put(beside, changed(i + 1, i), i)
    with T.serial(tirx.max(n - 1, 0), n) as i:
        put(beside, number(0, dtype), i)
    return diagonal, beside, of


def diagonalize(d: tirx.Buffer, e: tirx.Buffer, n: int, limit: Any, rotations: Rotations) -> None:
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
                rotations.make_room()
                rotations.begin(at.m, at.m - 1, -1)
                with T.While(at.i >= first):
                    x.f = x.s * e[at.i]
                    x.b = x.c * e[at.i]
                    x.r = hypotenuse(x.f, x.g)
                    T.buffer_store(e, x.r, [at.i + 1])
                    with T.If(tirx.EQ(x.r, zero)):
                        with T.Then():  # the block is split here: begin again
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
                            rotations.add(x.c, x.s)
                            at.i = at.i - 1
                with branch(at.i > -2):
                    T.buffer_store(d, d[first] - x.p, [first])
                    T.buffer_store(e, x.g, [first])
                    T.buffer_store(e, zero, [at.m])
    rotations.run()


def find_eigenvalues(d: tirx.Buffer, e: tirx.Buffer, n: int, limit: Any) -> None:
    """The iteration of :func:`diagonalize` for eigenvalues alone, without a square root.

    Pal, Walker and Kahan; see Parlett, "The Symmetric Eigenvalue Problem" (1980), section 8.15. ``e`` becomes its
    square. Both quotients of a step are computed at the same time, because they take most of its time.
    """
    dtype = str(d.dtype)
    x = Values(dtype, "c", "s", "gamma", "sigma", "p", "r", "old", "before", "rise", "root")
    at = Values("int32", "m", "i", "steps", "active")
    # A cosine that hardly differs from 0, and whose quotient might overflow.
    zero, one, two, tiny = (number(value, dtype) for value in (0, 1, 2, 1e-200))
    with T.serial(0, n) as i:
        T.buffer_store(e, e[i] * e[i], [i])
    with T.serial(0, n) as first:
        at.steps, at.active = 0, 1
        with T.While(at.active > 0):
            at.m = first
            near = limit * (tirx.abs(d[at.m]) + tirx.abs(d[tirx.min(at.m + 1, n - 1)]))
            with T.While(tirx.And(at.m < n - 1, e[at.m] > near * near)):
                at.m = at.m + 1
            at.active = tirx.Cast("int32", tirx.And(at.m > first, at.steps < _STEPS))
            with branch(at.active > 0):
                at.steps = at.steps + 1
                x.root = tirx.sqrt(e[first])
                x.sigma = (d[first + 1] - d[first]) / (two * x.root)
                x.r = tirx.sqrt(x.sigma * x.sigma + one)
                x.sigma = d[first] - x.root / (x.sigma + tirx.Select(x.sigma < zero, -x.r, x.r))
                x.c, x.s, x.gamma = 1, 0, d[at.m] - x.sigma
                x.p = x.gamma * x.gamma
                at.i = at.m - 1
                with T.While(at.i >= first):
                    x.r = x.p + e[at.i]
                    T.buffer_store(e, x.s * x.r, [at.i + 1])
                    x.old, x.before = x.gamma, x.c * e[at.i]
                    x.rise, x.c, x.s = x.r / x.p, x.p / x.r, e[at.i] / x.r
                    x.gamma = x.c * (d[at.i] - x.sigma) - x.s * x.old
                    T.buffer_store(d, x.old + (d[at.i] - x.gamma), [at.i + 1])
                    x.p = tirx.Select(x.c < tiny, x.before, x.gamma * x.gamma * x.rise)
                    at.i = at.i - 1
                T.buffer_store(e, x.s * x.p, [first])
                T.buffer_store(d, x.sigma + x.gamma, [first])


def find_singular_values(d: tirx.Buffer, e: tirx.Buffer, n: int) -> None:
    """Replaces the diagonal of a bidiagonal matrix ``b`` in double precision by its singular values.

    They are the roots of the eigenvalues of ``b^T b``, and off by at most the root of the epsilon of double precision,
    which is a tenth of that of single precision.
    """
    zero = number(0, str(d.dtype))
    with T.serial(0, n) as done:
        i = n - 1 - done
        above = tirx.Select(i > 0, e[tirx.max(i - 1, 0)], zero)
        T.buffer_store(e, e[i] * d[i], [i])
        T.buffer_store(d, d[i] * d[i] + above * above, [i])
    find_eigenvalues(d, e, n, number(1e-10, str(d.dtype)))
    with T.serial(0, n) as i:
        T.buffer_store(d, tirx.sqrt(tirx.max(d[i], zero)), [i])
