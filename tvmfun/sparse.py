"""Row-sparse gradients: only the rows of a table that were looked up.

The gradient of an embedding is as large as its table, but only the rows that a batch looked up are not zero. A table in
a :class:`RowTable` within a tree of parameters gets a :class:`RowSparse` gradient instead: :func:`tvmfun.grad` never
makes the dense one, and an optimizer in :func:`tvmfun.optim.lazy` reads and writes these rows only.

>>> import tvmfun
>>> from tvmfun import sparse
>>> table = sparse.RowTable(tnp.zeros((1000, 2)))
>>> ids = tnp.asarray([7, 3, 7])
>>> gradient = tvmfun.grad(lambda table: tnp.sum(table[ids]))(table)
>>> gradient
RowSparse(indices=Array([   3,    7, 1000], dtype=int32), rows=Array([[1., 1.],
       [2., 2.],
       [0., 0.]], dtype=float32), num_rows=1000)
>>> gradient.dense().shape
(1000, 2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes, tree
from tvmfun.core.array import Array
from tvmfun.core.derivative import Tape, VariableUse, zeros
from tvmfun.core.leaf import abstract
from tvmfun.errors import DtypeError, GradientError, ShapeError
from tvmfun.names import missing as _missing
from tvmfun.numpy.dtypes import weakly_typed
from tvmfun.ops import index
from tvmfun.typing import ArrayLike, PyTree

__all__ = ["RowSparse", "RowTable"]


@tree.register_dataclass
@dataclass(frozen=True, eq=False)
class RowTable:
    """A table whose gradient is row-sparse.

    Args:
        array: floats of shape (rows, ...).

    Raises:
        ShapeError: if the array has no axis of rows.
        DtypeError: if it has no floats.

    >>> RowTable(tnp.asarray([[1.0, 2.0], [3.0, 4.0]]))[tnp.asarray([1, 1])]
    Array([[3., 4.],
           [3., 4.]], dtype=float32)
    """

    array: Any

    def __post_init__(self) -> None:
        aval = abstract(self.array, "RowTable")
        if not aval.ndim:
            raise ShapeError("RowTable", "the table must have an axis of rows", got=repr(aval))
        if not dtypes.is_float(aval.dtype):
            raise DtypeError("RowTable", "the rows must be floats", got=repr(aval))

    def __repr__(self) -> str:
        return "RowTable(None)" if self.array is None else f"RowTable({abstract(self.array)!r})"

    @property
    def shape(self) -> tuple:
        """The shape of the table."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the rows."""
        return self.array.dtype

    def __getitem__(self, indices: ArrayLike) -> Array:
        """The rows at an array of integers of any shape; negative ones count from the end."""
        return self.array[tnp.asarray(indices)]


@tree.register_dataclass
@dataclass(frozen=True, eq=False)
class RowSparse:
    """Rows of a table whose other rows are zero.

    Args:
        indices: unique integers of shape (n,), ascending; ``num_rows`` pads the end if there are fewer rows.
        rows: the rows at these indices, of shape (n, ...).
        num_rows: how many rows the table has.
    """

    indices: Any
    rows: Any
    num_rows: int = field(metadata={"static": True})

    @property
    def shape(self) -> tuple:
        """The shape of the table."""
        return (self.num_rows, *self.rows.shape[1:])

    def dense(self) -> Array:
        """The table as an array."""
        return tnp.zeros(self.shape, self.rows.dtype).at[self.indices].add(self.rows, mode="drop")


def is_table(node: Any) -> bool:
    """Whether a node of a tree is a table; no longer, once ``nn.partition`` has moved its array to another tree."""
    return isinstance(node, RowTable) and node.array is not None


def is_row_sparse(node: Any) -> bool:
    """Whether a node of a tree is a row-sparse gradient."""
    return isinstance(node, RowSparse)


def summed(indices: Array, rows: Array, num_rows: int) -> RowSparse:
    """The sum of rows by index.

    Args:
        indices: integers of shape (n,), also repeated ones; rows outside of the table are dropped.
        rows: floats of shape (n, ...).
        num_rows: how many rows the table has.
    """
    count = indices.shape[0]
    inside = (indices >= 0) & (indices < num_rows)
    indices = tnp.where(inside, indices, num_rows)
    if not count:
        return RowSparse(indices, rows, num_rows)
    order = tnp.argsort(indices)
    ordered = indices[order]
    begins = tnp.concat([tnp.ones(1, "int32"), tnp.astype(ordered[1:] != ordered[:-1], "int32")])
    slot = tnp.zeros(count, "int32").at[order].set(tnp.cumulative_sum(begins) - 1)
    unique = tnp.full(count, num_rows, indices.dtype).at[slot].set(indices)
    totals = tnp.zeros_like(rows).at[slot].add(rows)
    return RowSparse(unique, totals, num_rows)


def gradients(tape: Tape, seeds: Sequence[Any], arguments: PyTree) -> PyTree:
    """The gradients of a tape's outputs with respect to its arguments, row-sparse for tables.

    Args:
        tape: a run on the leaves of ``arguments``.
        seeds: the cotangents of the outputs; None for zeros.
        arguments: a tree.

    Raises:
        GradientError: if a table is used other than by looking up rows.
    """
    nodes, structure = tree.flatten(arguments, is_leaf=is_table)
    tables = [variable for variable, node in zip(tape.wanted, nodes, strict=True) if is_table(node)]
    cotangents = tape.backward(seeds, unsummed=tables)
    result = [
        _table_gradient(leaf, g) if is_table(node) else zeros(leaf) if g is None else _typed_as(g, leaf)
        for node, leaf, g in zip(nodes, tape.leaves, cotangents, strict=True)
    ]
    return tree.unflatten(structure, result)


def _typed_as(gradient: Array, leaf: ArrayLike) -> Array:
    """The gradient with a strong dtype, or a weak one like its leaf: the gradient of a sum is made of the number 1."""
    aval, is_weak = abstract(gradient), abstract(leaf).weak
    if aval.weak == is_weak:
        return gradient
    return weakly_typed(gradient) if is_weak else tnp.astype(gradient, aval.dtype)


def _table_gradient(table: ArrayLike, uses: Sequence[VariableUse]) -> RowSparse:
    aval = abstract(table)
    count = aval.shape[0]
    indices, rows = [], []
    for equation, argument, arguments, cotangents in uses:
        params = equation.params
        looked_up = equation.op is index.gather and argument == 0 and not params.get("batch")
        if not looked_up or arguments[1].shape[-1] != 1:
            raise GradientError(
                "grad",
                "the rows of a RowTable must be looked up by one array of integers, not inside a loop or checkpoint",
                got=f"{equation.op} at {equation.source or 'an unknown line'}",
                hint="table[ids], or a plain array as the parameter for a dense gradient",
            )
        at = tnp.reshape(arguments[1], (-1,))
        if params["mode"] == "clip":
            at = tnp.clip(at, 0, count - 1)
        indices.append(tnp.astype(at, "int32" if count < 2**31 else "int64"))
        rows.append(tnp.reshape(cotangents[0], (-1, *aval.shape[1:])))
    if not uses:
        return RowSparse(tnp.zeros(0, "int32"), tnp.zeros((0, *aval.shape[1:]), aval.dtype), count)
    return summed(tnp.concat(indices), tnp.concat(rows), count)


__getattr__ = _missing(__name__)
