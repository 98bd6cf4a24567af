"""Iterative solvers of linear systems against JAX's, and against dense solutions and their derivatives."""

import jax
import jax.numpy as jnp
import jax.scipy.sparse.linalg as theirs
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from support import oracle

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.errors import ArgumentError, ArgumentTypeError, ShapeError, TreeError
from tvmfun.scipy.sparse import linalg

#: Solver and options.
SOLVERS = {
    "cg": ("cg", {}),
    "bicgstab": ("bicgstab", {}),
    "batched": ("gmres", {"solve_method": "batched"}),
    "incremental": ("gmres", {"solve_method": "incremental"}),
}
solvers = pytest.mark.parametrize("solver", SOLVERS)


def solve(solver, a, b, of=linalg, **options):
    name, more = SOLVERS[solver]
    return getattr(of, name)(a, b, **more, **options)[0]


def system(solver, seed=0, size=12, dtype="float64"):
    """A matrix that the solver takes, and a vector."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(size, size))
    a = a @ a.T + size * np.eye(size) if solver == "cg" else a + 3 * np.sqrt(size) * np.eye(size)
    return a.astype(dtype), rng.normal(size=size).astype(dtype)


def symmetric(solver, a):
    """The matrix that a matrix of parameters stands for: a solver of symmetric ones has derivatives for those only."""
    return (a + a.T) / 2 if solver == "cg" else a


@pytest.mark.quick("float64-cg", "float32-batched")
@solvers
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_solutions(solver, dtype):
    a, b = system(solver, dtype=dtype)
    tol = 1e-11 if dtype == "float64" else 1e-6
    for operator in (a, lambda x: tnp.asarray(a) @ x):
        x = solve(solver, operator, b, tol=tol)
        assert isinstance(x, tvmfun.Array) and x.dtype == dtype
        np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=0, atol=20 * tol)
    with oracle.x64():
        np.testing.assert_allclose(x, solve(solver, a, b, theirs, tol=tol), rtol=0, atol=20 * tol)
    # The tolerance is that of the residual.
    for options, bound in (({}, 1e-5 * np.linalg.norm(b)), ({"tol": 0.0, "atol": 0.02}, 0.02)):
        residual = np.linalg.norm(b - a @ np.asarray(solve(solver, a, b, **options)))
        assert residual <= bound * 1.01
        if solver != "batched":
            assert residual > bound / 1e4


@pytest.mark.quick("cg-guess and preconditioner", "batched-preconditioner", "incremental-guess")
@pytest.mark.parametrize("options", ["none", "guess", "preconditioner", "guess and preconditioner"])
@solvers
def test_steps_are_those_of_jax(solver, options):
    """Unfinished solutions differ from method to method, and agree only if each step is the same."""
    a, b = system(solver, size=15)
    rng = np.random.default_rng(1)
    more = {"x0": rng.normal(size=15), "M": np.diag(rng.uniform(0.5, 2, size=15))}
    more = {key: more[key] for key, word in (("x0", "guess"), ("M", "preconditioner")) if word in options}
    if SOLVERS[solver][0] == "gmres":
        more["restart"] = 2
    run = lambda of: lambda count: solve(solver, a, b, of, tol=1e-14, maxiter=count, **more)
    ours, other = tvmfun.jit(run(linalg)), oracle.quick_jit(run(theirs))
    for count in (0, 1, 2, 4):
        with oracle.x64():
            expected = other(count)
        got = ours(count)
        np.testing.assert_allclose(got, expected, rtol=1e-7, atol=1e-12)
        assert np.abs(got - np.linalg.solve(a, b)).max() > 1e-9


@pytest.mark.quick("incremental")
@solvers
def test_trees(solver):
    a, b = system(solver, size=9)
    split = lambda xp, x: {"u": x[:4].reshape(2, 2), "v": [x[4:8], x[8]]}
    join = lambda xp, x: xp.concatenate([x["u"].ravel(), x["v"][0], x["v"][1][None]])

    def found(xp, of):
        apply = lambda x: split(xp, xp.asarray(a) @ join(xp, x))
        scaled = lambda x: split(xp, join(xp, x) / xp.asarray(np.diag(a)))
        return solve(solver, apply, split(xp, xp.asarray(b)), of, x0=split(xp, xp.ones(9)), M=scaled, tol=1e-12)

    got = found(tnp, linalg)
    np.testing.assert_allclose(join(tnp, got), np.linalg.solve(a, b), atol=1e-10)
    with oracle.x64():
        expected = found(jnp, theirs)
    assert tvmfun.tree.structure(got) == tvmfun.tree.structure(expected)
    for ours, other in zip(tvmfun.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert ours.shape == other.shape and ours.dtype == other.dtype
        np.testing.assert_allclose(ours, other, atol=1e-10)


@pytest.mark.slow
@solvers
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_random_systems(solver, data):
    size, seed = data.draw(st.integers(1, 12)), data.draw(st.integers(0, 1000))
    a, b = system(solver, seed, size)
    columns = data.draw(st.integers(0, 3))
    if columns:  # a matrix of right-hand sides is one vector
        b = np.random.default_rng(seed).normal(size=(size, columns))
    options = {"x0": np.ones_like(b)} if data.draw(st.booleans()) else {}
    if data.draw(st.booleans()):
        options["M"] = np.linalg.inv(a) + (0.01 if solver != "cg" else 0.0)
    if SOLVERS[solver][0] == "gmres":
        options["restart"] = data.draw(st.integers(3, 30))
    np.testing.assert_allclose(solve(solver, a, b, tol=1e-12, **options), np.linalg.solve(a, b), atol=1e-9)


@solvers
def test_derivatives(solver):
    a, b = system(solver, size=6)
    rng = np.random.default_rng(2)
    w, da, db = rng.normal(size=6), rng.normal(size=(6, 6)), rng.normal(size=6)

    def derivatives(lib, solution):
        function = lambda a, b: (w * solution(symmetric(solver, a), b) ** 2).sum()
        gradient = lib.grad(function, argnums=(0, 1))
        along = lambda a, b: lib.jvp(gradient, (a, b), (da, db))
        forward = lambda a, b: lib.jvp(function, (a, b), (da, db))[1]
        return lambda a, b: (along(a, b), forward(a, b), lib.grad(forward, argnums=(0, 1))(a, b))

    ours = lambda a, b: solve(solver, lambda x: a @ x, b, tol=1e-13)
    got = tvmfun.jit(derivatives(tvmfun, ours))(a, b)
    with oracle.x64():
        expected = oracle.quick_jit(derivatives(jax, jnp.linalg.solve))(a, b)
    for one, other in zip(tvmfun.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@solvers
def test_hessians_and_jacobians(solver):
    a, b = system(solver, size=4)
    function = lambda b: tnp.sum(solve(solver, lambda x: a @ x + 0.0 * b[0] * x, b, tol=1e-13) ** 3)
    with oracle.x64():
        expected = jax.hessian(lambda b: jnp.sum(jnp.linalg.solve(a, b) ** 3))(b)
    np.testing.assert_allclose(tvmfun.hessian(function)(b), expected, atol=1e-10)
    # Some of the cotangents are zeros, with a guess that does not solve that system.
    both = lambda b: tnp.concatenate([solve(solver, a, b, x0=tnp.ones(4), tol=1e-13), b])
    for jacobian in (tvmfun.jacrev(both)(b), tvmfun.jacfwd(both)(b)):
        np.testing.assert_allclose(jacobian, np.vstack([np.linalg.inv(a), np.eye(4)]), atol=1e-11)


@pytest.mark.quick("cg")
@solvers
def test_eager_derivatives_of_more_than_the_matrix(solver):
    """The guess and the preconditioner have none, and may be of the same value."""
    a, b = system(solver, size=6)

    def function(scale):
        m = lambda x: x / (scale * np.diag(a))
        return tnp.sum(solve(solver, lambda x: scale * (a @ x), b, x0=scale * b, M=m, tol=1e-13))

    expected = -np.linalg.solve(a, b).sum() / 4
    np.testing.assert_allclose(tvmfun.grad(function)(np.asarray(2.0)), expected, rtol=1e-10)
    np.testing.assert_allclose(tvmfun.jvp(function, (np.asarray(2.0),), (np.asarray(1.0),))[1], expected, rtol=1e-10)


@pytest.mark.parametrize("solver", ["bicgstab", "incremental"])
def test_the_transposed_system_has_the_transposed_preconditioner(solver):
    """Two steps suffice with a good preconditioner, which is a bad one of the transposed system."""
    rng = np.random.default_rng(0)
    a = np.triu(rng.normal(size=(30, 30)), 1) * 5 + np.diag(np.linspace(1, 2, 30))
    m = np.linalg.inv(a)
    loss = lambda b: tnp.sum(solve(solver, a, b, M=m, tol=1e-10, maxiter=2))
    expected = np.linalg.solve(a.T, np.ones(30))
    assert np.abs(tvmfun.grad(loss)(rng.normal(size=30)) - expected).max() < 1e-6 * np.abs(expected).max()


def test_preconditioners_without_a_transpose():
    a, b = system("bicgstab")
    halve = lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] / 2), (0, x))[1]
    gradient = tvmfun.jit(tvmfun.grad(lambda b: tnp.sum(solve("bicgstab", a, b, M=halve, tol=1e-12))))(b)
    np.testing.assert_allclose(gradient, np.linalg.solve(a.T, np.ones(12)), atol=1e-10)


@pytest.mark.quick("cg", "incremental")
@solvers
def test_batches_end_one_by_one(solver):
    systems = [system(solver, seed, 8) for seed in range(3)]
    a, b = np.stack([a for a, _ in systems]), np.stack([b for _, b in systems])
    a[1] = 2 * np.eye(8)  # one step
    b[2] = 0  # none
    found = tvmfun.jit(tvmfun.vmap(lambda a, b: solve(solver, a, b, tol=1e-12)))(a, b)
    np.testing.assert_allclose(found, np.linalg.solve(a, b[..., None])[..., 0], atol=1e-10)
    assert (np.asarray(found[2]) == 0).all()
    loss = lambda b: tnp.sum(tvmfun.vmap(lambda a, b: solve(solver, a, b, tol=1e-12))(a, b) ** 2)
    expected = [2 * np.linalg.solve(one.T, np.linalg.solve(one, c)) for one, c in zip(a, b, strict=True)]
    np.testing.assert_allclose(tvmfun.grad(loss)(b), expected, atol=1e-10)


@pytest.mark.slow
@solvers
def test_loops(solver):
    """Implicit steps of a differential equation."""
    a, b = system(solver, size=5)
    a = a / np.linalg.norm(a)

    def run(a, b):
        step = lambda x, _: (solve(solver, lambda v: v + 0.1 * (symmetric(solver, a) @ v), x, x0=x, tol=1e-13), None)
        return tnp.sum(lax.scan(step, b, None, length=3)[0])

    power = lambda b: np.linalg.matrix_power(np.linalg.inv(np.eye(5) + 0.1 * a), 3) @ b
    np.testing.assert_allclose(tvmfun.jit(run)(a, b), power(b).sum(), rtol=1e-10)
    gradient = tvmfun.jit(tvmfun.grad(run, argnums=1))(a, b)
    np.testing.assert_allclose(gradient, [power(e).sum() for e in np.eye(5)], rtol=1e-9)


@pytest.mark.quick("bicgstab", "incremental")
@solvers
def test_zeros_and_nans(solver):
    a, b = system(solver)
    zeros = np.zeros(12)
    assert (np.asarray(solve(solver, a, zeros)) == 0).all()
    # No step from another guess makes the residual smaller than 0.
    assert (np.asarray(solve(solver, a, zeros, x0=b)) == 0).all()
    assert (np.asarray(solve(solver, a, a @ b, x0=b)) == b).all()
    # Steps to the last digit do not divide 0 by 0.
    np.testing.assert_allclose(solve(solver, a, b, tol=0.0), np.linalg.solve(a, b), atol=1e-12)
    np.testing.assert_allclose(solve(solver, 2 * np.eye(12), b, tol=0.0), b / 2, atol=1e-15)
    small = solve(solver, 0.1 * np.eye(12, dtype="float32"), b.astype("float32"), tol=0.0)
    np.testing.assert_allclose(small, 10 * b, rtol=1e-5)
    b[3] = np.nan
    assert np.isnan(np.asarray(solve(solver, a, b))).all()
    assert np.isnan(np.asarray(solve(solver, np.nan * a, zeros + 1))).all()


def test_information():
    a, b = system("batched")
    assert linalg.cg(a @ a.T, b)[1] is None and linalg.bicgstab(a, b)[1] is None
    found, wrong = (tvmfun.jit(lambda b: linalg.gmres(a, b)[1])(b * factor) for factor in (1.0, np.nan))
    assert (int(found), int(wrong)) == (0, -1)
    with oracle.x64():
        assert int(theirs.gmres(a, b)[1]) == 0


@pytest.mark.parametrize("solver", ["batched", "incremental"])
def test_cycles_that_cannot_go_on(solver):
    # A shift needs all dimensions; with fewer no cycle makes any progress, and there need not be ten thousand.
    shift, b = np.roll(np.eye(1000), 1, axis=0), np.eye(1000)[0]
    assert (np.asarray(solve(solver, shift, b, restart=3)) == 0).all()
    np.testing.assert_allclose(solve(solver, np.roll(np.eye(6), 1, axis=0), b[:6]), np.eye(6)[5], atol=1e-12)
    # A space that holds the solution ends early.
    np.testing.assert_allclose(solve(solver, np.diag([1.0, 2.0, 2.0, 1.0]), np.ones(4)), [1, 0.5, 0.5, 1], atol=1e-12)


def test_the_residual_is_not_that_of_the_preconditioner():
    a, b = system("batched")
    x = solve("batched", a, b, M=1e-8 * np.eye(12))
    assert np.linalg.norm(b - a @ np.asarray(x)) < 1e-5 * np.linalg.norm(b)


@pytest.mark.quick("cg")
@solvers
def test_kinds_of_arguments(solver):
    a, b = system(solver)
    expected = np.linalg.solve(a, b)

    class Operator:
        shape = (12, 12)

        def __matmul__(self, x):
            return tnp.asarray(a) @ x

    np.testing.assert_allclose(solve(solver, Operator(), b, tol=1e-12), expected, atol=1e-10)
    # A matrix and a vector promote each other; integers become floats.
    single = solve(solver, a, b.astype("float32"), tol=1e-12)
    assert single.dtype == "float64"
    integers = solve(solver, 2 * np.eye(3, dtype="int32"), np.arange(3))
    assert integers.dtype == "float32" and integers.tolist() == [0.0, 0.5, 1.0]
    half = solve(solver, lambda x: a.astype("float32") @ x, tnp.asarray(b).astype("bfloat16"), tol=1e-2)
    assert half.dtype == "bfloat16"
    np.testing.assert_allclose(half.astype("float32"), expected, atol=0.02 * np.abs(expected).max())
    mixed = solve(solver, lambda x: (2.0 * x[0], 4.0 * x[1]), (np.float32([2.0]), np.asarray([4.0])), tol=1e-12)
    assert [x.dtype for x in mixed] == ["float32", "float64"]
    np.testing.assert_allclose([float(x[0]) for x in mixed], 1, rtol=1e-12)
    assert float(solve(solver, lambda x: 4.0 * x, 2.0)) == 0.5
    assert solve(solver, np.zeros((0, 0)), np.zeros(0)).shape == (0,)
    traced = tvmfun.jit(lambda tol, count: solve(solver, a, b, tol=tol, maxiter=count))
    np.testing.assert_allclose(traced(1e-12, 100), expected, atol=1e-10)
    assert (np.asarray(traced(1e-12, 0)) == 0).all()
    np.testing.assert_allclose(solve(solver, a, b, tol=1e-12, maxiter=10**12), expected, atol=1e-10)


square = np.eye(3)
ones = np.ones(3)
WRONG = {
    "not square": (ShapeError, "A must be a square matrix", lambda f: f(np.ones((3, 2)), ones)),
    "no matrix": (ShapeError, "A must be a square matrix", lambda f: f(ones, ones)),
    "preconditioner": (ShapeError, "M must be a square matrix", lambda f: f(square, ones, M=np.ones((3, 2)))),
    "kind": (ArgumentTypeError, "A must be a function or a matrix", lambda f: f(3.0, ones)),
    "list": (ArgumentTypeError, "A must be a function or a matrix", lambda f: f([[1.0]], np.ones(1))),
    "sparse": (ArgumentTypeError, r"Try A.toarray\(\)", lambda f: f(scipy.sparse.eye_array(3).tocsr(), ones)),
    "rows": (ShapeError, "b must be an array with a row for each of the 3 rows of A", lambda f: f(square, np.ones(2))),
    "tree": (ShapeError, "b must be an array with a row", lambda f: f(square, {"u": ones})),
    "structure of x0": (TreeError, "x0 must have the tree structure of b", lambda f: f(square, ones, [ones])),
    "shape of x0": (ShapeError, "the arrays of x0 must have the shapes", lambda f: f(square, ones, np.ones(2))),
    "structure of A": (TreeError, r"A\(x\) must have the tree structure of b", lambda f: f(lambda x: [x], ones)),
    "shape of A": (ShapeError, r"the arrays of A\(x\) must have", lambda f: f(lambda x: x[1:], ones)),
    "shape of M": (ShapeError, r"the arrays of M\(x\) must have", lambda f: f(square, ones, M=lambda x: x[1:])),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("name", ["cg", "bicgstab", "gmres"])
def test_errors(name, case):
    error, message, call = WRONG[case]
    with pytest.raises(error, match=rf"^\[{name}\] .*{message}"):
        call(getattr(linalg, name))


@pytest.mark.parametrize("options", [{"solve_method": "other"}, {"solve_method": 1}, {"restart": 0}, {"restart": 2.5}])
def test_errors_of_options(options):
    (key,) = options
    with pytest.raises(ArgumentError, match=rf"^\[gmres\] {key} must be .*got {options[key]!r}"):
        linalg.gmres(square, ones, **options)
