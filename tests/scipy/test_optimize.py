"""Minimization against SciPy and JAX: solutions, not the way to them."""

import jax
import jax.numpy as jnp
import jax.scipy.optimize
import numpy as np
import pytest
import scipy.optimize
from support import oracle

import tvmfun
import tvmfun.numpy as tnp
from tvmfun.errors import ArgumentError, ArgumentTypeError, ShapeError
from tvmfun.scipy import optimize


def rosenbrock(xp, x):
    return xp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def himmelblau(xp, x):
    return (x[0] ** 2 + x[1] - 11) ** 2 + (x[0] + x[1] ** 2 - 7) ** 2


def matyas(xp, x):
    return 0.26 * xp.sum(x**2) - 0.48 * x[0] * x[1]


def quadratic(xp, x):
    return xp.sum(xp.arange(1, x.size + 1, dtype=x.dtype) * (x - 2) ** 2) - 1


def eggholder(xp, x):
    lower = (x[1] + 47) * xp.sin(xp.sqrt(xp.abs(x[0] / 2 + x[1] + 47)))
    return -lower - x[0] * xp.sin(xp.sqrt(xp.abs(x[0] - x[1] - 47)))


#: Function, start, and whether JAX's line search gets to the minimum.
PROBLEMS = {
    "rosenbrock": (rosenbrock, [-1.2, 1.0], False),
    "rosenbrock of zeros": (rosenbrock, [0.0, 0.0], False),
    "rosenbrock of five": (rosenbrock, [-1.5] * 5, True),
    "himmelblau": (himmelblau, [0.1, -0.3], False),
    "himmelblau elsewhere": (himmelblau, [-3.0, 3.0], True),
    "matyas": (matyas, [1.0, 6.0], True),
    "quadratic": (quadratic, [0.0] * 5, True),
    "quadratic of one": (quadratic, [7.0], True),
    "eggholder": (eggholder, [100.0, 100.0], True),
}


@pytest.mark.quick("quadratic of one-float64")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_solutions(problem, dtype):
    function, start, jax_converges = PROBLEMS[problem]
    x = np.asarray(start, dtype)
    found = tvmfun.jit(lambda x: optimize.minimize(lambda x: function(tnp, x), x, method="BFGS"))(x)
    expected = scipy.optimize.minimize(lambda x: float(function(np, x)), np.asarray(start), method="BFGS", tol=1e-9)
    tolerance = 1e-4 if dtype == "float64" else 2e-3
    np.testing.assert_allclose(found.x, expected.x, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(found.fun, expected.fun, rtol=1e-6, atol=1e-6)
    if dtype == "float64":
        assert found.success and found.status == 0
        assert np.abs(found.jac).max() < 1e-5
        assert 0 < found.nit <= found.nfev == found.njev < 100
    assert [leaf.dtype for leaf in (found.x, found.fun, found.jac, found.hess_inv)] == [dtype] * 4
    if jax_converges:
        with oracle.x64():
            minimize = jax.scipy.optimize.minimize
            theirs = jax.jit(lambda x: minimize(lambda x: function(jnp, x), x, method="BFGS"))(x)
        assert found._fields == theirs._fields
        for ours, other in zip(found, theirs, strict=True):
            assert ours.shape == other.shape and ours.dtype.kind == other.dtype.kind
        # In single precision JAX does not find the minimum of five variables with every option of its compiler.
        assert float(found.fun) <= float(theirs.fun) + 1e-6
        if dtype == "float64":
            np.testing.assert_allclose(found.fun, theirs.fun, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_batches_and_tangents():
    starts = np.asarray([[0.0, 0.0], [2.0, 2.0], [-1.0, 3.0]])
    found = tvmfun.vmap(lambda x: optimize.minimize(lambda x: rosenbrock(tnp, x), x, method="bfgs"))(starts)
    np.testing.assert_allclose(found.x, np.ones((3, 2)), atol=1e-5)
    assert found.success.all() and len(set(found.nit.tolist())) == 3
    solve = lambda c: (
        optimize.minimize(
            lambda x, c: ((x - c) ** 2).sum() + (x**4).sum(), np.zeros(2), (c,), method="BFGS", tol=1e-10
        ).x
    )
    x, tangent = tvmfun.jvp(solve, (np.asarray([1.0, 2.0]),), (np.asarray([1.0, 0.0]),))
    np.testing.assert_allclose(tangent, [1 / (1 + 6 * float(x[0]) ** 2), 0.0], atol=1e-6)


@pytest.mark.slow
def test_options_and_states_of_failure():
    minimize = lambda **options: optimize.minimize(lambda x: rosenbrock(tnp, x), np.zeros(2), method="BFGS", **options)
    short = minimize(options={"maxiter": 3})
    assert (int(short.status), int(short.nit), bool(short.success)) == (1, 3, False)
    assert float(np.linalg.norm(minimize(options={"gtol": 1e-1, "norm": 2}).jac)) < 1e-1
    assert int(minimize(tol=1e3).nit) == 0
    falling = optimize.minimize(lambda x: -x.sum(), np.zeros(2), method="BFGS")
    assert int(falling.status) == 5 and not falling.success
    assert int(minimize(options={"line_search_maxiter": 1}).status) == 3
    nothing = optimize.minimize(lambda x: (x**2).sum(), np.zeros(0), method="BFGS")
    assert nothing.x.shape == (0,) and nothing.success
    undefined = optimize.minimize(lambda x: tnp.log(x).sum() * np.nan, np.ones(2), method="BFGS")
    assert not undefined.success


WRONG = {
    "method": (ArgumentError, "the only method is", lambda f: optimize.minimize(f, np.zeros(2), method="CG")),
    "args": (ArgumentTypeError, "must be a tuple", lambda f: optimize.minimize(f, np.zeros(2), 3.0, method="BFGS")),
    "option": (
        ArgumentError,
        "the options are",
        lambda f: optimize.minimize(f, np.zeros(2), method="BFGS", options={"eps": 1}),
    ),
    "axes": (ShapeError, "must be a vector", lambda f: optimize.minimize(f, np.zeros((2, 2)), method="BFGS")),
    "result": (ShapeError, "must be a scalar", lambda f: optimize.minimize(lambda x: x, np.zeros(2), method="BFGS")),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors(case):
    error, message, call = WRONG[case]
    with pytest.raises(error, match=rf"^\[minimize\] .*{message}"):
        call(lambda x: x.sum())
