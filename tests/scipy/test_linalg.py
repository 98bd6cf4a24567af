"""Linear algebra against SciPy and JAX, with derivatives and batches."""

from typing import Any

import numpy as np
import pytest
import scipy.linalg
from support import derivatives

import tvmfun
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.scipy import linalg

jax = pytest.importorskip("jax")

RNG = np.random.default_rng(0)
A = RNG.normal(size=(4, 4)) + 3 * np.eye(4)
SPD = A @ A.T
B = RNG.normal(size=(4, 2))
V = RNG.normal(size=4)
W = RNG.normal(size=(5, 3))
POSITIVE = SPD / 10 + 0.1 * A

SAME = {
    "solve": (A, B),
    "solve vector": (A, V),
    "inv": (A,),
    "det": (A,),
    "cholesky": (SPD,),
    "expm": (A,),
    "sqrtm": (POSITIVE,),
    "polar": (W,),
    "solve_sylvester": (A, SPD[:2, :2], B),
    "block_diag": (A, V, 2.0),
    "toeplitz": (V,),
    "toeplitz rows": (V, W[:, 0]),
    "hankel": (V,),
    "hankel rows": (V, W[:, 0]),
    "circulant": (V,),
    "companion": (V,),
    "fiedler": (V,),
    "fiedler_companion": (V,),
    "fiedler_companion of seven": (np.concatenate([V, V]),),
    "hessenberg": (A,),
    "leslie": (V, V[:3]),
    "lu": (A,),
    "lu of rows": (W.T,),
    "lu of columns": (W,),
    "lu_factor": (A,),
    "eigh_tridiagonal": (V, V[:3]),
}


@pytest.mark.quick("det", "leslie", "hankel")
@pytest.mark.parametrize("name", SAME)
def test_results_are_those_of_scipy(name):
    function = name.split()[0]
    args = SAME[name]
    found = tvmfun.jit(getattr(linalg, function))(*args)
    expected = getattr(scipy.linalg, function)(*args)
    pairs = zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
    for one, other in pairs:
        if name == "eigh_tridiagonal":
            one, other = np.abs(one), np.abs(other)
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_systems_from_factors():
    for lower in (False, True):
        x = linalg.cho_solve(linalg.cho_factor(SPD, lower=lower), B)
        np.testing.assert_allclose(x, np.linalg.solve(SPD, B), rtol=1e-9)
        triangle = (np.tril if lower else np.triu)(SPD)
        np.testing.assert_allclose(linalg.solve(triangle, V, lower=lower, assume_a="pos"), np.linalg.solve(SPD, V))
        for trans in (0, 1, "N", "T", "C"):
            expected = scipy.linalg.solve_triangular(A, B, trans, lower)
            np.testing.assert_allclose(linalg.solve_triangular(A, B, trans, lower), expected, rtol=1e-9)
    for trans in (0, 1):
        expected = np.linalg.solve(A.T if trans else A, B)
        np.testing.assert_allclose(linalg.lu_solve(linalg.lu_factor(A), B, trans), expected, rtol=1e-9)


@pytest.mark.quick("full", "r")
@pytest.mark.parametrize("mode", ["full", "economic", "r"])
def test_qr(mode):
    factors = linalg.qr(W, mode=mode)
    for one, other in zip(factors, scipy.linalg.qr(W, mode=mode), strict=True):
        if mode != "full":
            np.testing.assert_allclose(np.abs(one), np.abs(other[: one.shape[0]]), atol=1e-12)
        assert one.shape == other.shape
    if mode != "r":
        np.testing.assert_allclose(factors[0] @ factors[1], W, atol=1e-12)


@pytest.mark.quick("3x5")
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (3, 0)])
def test_qr_with_pivoting(shape):
    x = RNG.normal(size=shape) * 10.0 ** np.arange(shape[1])[::-1]
    for mode in ("full", "economic", "r"):
        *q, r, p = linalg.qr(x, mode=mode, pivoting=True)
        reference: Any = scipy.linalg.qr(x, mode=mode, pivoting=True) if x.size else (np.zeros_like(r), [])
        *_, expected, order = reference
        np.testing.assert_array_equal(p, order)
        np.testing.assert_allclose(r, expected, rtol=1e-10, atol=1e-10 * np.abs(x).max(initial=0))
        if q:
            np.testing.assert_allclose(q[0] @ r, x[:, np.asarray(p, int)], rtol=1e-10)


@pytest.mark.slow
def test_products_with_q():
    for a in (W, W.T, A):
        rank = min(a.shape)
        for mode, c in (("right", RNG.normal(size=(2, a.shape[0]))), ("left", RNG.normal(size=(rank, 2)))):
            for pivoting in (False, True):
                found = linalg.qr_multiply(a, c, mode, pivoting)
                for one, other in zip(found, scipy.linalg.qr_multiply(a, c, mode, pivoting), strict=True):
                    np.testing.assert_allclose(one, other, atol=1e-12)
    np.testing.assert_allclose(linalg.qr_multiply(A, V)[0], scipy.linalg.qr_multiply(A, V)[0], atol=1e-12)


@pytest.mark.slow
def test_similar_matrices():
    for x in (A, A[:2, :2], A[:1, :1], A[:0, :0], np.stack([A, A.T])):
        for name in ("hessenberg", "schur"):
            t, q = linalg.hessenberg(x, calc_q=True) if name == "hessenberg" else linalg.schur(x)
            np.testing.assert_allclose(q @ t @ np.swapaxes(np.asarray(q), -1, -2), x, atol=1e-12)
            np.testing.assert_array_equal(np.tril(t, -2), np.zeros_like(x))


@pytest.mark.slow
def test_eigenvalues_and_singular_values():
    w, v = linalg.eigh(SPD)
    np.testing.assert_allclose(w, scipy.linalg.eigvalsh(SPD), rtol=1e-12)
    np.testing.assert_allclose(np.asarray(v) * np.asarray(w) @ np.asarray(v).T, SPD, rtol=1e-9)
    np.testing.assert_allclose(linalg.eigh(np.tril(SPD), eigvals_only=True), w, rtol=1e-12)
    np.testing.assert_allclose(linalg.eigh(np.triu(SPD), lower=False, eigvals_only=True), w, rtol=1e-12)
    np.testing.assert_allclose(linalg.svd(W, compute_uv=False), scipy.linalg.svdvals(W), rtol=1e-12)
    assert [x.shape for x in linalg.svd(W, full_matrices=False)] == [(5, 3), (3,), (3, 3)]
    some = linalg.eigh_tridiagonal(V, V[:3], eigvals_only=True, select="i", select_range=(1, 2))
    np.testing.assert_allclose(some, scipy.linalg.eigvalsh_tridiagonal(V, V[:3])[1:3], rtol=1e-10)


@pytest.mark.slow
def test_exponentials():
    for scale in (0.0, 1e-3, 1.0, 30.0):
        np.testing.assert_allclose(linalg.expm(scale * A), scipy.linalg.expm(scale * A), rtol=1e-9)
    np.testing.assert_allclose(linalg.expm(A.astype("float32")), scipy.linalg.expm(A), rtol=1e-4)
    stacked = np.stack([A, 0.1 * A, np.zeros_like(A)])
    np.testing.assert_allclose(linalg.expm(stacked), scipy.linalg.expm(stacked), rtol=1e-11)
    assert np.isnan(np.asarray(linalg.expm(1e9 * A, max_squarings=3))).all()
    for one, other in zip(linalg.expm_frechet(A, SPD), scipy.linalg.expm_frechet(A, SPD), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)
    _, tangent = tvmfun.jvp(linalg.expm, (A,), (SPD,))
    np.testing.assert_allclose(tangent, scipy.linalg.expm_frechet(A, SPD, compute_expm=False), rtol=1e-10)


@pytest.mark.slow
def test_polar_decompositions():
    for side in ("left", "right"):
        for one, other in zip(linalg.polar(A, side), scipy.linalg.polar(A, side), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-12)


SIZES = {
    "hilbert": {}, "invhilbert": {}, "pascal": {}, "invpascal": {}, "helmert": {}, "pascal lower": {"kind": "lower"},
    "pascal upper": {"kind": "upper"}, "invpascal lower": {"kind": "lower"}, "invpascal upper": {"kind": "upper"},
    "helmert full": {"full": True},
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_matrices_of_a_size(name):
    function = name.split()[0]
    for n in (1, 2, 5):
        expected = np.asarray(getattr(scipy.linalg, function)(n, **SIZES[name]), np.float64)
        found = getattr(linalg, function)(n, **SIZES[name])
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6, err_msg=str(n))


def test_hadamard_and_convolution_matrices():
    np.testing.assert_array_equal(linalg.hadamard(8), scipy.linalg.hadamard(8))
    for mode in ("full", "same", "valid"):
        for n in (2, 4, 6):
            expected = scipy.linalg.convolution_matrix(V, n, mode)
            np.testing.assert_array_equal(linalg.convolution_matrix(V, n, mode), expected)


@pytest.mark.slow
def test_batches():
    many = np.stack([A, A.T, SPD])
    np.testing.assert_allclose(linalg.solve(many, B), np.linalg.solve(many, B), rtol=1e-9)
    np.testing.assert_allclose(tvmfun.vmap(linalg.inv)(many), np.linalg.inv(many), rtol=1e-9)
    np.testing.assert_allclose(linalg.toeplitz(A)[1], scipy.linalg.toeplitz(A[1]))
    np.testing.assert_allclose(linalg.sqrtm(np.stack([SPD, 4 * np.eye(4)]))[1], 2 * np.eye(4), atol=1e-12)
    p, lower, upper = linalg.lu(many)
    np.testing.assert_allclose(p @ lower @ upper, many, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["solve", "expm", "sqrtm", "polar", "cho", "sylvester"])
def test_derivatives(name):
    functions = {
        "solve": (linalg.solve, (A, B)),
        "expm": (linalg.expm, (A / 4,)),
        "sqrtm": (linalg.sqrtm, (POSITIVE,)),
        "polar": (linalg.polar, (A,)),
        "cho": (lambda a, b: linalg.cho_solve(linalg.cho_factor(a @ a.T), b), (A, B)),
        "sylvester": (linalg.solve_sylvester, (A, SPD[:2, :2], B)),
    }
    function, args = functions[name]
    derivatives.check(function, args, order=1, tolerance=1e-5)


def test_names_of_jax_that_are_missing_are_listed():
    names = {name for name in dir(jax.scipy.linalg) if not name.startswith("_")}
    missing = names - set(linalg.__all__)
    assert all(f"``{name}``" in linalg.__doc__ for name in missing), missing
    assert len(missing) <= 0.1 * len(names)


WRONG = {
    "square": (ShapeError, r"^\[inv\] the matrix must be square", lambda: linalg.inv(W)),
    "vector": (ShapeError, r"^\[expm\] a matrix has two axes", lambda: linalg.expm(V)),
    "sizes": (ShapeError, r"^\[(solve|lu_solve)\] there must be a right-hand side", lambda: linalg.solve(A, W)),
    "trans": (ArgumentError, r"^\[solve_triangular\] trans must be", lambda: linalg.solve_triangular(A, V, 3)),
    "complex": (ArgumentError, r"^\[schur\] .*no complex numbers", lambda: linalg.schur(A, "complex")),
    "mode": (ArgumentError, r"^\[qr_multiply\] the mode must", lambda: linalg.qr_multiply(A, A, "up")),
    "product": (ShapeError, r"^\[qr_multiply\] .* does not fit", lambda: linalg.qr_multiply(A, W)),
    "hadamard": (ArgumentError, r"^\[hadamard\] the size must be a power of 2", lambda: linalg.hadamard(3)),
    "kind": (ArgumentError, r"^\[pascal\] the kind must be", lambda: linalg.pascal(3, "full")),
    "side": (ArgumentError, r"^\[polar\] the side is", lambda: linalg.polar(A, "up")),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors(case):
    error, message, call = WRONG[case]
    with pytest.raises(error, match=message):
        call()
