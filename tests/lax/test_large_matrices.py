"""Decompositions of matrices of one strip of columns and of many, by one thread and by all.

What has to hold is compared with float64, in units of the dtype's epsilon.
"""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest

from tvmfun import jit, lax
from tvmfun import numpy as tnp
from tvmfun.lower.target import host

RNG = np.random.default_rng(0)
# One strip, its last column, the first of the next, partial strips, several threads, passes shared by threads.
SIZES = [1, 8, 31, 32, 33, 70, 200, pytest.param(450, marks=pytest.mark.slow)]
DTYPES = ["float32", "float64"]
# Of each kind one, where another parameter changes little of the program that all sizes check.
FEW_SIZES = [8, 33, 70, 200]
every_size = pytest.mark.parametrize("n", SIZES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def crossed(sizes):
    """The parameters of a test, each with its own sizes."""
    keys = lambda key: key if isinstance(key, tuple) else (key,)
    return [
        pytest.param(*keys(key), *getattr(n, "values", (n,)), marks=getattr(n, "marks", ()))
        for key, numbers in sizes.items()
        for n in numbers
    ]


def normal(*shape, dtype="float32"):
    return RNG.normal(size=shape).astype(dtype)


def positive(n, dtype):
    x = RNG.normal(size=(n, n))
    return (x @ x.T + n * np.eye(n)).astype(dtype)


def with_nan(x, lower):
    """The triangle, with NaN in the other one, which must not be read."""
    nan = np.full_like(x, np.nan)
    return np.tril(x) + np.triu(nan, 1) if lower else np.triu(x) + np.tril(nan, -1)


def error(found, expected, dtype):
    """The largest difference, relative to the largest element, in units of epsilon."""
    found, expected = (np.asarray(x, "float64") for x in (found, expected))
    assert found.shape == expected.shape
    return np.max(np.abs(found - expected)) / max(np.max(np.abs(expected)), 1e-30) / np.finfo(dtype).eps


# Errors of the values of an iteration in units of epsilon: that of single precision computes in double.
MOST = {"float32": 6, "float64": 80}


def wide(x):
    return np.asarray(x, "float64")


@pytest.mark.quick("70-float32", "33-float64")
@every_dtype
@every_size
def test_cholesky(n, dtype):
    a = positive(n, dtype)
    factor = jit(lambda a: lax.linalg.cholesky(a, symmetrize_input=False))
    assert error(factor(with_nan(a, lower=True)), np.linalg.cholesky(wide(a)), dtype) < 10
    a[n // 2, n // 2] = -1
    found = np.asarray(factor(a))
    assert np.isnan(found[np.tril_indices(n)]).all() and (found[np.triu_indices(n, 1)] == 0).all()


@pytest.mark.quick("40-70-float32", "1-33-float64")
@every_dtype
@pytest.mark.parametrize(("columns", "n"), crossed({40: SIZES, 5: FEW_SIZES, 1: FEW_SIZES}))
def test_triangular_solve(columns, n, dtype):
    b = normal(n, columns, dtype=dtype)
    flags = list(product((False, True), repeat=3))
    if (columns, dtype) != (40, "float32"):
        flags = [(lower, transposed, unit) for lower, transposed, unit in flags if unit == (lower == transposed)]
    triangle = lambda lower: (np.tril if lower else np.triu)(normal(n, n, dtype=dtype) / n + 3 * np.eye(n, dtype=dtype))
    matrices = [triangle(lower) for lower, _, _ in flags]

    @jit
    def solved(matrices, b):
        names = "left_side", "lower", "transpose_a", "unit_diagonal"
        return [
            lax.linalg.triangular_solve(a, b, **dict(zip(names, (True, *each), strict=True)))
            for a, each in zip(matrices, flags, strict=True)
        ]

    given = [with_nan(a, lower) for a, (lower, _, _) in zip(matrices, flags, strict=True)]
    for a, (lower, transposed, unit), found in zip(matrices, flags, solved(given, b), strict=True):
        if unit:
            np.fill_diagonal(a, 1)
        expected = np.linalg.solve(wide(a.T if transposed else a), b)
        assert error(found, expected, dtype) < 30, (lower, transposed, unit)


@pytest.mark.quick("more-70-float32", "fewer-33-float64")
@every_dtype
@every_size
@pytest.mark.parametrize("rows", ["as many", "more", "fewer"])
def test_lu(rows, n, dtype):
    m = {"as many": n, "more": 2 * n + 3, "fewer": n // 2 + 1}[rows]
    a = normal(m, n, dtype=dtype)
    lu, pivots, permutation = map(np.asarray, jit(lax.linalg.lu)(a))
    k = min(m, n)
    lower, upper = np.tril(wide(lu)[:, :k], -1) + np.eye(m, k), np.triu(wide(lu)[:k])
    assert error(lower @ upper, a[permutation], dtype) < 60
    assert np.abs(np.tril(lu, -1)).max(initial=0) <= 1
    order = np.arange(m)
    for i, pivot in enumerate(pivots):
        order[[i, pivot]] = order[[pivot, i]]
    np.testing.assert_array_equal(order, permutation)


@pytest.mark.quick("more-False-70-float32", "more-True-33-float64")
@every_dtype
@pytest.mark.parametrize(
    ("rows", "full", "n"),
    # With all vectors there are more of them only where there are more rows.
    crossed({("as many", False): SIZES, ("more", False): SIZES, ("fewer", False): SIZES, ("more", True): FEW_SIZES}),
)
def test_qr(rows, full, n, dtype):
    m = {"as many": n, "more": 2 * n + 3, "fewer": n // 2 + 1}[rows]
    a = normal(m, n, dtype=dtype)
    q, r = map(wide, jit(lambda a: lax.linalg.qr(a, full_matrices=full))(a))
    assert error(q @ r, a, dtype) < 30
    assert error(q.T @ q, np.eye(q.shape[1]), dtype) < 50
    assert (np.tril(r, -1) == 0).all()
    expected = np.linalg.qr(wide(a), mode="complete" if full else "reduced")[1]
    assert error(r, expected, dtype) < 50 * n


@pytest.mark.quick("70-float32", "33-float64")
@every_dtype
@every_size
def test_eigh(n, dtype):
    x = normal(n, n, dtype=dtype)
    a = (x + x.T) / 2
    (w, v), values = jit(lambda a: (tnp.linalg.eigh(a), tnp.linalg.eigvalsh(a)))(a)
    w, v, expected = wide(w), wide(v), np.linalg.eigvalsh(wide(a))
    assert error(w, expected, dtype) < MOST[dtype]
    assert error(values, expected, dtype) < MOST[dtype]
    assert error(v * w @ v.T, a, dtype) < 30 * n**0.5
    assert error(v.T @ v, np.eye(n), dtype) < 50


def check_svd(a, dtype, full=False, most=MOST):
    @jit
    def decomposed(a):
        values = [] if full else [tnp.linalg.svdvals(a)]
        return tnp.linalg.svd(a, full_matrices=full), values

    (u, s, vt), values = decomposed(a)
    u, s, vt, expected = wide(u), wide(s), wide(vt), np.linalg.svd(wide(a), compute_uv=False)
    assert (s >= 0).all() and (np.diff(s) <= 0).all()
    assert error(s, expected, dtype) < most[dtype]
    assert all(error(alone, expected, dtype) < most[dtype] for alone in values)
    k = len(s)
    scale = max(s.max(), 1e-30)
    assert np.abs(u[:, :k] * s @ vt[:k] - a).max() / scale / np.finfo(dtype).eps < 40
    assert error(u.T @ u, np.eye(u.shape[1]), dtype) < 130
    assert error(vt @ vt.T, np.eye(vt.shape[0]), dtype) < 130


@pytest.mark.quick("fewer-float32-70", "more-float64-33")
@pytest.mark.parametrize(("dtype", "n"), crossed({"float32": SIZES, "float64": [33, 200]}))
@pytest.mark.parametrize("rows", ["as many", "more", "fewer"])
def test_svd(rows, dtype, n):
    m = {"as many": n, "more": n + 40, "fewer": n // 2 + 1}[rows]
    check_svd(normal(m, n, dtype=dtype), dtype)


@pytest.mark.quick("fewer-float32-33")
@pytest.mark.parametrize(("dtype", "n"), [("float32", 33), ("float64", 70)])
@pytest.mark.parametrize("rows", ["more", "fewer"])
def test_svd_with_all_vectors(rows, dtype, n):
    check_svd(normal(n + 40 if rows == "more" else n // 2 + 1, n, dtype=dtype), dtype, full=True)


def bidiagonal(n):
    return np.diag(np.where(np.arange(n) % 4, 1, 0)) + np.diag(np.ones(n - 1), 1)


HARD = {
    "zeros": lambda n: np.zeros((n, n)),
    "identity": np.eye,
    "ones": lambda n: np.ones((n, n)),
    "wide ones": lambda n: np.ones((n, 2 * n)),
    "rank 2": lambda n: RNG.normal(size=(n, 2)) @ RNG.normal(size=(2, n)),
    "diagonal with zeros": lambda n: np.diag(np.where(np.arange(n) % 3, np.arange(n), 0)),
    "zeros on the diagonal": bidiagonal,
    "nilpotent": lambda n: np.diag(np.ones(n - 1), 1),
    "graded": lambda n: RNG.normal(size=(n, n)) * 10.0 ** -np.arange(n)[:, None].clip(0, 30),
    "Hilbert": lambda n: 1 / (np.arange(n)[:, None] + np.arange(n) + 1),
    "large": lambda n: RNG.normal(size=(n, n)) * 1e30,
    "small": lambda n: RNG.normal(size=(n, n)) * 1e-36,
}


@pytest.mark.quick("zeros on the diagonal-70-float32", "rank 2-70-float64")
@every_dtype
@pytest.mark.parametrize("n", [5, 70])
@pytest.mark.parametrize("name", HARD)
def test_svd_of_hard_matrices(name, n, dtype):
    # Equal terms are all rounded in one direction.
    check_svd(HARD[name](n).astype(dtype), dtype, most={"float32": 40, "float64": 80})


@pytest.mark.quick("ones-70-float32")
@every_dtype
@pytest.mark.parametrize("n", [5, 70])
@pytest.mark.parametrize("name", [name for name in HARD if name != "wide ones"])
def test_eigh_of_hard_matrices(name, n, dtype):
    x = HARD[name](n)
    a = (x / 2 + x.T / 2).astype(dtype)
    w, v = map(wide, jit(tnp.linalg.eigh)(a))
    assert error(w, np.linalg.eigvalsh(wide(a)), dtype) < MOST[dtype]
    assert np.abs(v * w @ v.T - a).max() / max(np.abs(w).max(), 1e-30) / np.finfo(dtype).eps < 30
    assert error(v.T @ v, np.eye(n), dtype) < 50


FUNCTIONS = {
    "cholesky": lambda xp, a: xp.linalg.cholesky(a @ xp.matrix_transpose(a) + 9 * xp.eye(a.shape[-1])),
    "inv": lambda xp, a: xp.linalg.inv(a),
    "qr": lambda xp, a: xp.linalg.qr(a),
    "eigh": lambda xp, a: xp.linalg.eigh(a + xp.matrix_transpose(a)),
    "svd": lambda xp, a: xp.linalg.svd(a, full_matrices=False),
}


def leaves(found):
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.quick("cholesky", "svd")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_threads_change_no_bit(name):
    a = normal(420, 420)
    function = partial(FUNCTIONS[name], tnp)
    one, two = (leaves(jit(function, target={**host().export(), "num-cores": n})(a)) for n in (1, 2))
    for x, y in zip(one, two, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.quick("qr")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_batch_is_its_matrices(name):
    a = normal(3, 40, 40)
    function = jit(partial(FUNCTIONS[name], tnp))
    for found, *expected in zip(leaves(function(a)), *(leaves(function(x)) for x in a), strict=True):
        np.testing.assert_array_equal(found, np.stack([np.asarray(x) for x in expected]))


@pytest.mark.quick("inv", "eigh")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_dynamic_sizes(name):
    """The signs of vectors are left out."""
    function = jit(partial(FUNCTIONS[name], tnp), dynamic_shapes=({0: "b", 1: "n", 2: "n"},))
    for b, n in ((2, 3), (1, 40), (4, 33), (1, 150)):
        a = normal(b, n, n)
        for found, expected in zip(leaves(function(a)), leaves(FUNCTIONS[name](np, wide(a))), strict=True):
            np.testing.assert_allclose(np.abs(found), np.abs(expected), rtol=3e-3, atol=3e-3)
