"""The bidiagonal form of a matrix, and the iteration that diagonalizes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvmfun.ops.linalg.reflections import Reflections
from tvmfun.ops.linalg.rotations import Rotations
from tvmfun.ops.linalg.spectra import Values, iterated, tolerance
from tvmfun.ops.linalg.strips import (
    MANY,
    WIDTH,
    Loops,
    Strips,
    add_up,
    branch,
    change_rows,
    clear,
    dot,
    lanes,
    local,
    number,
    padded,
    put,
    registers,
)

# The most steps per singular value, which needs about two: ends an iteration that does not converge.
_STEPS = 75
# The rows whose products with a vector are computed together.
_TOGETHER = 4


def bidiagonalize(work: Strips, loops: Loops) -> tuple[tirx.Buffer, tirx.Buffer, Reflections, Reflections]:
    """Returns the diagonal, the superdiagonal, and the reflections of rows and of columns that leave only these.

    The reflections of step ``k`` change the matrix to ``a - v y^T - x u^T``, with ``y = tau a^T v`` for the vector
    ``v`` of the rows, and ``x = tau (a - v y^T) u`` for the vector of the columns. The change is made when the matrix
    is read for the next ``y``, because most of the time goes into reading it.
    """
    n, dtype, width = work.rows, work.dtype, work.width
    count = max(n - 1, 0) if isinstance(n, int) else n - 1
    left, right = (Reflections(n, count, width, dtype) for _ in range(2))
    diagonal, beside = (local((n,), iterated(dtype)) for _ in range(2))
    v, y, x, u = (local((padded(work.height),), dtype) for _ in range(4))
    square = local((WIDTH,), dtype)  # y^T u
    for of in (left, right):
        of.clear(loops)
    for vector in (v, y, x, u):
        clear(vector)

    def changed(row: Any, column: Any) -> Any:
        return work[column // width, row, column % width] - v[row] * y[column] - x[row] * u[column]

    with T.serial(0, count) as k:
        first = k + 1
        begin = first // width
        left.find(k // width, k % width, k, lambda i: changed(i, k))
        put(diagonal, left.beta[0], k)

        def change(strip: Any, begin: Any = begin, k: Any = k) -> None:
            store = lambda column, total: T.buffer_store(y, left.tau[0] * total, [column])
            change_rows(work, begin + strip, k, (v, x), (y, u), left.vector, store)

        loops.run(work.count - begin, change, if_many=n - first >= MANY)
        right.find(k // width, k % width, first, lambda j, k=k: work[j // width, k, j % width] - left.vector[k] * y[j])
        put(beside, right.beta[0], k)
        with T.serial(k, n) as i:
            T.buffer_store(v, left.vector[i], [i])
            T.buffer_store(u, right.vector[i], [i])
        T.buffer_store(u, number(0, dtype), [k])
        dot(square, y, right.vector, first, n)

        def multiply(tile: Any, begin: Any = begin, first: Any = first) -> None:
            top = first // _TOGETHER * _TOGETHER + tile * _TOGETHER
            totals = [registers(WIDTH, dtype) for _ in range(_TOGETHER)]
            for total in totals:
                clear(total)
            with T.serial(begin, work.count) as strip:
                for i, total in enumerate(totals):
                    with lanes(width) as j:
                        term = work[strip, top + i, j] * right.vector[strip * width + j]
                        T.buffer_store(total, total[j] + term, [j])
            for i, total in enumerate(totals):
                add_up(total)
                value = right.tau[0] * (total[0] - left.vector[top + i] * square[0])
                T.buffer_store(x, value, [top + i])

        tiles = work.height // _TOGETHER - first // _TOGETHER
        loops.run(tiles, multiply, if_many=n - first >= MANY)
    with T.serial(tirx.max(count, 0), n) as i:
        put(diagonal, changed(i, i), i)
        put(beside, number(0, dtype), i)
    return diagonal, beside, left, right


class Iteration:
    """The implicit QR iteration of Golub and Reinsch (1970) on a bidiagonal matrix, as in LINPACK's ``dsvdc``.

    Args:
        d, e: the diagonal, which becomes the singular values, of any sign, and the superdiagonal.
        n: the number of singular values.
        dtype: the dtype of the matrix.
        turned: the matrices of left and of right vectors, as rows that take part in the rotations.
    """

    def __init__(
        self, d: tirx.Buffer, e: tirx.Buffer, n: int, dtype: str, turned: tuple[Rotations, Rotations] | None
    ) -> None:
        self.d, self.e, self.n, self.dtype = d, e, n, iterated(dtype)
        self._tolerance, limits = tolerance(dtype), np.finfo(dtype)
        self._tiny = number(float(limits.tiny / limits.eps), self.dtype)
        self.left, self.right = turned or (None, None)
        # The chased element; cosine, sine and result of a rotation; and of the shift.
        self.x = Values(self.dtype, "f", "g", "t", "c", "s", "up", "scale", "p", "q", "r", "k", "b", "shift")
        # The block from `k` to before `p`; the last negligible element of its diagonal.
        self.at = Values("int32", "p", "k", "zero", "steps", "j", "found")
        self.zero = number(0, self.dtype)

    def run(self) -> None:
        """Runs until all elements above the diagonal are negligible."""
        at, d = self.at, self.d
        at.p, at.steps = self.n, 0
        with T.While(at.p > 0):
            for rotations in (self.left, self.right):
                if rotations is not None:
                    rotations.make_room()
            self._find_block()
            with T.If(tirx.Or(tirx.EQ(at.k, at.p - 1), at.steps >= _STEPS)):
                with T.Then():
                    at.p, at.steps = at.p - 1, 0
                with T.Else():
                    self._find_zero()
                    with T.If(at.zero < at.k):
                        with T.Then():
                            self._step()
                            at.steps = at.steps + 1
                        with T.Else():
                            T.buffer_store(d, self.zero, [at.zero])
                            with T.If(tirx.EQ(at.zero, at.p - 1)):
                                with T.Then():
                                    self._deflate_last()
                                with T.Else():
                                    self._split()
        for rotations in (self.left, self.right):
            if rotations is not None:
                rotations.run()

    def _find_block(self) -> None:
        """Finds where the block that ends before ``p`` begins: below a negligible element off the diagonal."""
        at, d, e = self.at, self.d, self.e
        at.k, at.found = at.p - 1, 0
        with T.While(tirx.And(at.k > 0, tirx.EQ(at.found, 0))):
            above = at.k - 1
            with T.If(self._is_negligible(e[above], tirx.abs(d[above]) + tirx.abs(d[at.k]))):
                with T.Then():
                    T.buffer_store(e, self.zero, [above])
                    at.found = 1
                with T.Else():
                    at.k = above

    def _find_zero(self) -> None:
        """Finds the last negligible element of the block's diagonal; it is before the block if there is none."""
        at, d, e = self.at, self.d, self.e
        at.zero = at.p - 1
        here, before = tirx.max(at.zero, 0), tirx.max(at.zero - 1, 0)
        beside = tirx.Select(here < at.p - 1, tirx.abs(e[here]), self.zero)
        beside = beside + tirx.Select(here > at.k, tirx.abs(e[before]), self.zero)
        with T.While(tirx.And(at.zero >= at.k, tirx.Not(self._is_negligible(d[here], beside)))):
            at.zero = at.zero - 1

    def _is_negligible(self, value: Any, beside: Any) -> Any:
        return tirx.abs(value) <= self._tiny + self._tolerance * beside

    def _rotation(self, f: Any, g: Any) -> None:
        """Sets the cosine and the sine that turn ``(f, g)`` to ``(t, 0)``."""
        x, dtype = self.x, self.dtype
        low, up = 2.0**-400, 2.0**900
        # Squares of tiny numbers would lose digits, so tiny numbers are multiplied by a power of 2 first.
        x.up = tirx.Select(f * f + g * g < number(low * low, dtype), number(up, dtype), number(1, dtype))
        x.t = tirx.sqrt((f * x.up) * (f * x.up) + (g * x.up) * (g * x.up))
        with T.If(x.t > self.zero):
            with T.Then():
                x.c, x.s = f * x.up / x.t, g * x.up / x.t
            with T.Else():
                x.c, x.s = 1, 0
        x.t = x.t / x.up

    def _chase(self, rotations: Rotations | None, ends: tuple[Any, Any], step: int, fixed: Any, move: Callable) -> None:
        """Moves an element along the diagonal until it is gone, by rotations with a fixed row.

        Args:
            rotations: the vectors that take part.
            ends: the first and the last row that are rotated with the fixed one.
            step: the distance from one row to the next: 1 or -1.
            fixed: the fixed row.
            move: the effect of each rotation on the element and the next one off the diagonal.
        """
        x, at, (first, last) = self.x, self.at, ends
        if rotations is not None:
            rotations.begin(fixed, first, step, fixed=True)
        at.j = first
        with T.While((at.j <= last) if step > 0 else (at.j >= last)):
            self._rotation(self.d[at.j], x.f)
            T.buffer_store(self.d, x.t, [at.j])
            move()
            if rotations is not None:
                rotations.add(x.s, x.c)
            at.j = at.j + step

    def _deflate_last(self) -> None:
        """Removes the element above the last one of the block's diagonal, which is 0."""
        x, at, e = self.x, self.at, self.e
        x.f = e[at.p - 2]
        T.buffer_store(e, self.zero, [at.p - 2])

        def move() -> None:
            with branch(at.j > at.k):
                x.f = -x.s * e[at.j - 1]
                T.buffer_store(e, x.c * e[at.j - 1], [at.j - 1])

        self._chase(self.right, (at.p - 2, at.k), -1, at.p - 1, move)

    def _split(self) -> None:
        """Removes the element beside a diagonal element that is 0."""
        x, at, e = self.x, self.at, self.e
        x.f = e[at.zero]
        T.buffer_store(e, self.zero, [at.zero])

        def move() -> None:
            x.f = -x.s * e[at.j]
            T.buffer_store(e, x.c * e[at.j], [at.j])

        self._chase(self.left, (at.zero + 1, at.p - 1), 1, at.zero, move)

    def _shift(self) -> None:
        """Sets the first element that is chased, by the eigenvalue of the last two rows that is nearer to the last."""
        x, at, d, e, zero, dtype = self.x, self.at, self.d, self.e, self.zero, self.dtype
        last = at.p - 1
        x.scale = tirx.abs(d[last])
        for value in (d[last - 1], e[last - 1], d[at.k], e[at.k]):
            x.scale = tirx.max(x.scale, tirx.abs(value))
        x.p, x.q, x.r = d[last] / x.scale, d[last - 1] / x.scale, e[last - 1] / x.scale
        x.k = d[at.k] / x.scale
        x.b = ((x.q + x.p) * (x.q - x.p) + x.r * x.r) * number(0.5, dtype)
        x.t = (x.p * x.r) * (x.p * x.r)
        x.shift = zero
        with branch(tirx.Or(tirx.NE(x.b, zero), tirx.NE(x.t, zero))):
            x.shift = tirx.sqrt(x.b * x.b + x.t)
            x.shift = x.t / (x.b + tirx.Select(x.b < zero, -x.shift, x.shift))
        x.f = (x.k + x.p) * (x.k - x.p) + x.shift
        x.g = x.k * (e[at.k] / x.scale)

    def _step(self) -> None:
        """One step of the iteration: chases an element from the first row of the block to the last."""
        x, at, d, e, left, right = self.x, self.at, self.d, self.e, self.left, self.right
        self._shift()
        for rotations in (left, right):
            if rotations is not None:
                rotations.begin(at.k, at.k + 1, 1)
        at.j = at.k
        with T.While(at.j < at.p - 1):
            j = at.j
            self._rotation(x.f, x.g)
            with branch(j > at.k):
                T.buffer_store(e, x.t, [j - 1])
            x.f = x.c * d[j] + x.s * e[j]
            T.buffer_store(e, x.c * e[j] - x.s * d[j], [j])
            x.g = x.s * d[j + 1]
            T.buffer_store(d, x.c * d[j + 1], [j + 1])
            if right is not None:
                right.add(x.c, x.s)
            self._rotation(x.f, x.g)
            T.buffer_store(d, x.t, [j])
            x.f = x.c * e[j] + x.s * d[j + 1]
            T.buffer_store(d, x.c * d[j + 1] - x.s * e[j], [j + 1])
            x.g = x.s * e[j + 1]
            T.buffer_store(e, x.c * e[j + 1], [j + 1])
            if left is not None:
                left.add(x.c, x.s)
            at.j = at.j + 1
        T.buffer_store(e, x.f, [at.p - 2])
