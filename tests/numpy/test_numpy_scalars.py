"""Scalars of NumPy among arrays: a ``numpy.float64`` is a Python float, the others have their dtype."""

from __future__ import annotations

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.oracle import x64

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax

KINDS = ("bool", "int8", "int32", "int64", "uint8", "bfloat16", "float16", "float32", "float64")
OPERATORS = (operator.add, operator.mul, operator.truediv, operator.lt)


@pytest.mark.quick("int8", "float32", "int64")
@pytest.mark.parametrize("kind", KINDS)
def test_float64_scalars_are_python_floats(kind):
    x = tnp.ones(3, kind)
    expected = [f(x, 2.0).dtype for f in OPERATORS] + [f(2.0, x).dtype for f in OPERATORS]
    scalar = np.float64(2.0)
    got = [f(x, scalar).dtype for f in OPERATORS] + [f(scalar, x).dtype for f in OPERATORS]
    assert got == expected
    assert tnp.result_type(x, scalar) == tnp.result_type(x, 2.0)
    assert tnp.where(x > 0, x, scalar).dtype == tnp.where(x > 0, x, 2.0).dtype
    jitted = tvmfun.jit(lambda x: [f(x, scalar) for f in OPERATORS])(x)
    assert [y.dtype for y in jitted] == expected[: len(OPERATORS)]


@pytest.mark.quick("int64", "int32")
@pytest.mark.parametrize("scalar", ["int8", "int32", "int64", "uint8", "float16", "float32"])
def test_other_scalars_have_their_dtype(scalar):
    for kind in KINDS:
        one = np.dtype(scalar).type(1)
        with x64():
            expected = (jnp.ones(3, kind) + one).dtype
        # JAX without 64-bit numbers and with them agree where no bool or integer meets a float.
        assert (tnp.ones(3, kind) + one).dtype == expected


def test_float64_scalars_alone_keep_their_precision_and_give_way_later():
    x = tnp.sqrt(np.float64(2.0))
    assert x.dtype == "float64" and x.weak_type and float(x) == float(np.sqrt(2.0))
    assert (x * tnp.ones(2)).dtype == "float32" and (x * tnp.arange(2)).dtype == "float32"
    assert (x * tnp.ones(2, "float64")).dtype == "float64"
    assert tnp.add(np.float64(1.0), np.float64(2.0)).dtype == "float64"
    # Data that is made an array, or an argument, has its dtype.
    assert tnp.asarray(np.float64(2.0)).dtype == "float64" and not tnp.asarray(np.float64(2.0)).weak_type
    assert tvmfun.jit(lambda x: x)(np.float64(2.0)).dtype == "float64"
    assert (tnp.ones(2) * np.asarray(2.0)).dtype == "float64"


@pytest.mark.parametrize("jitted", [False, True])
def test_float64_scalars_give_way_to_weak_arrays(jitted):
    """Arrays made of Python numbers are weak: arguments of traced functions, carries, ``log(1 / 0.07)``."""
    two = np.sqrt(4.0)
    forms = {
        "product": lambda t: t * two,
        "minimum": lambda t: tnp.minimum(t, two),
        "choice": lambda t: tnp.where(t > 0, t, two),
        "number before": lambda t: tnp.log(two) * t,
        "number after": lambda t: tnp.power(t, tnp.sqrt(two)),
        "integer": lambda t: (t > 0).sum() * two,
        "of a loop": lambda t: lax.fori_loop(0, 2, lambda i, t: t * two, t),
        "derivative": tvmfun.grad(lambda t: t * two),
    }
    for name, f in forms.items():
        t = (tvmfun.jit(f) if jitted else f)(tnp.log(1 / 0.07))
        assert t.dtype == "float32", name
        assert (t * tnp.ones(2)).dtype == "float32", name


def test_float64_scalars_make_float32_arrays():
    two, x = np.sqrt(4.0), tnp.ones(3)
    made = {
        "full": tnp.full(3, two),
        "lax.full": lax.full((3,), two),
        "linspace": tnp.linspace(two, 3.0, 4),
        "geomspace": tnp.geomspace(two, 3.0, 4),
        "arange": tnp.arange(np.float64(0), two),
        "list": tnp.array([x[0], two]),
        "traced list": tvmfun.jit(lambda t: tnp.array([t, two]))(x[0]),
        "rows": tnp.array([x, [two, two, 1]]),
    }
    assert {name: str(array.dtype) for name, array in made.items()} == dict.fromkeys(made, "float32")
    # Data keeps its dtype.
    for data in (np.zeros(()), np.ones(3)):
        assert tnp.full(3, data).dtype == tnp.linspace(data, 3.0, 4).dtype == tnp.array([data, data]).dtype == "float64"
    assert tnp.array([two, two]).dtype == tnp.array([two, 1.0]).dtype == "float64"
    assert tnp.array([two, np.int32(1)]).dtype == tnp.array([[two], [np.float32(1)]]).dtype == "float64"
    assert tnp.full(3, two, "float64").dtype == tnp.arange(two, dtype="float64").dtype == "float64"


def test_attention_by_hand_stays_float32():
    q = tnp.ones((4, 64))
    scores = q @ q.T / np.sqrt(q.shape[-1]) * np.log(2.0)
    assert scores.dtype == "float32" and tvmfun.grad(lambda q: (q / np.sqrt(64)).sum())(q).dtype == "float32"


@pytest.mark.parametrize("name", ["add", "multiply", "divide", "maximum", "arctan2", "where", "hypot", "stack"])
@pytest.mark.parametrize("number", [np.float32(2), np.int32(2), np.float16(2), np.int8(2), np.bool_(True)])
@pytest.mark.parametrize("x", [3.0, 3])
def test_scalars_make_weak_arrays_strong(name, number, x):
    def both(library, numpy):
        f = getattr(numpy, name)
        special = {"where": lambda x: f(x > 0, x, number), "stack": lambda x: f([x, number])}
        call = special.get(name, lambda x: f(x, number))
        results = call(numpy.asarray(x)), library.jit(call)(x)
        return [(str(y.dtype), y.weak_type, str((y * numpy.ones(2, "bfloat16")).dtype)) for y in results]

    assert both(tvmfun, tnp) == both(jax, jnp)


@pytest.mark.parametrize("other", [True, np.bool_(False)])
@pytest.mark.parametrize("name", ["logical_or", "bitwise_and", "bitwise_xor", "equal", "maximum", "add", "where"])
def test_bools_of_python_and_numpy(name, other):
    def call(numpy, x):
        f = getattr(numpy, name)
        return f(x, x, other) if name == "where" else f(x, other)

    for x in (True, False):
        found, expected = call(tnp, tnp.asarray(x)), call(jnp, jnp.asarray(x))
        assert (str(found.dtype), int(found)) == (str(expected.dtype), int(expected))
        assert int(tvmfun.jit(lambda x: call(tnp, x))(x)) == int(expected)


@pytest.mark.parametrize("base", [3, 2, np.int8(3), np.int8(2), np.int32(3)])
@pytest.mark.parametrize("dtype", ["int32", "int8"])
def test_integer_powers_are_strong(base, dtype):
    found = tvmfun.jit(lambda e: tnp.power(base, e))(tnp.arange(3).astype(dtype))
    expected = jax.jit(lambda e: jnp.power(base, e))(jnp.arange(3).astype(dtype))
    assert (str(found.dtype), found.weak_type) == (str(expected.dtype), expected.weak_type)
    np.testing.assert_array_equal(found, expected)
