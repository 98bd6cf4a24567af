"""Making arrays, at once and traced, against NumPy."""

from array import array

import numpy as np
import pytest

import tvmfun
from tvmfun import dtypes
from tvmfun import numpy as tnp
from tvmfun.counters import counted
from tvmfun.errors import ArgumentError, ConcretizationError, DtypeError, ShapeError


def check(f, expected, weak=False):
    """``f()`` is ``expected`` with its dtype, eager and traced."""
    for result in (f(), tvmfun.jit(f)()):
        actual = np.asarray(result)
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(actual, expected)
        assert result.weak_type == weak


@pytest.mark.parametrize("dtype", dtypes.NAMES.values())
def test_full_of_every_dtype(dtype):
    kind = dtypes.canonical(dtype)
    check(lambda: tnp.full((2, 3), 1, dtype), np.full((2, 3), 1, kind))


@pytest.mark.parametrize("shape", [(), 3, (0,), (2, 0), [2, 3], np.int64(2), (np.int32(1),)], ids=str)
def test_shapes(shape):
    check(lambda: tnp.zeros(shape), np.zeros(shape, "float32"))


def test_arguments_by_position():
    check(lambda: tnp.zeros((2,), "int32"), np.zeros(2, "int32"))
    check(lambda: tnp.ones((2,), "float64"), np.ones(2))
    check(lambda: tnp.full((2,), 1.5, "float64"), np.full(2, 1.5))
    assert tnp.empty((2,), "int8").dtype == tnp.empty_like(np.zeros(2, "int8")).dtype == "int8"
    x = np.ones((2, 1), "int16")
    check(lambda: tnp.zeros_like(x), np.zeros_like(x))
    check(lambda: tnp.ones_like(x, "float32"), np.ones_like(x, "float32"))
    check(lambda: tnp.full_like(x, 7, dtype=float), np.full_like(x, 7, "float32"))
    check(lambda: tnp.full((2,), 7), np.full(2, 7, "int32"), weak=True)
    check(lambda: tnp.full((2,), True), np.full(2, True))
    check(lambda: tnp.full((2, 2), np.array([1.0, 2.0])), np.array([[1.0, 2.0]] * 2))
    assert tnp.zeros(2, device="cpu").device == tvmfun.devices("cpu")[0]


def test_making_arrays_compiles_nothing():
    with counted() as events:
        tnp.zeros((2, 3)), tnp.full(2, 5), tnp.eye(3), tnp.arange(5), tnp.linspace(0, 1, 3), tnp.ones_like(np.ones(4))
    assert events.calls == 0


@pytest.mark.parametrize("shape", [-1, (2, -1), 1.5, (1.5,), "a", None, (None,)], ids=repr)
def test_bad_shapes_are_explained(shape):
    with pytest.raises(ArgumentError, match=r"\[zeros\] the sizes must"):
        tnp.zeros(shape)


def test_values_that_do_not_fit_are_explained():
    with pytest.raises(DtypeError, match=r"\[full\] the Python integer does not fit int8"):
        tnp.full(2, 300, "int8")
    with pytest.raises(DtypeError, match=r"\[full\]"):
        tnp.full(2, float("nan"), "int32")
    with pytest.raises(DtypeError, match=r"\[full\]"):
        tnp.full(2, "a")
    with pytest.raises(ShapeError):
        tnp.full((2, 2), np.ones(3))


@pytest.mark.parametrize(
    "arguments",
    [(5,), (2, 7), (1, 8, 3), (8, 1, -3), (5, 2), (0,), (0.0, 1.0, 0.25), (1, 0, -0.3), (2.5,), (0, 1, 0.1)],
    ids=str,
)
def test_arange(arguments):
    expected = np.arange(*arguments)
    default = "float32" if expected.dtype.kind == "f" else "int32"
    check(lambda: tnp.arange(*arguments), expected.astype(default))
    check(lambda: tnp.arange(*arguments, dtype="float64"), np.arange(*arguments).astype("float64"))


def test_arange_of_other_dtypes():
    check(lambda: tnp.arange(0, 5, 1, "uint8"), np.arange(5, dtype="uint8"))
    check(lambda: tnp.arange(np.int64(3)), np.arange(3))
    check(lambda: tnp.arange(4, dtype="bfloat16"), np.arange(4).astype(tnp.bfloat16))
    check(lambda: tnp.arange(2**40, 2**40 + 2, dtype="int64"), np.arange(2**40, 2**40 + 2))
    check(lambda: tnp.arange(start=1, stop=3), np.arange(1, 3, dtype="int32"))
    assert tnp.arange(tnp.asarray(3)).tolist() == [0, 1, 2]
    with pytest.raises(DtypeError, match=r"\[arange\].* int32"):
        tnp.arange(2**40, 2**40 + 2)
    with pytest.raises(ArgumentError, match=r"\[arange\] the step must not be 0"):
        tnp.arange(1, 2, 0)
    with pytest.raises(ConcretizationError):
        tvmfun.jit(lambda n: tnp.arange(n))(3)


def test_linspace():
    for arguments, options in [
        ((0, 1), {}),
        ((2, -3, 5), {}),
        ((0, 1, 4, False), {}),
        ((1, 2, 1), {}),
        ((0, 1, 0), {}),
    ]:
        check(
            lambda a=arguments, o=options: tnp.linspace(*a, **o), np.linspace(*arguments, **options).astype("float32")
        )
    check(lambda: tnp.linspace(0, 1, 3, dtype="float64"), np.linspace(0, 1, 3))
    check(lambda: tnp.linspace(np.zeros(()), 1, 3), np.linspace(0, 1, 3))
    traced = tvmfun.jit(lambda a, b: tnp.linspace(a, b, 5))(1.0, 3.0)
    np.testing.assert_allclose(traced, np.linspace(1, 3, 5), rtol=1e-6)
    with pytest.raises(ArgumentError, match=r"\[linspace\]"):
        tnp.linspace(0, 1, -1)


def test_eye():
    for arguments in [(3,), (2, 3), (3, 2, 1), (3, 3, -1), (0,), (2, 2, 5)]:
        check(lambda a=arguments: tnp.eye(*a), np.eye(*arguments, dtype="float32"))
    check(lambda: tnp.eye(2, dtype="int32"), np.eye(2, dtype="int32"))
    check(lambda: tnp.eye(2, k=1, dtype=bool), np.eye(2, k=1, dtype=bool))


@pytest.mark.quick("tril")
@pytest.mark.parametrize("name", ["tril", "triu"])
def test_triangles(name):
    x = np.arange(24.0).reshape(2, 3, 4)
    for k in (-2, 0, 1, 9):
        check(lambda k=k: getattr(tnp, name)(x, k), getattr(np, name)(x, k))
    check(lambda: getattr(tnp, name)(np.ones((2, 2), "bool"), k=0), getattr(np, name)(np.ones((2, 2), bool)))
    with pytest.raises(ShapeError, match=rf"\[{name}\]"):
        getattr(tnp, name)(np.ones(3))


def test_arrays_like_a_shape_and_a_dtype():
    shape_dtype = tvmfun.eval_shape(lambda x: x.astype("bfloat16"), np.ones((2, 3)))
    for create, value in ((tnp.zeros_like, 0), (tnp.ones_like, 1), (lambda a: tnp.full_like(a, 7), 7)):
        result = create(shape_dtype)
        assert (result.shape, result.dtype, result.weak_type) == ((2, 3), dtypes.bfloat16, False)
        assert (np.asarray(result, "float32") == value).all()
        assert tvmfun.jit(lambda create=create: create(shape_dtype))().dtype == dtypes.bfloat16
    assert tnp.zeros_like(shape_dtype, "int32", (4,)).shape == (4,)


class Interface:
    """As images of PIL: no ``__array__``."""

    __array_interface__ = np.arange(3, dtype="int32").__array_interface__


@pytest.mark.parametrize(
    "value",
    [
        Interface(),
        array("f", [1, 2]),
        array("d"),
        memoryview(b"abc"),
        memoryview(np.arange(6.0, dtype="float32").reshape(2, 3)[:, ::2]),
        bytearray(b"ab"),
        [Interface(), Interface()],
    ],
)
def test_objects_that_numpy_reads(value):
    expected = np.asarray(value)
    for made in (tnp.asarray(value), tnp.array(value), tvmfun.jit(lambda: tnp.asarray(value))()):
        assert made.dtype == expected.dtype
        np.testing.assert_array_equal(made, expected)
    np.testing.assert_array_equal(tnp.asarray(value, "int8"), expected.astype("int8"))


@pytest.mark.parametrize("value", [b"abc", "abc", object(), None, {1}, memoryview(b"ab").cast("c")])
def test_objects_that_are_no_numbers(value):
    with pytest.raises(DtypeError, match="asarray"):
        tnp.asarray(value)
