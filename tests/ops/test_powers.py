"""Powers with known exponents: products, quotients and roots where they are as exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1e30, -1e30, 3.0, 0.7, 1e-20]
EXPONENTS = [0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 0.5, -0.5, 4.0, 1.5, -3.0, 0.25, 10, -9, 7.0]


def ops(function, *args):
    return [equation.op.name for equation in tvmfun.trace(function)(*args).equations]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("exponent", EXPONENTS)
def test_special_values(exponent, dtype):
    x = np.asarray(SPECIAL, "float64").astype(tnp.asarray([], dtype).dtype)
    with jax.enable_x64(True):
        expected = jax.jit(lambda x: x**exponent)(jnp.asarray(np.asarray(x, "float32"), dtype))
    found = tvmfun.jit(lambda x: x**exponent)(tnp.asarray(x))
    assert str(found.dtype) == dtype
    found, expected = np.asarray(found).astype("float64"), np.asarray(expected).astype("float64")
    rtol = {"float32": 3e-7, "float64": 1e-6, "bfloat16": 1e-2, "float16": 2e-3}[dtype]  # x is rounded for float64
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-35)
    np.testing.assert_array_equal(np.signbit(found) & (found == found), np.signbit(expected) & (found == found))


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_errors_of_a_few_ulp(exponent):
    x = np.random.default_rng(0).uniform(1e-3, 1e3, 10_001).astype("float32")
    exact = x.astype("float64") ** exponent
    found = np.asarray(tvmfun.jit(lambda x: x**exponent)(x))
    assert np.max(np.abs(found - exact) / np.spacing(np.abs(exact).astype("float32"))) < 2
    assert np.asarray(tvmfun.jit(lambda x: x**exponent)(x.astype("float64"))) == pytest.approx(exact, rel=1e-15)


@pytest.mark.parametrize("exponent", EXPONENTS[1:])
def test_derivatives(exponent):
    x = np.asarray([0.3, 1.0, 7.0, 1e10, *([] if exponent < 2 else [0.0, -2.0])], "float32")
    for order in range(1, 4):
        f = g = lambda x: x**exponent
        for _ in range(order):
            f, g = tvmfun.grad(f), jax.grad(g)
        found, expected = np.asarray(tvmfun.vmap(f)(x)), np.asarray(jax.vmap(g)(x))
        # JAX's third derivative of a square is NaN at 0.
        np.testing.assert_allclose(found, np.where(np.isnan(expected), 0, expected), rtol=1e-5, atol=1e-30)


def test_roots_at_zero_have_infinite_derivatives():
    assert [float(tvmfun.grad(lambda x, n=n: x**n)(0.0)) for n in (0.5, -0.5, -1.0, 2.0, 1.0)] == [
        np.inf, -np.inf, -np.inf, 0, 1,
    ]  # fmt: skip


def test_eager_and_compiled_powers_are_equal():
    x = tnp.asarray(np.random.default_rng(0).uniform(-3, 3, 1000).astype("float32"))
    for exponent in (0.0, 1.0, 2.0, 3.0, -1.0, np.float64(2), 1.5):
        found = x**exponent
        np.testing.assert_array_equal(found, tvmfun.jit(lambda x, n=exponent: x**n)(x))
        assert found.dtype == "float32" and not found.weak_type
    assert (tnp.asarray(2.0) ** 2.0).weak_type and (3.0 ** tnp.ones(2, "int32")).dtype == "float32"
    assert (tnp.ones(2, "int32") ** 2.0).dtype == "float32" and (tnp.asarray(True) ** 2.0).dtype == "float32"


@pytest.mark.parametrize("exponent", [4.0, 9, 10, 31, 100, 1000, -9, -50])
def test_integer_exponents_round_once(exponent):
    x = np.exp(np.random.default_rng(0).uniform(-60 / abs(exponent), 60 / abs(exponent), 10_001)).astype("float32")
    x[::2] *= -1
    exact = x.astype("float64") ** exponent
    found = np.asarray(tvmfun.jit(lambda x: x**exponent)(x))
    np.testing.assert_array_equal(found, exact.astype("float32"))
    half = np.asarray(tvmfun.jit(lambda x: x**exponent)(x.astype("float16")))
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(
            half, (x.astype("float16").astype("float64") ** exponent).astype("float16"), rtol=1e-3
        )


def test_what_is_left():
    x = tnp.ones(3)
    assert ops(lambda x: x**1.0, x) == [] and ops(lambda x: x**2.0, x) == ["multiply"]
    assert ops(lambda x: x**-1.0, x) == ["divide"] and ops(lambda x: x**3.0, x) == ["multiply", "multiply"]
    assert ops(lambda x: tnp.float_power(x, 3), x) == ["integer_power"]
    assert "power" not in ops(lambda x: x**0.0, x) + ops(lambda x: 1.0**x, x)
    assert ops(lambda x: x**2.5, x) == ops(lambda x: x**0.5, x) == ["power"]
    assert ops(lambda x, n: x**n, x, 2.0) == ["power"]
    assert ops(lambda x: tnp.float_power(x, tnp.full(3, 2.0)), x) == ["multiply"]


def test_dtypes_and_weakness_stay():
    for x in (np.float32(3), np.ones(2, "float16"), 3.0, np.ones((2, 0), "float64")):
        for exponent in (1.0, 2.0, np.float32(2), np.float16(2), -1.0, 0.0, 0.5):
            plain = tvmfun.jit(lambda x, n: tnp.power(x, n))(x, exponent)
            known = tvmfun.jit(lambda x, n=exponent: tnp.power(x, n))(x)
            assert (known.dtype, known.shape, known.weak_type) == (plain.dtype, plain.shape, plain.weak_type)


def test_powers_that_a_loop_does_not_change():
    def function(x, base):
        step = lambda c, i: (c + x ** (base / (1.0**i * base)), None)
        return tvmfun.lax.scan(step, x, tnp.arange(5.0))[0]

    x = tnp.asarray([1.0, 2.0, 3.0])
    np.testing.assert_allclose(tvmfun.jit(function)(x, 3.0), 6 * x)


def test_exponents_that_are_differentiated():
    f = lambda y: tnp.sum(tnp.asarray([1.0, 2.0]) ** y)
    g = lambda y: jnp.sum(jnp.asarray([1.0, 2.0]) ** y)
    for y in (0.0, 1.0, 2.0, 0.5):
        np.testing.assert_allclose(tvmfun.grad(f)(y), jax.grad(g)(y), rtol=1e-6)
        np.testing.assert_allclose(tvmfun.grad(tvmfun.grad(f))(y), jax.grad(jax.grad(g))(y), rtol=1e-6)
    assert float(tvmfun.grad(lambda y: 1.0**y)(3.0)) == 0


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_integer_powers_of_two_are_shifts(dtype):
    x = np.array([0, 1, 2, 5, 7, 8, 15, 16, 30, 31, 32, 33, 63, 64, 100, 127], dtype)
    for found in (tvmfun.jit(lambda x: 2**x)(x), 2 ** tnp.asarray(x), tvmfun.vmap(lambda x: 2**x)(x)):
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.power(np.asarray(2, dtype), x))
    if dtype.startswith("int"):
        np.testing.assert_array_equal(tvmfun.jit(lambda x: 2**x)(np.array([-1, -100, 3], dtype)), [0, 0, 8])
    for number in (x[:3], x[3:4], x[3]):
        np.testing.assert_array_equal(tvmfun.jit(lambda x: 2**x)(number), np.power(np.asarray(2, dtype), number))
    assert "left_shift" in ops(lambda x: 2**x, tnp.asarray(x)) and "multiply" not in ops(lambda x: 2**x, tnp.asarray(x))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int32"])
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, np.int32(0), np.int64(2), 0.0, 1.0, 0.5])
def test_arrays_to_known_powers_keep_a_strong_dtype(exponent, dtype):
    pairs = [(tnp.ones(shape, dtype) ** exponent, jnp.ones(shape, dtype) ** exponent) for shape in ((), 2)]
    # To JAX, an array without axes is a number here.
    for found, expected in [*pairs, (0.5 ** tnp.ones(2, dtype), 0.5 ** jnp.ones(2, dtype))]:
        assert (str(found.dtype), found.weak_type) == (str(expected.dtype), expected.weak_type)
    traced = tvmfun.trace(lambda x: x**exponent)(tnp.ones(2, dtype)).out_avals[0]
    assert traced.weak == jax.eval_shape(lambda x: x**exponent, jnp.ones(2, dtype)).weak_type


def test_known_exponents_of_float64_give_no_warning(capfd):
    for exponent in (9.0, 10, 100.0):
        tvmfun.jit(tvmfun.value_and_grad(lambda x, exponent=exponent: tnp.sum(x**exponent)))(np.ones(3))
    assert "Warning" not in capfd.readouterr().err
