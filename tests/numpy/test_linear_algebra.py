"""Products of arrays against NumPy, at once and traced."""

import numpy as np
import pytest

import tvmfun
from tvmfun import dtypes
from tvmfun import numpy as tnp
from tvmfun.errors import ArgumentError, ShapeError

RNG = np.random.default_rng(0)


def operand(shape, dtype="float32"):
    return (RNG.normal(size=shape) * 4).astype(dtypes.canonical(dtype))


SHAPES = {
    "matmul": [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((5, 2, 3), (3,)),
        ((3,), (5, 3, 2)),
        ((2, 3), (5, 3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((6, 1, 2, 3), (5, 3, 2)),
        ((0, 3), (3, 2)),
        ((2, 0), (0, 3)),
        ((2, 3), (0, 3, 4)),
    ],
    "dot": [((3,), (3,)), ((2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((), (2, 3)), ((2,), ()), ((4, 2, 3), (3,))],
    "outer": [((3,), (4,)), ((2, 2), (3,)), ((0,), (2,)), ((), (2,))],
    "vecdot": [((3,), (3,)), ((2, 3), (3,)), ((4, 1, 3), (2, 3)), ((2, 0), (2, 0))],
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    pairs = [(operand(a), operand(b)) for a, b in SHAPES[name]]
    function, reference = getattr(tnp, name), getattr(np, name)
    traced = tvmfun.jit(lambda pairs: [function(*pair) for pair in pairs])(pairs)
    for pair, result in zip(pairs, traced, strict=True):
        expected = reference(*pair)
        assert result.shape == np.shape(expected)
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(function(*pairs[0]), reference(*pairs[0]), rtol=2e-5)


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64", "uint8", "int8", "float16", "bfloat16"])
def test_dtypes(dtype):
    x, y = operand((17, 33), dtype), operand((33, 19), dtype)
    exact = dtypes.is_integer(x.dtype)
    wide = x.dtype if exact else "float64"
    expected = (x.astype(wide) @ y.astype(wide)).astype(x.dtype)
    actual = np.asarray(x @ tnp.asarray(y))
    assert actual.dtype == x.dtype
    if exact:
        np.testing.assert_array_equal(actual, expected)
    else:
        tolerance = {"float64": 1e-12, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
        np.testing.assert_allclose(actual.astype(float), expected.astype(float), rtol=tolerance, atol=tolerance)


def test_promotion():
    assert tnp.matmul(np.ones((2, 2), "int8"), np.ones((2, 2), "float32")).dtype == "float32"
    assert tnp.matmul([[1, 2]], [[0.5], [1]]).dtype == "float32"
    x, y = np.eye(2, dtype=bool), np.asarray([[True, False], [True, True]])
    np.testing.assert_array_equal(tnp.matmul(x, y), np.matmul(x, y), strict=True)


def test_tensordot():
    x, y = operand((2, 3, 4)), operand((4, 3, 5))
    cases = [0, 1, ((2, 1), (0, 1)), ((-1,), (0,)), (1, 1), ((), ())]
    traced = tvmfun.jit(lambda x, y: [tnp.tensordot(x, y, axes) for axes in cases])(x, y)
    for axes, result in zip(cases, traced, strict=True):
        expected = np.tensordot(x, y, axes)
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(tnp.tensordot(x, x, 3), np.tensordot(x, x, 3), rtol=1e-5)
    np.testing.assert_allclose(tnp.tensordot(x, x[:, :, 0], axes=((0, 1), (0, 1))).shape, (4,))


def test_vecdot_along_another_axis():
    x, y = operand((3, 2)), operand((3, 2))
    np.testing.assert_allclose(tnp.vecdot(x, y, 0), (x * y).sum(0), rtol=1e-5)
    np.testing.assert_allclose(tnp.vecdot(x, y, axis=-1), (x * y).sum(1), rtol=1e-5)


def test_a_larger_product():
    x, y = operand((130, 257)), operand((257, 70))
    np.testing.assert_allclose(tnp.matmul(x, y), x.astype("float64") @ y, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("matmul", (np.ones((2, 3)), np.ones((2, 3)))),
        ("matmul", (np.ones(2), 3.0)),
        ("matmul", (np.ones((2, 2, 3)), np.ones((3, 3, 2)))),
        ("dot", (np.ones((2, 3)), np.ones((2, 3)))),
        ("tensordot", (np.ones((2, 3)), np.ones((2, 3)), 1)),
        ("tensordot", (np.ones((2, 3)), np.ones((2, 3)), 3)),
        ("tensordot", (np.ones((2, 3)), np.ones((2, 3)), ((0, 1), (0,)))),
        ("tensordot", (np.ones((2, 3)), np.ones((2, 3)), ((5,), (0,)))),
        ("vecdot", (np.ones((2, 3)), np.ones((2, 4)))),
        ("vecdot", (np.ones(()), np.ones(()))),
    ],
)
def test_errors_name_the_function(name, arguments):
    with pytest.raises((ShapeError, ArgumentError), match=rf"^\[{name}\] "):
        getattr(tnp, name)(*arguments)
