"""Iterative linear algebra: eigenvalues, roots of matrices, nonnegative least squares."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvmfun.numpy as tnp
from tvmfun import lax, random, tree
from tvmfun.core.array import Array
from tvmfun.core.leaf import abstract
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.optim import tree as optim_tree
from tvmfun.typing import ArrayLike, Key, PyTree, Scalar

__all__ = ["matrix_inverse_pth_root", "nnls", "power_iteration"]


def power_iteration(
    matrix: Any | Callable[[Any], Any],
    *,
    v0: PyTree = None,
    num_iters: int = 100,
    error_tolerance: Scalar = 1e-6,
    key: Key | None = None,
) -> tuple[Any, Any]:
    """The largest eigenvalue of a matrix, by absolute value, and its eigenvector.

    ``v' = A v / norm(A v)`` until ``norm(A v - l v) < error_tolerance * |l|`` with ``l = <v, A v>``.

    Args:
        matrix: a square matrix, or a function from a tree of arrays to its product with it.
        v0: the first vector, or tree; ``None`` for a random one.
        num_iters: the largest number of products.
        error_tolerance: the relative error of ``A v``.
        key: a key of :mod:`tvmfun.random` for the first vector; ``None`` for ``key(0)``.

    Returns:
        The eigenvalue, a 0-d array, and the eigenvector, of norm 1.

    Raises:
        ArgumentError: if ``matrix`` is a function, and there is no ``v0``.

    Reference: von Mises and Pollaczek-Geiringer, "Praktische Verfahren der Gleichungsaufloesung" (1929).

    >>> value, vector = power_iteration(tnp.asarray([[2.0, 0.0], [0.0, 1.0]]))
    >>> round(float(value), 4)
    2.0
    """
    product = matrix if callable(matrix) else lambda v: matrix @ v
    if v0 is None:
        if callable(matrix):
            raise ArgumentError("power_iteration", "a function needs a first vector", got="v0=None")
        aval = abstract(matrix)
        v0 = random.uniform(random.key(0) if key is None else key, aval.shape[-1:], aval.dtype, -1.0, 1.0)

    def normalize(v: Array) -> Array:
        return optim_tree.scale(1 / optim_tree.norm(v), v)

    def unfinished(carry: tuple) -> Array:
        v, image, value, count = carry
        error = optim_tree.norm(optim_tree.sub(image, optim_tree.scale(value, v)))
        return ~(tnp.abs(error / value) < error_tolerance) & (count < num_iters)

    def step(carry: tuple) -> tuple:
        _, image, _, count = carry
        v = normalize(image)
        image = product(v)
        return v, image, optim_tree.vdot(v, image), count + 1

    v = normalize(tree.map(tnp.asarray, v0))
    image = product(v)
    start = (v, image, tnp.zeros_like(optim_tree.vdot(v, image)), tnp.zeros((), dtype="int32"))
    _, image, value, _ = lax.while_loop(unfinished, step, start, max_steps=num_iters)
    return value, normalize(image)


def matrix_inverse_pth_root(
    matrix: Array, p: int, num_iters: int = 100, ridge_epsilon: Scalar = 1e-6, error_tolerance: Scalar = 1e-6
) -> tuple[Any, Any]:
    """The inverse ``p``-th root of a positive semidefinite matrix: ``A**(-1 / p)``.

    A coupled Newton iteration for ``A + ridge_epsilon * max(l, 1e-16) * I`` with the largest eigenvalue ``l``: with
    ``T = ((p + 1) I - M) / p``, ``M' = T**p M`` and ``H' = H T``, from ``M = z A`` and ``H = z**(1 / p) I`` with
    ``z = (1 + p) / (2 * norm(A))``.

    Args:
        matrix: a symmetric matrix.
        p: 1, 2, 4 or 8.
        num_iters: the largest number of steps.
        ridge_epsilon: a number added to the eigenvalues, relative to the largest.
        error_tolerance: the largest element of ``M - I`` at which to stop.

    Returns:
        The root, and its error: the largest element of ``M - I``, a 0-d array.

    Raises:
        ArgumentError: if ``p`` is another number.
        ShapeError: if the matrix is not square.

    Reference: Guo and Higham, "A Schur-Newton Method for the Matrix pth Root and its Inverse" (2006); Anil et al.,
    "Scalable Second Order Optimization for Deep Learning" (2020).

    >>> root, error = matrix_inverse_pth_root(tnp.asarray([[16.0, 0.0], [0.0, 1.0]]), 4)
    >>> [round(float(root[i, i]), 4) for i in (0, 1)]
    [0.5, 1.0]
    """
    aval = abstract(matrix)
    if len(aval.shape) != 2 or aval.shape[0] != aval.shape[1]:
        raise ShapeError("matrix_inverse_pth_root", "the matrix must be square", got=repr(aval))
    if p not in (1, 2, 4, 8):
        raise ArgumentError("matrix_inverse_pth_root", "p must be 1, 2, 4 or 8", got=repr(p))
    size, largest = aval.shape[0], power_iteration(matrix)[0]
    ridge = ridge_epsilon * tnp.maximum(largest, 1e-16)
    if size == 1:
        return (matrix + ridge) ** (-1.0 / p), tnp.zeros((), dtype=aval.dtype)
    identity = tnp.eye(size, dtype=aval.dtype)

    def power(t: Array) -> Array:
        for _ in range(int(math.log2(p))):
            t = t @ t
        return t

    def error_of(m: Array) -> Array:
        return tnp.max(tnp.abs(m - identity))

    def unfinished(carry: tuple) -> Array:
        _, _, _, error, improves, count = carry
        return (count < num_iters) & (error > error_tolerance) & improves

    def step(carry: tuple) -> tuple:
        m, h, _, error, _, count = carry
        t = (1 + 1.0 / p) * identity - m / p
        new = power(t) @ m
        new_error = error_of(new)
        return new, h @ t, h, new_error, new_error < error * 1.2, count + 1

    damped = matrix + ridge * identity
    z = (1 + p) / (2 * tnp.linalg.norm(damped))
    m, h = damped * z, identity * z ** (1.0 / p)
    start = (m, h, h, error_of(m), tnp.ones((), dtype="bool"), tnp.zeros((), dtype="int32"))
    m, h, before, _, improves, _ = lax.while_loop(unfinished, step, start, max_steps=num_iters)
    # The last step is undone if it increased the error.
    return tnp.where(improves, h, before), error_of(m)


def nnls(A: ArrayLike, b: ArrayLike, iters: int, unroll: int | bool = 1, L: Scalar | None = None) -> Array:
    """Nonnegative least squares: the ``x >= 0`` that minimizes ``norm(A x - b)``.

    Accelerated projected gradient descent with the step ``1 / L``.

    Args:
        A: a matrix ``[m, n]``.
        b: a vector ``[m]``, or several as columns of a matrix.
        iters: the number of steps.
        unroll: the number of loop steps to unroll.
        L: an upper bound of the largest eigenvalue of ``A^T A``; ``None`` to take the smaller of two of its norms.

    Returns:
        ``x``, an array ``[n]``, or ``[n, columns]``.

    Raises:
        ShapeError: if the shapes do not fit.

    Reference: Beck and Teboulle, "A Fast Iterative Shrinkage-Thresholding Algorithm for Linear Inverse Problems"
    (2009).

    >>> nnls(tnp.asarray([[1.0, 0.0], [0.0, 2.0]]), tnp.asarray([-3.0, 4.0]), 200)
    Array([0., 2.], dtype=float32)
    """
    a, target = tnp.asarray(A), tnp.asarray(b)
    if a.ndim != 2 or target.ndim not in (1, 2) or target.shape[0] != a.shape[0]:
        raise ShapeError("nnls", "the shapes must be [m, n] and [m] or [m, k]", got=f"{a.aval!r}, {target.aval!r}")
    square, product = a.T @ a, a.T @ target
    if L is None:
        columns = tnp.max(tnp.sum(tnp.abs(square), axis=0), initial=0)
        L = tnp.minimum(tnp.linalg.matrix_norm(square), columns)
    bound = tnp.where(tnp.asarray(L) == 0, 1, L).astype(square.dtype)

    def step(carry: tuple, _: Any) -> tuple[tuple, None]:
        x, ahead, c = carry
        new_c = (1 + tnp.sqrt(1 + 4 * c**2)) / 2
        new = tnp.maximum(ahead - (square @ ahead - product) / bound, 0)
        return (new, new + (c - 1) / new_c * (new - x), new_c), None

    zeros = tnp.zeros_like(product)
    start = (zeros, zeros, tnp.zeros((), dtype=product.dtype))
    return lax.scan(step, start, length=iters, unroll=unroll)[0][0]
