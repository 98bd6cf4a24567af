"""Operands of matrix products: how the threads of a block bring a tile from global to shared memory.

An operand that needs no conversion is copied asynchronously, with zeros outside of the array. Any other operand is
computed in registers, which are stored once the block has multiplied the tiles before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.tirx import Buffer, Stmt

from tvmfun.lower.schedule.gpu import vectors
from tvmfun.lower.schedule.gpu.layouts import Layout
from tvmfun.lower.schedule.gpu.primitives import definition
from tvmfun.lower.schedule.gpu.products import Operand, Product
from tvmfun.lower.schedule.gpu.vectors import address, call
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr, volume

# The fewest bytes of an asynchronous copy.
_MIN_COPY = 4
_ROUNDING = definition("tvmfun_tf32") + definition("tvmfun_store_tf32")


@dataclass(frozen=True)
class Reading:
    """The way in which an operand is read.

    Args:
        by_term: whether neighbouring threads read neighbouring terms of the sum, rather than neighbouring rows.
        width: the neighbours that a thread reads at once.
        source: the load of an operand that is copied as it is; None if it is computed.
        condition: the condition under which that load is valid; elsewhere the element is 0. None if it always is.
        array: the load that the operand always is, also if it is too narrow for threads to copy it.
    """

    by_term: bool
    width: int
    source: ir.TensorLoad | None = None
    condition: Expr | None = None
    array: ir.TensorLoad | None = None


def reading(operand: Operand, product: Product) -> Reading:
    """Chooses the direction in which most elements are contiguous, and the widest vectors."""
    options = [_along(axes, operand, product) for axes in (product.reduce, operand.rows)]
    (term_score, term_width), (row_score, row_width) = options
    by_term = (term_score, term_width) >= (row_score, row_width)
    axis = (product.reduce if by_term else operand.rows)[-1]
    width = term_width if by_term else row_width
    source, condition = _copied(operand)
    array = source if condition is None else None
    if source is not None:
        varies = condition is not None and build.uses(condition, axis.var)
        width = 1 if varies else width
        if width * vectors.size_of(operand.dtype) >= _MIN_COPY:
            return Reading(by_term, width, source, condition, array)
    return Reading(by_term, width, array=array)


def _along(axes: Sequence[Axis], operand: Operand, product: Product) -> tuple[int, int]:
    """The number of loads that are contiguous along the last of these axes, and the widest vector of all loads."""
    if not axes:
        return 0, 1
    accesses = build.accesses(operand.value)
    widths = [vectors.contiguous_width(access, axes[-1], product.domain) for access in accesses]
    return sum(width > 0 for width in widths), min(width or 1 for width in widths)


def _copied(operand: Operand) -> tuple[ir.TensorLoad | None, Expr | None]:
    """The load that an operand is, and the condition under which it is valid if it is 0 elsewhere."""
    value, condition = operand.value, None
    if build.is_choice(value):
        condition, value, other = value.args
        if not isinstance(other, tirx.FloatImm) or float(other.value) != 0 or build.loads(condition):
            return None, None
    is_load = isinstance(value, ir.TensorLoad) and str(value.source.dtype) == operand.dtype
    return (value, condition) if is_load else (None, None)


@dataclass(frozen=True, eq=False)
class TileLoader:
    """Brings one tile of an operand to shared memory.

    Args:
        operand: the operand.
        product: the product.
        reading: the way in which it is read.
        threads: the threads of the block.
        thread: the index of the thread.
        layout: the layout of its elements in shared memory.
        is_rounded: whether float32 numbers are rounded to tf32 on the way.
    """

    operand: Operand
    product: Product
    reading: Reading
    threads: int
    thread: Expr
    layout: Layout
    is_rounded: bool = False

    @property
    def turns(self) -> bool:
        """Whether a thread reads several terms of a row one by one, and stores them as neighbours.

        Neighbouring threads have neighbouring rows, so that reads are contiguous, and all banks of shared memory take
        part in a store.
        """
        return self.is_rounded and self.layout.by_term and not self.reading.by_term

    @property
    def width(self) -> int:
        """The neighbours in shared memory that a thread moves at once; 1 if they are not neighbours in the array."""
        if self.turns:
            return vectors.VECTOR_BYTES // vectors.size_of(self.operand.dtype)
        return self.reading.width if self.reading.by_term == self.layout.by_term else 1

    @property
    def count(self) -> int:
        """The number of vectors that each thread moves."""
        return build.ceil_div(self.layout.rows * self.layout.depth, self.width * self.threads)

    @property
    def is_asynchronous(self) -> bool:
        """Whether elements are copied without passing through registers."""
        bytes_each = self.width * vectors.size_of(self.operand.dtype)
        return self.reading.source is not None and bytes_each >= _MIN_COPY and not self.is_rounded

    def registers(self) -> tuple[Buffer, Stmt] | None:
        """The elements that a thread computes before it stores them, and their allocation."""
        if self.is_asynchronous:
            return None
        return vectors.private(self.count * self.width, self.operand.dtype, "staged")

    def copy(self, env: Env, first_row: Expr, first_term: Expr, end: Expr, shared: Buffer, start: Expr) -> Stmt:
        """The asynchronous copies of a tile.

        Args:
            env: the position on the batch axes.
            first_row: the first row of the tile.
            first_term: its first term.
            end: the number of terms.
            shared: shared memory, in bytes.
            start: the address of the tile in it.
        """
        stmts = []
        for i in range(self.count):
            at, exists, target = self._vector(i, env, first_row, first_term, end, start)
            stmts.append(self._if_in_tile(i, self._moved("tvmfun_copy", address(shared, target), at, exists)))
        return build.seq(*stmts)

    def _moved(self, function: str, to: Expr, at: Env, exists: Expr) -> Stmt:
        """The call that copies a vector of an operand without conversion, or zeros."""
        load = self.reading.source
        if self.reading.condition is not None:
            exists = tirx.And(exists, build.substitute(self.reading.condition, at))
        indices = [build.substitute(index, at) for index in load.indices]
        bytes_each = self.width * vectors.size_of(self.operand.dtype)
        return call(f"{function}<{bytes_each}>", to, address(load.source, *indices), exists)

    def compute(self, env: Env, first_row: Expr, first_term: Expr, end: Expr, registers: Buffer) -> Stmt:
        """The elements of a tile in registers; zeros outside of the array."""
        stmts = []
        axes = self.product.reduce if self.reading.by_term else self.operand.rows
        for i in range(self.count):
            if self.turns:
                for lane in range(self.width):
                    at, exists, _ = self._vector(i, env, first_row, first_term + lane, end, tirx.const(0, "int32"))
                    value = tirx.if_then_else(
                        exists, build.substitute(self.operand.value, at), build.zero(self.operand.dtype)
                    )
                    stmts.append(tirx.BufferStore(registers, value, [i * self.width + lane]))
                continue
            at, exists, _ = self._vector(i, env, first_row, first_term, end, tirx.const(0, "int32"))
            if self.is_rounded and self.reading.source is not None:
                stmts.append(self._moved("tvmfun_fetch", address(registers, i * self.width), at, exists))
                continue
            for lane in range(self.width):
                here = {**at, axes[-1].var: at[axes[-1].var] + lane} if axes else at
                value = tirx.if_then_else(
                    exists, build.substitute(self.operand.value, here), build.zero(self.operand.dtype)
                )
                stmts.append(tirx.BufferStore(registers, value, [i * self.width + lane]))
        return build.seq(*stmts)

    def store(self, registers: Buffer, shared: Buffer, start: Expr) -> Stmt:
        """The registers of :meth:`compute` in shared memory."""
        stmts = []
        zero = tirx.const(0, "int32")
        for i in range(self.count):
            _, _, target = self._vector(i, {}, zero, zero, zero, start)
            source = address(registers, i * self.width)
            to = address(shared, target)
            if self.is_rounded:
                bytes_each = self.width * vectors.size_of(self.operand.dtype)
                move = call(f"tvmfun_store_tf32<{bytes_each}>", to, source, source=_ROUNDING)
            else:
                move = vectors.move(to, source, self.width, self.operand.dtype)
            stmts.append(self._if_in_tile(i, move))
        return build.seq(*stmts)

    def _vector(self, i: int, env: Env, first_row, first_term, end, start) -> tuple[Env, Expr, Expr]:
        """The position of a thread's vector, whether it is in the array, and its address in shared memory."""
        row, term = self._in_tile(i)
        m, k = first_row + row, first_term + term
        at = {**env, **build.unflatten(self.operand.rows, m), **build.unflatten(self.product.reduce, k)}
        exists: Expr = k < end
        if self.operand.rows:
            exists = tirx.And(m < volume(self.operand.rows), exists)
        return at, exists, start + self.layout.offset(row, term)

    def _in_tile(self, i: int) -> tuple[Expr, Expr]:
        """The row and the term of a vector in the tile."""
        vector = self.thread + i * self.threads
        if self.turns:
            return tirx.floormod(vector, self.layout.rows), tirx.floordiv(vector, self.layout.rows) * self.width
        if self.reading.by_term:
            per_row = self.layout.depth // self.width
            return tirx.floordiv(vector, per_row), tirx.floormod(vector, per_row) * self.width
        per_term = self.layout.rows // self.width
        return tirx.floormod(vector, per_term) * self.width, tirx.floordiv(vector, per_term)

    def _if_in_tile(self, i: int, stmt: Stmt) -> Stmt:
        total = self.layout.rows * self.layout.depth // self.width
        if (i + 1) * self.threads <= total:
            return stmt
        return tirx.IfThenElse(self.thread + i * self.threads < total, stmt, None)
