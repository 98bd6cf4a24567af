"""Solvers that keep a few vectors: conjugate gradients, and those for systems that are not symmetric."""

from __future__ import annotations

from typing import NamedTuple

from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.scipy.sparse.linalg.systems import System, norm


class _Descent(NamedTuple):
    x: Array
    residual: Array
    direction: Array
    product: Array  # of the residual and the preconditioned one
    size: Array  # of the residual
    count: Array
    goes: Array  # whether the last step was possible


def conjugate_gradients(system: System) -> tuple[Array, Array]:
    """Returns the solution of a symmetric definite system, and the norm of its residual.

    Source: Saad, "Iterative methods for sparse linear systems" (2003), algorithm 9.1.
    """
    apply, precondition = system.apply, system.precondition

    def measured(residual: Array) -> tuple[Array, Array, Array]:
        moved = residual if precondition is None else precondition(residual)
        product = tnp.vdot(residual, moved)
        return moved, product, tnp.sqrt(product) if precondition is None else norm(residual)

    def is_unfinished(at: _Descent) -> Array:
        return (at.size > system.bound) & (at.count < system.maxiter) & at.goes

    def step(at: _Descent) -> _Descent:
        image = apply(at.direction)
        curvature = tnp.vdot(at.direction, image)
        # It may underflow before the residual does.
        goes = curvature != 0
        length = tnp.where(goes, at.product / curvature, 0)
        residual = at.residual - length * image
        moved, product, size = measured(residual)
        direction = moved + product / at.product * at.direction
        return _Descent(at.x + length * at.direction, residual, direction, product, size, at.count + 1, goes)

    moved, product, size = measured(system.residual)
    start = _Descent(system.x, system.residual, moved, product, size, tnp.zeros((), "int32"), tnp.ones((), "bool"))
    end = lax.while_loop(is_unfinished, step, start)
    return end.x, end.size


class _Stabilized(NamedTuple):
    x: Array
    residual: Array
    direction: Array
    image: Array
    length: Array
    relaxation: Array
    product: Array  # of the residual and the first one
    size: Array  # of the residual
    count: Array
    goes: Array  # whether the last step was possible


def stabilized_gradients(system: System) -> tuple[Array, Array]:
    """Returns the solution of a system by stabilized biconjugate gradients, and the norm of its residual.

    Source: van der Vorst, "Bi-CGSTAB" (1992), with a preconditioner on the right.
    """
    apply, shadow = system.apply, system.residual
    precondition = system.precondition or (lambda x: x)

    def is_unfinished(at: _Stabilized) -> Array:
        return (at.size > system.bound) & (at.count < system.maxiter) & at.goes

    def step(at: _Stabilized) -> _Stabilized:
        product = tnp.vdot(shadow, at.residual)
        turn = product / at.product * at.length / at.relaxation
        direction = at.residual + turn * (at.direction - at.relaxation * at.image)
        moved = precondition(direction)
        image = apply(moved)
        length = _quotient(product, tnp.vdot(shadow, image))
        half = at.residual - length * image
        moved_half = precondition(half)
        image_half = apply(moved_half)
        best = _quotient(tnp.vdot(image_half, half), tnp.vdot(image_half, image_half))
        # The second half of the step is not needed, and may be 0 / 0.
        relaxation = tnp.where(norm(half) <= system.bound, 0, best)
        residual = half - relaxation * image_half
        x = at.x + length * moved + relaxation * moved_half
        goes = (product != 0) & (length != 0) & (relaxation != 0)
        return _Stabilized(
            x, residual, direction, image, length, relaxation, product, norm(residual), at.count + 1, goes
        )

    one, first = tnp.ones_like(system.bound), system.residual
    count, goes = tnp.zeros((), "int32"), tnp.ones((), "bool")
    start = _Stabilized(system.x, first, first, first, one, one, one, norm(first), count, goes)
    end = lax.while_loop(is_unfinished, step, start)
    return end.x, end.size


def _quotient(x: Array, y: Array) -> Array:
    """The quotient, or 0 if the divisor is 0."""
    return tnp.where(y == 0, 0, x / y)
