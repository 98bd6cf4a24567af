"""Systems of equations with tridiagonal matrices."""

from __future__ import annotations

from typing import Any

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ShapeError
from tvmfun.lax import control_flow
from tvmfun.lax.linalg.arguments import vectors
from tvmfun.numpy.promotion import NestedArrayLike

__all__ = ["tridiagonal_solve"]


def tridiagonal_solve(
    dl: Any, d: NestedArrayLike, du: Any, b: NestedArrayLike, *, perturb_singular: bool = False
) -> Array:
    """Returns the solution of ``a @ x = b`` for tridiagonal matrices, by elimination with partial pivoting.

    Args:
        dl: the elements left of the diagonals, m of them; the first one is not used.
        d: the diagonals, of m elements.
        du: the elements right of the diagonals, m of them; the last one is not used.
        b: the right-hand sides, matrices with m rows.
        perturb_singular: whether to take pivots near 0 for the smallest number that matters beside the others, so that
            the solution is finite.

    Raises:
        ShapeError: if the shapes do not fit.

    Source: Golub and Van Loan, "Matrix Computations" (2013), section 4.3; ``jax.lax.linalg.tridiagonal_solve``.

    >>> zero = tnp.zeros(2)
    >>> tridiagonal_solve(zero, tnp.asarray([2.0, 4.0]), zero, tnp.asarray([[2.0], [2.0]])).tolist()
    [[1.0], [0.5]]
    """
    name = "tridiagonal_solve"
    dl, d, du, b = vectors(name, dl, d, du, b)
    if b.ndim < 2 or not dl.shape[-1] == d.shape[-1] == du.shape[-1] == b.shape[-2]:
        got = f"{dl.aval}, {d.aval}, {du.aval} and {b.aval}"
        raise ShapeError(name, "the diagonals and the right-hand sides must have m elements and m rows", got=got)
    lead = tnp.broadcast_shapes(dl.shape[:-1], d.shape[:-1], du.shape[:-1], b.shape[:-2])
    dl, d, du = (tnp.broadcast_to(x, (*lead, x.shape[-1])) for x in (dl, d, du))
    b = tnp.broadcast_to(b, (*lead, *b.shape[-2:]))
    if not b.size:
        return b
    pivots, right, second, targets = _eliminated(*(tnp.moveaxis(x, len(lead), 0) for x in (dl, d, du, b)))
    if perturb_singular:
        largest = tnp.max(tnp.maximum(tnp.abs(pivots), tnp.maximum(tnp.abs(right), tnp.abs(second))), axis=0)
        least = tnp.finfo(b.dtype).eps * tnp.where(largest > 0, largest, 1)
        pivots = tnp.where(tnp.abs(pivots) < least, tnp.where(pivots < 0, -least, least), pivots)
    return tnp.moveaxis(_substituted(pivots, right, second, targets), 0, len(lead))


def _eliminated(dl: Array, d: Array, du: Array, b: Array) -> tuple[Array, ...]:
    """The upper triangular system: three diagonals and the right-hand sides, row by row."""

    def step(row: tuple, below: tuple) -> tuple[tuple, tuple]:
        pivot, right, target = row
        left, middle, further, other = below
        exchange = tnp.abs(left) > tnp.abs(pivot)
        large, small = tnp.where(exchange, left, pivot), tnp.where(exchange, pivot, left)
        factor = small / tnp.where(large == 0, 1, large)
        first_right, second_right = tnp.where(exchange, middle, right), tnp.where(exchange, right, middle)
        first_second, second_second = tnp.where(exchange, further, 0), tnp.where(exchange, 0, further)
        turned = exchange[..., None]
        first, second = tnp.where(turned, other, target), tnp.where(turned, target, other)
        rest = (
            second_right - factor * first_right,
            second_second - factor * first_second,
            second - factor[..., None] * first,
        )
        return rest, (large, first_right, first_second, first)

    zero = tnp.zeros_like(d[:1])
    du = tnp.concatenate([du[:-1], zero])
    last, rows = control_flow.scan(step, (d[0], du[0], b[0]), (dl[1:], d[1:], du[1:], b[1:]))
    ends = (last[0], last[1], tnp.zeros_like(last[0]), last[2])
    return tuple(tnp.concatenate([x, end[None]]) for x, end in zip(rows, ends, strict=True))


def _substituted(pivots: Array, right: Array, second: Array, targets: Array) -> Array:
    def step(known: tuple, row: tuple) -> tuple[tuple, Array]:
        next_one, one_further = known
        pivot, right, second, target = (x[..., None] if i < 3 else x for i, x in enumerate(row))
        x = (target - right * next_one - second * one_further) / pivot
        return (x, next_one), x

    zero = tnp.zeros_like(targets[0])
    _, rows = control_flow.scan(step, (zero, zero), (pivots, right, second, targets), reverse=True)
    return rows
