"""Triangular systems and matrix decompositions, one matrix after the other by NumPy and SciPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import linalg  # comes with jax

import tvmfun.numpy as tnp
from op_cases.case import Case, reals
from tvmfun.ops import linalg as ops


def each(function: Callable, *arrays: np.ndarray):
    """``function`` of every matrix of a stack."""
    lead = arrays[0].shape[:-2]
    flat = [x.reshape(int(np.prod(lead)), *x.shape[-2:]) for x in arrays]
    found = [function(*matrices) for matrices in zip(*flat, strict=True)]
    if isinstance(found[0], tuple):
        return tuple(np.stack(parts).reshape(*lead, *parts[0].shape) for parts in zip(*found, strict=True))
    return np.stack(found).reshape(*lead, *found[0].shape)


def positive(*shape: int) -> np.ndarray:
    """Positive definite matrices; the elements above the diagonal must not be read."""
    x = reals(*shape)
    full = x @ np.swapaxes(x, -1, -2) + 2 * np.eye(shape[-1])
    return np.tril(full) + np.triu(reals(*shape), 1)


def regular(*shape: int) -> np.ndarray:
    """Matrices far from singular."""
    return reals(*shape) + 5 * np.eye(*shape[-2:])[:, ::-1]


def symmetric(*shape: int) -> np.ndarray:
    """Matrices with eigenvalues that are apart; the elements above the diagonal must not be read."""
    q, _ = np.linalg.qr(reals(*shape))
    full = q * np.arange(-2, shape[-1] - 2) @ np.swapaxes(q, -1, -2)
    return np.tril(full) + np.triu(reals(*shape), 1)


def graded(*shape: int) -> np.ndarray:
    """Matrices with singular values that are apart."""
    q, _ = np.linalg.qr(reals(*shape))
    p, _ = np.linalg.qr(np.swapaxes(reals(*shape), -1, -2))
    return q * (1 + np.arange(min(shape[-2:]))) @ np.swapaxes(p, -1, -2)


def solve_reference(a, b, lower, transpose_a, unit_diagonal):
    def solve(a, b):
        triangle = np.tril(a) if lower else np.triu(a)
        if unit_diagonal:
            np.fill_diagonal(triangle, 1)
        return np.linalg.solve(triangle.T if transpose_a else triangle, b)

    return each(solve, a, b)


def lu_reference(a):
    def factor(a):
        if not a.size:
            return a, np.zeros(0, np.int32), np.arange(len(a), dtype=np.int32)
        lu, pivots = linalg.lu_factor(a)
        order = np.arange(len(a), dtype=np.int32)
        for i, pivot in enumerate(pivots):
            order[[i, pivot]] = order[[pivot, i]]
        return lu, pivots.astype(np.int32), order

    return each(factor, a)


def qr_reference(a, full):
    return tuple(np.linalg.qr(a, mode="complete" if full else "reduced"))


def aligned(reference: np.ndarray, ours) -> np.ndarray:
    """The columns of ``reference`` with the signs of ``ours``: the sign of a vector is nobody's choice."""
    ours = np.asarray(ours)
    signs = np.where(np.sum(ours * reference, axis=-2, keepdims=True) < 0, -1, 1)
    return reference * signs.astype(reference.dtype)


def eigh_reference(a, vectors):
    w, v = np.linalg.eigh(a)
    if not vectors:
        return w
    return w, aligned(v, ops.eigh(tnp.asarray(a), vectors=True)[1])


def svd_reference(a, full, vectors):
    u, s, vt = np.linalg.svd(a, full_matrices=full)
    if not vectors:
        return s
    ours = ops.svd(tnp.asarray(a), full=full, vectors=True)
    turned = lambda x: np.swapaxes(np.asarray(x), -1, -2)
    return aligned(u, ours[0]), s, turned(aligned(turned(vt), turned(ours[2])))


FLAGS = [(lower, transposed, unit) for lower in (True, False) for transposed in (True, False) for unit in (True, False)]

CASES: dict[str, list[Case]] = {
    "triangular_solve": [
        *(
            Case(
                solve_reference,
                (regular(2, 4, 4)[..., ::-1].copy(), reals(2, 4, 3)),
                {"lower": lower, "transpose_a": transposed, "unit_diagonal": unit},
            )
            for lower, transposed, unit in FLAGS
        ),
        *(
            Case(
                solve_reference,
                (reals(n, n) + 3 * n * np.eye(n), reals(n, m)),
                {"lower": True, "transpose_a": False, "unit_diagonal": False},
                order=1,
            )
            for n, m in ((1, 1), (3, 0), (40, 70))
        ),
    ],
    "cholesky": [
        *(Case(np.linalg.cholesky, (positive(*shape),)) for shape in ((4, 4), (2, 3, 3, 3), (1, 1))),
        Case(np.linalg.cholesky, (positive(70, 70),), order=1),
    ],
    "lu": [
        *(Case(lu_reference, (regular(*shape),)) for shape in ((2, 4, 4), (3, 5), (5, 3), (1, 1))),
        *(Case(lu_reference, (regular(*shape),), order=1) for shape in ((40, 70), (70, 40))),
    ],
    "qr": [
        *(
            Case(qr_reference, (regular(*shape),), {"full": full})
            for shape, full in (((2, 4, 4), True), ((3, 5), False), ((5, 3), False), ((3, 4), True), ((1, 1), False))
        ),
        Case(qr_reference, (regular(5, 3),), {"full": True}, order=0),
        Case(qr_reference, (regular(40, 35),), {"full": False}, order=1),
    ],
    "eigh": [
        Case(eigh_reference, (symmetric(4, 4),), {"vectors": True}),
        *(
            Case(eigh_reference, (symmetric(*shape),), {"vectors": True}, order=1)
            for shape in ((2, 3, 3), (1, 1), (2, 2), (40, 40))
        ),
        Case(eigh_reference, (symmetric(2, 3, 3),), {"vectors": False}),
    ],
    "svd": [
        *(
            Case(svd_reference, (graded(*shape),), {"full": full, "vectors": True}, order)
            for shape, full, order in (
                *(((4, 3), False, 2), ((3, 5), False, 1), ((2, 3, 3), True, 1), ((2, 2), False, 1), ((1, 1), True, 1)),
            )
        ),
        # One column is left over, which all others determine up to its sign.
        *(
            Case(svd_reference, (graded(*shape),), {"full": True, "vectors": True}, order=0)
            for shape in ((5, 4), (3, 4))
        ),
        Case(svd_reference, (graded(20, 15),), {"full": False, "vectors": True}, order=1),
        Case(svd_reference, (graded(2, 3, 2),), {"full": False, "vectors": False}),
    ],
}
