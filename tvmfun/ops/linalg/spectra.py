"""What the decompositions into eigenvalues and into singular values share."""

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
from tvmfun.ops.linalg.matrices import row_and_column
from tvmfun.ops.linalg.strips import WIDTH, branch, local, number, padded


def epsilon(dtype: str) -> Any:
    return number(float(np.finfo(dtype).eps), dtype)


class Values:
    """Scalar variables of one dtype in local memory, by name."""

    def __init__(self, dtype: str, *names: str) -> None:
        object.__setattr__(self, "_dtype", dtype)
        object.__setattr__(self, "_buffers", {name: local((1,), dtype) for name in names})

    def __getattr__(self, name: str) -> Any:
        return self._buffers[name][0]

    def __setattr__(self, name: str, value: Any) -> None:
        value = number(value, self._dtype) if isinstance(value, int | float) else value
        T.buffer_store(self._buffers[name], value, [0])


def largest(size: int, columns: int, element: Callable[[Any, Any], Any], dtype: str) -> Any:
    """The largest magnitude of a matrix, NaN if there is a NaN."""
    largest = Values(dtype, "value")
    largest.value = 0
    with T.serial(0, size) as i, T.serial(0, columns) as j:
        largest.value = pw.maximum.compute(largest.value, tirx.abs(element(i, j)))
    return largest.value


def is_finite(x: Any, dtype: str) -> Any:
    return tirx.And(tirx.Not(formula.is_nan(x)), x < tirx.infinity(dtype))


def descending(values: tirx.Buffer, size: int) -> tirx.Buffer:
    """The stable order of the values, largest first."""
    order, position = local((size,), "int32"), Values("int32", "i")
    with T.serial(0, size) as i:
        position.i = i
        before = tirx.max(position.i - 1, 0)
        with T.While(tirx.And(position.i > 0, values[order[before]] < values[i])):
            T.buffer_store(order, order[before], [position.i])
            position.i = position.i - 1
        T.buffer_store(order, i, [position.i])
    return order


def rotate(rows: tirx.Buffer, p: Any, q: Any, columns: int, turn: Callable[[Any, Any], tuple[Any, Any]]) -> None:
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


def gaps(values: Array) -> Array:
    """``1 / (values[j] - values[i])`` at ``i, j``, and 0 where they are equal."""
    row = shapes.reshape(values, shape=(*values.shape[:-1], 1, values.shape[-1]))
    column = shapes.reshape(values, shape=(*values.shape, 1))
    difference = row - column
    same = difference == 0
    inverse = 1 / pw.where(same, pw.constant(1, values), difference)
    return pw.where(same, pw.constant(0, values), inverse)


def scaled_columns(x: Array, factors: Array) -> Array:
    return x * shapes.reshape(factors, shape=(*factors.shape[:-1], 1, factors.shape[-1]))


def scaled_rows(x: Array, factors: Array) -> Array:
    return x * shapes.reshape(factors, shape=(*factors.shape, 1))


def on_diagonal(values: Array) -> Array:
    full = shapes.broadcast_to(
        shapes.reshape(values, shape=(*values.shape, 1)), shape=(*values.shape, values.shape[-1])
    )
    row, column = row_and_column(full)
    return pw.where(row == column, full, pw.constant(0, full))
