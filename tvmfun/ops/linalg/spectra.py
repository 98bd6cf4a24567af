"""Parts of the decompositions into eigenvalues and into singular values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvmfun.core.array import Array
from tvmfun.ops import formula
from tvmfun.ops import pointwise as pw
from tvmfun.ops import shape as shapes
from tvmfun.ops.linalg.matrices import row_and_column
from tvmfun.ops.linalg.reflections import Reflections
from tvmfun.ops.linalg.strips import Loops, Strips, local, number


def iterated(dtype: str) -> str:
    """The dtype of the diagonals of an iteration, whose rounding errors add up over all of its sweeps.

    Double precision costs little, because only the vectors have as many elements as the matrix.
    """
    return "float64" if dtype == "float32" else dtype


def tolerance(dtype: str) -> Any:
    """The largest negligible element off the diagonal, relative to its neighbours."""
    eps = float(np.finfo(dtype).eps)
    return number(eps / 4 if iterated(dtype) != dtype else eps, iterated(dtype))


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
    """Whether a magnitude is neither infinite nor NaN."""
    return tirx.And(tirx.Not(formula.is_nan(x)), x < tirx.infinity(dtype))


def stable_order(values: tirx.Buffer, size: int, ascending: bool) -> tirx.Buffer:
    """The numbers of the values in their order; equal values stay in theirs."""
    is_wrong = (lambda x, y: x > y) if ascending else (lambda x, y: x < y)
    order, position = local((size,), "int32"), Values("int32", "i")
    with T.serial(0, size) as i:
        position.i = i
        before = tirx.max(position.i - 1, 0)
        with T.While(tirx.And(position.i > 0, is_wrong(values[order[before]], values[i]))):
            T.buffer_store(order, order[before], [position.i])
            position.i = position.i - 1
        T.buffer_store(order, i, [position.i])
    return order


def transposed_product(reflections: Reflections, n: int, loops: Loops) -> Strips:
    """The transposed product of all reflections."""
    product, turned = Strips(n, n, reflections.dtype), Strips(n, n, reflections.dtype)
    one, zero = number(1, product.dtype), number(0, product.dtype)
    product.load(loops, lambda i, j: tirx.Select(tirx.EQ(i, j), one, zero))
    with T.serial(0, reflections.steps) as step:
        reflections.join(step)
    reflections.apply(product, loops, of_columns=True)
    turned.load(loops, lambda i, j: product[i // product.width, j, i % product.width])
    return turned


def each_sorted(rows: Strips, order: tirx.Buffer, loops: Loops, body: Callable[[Any, Any, Any], None]) -> None:
    """Calls ``body(number, column, element)`` for each column of the rows in their order, strip by strip."""
    with loops.each(rows.count) as strip, rows.each_column(strip) as k, T.serial(0, rows.rows) as i:
        body(i, strip * rows.width + k, rows[strip, order[i], k])


def gaps(values: Array) -> Array:
    """The matrix of ``1 / (values[j] - values[i])`` at ``i, j``, and 0 where they are equal."""
    row = shapes.reshape(values, shape=(*values.shape[:-1], 1, values.shape[-1]))
    column = shapes.reshape(values, shape=(*values.shape, 1))
    difference = row - column
    same = difference == 0
    inverse = 1 / pw.where(same, pw.constant(1, values), difference)
    return pw.where(same, pw.constant(0, values), inverse)


def scaled_columns(x: Array, factors: Array) -> Array:
    """Each column times its factor."""
    return x * shapes.reshape(factors, shape=(*factors.shape[:-1], 1, factors.shape[-1]))


def scaled_rows(x: Array, factors: Array) -> Array:
    """Each row times its factor."""
    return x * shapes.reshape(factors, shape=(*factors.shape, 1))


def on_diagonal(values: Array) -> Array:
    """The diagonal matrix of some values."""
    full = shapes.broadcast_to(
        shapes.reshape(values, shape=(*values.shape, 1)), shape=(*values.shape, values.shape[-1])
    )
    row, column = row_and_column(full)
    return pw.where(row == column, full, pw.constant(0, full))
