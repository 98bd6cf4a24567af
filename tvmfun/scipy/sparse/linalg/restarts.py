"""Generalized minimal residuals: the best solution in a space of few dimensions, again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.numpy import linalg
from tvmfun.scipy.linalg.solvers import solve_triangular
from tvmfun.scipy.sparse.linalg.systems import Linear, System, norm

#: From the product with the preconditioned matrix, a vector, its norm and the share of it to reach, to the solution
#: in a space of so many dimensions.
Cycle = Callable[[Linear, Array, Array, Array, int], Array]


class _Restart(NamedTuple):
    x: Array
    moved: Array  # the preconditioned residual
    moved_size: Array
    size: Array  # of the residual
    count: Array
    goes: Array  # whether the last cycle has made the preconditioned residual smaller


def minimal_residuals(system: System, cycle: Cycle, restart: int) -> tuple[Array, Array]:
    """Returns the solution of a system, and the norm of its residual.

    Source: Saad, "Iterative methods for sparse linear systems" (2003), algorithm 9.4.

    Args:
        system: the system, whose ``maxiter`` counts cycles.
        cycle: :func:`batched_cycle` or :func:`incremental_cycle`.
        restart: the dimension of the space of a cycle.
    """
    apply = system.apply
    precondition = system.precondition or (lambda x: x)

    def measured(residual: Array) -> tuple[Array, Array, Array]:
        moved = precondition(residual)
        size = norm(moved)
        return moved, size, size if system.precondition is None else norm(residual)

    def is_unfinished(at: _Restart) -> Array:
        return (at.size > system.bound) & (at.count < system.maxiter) & at.goes

    def step(at: _Restart) -> _Restart:
        share = system.bound / at.size
        x = at.x + cycle(lambda v: precondition(apply(v)), at.moved, at.moved_size, share, restart)
        moved, moved_size, size = measured(system.b - apply(x))
        # Otherwise the next cycle would do the same, or what is left is rounding. NaN goes on to be seen.
        goes = ~(moved_size >= at.moved_size)
        x, size = (tnp.where(goes, new, old) for new, old in ((x, at.x), (size, at.size)))
        return _Restart(x, moved, moved_size, size, at.count + 1, goes)

    start = _Restart(system.x, *measured(system.residual), tnp.zeros((), "int32"), tnp.ones((), "bool"))
    end = lax.while_loop(is_unfinished, step, start)
    return end.x, end.size


class _Space(NamedTuple):
    basis: Array  # orthonormal rows
    images: Array  # a row for each image of a basis vector, in this basis
    count: Array
    goes: Array  # whether the last image was not within the space


def _space(vector: Array, size: Array, restart: int) -> _Space:
    basis = tnp.zeros((restart + 1, vector.shape[0]), vector.dtype).at[0].set(vector / size)
    # Rows of the identity that are not replaced keep the matrix regular, and the solution 0 there.
    images = tnp.eye(restart, restart + 1, dtype=vector.dtype)
    return _Space(basis, images, tnp.zeros((), "int32"), tnp.ones((), "bool"))


def _grown(apply: Linear, space: _Space) -> tuple[_Space, Array]:
    """A space with one more dimension, and the image of the last basis vector in the basis."""
    basis, images, count, _ = space
    vector = apply(basis[count])
    size = norm(vector)
    first = basis @ vector
    vector = vector - first @ basis
    # Once more, against rounding; twice is enough.
    second = basis @ vector
    vector = vector - second @ basis
    left = norm(vector)
    goes = left > tnp.finfo(vector.dtype).eps * size
    basis = basis.at[count + 1].set(tnp.where(goes, vector / left, 0))
    image = (first + second).at[count + 1].set(tnp.where(goes, left, 0))
    return _Space(basis, images.at[count].set(image), count + 1, goes), image


def batched_cycle(apply: Linear, vector: Array, size: Array, share: Array, restart: int) -> Array:
    """Returns the solution in the whole space, by one QR decomposition at the end."""
    space = _space(vector, size, restart)
    space = lax.while_loop(
        lambda space: (space.count < restart) & space.goes, lambda space: _grown(apply, space)[0], space
    )
    q, r = linalg.qr(space.images.T)
    return solve_triangular(r, size * q[0]) @ space.basis[:-1]


class _Factors(NamedTuple):
    space: _Space
    triangle: Array  # a row for each column of the triangular factor
    rotations: Array  # their product


def incremental_cycle(apply: Linear, vector: Array, size: Array, share: Array, restart: int) -> Array:
    """Returns the solution in a space that grows until the residual is small enough, by a rotation for each dimension.

    The first column of the product of the rotations has the norms of the residuals, relative to the first one.
    """

    def is_unfinished(at: _Factors) -> Array:
        count = at.space.count
        return (count < restart) & at.space.goes & (tnp.abs(at.rotations[count, 0]) > share)

    def step(at: _Factors) -> _Factors:
        count = at.space.count
        space, image = _grown(apply, at.space)
        column = at.rotations @ image
        rotated, length = _rotated(at.rotations[count], at.rotations[count + 1], column[count], column[count + 1])
        rotations = lax.dynamic_update_slice(at.rotations, rotated, (count, 0))
        column = column.at[count].set(length).at[count + 1].set(0)
        return _Factors(space, at.triangle.at[count].set(column), rotations)

    space = _space(vector, size, restart)
    end = lax.while_loop(is_unfinished, step, _Factors(space, space.images, tnp.eye(restart + 1, dtype=vector.dtype)))
    # The entry after the last one is the residual.
    right = tnp.where(tnp.arange(restart) < end.space.count, size * end.rotations[:-1, 0], 0)
    return solve_triangular(end.triangle[:, :-1].T, right) @ end.space.basis[:-1]


def _rotated(x: Array, y: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """Two rows rotated so that ``(a, b)`` becomes ``(length, 0)``, and this length."""
    length = tnp.hypot(a, b)
    cosine, sine = (tnp.where(length == 0, default, part / length) for part, default in ((a, 1), (b, 0)))
    return tnp.stack([cosine * x + sine * y, cosine * y - sine * x]), length
