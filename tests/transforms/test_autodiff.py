from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import derivatives
from support.oracle import x64

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import errors, grad, jacfwd, jacrev, jit, jvp, lax, value_and_grad, vjp

X = np.asarray([0.5, -1.0, 2.0])


def cubic(x):
    return tnp.sum(x**3)


def test_gradient_of_a_vector():
    np.testing.assert_allclose(grad(cubic)(X), 3 * X**2)
    value, gradient = value_and_grad(cubic)(X)
    np.testing.assert_allclose(value, (X**3).sum())
    np.testing.assert_allclose(gradient, 3 * X**2)


def test_gradient_of_a_gradient():
    np.testing.assert_allclose(grad(lambda x: tnp.sum(grad(cubic)(x)))(X), 6 * X)
    np.testing.assert_allclose(grad(grad(grad(lambda x: x**4)))(2.0), 48.0)


def test_python_numbers():
    assert float(grad(lambda x: x * x)(3.0)) == 6.0
    assert float(grad(lambda x, y: x * y, argnums=1)(3, 2.0)) == 3.0


def test_argnums():
    def f(x, y, z):
        return tnp.sum(x * y + z)

    one = grad(f, argnums=1)(X, 2 * X, X)
    np.testing.assert_allclose(one, X)
    last, first = grad(f, argnums=(-1, 0))(X, 2 * X, X)
    np.testing.assert_allclose(last, np.ones(3))
    np.testing.assert_allclose(first, 2 * X)
    with pytest.raises(errors.ArgumentError, match="argnums"):
        grad(f, argnums=3)(X, X, X)


def test_trees_and_aux():
    def f(params, scale):
        hidden = params["w"] * scale
        return tnp.sum(hidden**2), {"hidden": hidden}

    params = {"w": X, "unused": np.ones((2, 2))}
    gradient, aux = grad(f, has_aux=True)(params, 2.0)
    np.testing.assert_allclose(gradient["w"], 8 * X)
    np.testing.assert_array_equal(gradient["unused"], np.zeros((2, 2)))
    np.testing.assert_allclose(aux["hidden"], 2 * X)
    (loss, _), gradient = value_and_grad(f, has_aux=True)(params, 2.0)
    np.testing.assert_allclose(loss, (4 * X**2).sum())


def test_chex_dataclasses_are_trees():
    @chex.dataclass
    class Params:
        w: chex.Array
        b: chex.Array

    params = Params(w=X, b=np.asarray(1.0))
    gradient = jit(grad(lambda p: tnp.sum(p.w * p.b)))(params)
    assert isinstance(gradient, Params)
    np.testing.assert_allclose(gradient.b, X.sum())


def test_integer_leaves_get_zeros_of_their_own_dtype():
    gradient = grad(lambda p: tnp.sum(p["w"] * p["n"]))({"w": X, "n": np.arange(3, dtype="int32")})
    assert gradient["n"].dtype == np.int32
    np.testing.assert_array_equal(gradient["n"], [0, 0, 0])
    np.testing.assert_array_equal(gradient["w"], [0, 1, 2])


def test_integer_target_is_an_error():
    with pytest.raises(errors.GradientError, match=r"argument 0 must have a float leaf, got int32\[3\]"):
        grad(lambda x: tnp.sum(x))(np.arange(3, dtype="int32"))


@pytest.mark.parametrize("argnums", ["x", 1.0, (0, "x"), True])
def test_argnums_that_are_no_integers(argnums):
    with pytest.raises(errors.ArgumentError, match=r"\[grad\] argnums must be an integer, or a tuple of integers"):
        grad(lambda x: tnp.sum(x), argnums)(X)
    with pytest.raises(errors.ArgumentError, match="argnums must be an integer"):
        jacfwd(lambda x: x, argnums)(X)


def test_argnums_that_are_integers_of_numpy_and_ranges():
    f = lambda x, y: tnp.sum(x * y)
    np.testing.assert_array_equal(grad(f, np.int64(1))(X, 2 * X), X)
    assert len(grad(f, range(2))(X, X)) == 2
    assert jacrev(lambda x: x * 2, np.int64(0))(X).shape == (3, 3)
    assert len(jacfwd(f, range(2))(X, X)) == 2


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda x: x, r"\[grad\] the loss must be a scalar, got float64\[3\]. Try losses.mean\(\), or vjp."),
        (lambda x: tnp.sum(x) > 0, "the loss must be a float, got bool"),
        (lambda x: (tnp.sum(x), 1.0), "the loss must be one scalar.*has_aux"),
    ],
)
def test_losses_that_are_none(loss, message):
    with pytest.raises(errors.GradientError, match=message):
        grad(loss)(X)


def test_ops_without_derivative_are_named():
    def f(x):
        return tnp.sum(lax.bitcast_convert_type(lax.bitcast_convert_type(x, "int64"), "float64"))

    np.testing.assert_array_equal(grad(lambda x: f(x) + tnp.sum(x))(X), np.ones(3))  # through integers: none
    from tvmfun.ops import conv

    def broken(x):
        offset = conv.window_argmax(x, x, window=(1,), stride=(1,), padding=((0, 0),))
        return tnp.sum(offset * x)

    grad(broken)(X)


def test_stop_gradient():
    np.testing.assert_allclose(grad(lambda x: tnp.sum(x * lax.stop_gradient(x)))(X), X)


def test_flags_and_strings_stay_python_values():
    def f(x, mode, double):
        assert isinstance(double, bool)
        return tnp.sum(x * 2 if double else x) if mode == "sum" else tnp.mean(x)

    np.testing.assert_allclose(grad(f)(X, "sum", True), [2, 2, 2])


def test_vjp_and_jvp_agree_with_jax():
    def ours(x, w):
        return tnp.tanh(x @ w), tnp.exp(x)

    def theirs(x, w):
        return jax.numpy.tanh(x @ w), jax.numpy.exp(x)

    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 3)), rng.normal(size=(3, 4))
    dx, dw = rng.normal(size=(2, 3)), rng.normal(size=(3, 4))
    with x64(True):
        out, pull = jax.vjp(theirs, x, w)
        expected = pull(out)
        value, tangent = jax.jvp(theirs, (x, w), (dx, dw))
    mine, our_pull = vjp(ours, x, w)
    for a, b in zip(our_pull(mine), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    our_value, our_tangent = jvp(ours, (x, w), (dx, dw))
    for a, b in zip([*our_value, *our_tangent], [*value, *tangent], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_vjp_with_aux_and_inside_jit():
    _, pull, aux = vjp(lambda x: (x * x, x + 1), X, has_aux=True)
    np.testing.assert_allclose(pull(np.ones(3))[0], 2 * X)
    np.testing.assert_allclose(aux, X + 1)

    @jit
    def f(x):
        y, pull = vjp(tnp.sin, x)
        return pull(y)[0]

    np.testing.assert_allclose(f(X), np.sin(X) * np.cos(X), rtol=1e-12)


@pytest.mark.parametrize(
    ("cotangent", "error", "message"),
    [
        (np.ones(2), errors.ShapeError, r"shape of float64\[3\], got float64\[2\]"),
        (np.ones(3, "float32"), errors.DtypeError, r"dtype of float64\[3\], got float32\[3\]"),
        ((np.ones(3),), errors.TreeError, "cotangent|result"),
    ],
)
def test_wrong_cotangents(cotangent, error, message):
    _, pull = vjp(tnp.sin, X)
    with pytest.raises(error, match=message):
        pull(cotangent)


def test_wrong_tangents():
    with pytest.raises(errors.TreeError):
        jvp(lambda x: x["a"], ({"a": X},), ({"b": X},))
    with pytest.raises(errors.ShapeError, match="tangent"):
        jvp(tnp.sin, (X,), (np.ones(2),))
    with pytest.raises(errors.ArgumentError, match="sequences"):
        jvp(tnp.sin, X, X)


def test_zero_size_and_disconnected():
    empty = np.zeros((0, 3))
    assert grad(lambda x: tnp.sum(x * x))(empty).shape == (0, 3)
    np.testing.assert_array_equal(grad(lambda x: tnp.asarray(1.0) * 2.0)(X), np.zeros(3))


def test_under_over_and_inside_jit():
    expected = 3 * X**2
    inner = jit(cubic)
    np.testing.assert_allclose(grad(inner)(X), expected)
    np.testing.assert_allclose(jit(grad(inner))(X), expected)
    np.testing.assert_allclose(jit(jit(grad(cubic)))(X), expected)
    np.testing.assert_allclose(jvp(jit(grad(inner)), (X,), (np.ones(3),))[1], 6 * X)


def test_closures_over_values_of_every_level():
    weight = tnp.asarray(2.0 * X)

    def outer(x):
        def inner(y):
            return tnp.sum(x * y * weight)

        return tnp.sum(jit(grad(inner))(x * x))

    np.testing.assert_allclose(jit(grad(outer))(X), 2 * X)


def mlp(params, x):
    for w, b in params:
        x = tnp.tanh(x @ w + b)
    return tnp.sum(x * x)


@pytest.mark.slow
def test_mlp_to_order_two():
    rng = np.random.default_rng(1)
    shapes = [((3, 4), (4,)), ((4, 2), (2,))]
    params = [(rng.normal(size=w), rng.normal(size=b)) for w, b in shapes]
    x = rng.normal(size=(5, 3))
    flat = [a for pair in params for a in pair]
    derivatives.check(lambda x, *p: mlp([(p[0], p[1]), (p[2], p[3])], x), [x, *flat])


@pytest.mark.slow
@settings(max_examples=15)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.sampled_from(["left", "right", "both"]),
    st.integers(0, 2**31),
)
def test_broadcasting_gradients_agree_with_jax(shape, ones, seed):
    rng = np.random.default_rng(seed)
    narrow = [1 if rng.random() < 0.5 else n for n in shape]
    left = narrow if ones != "right" else shape
    right = (narrow if ones == "both" else shape)[rng.integers(0, len(shape) + 1) :] if ones != "left" else shape
    x, y = rng.normal(size=left), rng.normal(size=right)

    def f(np_like, x, y):
        return np_like.sum(np_like.tanh(x * y) + x)

    with x64(True):
        expected = jax.grad(lambda x, y: f(jax.numpy, x, y), (0, 1))(x, y)
    got = grad(lambda x, y: f(tnp, x, y), (0, 1))(x, y)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_a_direction_needs_a_float():
    with pytest.raises(errors.GradientError, match=r"\[jvp\] the primals must have a float leaf"):
        jvp(lambda x: x * 2, (3,), (1,))


@pytest.mark.slow
def test_results_that_are_constants_within_a_trace():
    # The derivative of floor is 0 without an equation, so the result of the inner pull is no tracer.
    def slope(c, x):
        return vjp(tnp.floor, x)[1](c)

    def twice(c, x):
        return vjp(slope, c, x)[1]((np.float32(1),))

    assert [float(g) for g in jit(twice)(np.float32(2), np.float32(0.5))] == [0, 0]
    value, pull = jit(lambda x: (vjp(lambda x: np.float32(3), x)[0], grad(lambda x: 3.0)(x)))(1.0)
    assert (float(value), float(pull)) == (3, 0)


@pytest.mark.parametrize("transform", ["jacfwd", "jacrev", "hessian"])
def test_other_arguments_of_jacobians_stay_python_values(transform):
    derive = lambda m: getattr(m, transform)
    f = lambda np, x, train, n=2: np.sum(x**3 * np.ones(n)) if train else np.sum(-x)
    for args, kwargs in (((True,), {}), ((False,), {}), ((True, 3), {}), ((), {"train": True, "n": 4})):
        ours = derive(tvmfun)(partial(f, tnp))(1.5, *args, **kwargs)
        theirs = derive(jax)(partial(f, jnp))(1.5, *args, **kwargs)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("derive", [grad, jacfwd, jacrev])
def test_derivatives_of_strong_arrays_are_strong(derive):
    x = tnp.asarray(X)
    for f in (lambda x: tnp.sum(x[1:]), lambda x: tnp.sum(x), lambda x: x[0] * 2.0, lambda x: x.at[0].set(1.0).sum()):
        for derivative in (derive(f), jit(derive(f))):
            got = derivative(x)
            assert got.dtype == "float64" and not got.weak_type


def test_arguments_without_floats():
    f = lambda i, x: i * x
    assert float(tvmfun.grad(f, allow_int=True)(3, 2.0)) == 0
    value, (of_i, of_x) = tvmfun.value_and_grad(f, (0, 1), allow_int=True)(3, 2.0)
    assert (float(value), of_i.dtype, int(of_i), float(of_x)) == (6, np.dtype("int32"), 0, 3)
    rows = tvmfun.jacrev(f, (0, 1), allow_int=True)(tnp.arange(2), tnp.ones(2))
    np.testing.assert_array_equal(rows[0], np.zeros((2, 2)))
    np.testing.assert_array_equal(rows[1], [[0, 0], [0, 1]])
    assert tvmfun.vmap(tvmfun.grad(f, allow_int=True), (0, None))(tnp.arange(3), 2.0).shape == (3,)
    with pytest.raises(errors.GradientError, match="argument 0 must have a float leaf"):
        tvmfun.grad(f)(3, 2.0)


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacfwd", "jacrev", "hessian"])
def test_there_are_no_holomorphic_derivatives(name):
    transform = getattr(tvmfun, name)
    transform(lambda x: x * x, holomorphic=False)(3.0)
    with pytest.raises(errors.ArgumentError, match="there are no complex numbers, got holomorphic=True"):
        transform(lambda x: x * x, holomorphic=True)
