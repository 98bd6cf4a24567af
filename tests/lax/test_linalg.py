"""Decompositions against JAX and NumPy: batches, shapes, hard cases, and derivatives."""

from __future__ import annotations

import math
from itertools import combinations, permutations, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import oracle
from support.agreement import agree
from support.derivatives import check as finite_differences
from support.derivatives import in_numpy

import tvmfun
from tvmfun.errors import DtypeError, GradientError, ShapeError
from tvmfun.lax import linalg

RNG = np.random.default_rng(0)


def matrices(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape)


def positive(*shape: int) -> np.ndarray:
    x = matrices(*shape)
    return x @ np.swapaxes(x, -1, -2) + np.eye(shape[-1])


def symmetric(*shape: int) -> np.ndarray:
    x = matrices(*shape)
    return x + np.swapaxes(x, -1, -2)


def check(function, *arguments, tolerance=1e-9, **options):
    """Compares ``function(linalg, ...)`` of our module and of JAX's."""
    return agree(lambda lax, *args: function(lax.linalg, *args), *arguments, tolerance=tolerance, **options)


# -- against JAX -----------------------------------------------------------------------------------------------


@pytest.mark.quick("True-1x1", "False-4x4", "True-0x3x3")
@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3), (1, 1), (2, 0, 0), (0, 3, 3), (40, 40)])
@pytest.mark.parametrize("symmetrize", [True, False])
def test_cholesky(shape, symmetrize):
    x = positive(*shape)
    check(lambda m, x: m.cholesky(x, symmetrize_input=symmetrize), x, derivatives=symmetrize)


@pytest.mark.quick("True-False-False-False", "False-True-False-True")
@pytest.mark.parametrize("left_side", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("transpose_a", [True, False])
@pytest.mark.parametrize("unit_diagonal", [True, False])
def test_triangular_solve(left_side, lower, transpose_a, unit_diagonal):
    flags = {"left_side": left_side, "lower": lower, "transpose_a": transpose_a, "unit_diagonal": unit_diagonal}
    a, b = matrices(2, 4, 4) + 3 * np.eye(4), matrices(2, 4, 3) if left_side else matrices(2, 3, 4)
    check(lambda m, a, b: m.triangular_solve(a, b, **flags), a, b)


def test_triangular_solve_of_a_vector():
    a, b = matrices(4, 4) + 3 * np.eye(4), matrices(4)
    for left_side in (True, False):
        x = linalg.triangular_solve(a, b, left_side=left_side, lower=True)
        np.testing.assert_allclose(x, np.linalg.solve(np.tril(a) if left_side else np.tril(a).T, b), rtol=1e-12)


@pytest.mark.quick("4x4")
@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3), (3, 5), (5, 3), (1, 1), (33, 70), (0, 4), (45, 40), (2, 3, 0)])
def test_lu(shape):
    check(lambda m, x: m.lu(x), matrices(*shape))


@pytest.mark.quick("3x3")
@pytest.mark.parametrize("pivots", [[2, 2, 2], [0, 1, 2], [3, 3], []])
def test_lu_pivots_to_permutation(pivots):
    check(lambda m, p: m.lu_pivots_to_permutation(p, 4), np.asarray(pivots, "int32"))
    check(lambda m, p: m.lu_pivots_to_permutation(p, 4), np.asarray([pivots, pivots[::-1]], "int32").reshape(2, -1))


@pytest.mark.quick("4x4-True")
@pytest.mark.parametrize(
    ("shape", "full"),
    [((4, 4), True), ((2, 3, 3), False), ((3, 5), True), ((3, 5), False), ((5, 3), False), ((1, 1), True)],
)
def test_qr(shape, full):
    check(lambda m, x: m.qr(x, full_matrices=full), matrices(*shape), derivatives=shape[-2] >= shape[-1])


@pytest.mark.parametrize("shape", [(5, 3), (2, 6, 4), (3, 0), (0, 3)])
def test_full_qr(shape):
    check(lambda m, x: m.qr(x, full_matrices=True), matrices(*shape), derivatives=False)


def invariant(v, w):
    """A function of eigenvectors that does not depend on their signs."""
    return (v[..., None, :, :] * v[..., :, None, :] * w[..., None, None, :]).sum(-1), (v**4).sum(-2)


OPTIONS = [{}, {"symmetrize_input": False}, {"symmetrize_input": False, "lower": False}]


@pytest.mark.quick("options6-2x3x3", "options3-2x0x0", "options12-1x1")
@pytest.mark.parametrize(("options", "shape"), list(product(OPTIONS, [(4, 4), (2, 3, 3), (1, 1), (2, 0, 0), (30, 30)])))
def test_eigh(shape, options):
    def both(m, x):
        v, w = m.eigh(x, **options)
        return w, *invariant(v, w)

    check(both, symmetric(*shape), derivatives=not options)


@pytest.mark.parametrize("diagonal", [(1, 1, 1), (2, 1, 1), (1, 3, 1, 3)], ids=str)
def test_equal_eigenvalues_stay_in_order(diagonal):
    values, vectors = np.linalg.eigh(np.diag(np.float64(diagonal)))
    vectors_of, values_of = linalg.eigh(np.diag(np.float64(diagonal)))
    np.testing.assert_array_equal(values_of, values)
    np.testing.assert_array_equal(np.abs(vectors_of), np.abs(vectors))


@pytest.mark.quick("2x3x3")
@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3), (5, 3), (20, 30), (1, 1), (3, 5), (3, 0)])
def test_svd(shape):
    def both(m, x):
        u, s, vt = m.svd(x, full_matrices=False)
        pairs = u[..., :, None, :] * jnp.swapaxes(vt, -1, -2)[..., None, :, :] if m is not linalg else None
        if pairs is None:
            pairs = u[..., :, None, :] * tvmfun.numpy.matrix_transpose(vt)[..., None, :, :]
        invariants = (pairs * s[..., None, None, :] ** 2).sum(-1), (u**4).sum(-2), (vt**4).sum(-1)
        return s, m.svd(x, compute_uv=False), *invariants

    check(both, matrices(*shape))


@pytest.mark.quick("3x5", "3x0")
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 4, 4), (3, 0)])
def test_full_svd(shape):
    x = matrices(*shape)
    u, s, vt = (np.asarray(part) for part in linalg.svd(x))
    k = min(shape[-2:])
    np.testing.assert_allclose(u[..., :k] * s[..., None, :] @ vt[..., :k, :], x, atol=1e-13)
    for q in (u, np.swapaxes(vt, -1, -2)):
        np.testing.assert_allclose(
            np.swapaxes(q, -1, -2) @ q, np.broadcast_to(np.eye(q.shape[-1]), q.shape), atol=1e-14
        )


SQUARE = [(4, 4), (2, 3, 3), (1, 1), (2, 2), (9, 9)]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [*SQUARE, (2, 0, 3, 3)])
def test_reductions(shape):
    x = matrices(*shape)
    both = lambda m, x: [m.tridiagonal(x, lower=lower) for lower in (True, False)]
    check(lambda m, x: (m.hessenberg(x), both(m, x)), x, derivatives=False)
    finite_differences(linalg.hessenberg, (x,))


SCHUR = [
    *(("float64", shape) for shape in (*SQUARE, (2, 0, 0), (12, 12), (0, 3, 3))),
    *(("float32", shape) for shape in ((4, 4), (12, 12), (1, 1), (0, 3, 3))),
]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "shape"), SCHUR)
def test_schur(dtype, shape):
    x = matrices(*shape).astype(dtype)
    t, q = map(np.asarray, tvmfun.jit(linalg.schur)(x))
    turned = np.swapaxes(q, -1, -2)
    tolerance = 1e-12 if dtype == "float64" else 1e-4
    np.testing.assert_allclose(q @ t @ turned, x, atol=tolerance)
    np.testing.assert_allclose(q @ turned, np.broadcast_to(np.eye(shape[-1]), shape), atol=tolerance)
    assert t.dtype == q.dtype == dtype
    np.testing.assert_array_equal(np.tril(t, -2), np.zeros_like(t))
    below = np.diagonal(t, -1, -2, -1)
    assert not (below[..., 1:] * below[..., :-1]).any()
    above, diagonal = np.diagonal(t, 1, -2, -1), np.diagonal(t, 0, -2, -1)
    assert ((below == 0) | ((above * below < 0) & (diagonal[..., 1:] == diagonal[..., :-1]))).all()
    if x.size:
        values = [np.sort_complex(np.linalg.eigvals(y.astype("float64"))) for y in (x, t)]
        np.testing.assert_allclose(*values, atol=100 * tolerance)


@pytest.mark.slow
def test_schur_of_hard_matrices():
    # Of few sizes, each of which is compiled.
    ring = np.roll(np.eye(6), 1, axis=0)
    block = np.array([[1.0, 2.0], [-2.0, 1.0]])
    hard = [np.diag(np.ones(5), -1), ring, np.array([[1e300, 1], [1e-300, 2.0]])]
    schur = tvmfun.jit(linalg.schur)
    for x in [*hard, np.kron(np.eye(3), block) + np.diag(np.ones(4), 2), hilbert(6), 1e-200 * m, *HARD.values()]:
        t, q = map(np.asarray, schur(x))
        assert np.abs(q @ t @ q.T - x).max() <= 1e-13 * np.abs(x).max()
        assert is_orthogonal(q, 1e-13)
    assert np.isnan(schur(np.full((6, 6), np.nan))[0]).all()
    (alone,) = tvmfun.jit(lambda x: linalg.schur(x, compute_schur_vectors=False))(m)
    np.testing.assert_allclose(alone, schur(m)[0], atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 3), (3, 1), (4, 0), (0, 4, 2)])
def test_products_of_reflections(shape):
    h, taus = (np.asarray(x) for x in tvmfun.numpy.linalg.qr(matrices(*shape), mode="raw"))
    h = np.swapaxes(h, -1, -2).copy()
    if not h.size:
        check(lambda m, a, taus: m.householder_product(a, taus), h, taus, derivatives=False)
        return

    def products(m, a, taus, rows, columns):
        sides = product(((True, rows), (False, columns)), (True, False))
        turned = [m.ormqr(a, taus, c, left=left, transpose=transpose) for (left, c), transpose in sides]
        return m.householder_product(a, taus), turned

    rows, columns = matrices(*shape[:-1], 2), np.swapaxes(matrices(*shape[:-1], 2), -1, -2).copy()
    check(products, h, taus, rows, columns, derivatives=False)
    finite_differences(linalg.householder_product, (h, taus))


@pytest.mark.slow
def test_raw_qr():
    for shape in ((4, 4), (2, 5, 3), (3, 5), (3, 0)):
        x = matrices(*shape)
        with oracle.x64():
            expected = jnp.linalg.qr(x, mode="raw")
        for ours, theirs in zip(tvmfun.numpy.linalg.qr(x, mode="raw"), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 3), (3, 5), (1, 1), (3, 0)])
def test_pivoted_qr(shape):
    x = matrices(*shape)
    both = lambda m, x: [m.qr(x, pivoting=True, full_matrices=full) for full in (True, False)]
    check(both, x, derivatives=False)
    finite_differences(lambda x: linalg.qr(x, pivoting=True, full_matrices=False)[:2], (x,), order=1)


@pytest.mark.slow
@pytest.mark.parametrize("lead", [(), (2,)])
@pytest.mark.parametrize("size", [1, 2, 6])
def test_tridiagonal_solve(lead, size):
    dl, d, du = (matrices(*lead, size) for _ in range(3))
    d[..., 0] = 0 if size > 1 else 1  # a pivot that must be exchanged
    dl[..., 0] = du[..., -1] = 0
    b = matrices(*lead, size, 3)
    check(lambda m, *args: m.tridiagonal_solve(*args), dl, d, du, b, derivatives=False)
    finite_differences(linalg.tridiagonal_solve, (dl, d, du, b), order=2, tolerance=1e-4)
    singular = linalg.tridiagonal_solve(0 * dl, 0 * d, 0 * du, b, perturb_singular=True)
    assert np.isfinite(singular).all()


@pytest.mark.slow
def test_cholesky_update():
    r = np.swapaxes(np.linalg.cholesky(positive(5, 5)), -1, -2).copy()
    w = matrices(5)
    check(lambda m, r, w: m.cholesky_update(r, w), r, w, derivatives=False)
    finite_differences(lambda r, w: linalg.cholesky_update(tvmfun.numpy.triu(r), w), (r, w), order=2)
    both = linalg.cholesky_update(np.stack([r, 2 * r]), w)
    np.testing.assert_allclose(both[1], np.linalg.cholesky(4 * r.T @ r + np.outer(w, w)).T, rtol=1e-10)
    assert linalg.cholesky_update(np.zeros((0, 0)), np.zeros(0)).shape == (0, 0)


def test_symmetric_product():
    a, c = matrices(2, 4, 3), symmetric(2, 4, 4)
    options = {"alpha": 2.0, "beta": -1.0, "symmetrize_output": True}
    check(lambda m, a, c: m.symmetric_product(a, c, **options), a, c, derivatives=False)
    np.testing.assert_allclose(linalg.symmetric_product(a, c), a @ np.swapaxes(a, -1, -2), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4, 4), (6, 3), (1, 1)])
def test_qdwh(shape):
    x = matrices(*shape)
    check(lambda m, x: m.qdwh(x)[:2], x, derivatives=False)

    @tvmfun.jit
    def results(x, padded):
        return linalg.qdwh(x), linalg.qdwh(padded, dynamic_shape=shape)[0], linalg.qdwh(x, max_iterations=1)[3]

    (u, _, count, converged), padded, at_once = results(x, np.pad(x, (0, 1), constant_values=7.0))
    assert converged and 1 <= int(count) <= 8 and is_orthogonal(u, 1e-13)
    np.testing.assert_allclose(np.asarray(padded)[:-1, :-1], u, atol=1e-12)
    assert x.size == 1 or not at_once


# -- hard cases ------------------------------------------------------------------------------------------------


def hilbert(n: int) -> np.ndarray:
    return 1 / (1 + np.add.outer(np.arange(n), np.arange(n)))


def is_orthogonal(q, tolerance):
    q = np.asarray(q, np.float64)
    return np.abs(np.swapaxes(q, -1, -2) @ q - np.eye(q.shape[-1])).max(initial=0) < tolerance


# Of few sizes, each of which is compiled.
HARD = {
    "hilbert": hilbert(10),
    "zeros": np.zeros((6, 6)),
    "ones": np.ones((6, 6)),
    "identity": np.eye(6),
    "diagonal of many sizes": np.diag(10.0 ** np.arange(-15, 15, 3)),
    "tiny": 1e-300 * (m := RNG.normal(size=(6, 6))) @ m.T,
    "huge": 1e300 * (m / 10) @ (m / 10).T,
    "rank 1": np.outer(m[0], m[0]),
    "repeated": (q := np.linalg.qr(m)[0]) * [1, 1, 1, 2, 2, 3] @ q.T,
    "tridiagonal": np.diag(np.ones(20), 1) + np.diag(np.ones(20), -1) - 2 * np.eye(21),
    "wilkinson": np.diag(np.abs(np.arange(-10.0, 11))) + np.diag(np.ones(20), 1) + np.diag(np.ones(20), -1),
}


@pytest.mark.quick("float64-hilbert")
@pytest.mark.parametrize(("dtype", "name"), list(product(["float64", "float32"], HARD)))
def test_hard_cases(name, dtype):
    if dtype == "float32" and name in ("tiny", "huge"):
        x = (HARD[name] * (1e262 if name == "tiny" else 1e-263)).astype(dtype)
    else:
        x = HARD[name].astype(dtype)
    epsilon = 50 * float(np.finfo(dtype).eps) * len(x)
    scale = float(np.abs(x).max()) or 1.0
    wide = x.astype(np.float64) / scale
    v, w = linalg.eigh(x)
    assert is_orthogonal(v, epsilon)
    np.testing.assert_allclose(np.asarray(w, np.float64) / scale, np.linalg.eigvalsh(wide), rtol=0, atol=epsilon)
    u, s, vt = (np.asarray(part, np.float64) for part in linalg.svd(x))
    assert is_orthogonal(u, epsilon)
    assert is_orthogonal(vt.T, epsilon)
    np.testing.assert_allclose(s / scale, np.linalg.svd(wide, compute_uv=False), rtol=0, atol=epsilon)
    np.testing.assert_allclose(u * (s / scale) @ vt, wide, rtol=0, atol=epsilon)
    q, r = (np.asarray(part, np.float64) for part in linalg.qr(x))
    assert is_orthogonal(q, epsilon)
    np.testing.assert_allclose(q @ (r / scale), wide, rtol=0, atol=epsilon)
    lu, _, order = (np.asarray(part, np.float64) for part in linalg.lu(x))
    product = (np.tril(lu, -1) + np.eye(len(x))) @ (np.triu(lu) / scale)
    np.testing.assert_allclose(product, wide[order.astype(int)], rtol=0, atol=epsilon)


def test_small_singular_values_of_a_graded_matrix_are_accurate():
    # Of rows of very different sizes one-sided rotations find all digits; their product is the determinant.
    sizes, x = 10.0 ** -np.arange(0, 30, 3), np.eye(10) + 0.1 * RNG.normal(size=(10, 10))
    s = np.asarray(linalg.svd(sizes[:, None] * x, compute_uv=False))
    assert np.prod(s) == pytest.approx(np.prod(sizes) * abs(np.linalg.det(x)), rel=1e-12)


def test_not_positive_definite():
    x = np.stack([np.eye(3), -np.eye(3), np.eye(3)])
    x[2, 2, 2] = np.nan
    found = np.asarray(linalg.cholesky(x))
    np.testing.assert_array_equal(found[0], np.eye(3))
    for other in found[1:]:
        assert np.isnan(other[np.tril_indices(3)]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_comes_out_as_nan(bad):
    x = np.stack([np.eye(4), symmetric(4, 4)])
    x[1, 2, 1] = bad
    for result in (*linalg.eigh(x, symmetrize_input=False), *linalg.svd(x)):
        assert np.isfinite(np.asarray(result)[0]).all()
        assert np.isnan(np.asarray(result)[1]).all()


def test_singular_systems_divide_by_zero():
    a = np.asarray([[1.0, 0.0], [2.0, 0.0]])
    x = np.asarray(linalg.triangular_solve(a, np.ones((2, 1)), left_side=True, lower=True))
    assert x[0] == 1
    assert np.isinf(x[1])
    lu, pivots, _ = linalg.lu(np.zeros((3, 3)))
    assert np.asarray(lu).tolist() == np.zeros((3, 3)).tolist()
    assert pivots.tolist() == [0, 1, 2]


@pytest.mark.slow
@settings(max_examples=3)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 8), st.integers(1, 8))
def test_any_matrix(seed, batch, m, n):
    x = np.random.default_rng(seed).normal(size=(batch, m, n))
    q, r = (np.asarray(part) for part in linalg.qr(x, full_matrices=False))
    np.testing.assert_allclose(q @ r, x, atol=1e-13)
    u, s, vt = (np.asarray(part) for part in linalg.svd(x, full_matrices=False))
    np.testing.assert_allclose(u * s[:, None] @ vt, x, atol=1e-13)
    np.testing.assert_allclose(s, np.linalg.svd(x, compute_uv=False), atol=1e-13)


# -- derivatives of functions of them --------------------------------------------------------------------------


@pytest.mark.slow
def test_derivatives_where_vectors_are_not_determined():
    # Functions of all eigenvectors together have derivatives also where eigenvalues are equal.
    x = np.eye(3)
    total = lambda x: (linalg.eigh(x)[1] ** 2).sum()
    np.testing.assert_allclose(tvmfun.jit(tvmfun.grad(total))(x), 2 * np.eye(3), atol=1e-14)
    nuclear = lambda x: linalg.svd(x, full_matrices=False)[1].sum()
    np.testing.assert_allclose(tvmfun.jit(tvmfun.grad(nuclear))(np.diag([2.0, 2.0, 1.0])), np.eye(3), atol=1e-14)
    x = np.outer([1.0, 2.0, 3.0], [1.0, 0.0]) / np.sqrt(14)
    largest = lambda x: linalg.svd(x, full_matrices=False)[1][0]
    np.testing.assert_allclose(tvmfun.jit(tvmfun.grad(largest))(x), x, atol=1e-14)


@pytest.mark.parametrize("call", [lambda x: linalg.qr(x)[0].sum(), lambda x: linalg.svd(x)[0].sum()])
def test_completed_columns_have_no_derivative(call):
    with pytest.raises(GradientError, match="full_matrices=False"):
        tvmfun.grad(call)(matrices(4, 2))


@pytest.mark.slow
def test_in_vmap():
    x, b = positive(3, 4, 4), matrices(3, 4, 2)

    def both(m, x, b):
        factor = m.cholesky(x)
        return factor, m.triangular_solve(factor, b, left_side=True, lower=True), *m.lu(x), *m.qr(x)

    with oracle.x64():
        expected = jax.jit(jax.vmap(lambda x, b: both(jax.lax.linalg, x, b)))(x, b)
    found = tvmfun.jit(tvmfun.vmap(lambda x, b: both(linalg, x, b)))(x, b)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)
    shared = tvmfun.vmap(lambda b: linalg.triangular_solve(x[0], b, left_side=True))(b)
    np.testing.assert_allclose(shared, np.linalg.solve(np.triu(x[0]), b), atol=1e-12)


@pytest.mark.slow
def test_reductions_in_vmap():
    x, v, b = matrices(3, 4, 4), matrices(3, 4), matrices(4, 2)

    def all_of(x, v):
        u, h, count, _ = linalg.qdwh(x)
        updated = linalg.cholesky_update(tvmfun.numpy.triu(x) + 5 * np.eye(4), v)
        solved = linalg.tridiagonal_solve(v, v + 4, v, b)
        return *linalg.schur(x), *linalg.hessenberg(x), *linalg.qr(x, pivoting=True), u, h, count, updated, solved

    found, one = tvmfun.jit(tvmfun.vmap(all_of))(x, v), in_numpy(all_of, x[0], v[0])
    for i in range(3):
        for ours, expected in zip(found, one(x[i], v[i]), strict=True):
            np.testing.assert_allclose(ours[i], expected, atol=1e-11)


def test_errors():
    x = np.ones((3, 4))
    for name, arguments in (("cholesky", (x,)), ("eigh", (x,)), ("triangular_solve", (x, x))):
        with pytest.raises(ShapeError, match=rf"^\[{name}\] "):
            getattr(linalg, name)(*arguments)
    for name in ("cholesky", "eigh", "lu", "qr", "svd"):
        with pytest.raises(ShapeError, match=rf"^\[{name}\] "):
            getattr(linalg, name)(x[0])
    with pytest.raises(ShapeError, match=r"^\[triangular_solve\] "):
        linalg.triangular_solve(np.eye(3), np.ones((4, 2)), left_side=True)
    with pytest.raises(DtypeError, match=r"^\[lu\] .*float16"):
        linalg.lu(np.ones((2, 2), "float16"))
    wrong = {
        "cholesky_update": (np.eye(3), np.ones(2)),
        "hessenberg": (x,),
        "householder_product": (x, np.ones(2)),
        "ormqr": (np.eye(3), np.ones(4), np.eye(3)),
        "qdwh": (x,),
        "schur": (x,),
        "symmetric_product": (x, np.eye(4)),
        "tridiagonal": (np.ones((0, 0)),),
        "tridiagonal_solve": (np.ones(2), np.ones(3), np.ones(3), np.ones((3, 1))),
    }
    for name, arguments in wrong.items():
        with pytest.raises(ShapeError, match=rf"^\[{name}\] "):
            getattr(linalg, name)(*arguments)
    with pytest.raises(ShapeError, match=r"^\[lu_pivots_to_permutation\] "):
        linalg.lu_pivots_to_permutation(np.zeros(3, "int32"), 2)


@pytest.mark.quick("grad-schur")
@pytest.mark.parametrize("name", ["schur", "qdwh"])
@pytest.mark.parametrize("transform", [tvmfun.grad, lambda f: lambda x: tvmfun.jvp(f, (x,), (x,))])
def test_what_has_no_derivative_says_so(name, transform):
    x = np.eye(3) + 1
    with pytest.raises(GradientError, match=rf"\[{name}\] it has no derivative, got float64\[3,3\]"):
        transform(lambda x: tvmfun.numpy.sum(getattr(tvmfun.lax.linalg, name)(x)[0]))(x)
    of_stopped = lambda x: tvmfun.numpy.sum(getattr(linalg, name)(tvmfun.lax.stop_gradient(x))[0])
    stopped = tvmfun.jit(tvmfun.grad(of_stopped))(x)
    np.testing.assert_array_equal(np.asarray(stopped), 0)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("rank", [0, 1, 2, 3, 4])
def test_determinants_of_singular_matrices(size, rank):
    """A determinant is a polynomial, whose derivatives hold at any rank."""
    rng = np.random.default_rng(size)
    x = rng.normal(size=(size, min(rank, size))) @ rng.normal(size=(min(rank, size), size))
    if rank == 3:
        x[-1] = 0

    def leibniz(a):
        signed = [(p, (-1) ** sum(i > j for i, j in combinations(p, 2))) for p in permutations(range(size))]
        return sum(sign * math.prod(a[i, j] for i, j in enumerate(p)) for p, sign in signed)

    with jax.enable_x64(True):
        expected = [leibniz(x), jax.grad(leibniz)(x), jax.hessian(leibniz)(x)]
    det = tvmfun.numpy.linalg.det
    for got, want in zip([det(x), tvmfun.grad(det)(x), tvmfun.hessian(det)(x)], expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)


def adjugate(a):
    size = len(a)
    minor = lambda i, j: np.linalg.det(np.delete(np.delete(a, j, 0), i, 1))
    return np.array([[(-1) ** (i + j) * minor(i, j) for j in range(size)] for i in range(size)])


SINGULAR = {
    "equal columns": lambda a: np.concatenate([a[:, 1:2], a[:, 1:]], 1),
    "equal rows": lambda a: np.concatenate([a[:-1], a[:1]]),
    "a column of zeros": lambda a: a * (np.arange(len(a)) != 2),
    "a row of zeros": lambda a: a * (np.arange(len(a)) != 2)[:, None],
    "two columns of zeros": lambda a: a * (np.arange(len(a)) < len(a) - 2),
    "small integers": lambda a: np.concatenate([a[:, :-1], a[:, :2].sum(1, keepdims=True)], 1).round(),
    "zeros": np.zeros_like,
}


@pytest.mark.parametrize("size", [5, 6, 17])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.quick("float64-5", "float32-17")
def test_gradients_of_determinants_of_larger_singular_matrices(size, dtype):
    rng = np.random.default_rng(size)
    x = np.stack([make(rng.normal(size=(size, size))) for make in SINGULAR.values()])
    want = np.stack([adjugate(a).T for a in x])
    det, sum = tvmfun.numpy.linalg.det, tvmfun.numpy.sum
    dynamic = tvmfun.jit(tvmfun.grad(lambda x: sum(det(x))), dynamic_shapes=(("b", "n", "n"),))
    gradients = {
        "batch": tvmfun.grad(lambda x: sum(det(x))),
        "vmap": tvmfun.vmap(tvmfun.grad(det)),
        "forward": tvmfun.vmap(tvmfun.jacfwd(det)),
        "dynamic": dynamic,
    }
    scale = np.abs(want).max((1, 2), keepdims=True) + 1e-30
    for name, gradient in gradients.items():
        got = np.asarray(gradient(x.astype(dtype)))
        tolerance = 50 * size * np.finfo(dtype).eps
        np.testing.assert_array_less(np.abs(got - want) / scale, tolerance, err_msg=name)
