"""Reference implementations of triangular systems and matrix decompositions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvmfun.reference.meaning import enter


def _each(function: Callable[..., Any], *arrays: np.ndarray) -> Any:
    """Applies ``function`` to every matrix of stacks of matrices."""
    lead = arrays[0].shape[:-2]
    results = [function(*(array[at] for array in arrays)) for at in np.ndindex(*lead)]
    # If there are none, any matrix has the shapes and dtypes of the results.
    shown = results or [function(*(np.eye(*array.shape[-2:], dtype=array.dtype) for array in arrays))]
    stack = lambda parts: np.stack(parts)[: len(results)].reshape((*lead, *parts[0].shape))
    return tuple(map(stack, zip(*shown, strict=True))) if isinstance(shown[0], tuple) else stack(shown)


def _triangular_solve(a: np.ndarray, b: np.ndarray, lower: bool, transpose_a: bool, unit_diagonal: bool) -> np.ndarray:
    def solve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        triangle = np.tril(a) if lower else np.triu(a)
        if unit_diagonal:
            np.fill_diagonal(triangle, 1)
        if transpose_a:
            triangle = triangle.T
        forwards = lower != transpose_a
        x = b.copy()
        for i in range(len(x)) if forwards else reversed(range(len(x))):
            known = slice(0, i) if forwards else slice(i + 1, None)
            x[i] = (x[i] - triangle[i, known] @ x[known]) / triangle[i, i]
        return x

    return _each(solve, a, b)


def _cholesky(a: np.ndarray) -> np.ndarray:
    def factor(a: np.ndarray) -> np.ndarray:
        out = np.zeros_like(a)
        for j in range(len(a)):
            out[j, j] = np.sqrt(a[j, j] - out[j, :j] @ out[j, :j])
            out[j + 1 :, j] = (a[j + 1 :, j] - out[j + 1 :, :j] @ out[j, :j]) / out[j, j]
        return out

    return _each(factor, a)


def _lu(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gaussian elimination with partial pivoting: factors, pivots, and the order of the rows."""

    def factor(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        lu, steps = a.copy(), min(a.shape)
        pivots, order = np.zeros(steps, np.int32), np.arange(len(a), dtype=np.int32)
        for k in range(steps):
            pivots[k] = pivot = k + int(np.argmax(np.abs(lu[k:, k])))
            lu[[k, pivot]], order[[k, pivot]] = lu[[pivot, k]], order[[pivot, k]]
            lu[k + 1 :, k] /= lu[k, k]
            lu[k + 1 :, k + 1 :] -= np.outer(lu[k + 1 :, k], lu[k, k + 1 :])
        return lu, pivots, order

    return _each(factor, a)


def _qr(a: np.ndarray, full: bool) -> tuple[np.ndarray, np.ndarray]:
    return _each(lambda a: tuple(np.linalg.qr(a, mode="complete" if full else "reduced")), a)


def _eigh(a: np.ndarray, vectors: bool) -> Any:
    return _each(lambda a: tuple(np.linalg.eigh(a)) if vectors else np.linalg.eigvalsh(a), a)


def _svd(a: np.ndarray, full: bool, vectors: bool) -> Any:
    return _each(lambda a: tuple(np.linalg.svd(a, full_matrices=full)) if vectors else np.linalg.svd(a)[1], a)


def _transposed(a: np.ndarray) -> np.ndarray:
    return np.swapaxes(a, -1, -2)


def _eigh_invariants(results: Sequence[np.ndarray], a: np.ndarray, vectors: bool) -> tuple[np.ndarray, ...]:
    """The eigenvalues, the matrix, and the Gram matrix of the eigenvectors, whose signs are arbitrary."""
    if not vectors:
        return tuple(results)
    w, v = results
    return w, (v * w[..., None, :]) @ _transposed(v), _transposed(v) @ v


def _svd_invariants(results: Sequence[np.ndarray], a: np.ndarray, full: bool, vectors: bool) -> tuple[np.ndarray, ...]:
    if not vectors:
        return tuple(results)
    u, s, vt = results
    k = s.shape[-1]
    return s, (u[..., :k] * s[..., None, :]) @ vt[..., :k, :], _transposed(u) @ u, vt @ _transposed(vt)


def _qr_invariants(results: Sequence[np.ndarray], a: np.ndarray, full: bool) -> tuple[np.ndarray, ...]:
    q, r = results
    return q @ r, _transposed(q) @ q, np.tril(r, -1)


def enter_all() -> None:
    """Adds the reference implementations of this module to the table."""
    meanings: dict[str, Callable[..., Any]] = {
        "triangular_solve": _triangular_solve,
        "cholesky": _cholesky,
        "lu": _lu,
    }
    enter(meanings, partial="several")
    enter({"qr": _qr}, partial="several", invariants=_qr_invariants)
    enter({"eigh": _eigh}, partial="several", invariants=_eigh_invariants)
    enter({"svd": _svd}, partial="several", invariants=_svd_invariants)
