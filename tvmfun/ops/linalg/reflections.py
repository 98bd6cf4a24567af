"""Householder reflections that make a matrix triangular, and products with them, many reflections at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvmfun.ops import pointwise as pw
from tvmfun.ops.linalg.strips import (
    ROWS,
    WIDTH,
    Loops,
    Strips,
    add_product,
    add_products,
    add_up,
    branch,
    clear,
    fold,
    lanes,
    local,
    number,
    padded,
    registers,
    sum_rows,
)


class Reflections:
    """Reflections ``1 - tau v v^T``, the vectors in the columns of a matrix.

    The product of a strip's reflections is ``1 - v t v^T`` with an upper triangular ``t`` (Schreiber and Van Loan,
    "A storage-efficient WY representation for products of Householder transformations", 1989).

    Args:
        rows: the length of the vectors.
        count: the number of reflections.
        width: the number in a strip.
        dtype: the dtype of the vectors.
    """

    def __init__(self, rows: int, count: int, width: int, dtype: str) -> None:
        self.rows, self.count, self.width, self.dtype = rows, count, width, dtype
        self.height = -(-rows // ROWS) * ROWS
        #: The strips of vectors, and for each of them ``-t``.
        self.steps = -(-count // width)
        self.vectors = local((self.steps, self.height, width), dtype)
        self.factors = local((self.steps, width, width), dtype)
        #: The vector, ``tau`` and ``beta`` of the last reflection.
        self.vector, self.tau, self.beta = local((padded(rows),), dtype), local((1,), dtype), local((1,), dtype)
        self._total, self._gram = local((WIDTH,), dtype), local((width, width), dtype)

    def clear(self, loops: Loops) -> None:
        """Sets all vectors and factors to 0."""
        with loops.each(self.steps) as step:
            with T.serial(0, self.height) as i, lanes(self.width) as k:
                T.buffer_store(self.vectors, number(0, self.dtype), [step, i, k])
            with T.serial(0, self.width) as i, lanes(self.width) as k:
                T.buffer_store(self.factors, number(0, self.dtype), [step, i, k])

    def find(self, step: Any, k: Any, first: Any, element: Callable[[Any], Any]) -> None:
        """Finds the reflection that maps a vector from row ``first`` on to a multiple ``beta`` of a unit vector.

        As in LAPACK ``v`` begins with 1, ``beta`` has the sign opposite to the first element, and nothing is reflected
        if the other elements are 0.
        """
        dtype, zero, total, vector = self.dtype, number(0, self.dtype), self._total, self.vector
        scale, head = local((1,), dtype), local((1,), dtype)
        begin, end = first // WIDTH, -(-self.rows // WIDTH)

        def each(body: Callable[[Any, Any], None]) -> None:
            with T.serial(begin, end) as part, lanes(WIDTH) as j:
                body(part * WIDTH + j, j)

        T.buffer_store(head, element(first), [0])
        T.buffer_store(self.beta, head[0], [0])
        T.buffer_store(self.tau, zero, [0])
        with T.serial(begin * WIDTH, end * WIDTH) as i:
            is_below = tirx.And(i > first, i < self.rows)
            T.buffer_store(vector, tirx.if_then_else(is_below, element(tirx.min(i, self.rows - 1)), zero), [i])
        clear(total)
        # NaN if there is one.
        each(lambda i, j: T.buffer_store(total, pw.maximum.compute(total[j], tirx.abs(vector[i])), [j]))
        fold(total, pw.maximum.compute)
        T.buffer_store(scale, total[0], [0])
        with branch(tirx.Not(tirx.EQ(scale[0], zero))):
            # Scaled, so that squares neither overflow nor lose digits.
            T.buffer_store(scale, pw.maximum.compute(scale[0], tirx.abs(head[0])), [0])
            T.buffer_store(head, head[0] / scale[0], [0])
            each(lambda i, j: T.buffer_store(vector, vector[i] / scale[0], [i]))
            clear(total)
            each(lambda i, j: T.buffer_store(total, total[j] + vector[i] * vector[i], [j]))
            add_up(total)
            norm = tirx.sqrt(total[0] + head[0] * head[0])
            T.buffer_store(self.beta, tirx.Select(head[0] < zero, norm, -norm), [0])
            each(lambda i, j: T.buffer_store(vector, vector[i] / (head[0] - self.beta[0]), [i]))
            T.buffer_store(self.tau, (self.beta[0] - head[0]) / self.beta[0], [0])
            T.buffer_store(self.beta, self.beta[0] * scale[0], [0])
        T.buffer_store(vector, number(1, dtype), [first])
        T.buffer_store(self.factors, -self.tau[0], [step, k, k])
        with T.serial(first, self.rows) as i:
            T.buffer_store(self.vectors, vector[i], [step, i, k])

    def join(self, step: Any) -> None:
        """Computes the factor ``t`` of the product of a strip's reflections, whose diagonal is already known."""
        begin, zero, gram, factors = step * self.width, number(0, self.dtype), self._gram, self.factors
        total = local((1,), self.dtype)
        clear(gram)
        add_product(
            lambda i, j: (gram, (i, j)),
            lambda i, k: self.vectors[step, begin + k, i],
            lambda k, j: self.vectors[step, begin + k, j],
            rows=self.width,
            columns=self.width,
            terms=self.height - begin,
        )
        with T.serial(1, self.width) as j, T.serial(0, j) as i:
            T.buffer_store(total, zero, [0])
            with T.serial(i, j) as k:
                T.buffer_store(total, total[0] + factors[step, i, k] * gram[k, j], [0])
            T.buffer_store(factors, total[0] * factors[step, j, j], [step, i, j])

    def apply(self, target: Strips, loops: Loops, *, of_columns: bool = False) -> None:
        """Multiplies a matrix by the product of all reflections.

        With ``of_columns`` the matrix is the identity or its first columns, which most reflections do not change.
        """
        products = Products(self, target)
        with loops.each(target.count) as strip:
            last = strip * target.width // self.width
            steps = tirx.min(self.steps, last + 1) if of_columns else self.steps
            with T.serial(0, steps) as done:
                products.apply(steps - (done + 1), strip, transposed=False)


class Products:
    """Memory for the products of reflections with the strips of a matrix."""

    def __init__(self, of: Reflections, target: Strips) -> None:
        self.of, self.target = of, target
        shape = (target.count, of.width, target.width)  # for each strip, because strips run in parallel
        self.inner, self.outer = local(shape, target.dtype), local(shape, target.dtype)

    def apply(self, step: Any, strip: Any, *, transposed: bool) -> None:
        """Multiplies a strip by the product of the reflections of a strip, or by its transpose."""
        of, target, inner, outer = self.of, self.target, self.inner, self.outer
        begin = step * of.width
        factor = lambda i, k: of.factors[(step, k, i) if transposed else (step, i, k)]
        clear(inner, strip)
        clear(outer, strip)
        add_product(
            lambda i, j: (inner, (strip, i, j)),
            lambda i, k: of.vectors[step, begin + k, i],
            lambda k, j: target[strip, begin + k, j],
            rows=of.width,
            columns=target.width,
            terms=of.height - begin,
        )
        add_product(
            lambda i, j: (outer, (strip, i, j)),
            factor,
            lambda k, j: inner[strip, k, j],
            rows=of.width,
            columns=target.width,
            terms=of.width,
        )
        add_products(
            target,
            strip,
            begin,
            lambda i, k: of.vectors[step, i, k],
            lambda k, j: outer[strip, k, j],
            terms=of.width,
        )


def triangularize(work: Strips, loops: Loops) -> Reflections:
    """Makes a matrix upper triangular; returns the reflections that did it."""
    of = Reflections(work.rows, min(work.rows, work.columns), work.width, work.dtype)
    products = None if work.is_single else Products(of, work)
    of.clear(loops)
    with T.serial(0, of.steps) as step:
        begin = step * of.width
        with T.serial(0, tirx.min(of.width, of.count - begin)) as k:
            of.find(step, k, begin + k, lambda i, k=k: work[step, i, k])
            _reflect(work, step, begin + k, of)
            work.store((step, begin + k, k), of.beta[0])
            with T.serial(begin + k + 1, work.rows) as i:
                work.store((step, i, k), number(0, work.dtype))
        of.join(step)
        if products is not None:
            with loops.each(work.count - step - 1) as other:
                products.apply(step, step + 1 + other, transposed=True)
    return of


def _reflect(work: Strips, strip: Any, first: Any, of: Reflections) -> None:
    """Multiplies a strip by the last reflection."""
    product = registers(work.width, work.dtype)

    def add(i: Any, total: tirx.Buffer) -> None:
        with lanes(work.width) as j:
            T.buffer_store(total, total[j] + of.vector[i] * work[strip, i, j], [j])

    sum_rows(product, first, work.rows, add)
    with lanes(work.width) as j:
        T.buffer_store(product, product[j] * of.tau[0], [j])
    with T.serial(first, work.rows) as i, lanes(work.width) as j:
        work.store((strip, i, j), work[strip, i, j] - of.vector[i] * product[j])
