"""Assignments of least cost, by the names of ``optax.assignment``."""

from __future__ import annotations

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax
from tvmfun.boundary import publish
from tvmfun.core.array import Array
from tvmfun.errors import ShapeError
from tvmfun.names import missing as _missing
from tvmfun.typing import ArrayLike

__all__ = ["base_hungarian_algorithm", "hungarian_algorithm"]


def hungarian_algorithm(cost_matrix: ArrayLike) -> tuple[Array, Array]:
    r"""Assigns rows to columns so that the sum of their costs is least, each row and each column at most once.

    Rows are added one at a time, each along a shortest augmenting path in the reduced costs
    :math:`c_{ij} - u_i - v_j \ge 0`, which are 0 for assigned pairs. With n rows and m > n columns this takes
    :math:`n^2 m` steps.

    Args:
        cost_matrix: finite numbers of shape (n, m).

    Returns:
        The rows and the columns of the min(n, m) pairs, int32; rows in order, or columns if there are fewer of those.

    Raises:
        ShapeError: if the array does not have two axes.

    Source: follows ``optax.assignment.hungarian_algorithm``; Jonker and Volgenant, "A shortest augmenting path
    algorithm for dense and sparse linear assignment problems" (1987).

    >>> cost = tnp.asarray([[8.0, 4.0, 7.0], [5.0, 2.0, 3.0], [9.0, 6.0, 7.0], [9.0, 4.0, 8.0]])
    >>> i, j = hungarian_algorithm(cost)
    >>> float(cost[i, j].sum())
    15.0
    """
    costs = tnp.asarray(cost_matrix)
    if costs.ndim != 2:
        raise ShapeError("hungarian_algorithm", "the costs must have two axes", got=repr(costs.aval))
    if 0 in costs.shape:
        return tnp.zeros(0, "int32"), tnp.zeros(0, "int32")
    if not dtypes.is_float(costs.dtype):
        costs = tnp.astype(costs, dtypes.DEFAULT_FLOAT)
    if costs.shape[0] > costs.shape[1]:
        columns, rows = hungarian_algorithm(costs.T)
        return rows, columns
    n, m = costs.shape
    start = tnp.zeros(n, costs.dtype), tnp.zeros(m, costs.dtype), tnp.full(m, -1, "int32")
    _, _, row_of = lax.fori_loop(0, n, lambda row, state: _with_row(costs, row, state), start)
    return tnp.arange(n, dtype="int32"), _columns(row_of, n)


def _columns(row_of: Array, n: int) -> Array:
    """The column of each of ``n`` rows, or -1, from the row of each column, or -1."""
    numbers = tnp.arange(row_of.shape[0], dtype="int32")
    return tnp.full(n, -1, "int32").at[tnp.where(row_of < 0, n, row_of)].set(numbers, mode="drop")


def _with_row(costs: Array, new: Array, state: tuple) -> tuple:
    """Adds a row: the new potentials of rows and columns, and the row of each column or -1."""
    u, v, row_of = state
    n, m = costs.shape
    # Visited columns come last even if costs are infinite or NaN.
    infinity, largest = float("inf"), float(tnp.finfo(costs.dtype).max)

    def is_searching(search: tuple) -> Array:
        return search[0] >= 0

    def visit(search: tuple) -> tuple:
        row, reached, distances, before, is_done, _ = search
        # Distances to all columns through this row, and then the nearest column that has not been visited.
        through = reached + costs[row] - u[row] - v
        is_nearer = tnp.logical_and(through < distances, ~is_done)
        distances = tnp.where(is_nearer, through, distances)
        before = tnp.where(is_nearer, row, before)
        nearest = tnp.astype(tnp.argmin(tnp.where(is_done, infinity, tnp.minimum(distances, largest))), "int32")
        return row_of[nearest], distances[nearest], distances, before, is_done.at[nearest].set(True), nearest

    new = tnp.astype(new, "int32")
    distances, before = tnp.full(m, infinity, costs.dtype), tnp.full(m, new)
    search = new, tnp.zeros((), costs.dtype), distances, before, tnp.zeros(m, "bool"), tnp.asarray(0, dtype="int32")
    _, reached, distances, before, is_done, last = lax.while_loop(is_searching, visit, search)
    slack = tnp.where(is_done, reached - distances, 0)
    v = v - slack
    # Each visited column but the last has a row; its potential grows as the potential of the column shrinks.
    u = u.at[tnp.where(is_done & (row_of >= 0), row_of, n)].add(slack, mode="drop").at[new].add(reached)

    def exchange(path: tuple) -> tuple:
        row_of, column_of, column, _ = path
        row = before[column]
        following = column_of[row]
        return row_of.at[column].set(row), column_of, following, row == new

    path = row_of, _columns(row_of, n), last, tnp.asarray(False)
    row_of, *_ = lax.while_loop(lambda path: ~path[3], exchange, path)
    return u, v, row_of


# optax has two implementations.
base_hungarian_algorithm = hungarian_algorithm

__getattr__ = _missing(__name__)
publish(globals())
