"""Arrays: data in and out, operators, and what Python does with them."""

import copy
import math
import operator
import pickle

import ml_dtypes
import numpy as np
import pytest

import tvmfun
from tvmfun import dtypes
from tvmfun import numpy as tnp
from tvmfun.core.array import device_array
from tvmfun.errors import (
    ArgumentError,
    ConcretizationError,
    DonatedArrayError,
    DtypeError,
    IndexingError,
    ShapeError,
)

bfloat16 = np.dtype(ml_dtypes.bfloat16)


def same(actual, expected):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)


@pytest.fixture
def x():
    return tnp.asarray(np.arange(6, dtype="float32").reshape(2, 3))


@pytest.fixture
def i():
    return tnp.asarray([1, 2, 3])


# -- data in -----------------------------------------------------------------------------------------------


def _misaligned():
    return np.frombuffer(b"\0" + np.arange(5.0).tobytes(), dtype=np.uint8)[1:].view(np.float64)


def _read_only():
    x = np.arange(4.0)
    x.flags.writeable = False
    return x


LAYOUTS = {
    "misaligned": _misaligned,
    "read-only": _read_only,
    "transposed": lambda: np.arange(6.0).reshape(2, 3).T,
    "strided": lambda: np.arange(20)[3::4],
    "negative stride": lambda: np.arange(5, dtype="int8")[::-1],
    "repeated": lambda: np.broadcast_to(np.float32(3), (2, 2)),
    "Fortran": lambda: np.asfortranarray(np.ones((2, 3), "float16")),
    "no elements": lambda: np.zeros((0, 3), "uint16"),
    "no elements, strided": lambda: np.zeros((4, 3))[4:, ::2],
    "0-d": lambda: np.array(2.5),
    "scalar": lambda: np.float32(1.25),
    "bool": lambda: np.array([True, False, True])[::-1],
    "bfloat16": lambda: np.arange(6).astype(bfloat16).reshape(2, 3),
    "bfloat16, strided": lambda: np.arange(6).astype(bfloat16)[::-2],
    "bfloat16, 0-d": lambda: np.array(1.5, bfloat16),
    "bfloat16, no elements": lambda: np.zeros((2, 0), bfloat16),
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_numpy_arrays_of_any_layout_come_in_and_go_out(make):
    source = make()
    for array in (tnp.asarray(source), device_array(source)):
        assert (array.shape, array.dtype) == (source.shape, source.dtype)
        same(array, source)
        assert array.tensor.data_ptr() % 64 == 0 or not array.size


@pytest.mark.parametrize("dtype", [">i4", ">f8", ">u2"])
def test_big_endian_arrays_become_native(dtype):
    array = tnp.asarray(np.arange(3, dtype=dtype))
    assert array.dtype == np.dtype(dtype).newbyteorder("=")
    assert array.tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_changing_the_source_does_not_change_the_array(dtype):
    source = np.ones(4, dtype)
    array = tnp.asarray(source)
    source[:] = 0
    same(array, np.ones(4, dtype))


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_views_that_go_out_are_read_only_and_outlive_the_array(dtype):
    array = tnp.asarray(np.ones(1000, dtype))
    view = np.asarray(array)
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 0
    assert view.ctypes.data == array.tensor.data_ptr()  # no copy
    del array
    for _ in range(20):
        tnp.asarray(np.zeros(1000, dtype))
    assert (view == np.ones((), dtype)).all()


@pytest.mark.parametrize(
    "value", [np.zeros(2, complex), np.array([None]), np.array(["a"]), "abc", 1j, [1j], {1}, None, ["a"], object()]
)
def test_what_cannot_become_an_array_is_explained(value):
    with pytest.raises(DtypeError, match=r"\[(asarray|dtype)\] .*, got"):
        tnp.asarray(value)


def test_a_conversion_does_not_hide_an_unsupported_dtype():
    for value in (np.zeros(2, complex), np.array(["1"])):
        with pytest.raises(DtypeError):
            tnp.asarray(value, "float32")


def test_python_values_become_bool_int32_and_float32():
    for value, dtype in [(True, "bool"), (1, "int32"), (1.0, "float32"), ([True, 2], "int32"), ([1, 2.5], "float32")]:
        assert tnp.asarray(value).dtype == dtype
    assert tnp.asarray(1.0).weak_type
    assert not tnp.asarray([1.0]).weak_type
    assert tnp.asarray([]).dtype == "float32"
    assert tnp.asarray([[], []]).shape == (2, 0)
    same(tnp.asarray(range(3)), np.arange(3, dtype="int32"))
    same(tnp.asarray((1, (2))), np.array([1, 2], "int32"))


def test_numpy_numbers_keep_their_dtype():
    for number in (np.float64(1.5), np.int64(3), np.float16(2), np.uint8(7), np.bool_(True)):
        array = tnp.asarray(number)
        assert (array.dtype, array.weak_type) == (number.dtype, False)
    assert tnp.asarray([np.float64(1.5), 2]).dtype == "float64"
    assert tnp.asarray([np.float32(1.5), 2]).dtype == "float32"


def test_python_integers_must_fit():
    with pytest.raises(DtypeError, match="does not fit int32"):
        tnp.asarray(2**40)
    with pytest.raises(DtypeError, match=r"\[asarray\] a Python integer does not fit int32"):
        tnp.asarray([2**40])
    same(tnp.asarray([2**40], dtype="int64"), np.array([2**40]))
    same(tnp.asarray(2**40, dtype="int64"), np.array(2**40))
    with pytest.raises(DtypeError, match="uint8"):
        tnp.asarray([1, -1], dtype="uint8")
    with pytest.raises(DtypeError, match="int32"):
        tnp.asarray(math.nan, dtype="int32")


def test_sequences_of_arrays_are_stacked(i):
    same(tnp.asarray([i, i]), np.array([[1, 2, 3]] * 2, "int32"))
    same(tnp.asarray([i[0], 2]), np.array([1, 2], "int32"))
    same(tnp.asarray([i, [4.0, 5.0, 6.0]]), np.array([[1, 2, 3], [4, 5, 6]], "float32"))
    same(tnp.asarray([np.arange(2), np.arange(2)]), np.array([[0, 1]] * 2))
    with pytest.raises(ShapeError, match=r"\[asarray\]"):
        tnp.asarray([i, i[:2]])
    with pytest.raises(DtypeError, match=r"\[asarray\]"):
        tnp.asarray([1, [2]])
    same(tvmfun.jit(lambda a: tnp.asarray([[a, 1], [2.5, a]]))(1.5), np.array([[1.5, 1], [2.5, 1.5]], "float32"))


def test_the_array_api_arguments_of_asarray(x):
    assert tnp.asarray(x) is x
    assert tnp.asarray(x, copy=False, device="cpu") is x
    for value, options in [(np.ones(2), {}), (x, {"dtype": "float64"})]:
        with pytest.raises(ArgumentError, match="a copy is needed"):
            tnp.asarray(value, copy=False, **options)
    assert tnp.array([1, 2], "float64").dtype == "float64"


# -- data out ----------------------------------------------------------------------------------------------


def test_array_protocol(x):
    assert np.asarray(x, np.float64).dtype == "float64"
    assert np.array(x).flags.writeable
    assert np.asarray(x, copy=False).base is not None
    with pytest.raises(ValueError, match="copy"):
        np.asarray(x, np.int32, copy=False)


def test_pickle_copy_and_deepcopy(x):
    for array in (x, tnp.asarray(np.ones((2, 0), bfloat16)), tnp.asarray(3), tnp.asarray(True)):
        restored = pickle.loads(pickle.dumps(array))
        same(restored, array)
        assert restored.weak_type == array.weak_type
    assert copy.copy(x) is x
    assert copy.deepcopy({"x": x})["x"] is x


def test_repr_and_format(x):
    assert repr(tnp.asarray([1, 2])) == "Array([1, 2], dtype=int32)"
    assert repr(tnp.zeros((0, 3))) == "Array([], shape=(0, 3), dtype=float32)"
    assert repr(tnp.zeros(0)) == "Array([], dtype=float32)"
    assert f"{x[1, 1]:.2f}" == "4.00"
    assert f"{tnp.asarray(7):03d}" == "007"
    with pytest.raises(TypeError, match="0-d"):
        f"{x:.2f}"


def test_dlpack_to_numpy_is_read_only_and_shares_memory(x):
    view = np.from_dlpack(x)
    same(view, x)
    assert view.ctypes.data == x.tensor.data_ptr()
    assert not view.flags.writeable
    owned = np.from_dlpack(x, copy=True)
    assert owned.flags.writeable
    assert owned.ctypes.data != x.tensor.data_ptr()
    with pytest.raises(BufferError):
        x.__dlpack__(dl_device=(2, 0))


def test_dlpack_to_and_from_jax():
    jnp = pytest.importorskip("jax.numpy")
    for dtype in ("float32", "int32", "bool", "bfloat16", "float16", "uint8"):
        for shape in ((2, 3), (0, 3), ()):
            source = jnp.ones(shape, dtype)
            array = tnp.asarray(source)
            same(array, np.asarray(source))
            same(jnp.from_dlpack(array), source)
            same(jnp.asarray(array), source)


@pytest.mark.interop
def test_dlpack_to_and_from_torch():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.float16, torch.uint8):
        for shape in ((2, 3), (0, 3), ()):
            source = torch.ones(shape, dtype=dtype)
            array = tnp.asarray(source)
            assert str(array.dtype) == str(dtype).removeprefix("torch.")
            assert torch.equal(torch.from_dlpack(array), source)
            source.zero_()
            assert bool((array == 1).all())
    same(tnp.asarray(torch.arange(6).reshape(2, 3).T), np.arange(6).reshape(2, 3).T)
    same(tnp.asarray(torch.ones(3, requires_grad=True)), np.ones(3, "float32"))
    same(tnp.add(torch.ones(2), tnp.ones(2)), np.full(2, 2, "float32"))
    same(tnp.asarray([torch.ones(2), torch.zeros(2)]), np.array([[1, 1], [0, 0]], "float32"))
    with pytest.raises(DtypeError, match="complex64"):
        tnp.asarray(torch.ones(2, dtype=torch.complex64))


# -- Python's protocols ------------------------------------------------------------------------------------


def test_conversions_to_python(x, i):
    assert (bool(i[0]), int(x[1, 1]), float(i[0]), complex(x[0, 1])) == (True, 4, 1.0, 1 + 0j)
    assert [10, 20, 30][i[0]] == 20
    assert list(range(i[1])) == [0, 1]
    assert operator.index(tnp.asarray(np.uint8(3))) == 3
    assert (x.tolist(), i[0].item()) == ([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], 1)
    assert math.floor(x[1, 1]) == 4
    for convert in (bool, int, float):
        with pytest.raises(ShapeError, match="one element"):
            convert(x)
    with pytest.raises(ShapeError, match=r"Try x.any\(\) or x.all\(\)"):
        bool(tnp.zeros(0))
    for bad in (x[0, 0], i):
        with pytest.raises(TypeError, match="index"):
            operator.index(bad)


def test_length_iteration_and_membership(x, i):
    assert len(x) == 2
    assert [float(v) for v in i] == [1, 2, 3]
    assert [row.shape for row in x] == [(3,), (3,)]
    assert [int(v) for v in reversed(i)] == [3, 2, 1]
    assert (2 in i, 5 in i, x[0] in x) == (True, False, True)
    with pytest.raises(TypeError, match="0-d"):
        len(i[0])
    with pytest.raises(TypeError, match="0-d"):
        iter(i[0])
    assert int(sum(i)) == 6


def test_arrays_are_immutable_and_not_hashable(x):
    with pytest.raises(TypeError, match=r"x.at\[index\].set\(value\)"):
        x[0] = 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)
    with pytest.raises(AttributeError):
        x.shape = (3, 2)
    with pytest.raises(AttributeError, match=r"no attribute 'foo'"):
        x.foo


def test_attributes(x):
    assert (x.ndim, x.size, x.nbytes, x.itemsize, len(x.shape)) == (2, 6, 24, 4, 2)
    assert x.device == tvmfun.devices("cpu")[0]
    assert x.to_device("cpu") is x
    assert x.block_until_ready() is x
    assert x.__array_namespace__() is tnp
    assert isinstance(x, tnp.Array) and isinstance(x, tvmfun.Array)


def test_donated_arrays_say_so(x):
    x.delete()
    assert x.is_deleted()
    with pytest.raises(DonatedArrayError, match="donated"):
        np.asarray(x)
    assert x.shape == (2, 3)
    x.delete()
    assert x.is_deleted()


def test_types_are_one_object_while_they_are_equal(x):
    assert tnp.asarray(np.array(x)).aval is (x + x).aval is x.aval
    assert tnp.asarray(np.ones((2, 3), "int8")).aval is not x.aval
    for n in range(5000):  # more than are remembered
        tnp.asarray(np.zeros((0, n), x.dtype))
    again = tnp.asarray(np.array(x))
    assert again.aval == x.aval
    np.testing.assert_array_equal(again + x, 2 * np.asarray(x))


@pytest.mark.parametrize(
    "use", [bool, int, float, operator.index, repr, lambda v: v.item(), lambda v: v.tolist(), np.asarray]
)
def test_traced_values_have_no_data(use):
    def f(v):
        use(v)
        return v

    expected = "Tracer" if use is repr else None
    if expected:
        tvmfun.jit(f)(1)
        return
    with pytest.raises(ConcretizationError, match="no data yet"):
        tvmfun.jit(f)(1)


# -- operators ---------------------------------------------------------------------------------------------

BINARY = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


@pytest.mark.quick("add", "gt", "mod", "and")
@pytest.mark.parametrize("op", BINARY.values(), ids=BINARY)
def test_operators_in_both_orders_with_numpy_and_python(op):
    left, right = np.array([5, 1, 3], "int32"), np.array([2, 1, 4], "int32")
    expected = op(left, right)
    expected = expected.astype("float32") if expected.dtype == "float64" else expected
    a, b = tnp.asarray(left), tnp.asarray(right)
    for result in (op(a, b), op(left, b), op(a, right)):
        assert isinstance(result, tvmfun.Array)
        same(result, expected)
    for result, wanted in ((op(a, 2), op(left, 2)), (op(2, b), op(2, right))):
        same(result, wanted.astype("float32") if wanted.dtype == "float64" else wanted)
    same(op(np.int32(2), b), op(a.at[:].set(2), b))
    for bad in ([1, 2, 3], "a", None, 1j, {}):
        if op not in (operator.eq, operator.ne):
            with pytest.raises(TypeError):
                op(a, bad)
            if not (op is operator.mod and bad == "a"):  # which formats a string
                with pytest.raises(TypeError):
                    op(bad, a)


def test_matmul_divmod_and_unary_operators(x, i):
    same(np.arange(3, dtype="float32") @ x.T, np.array([5, 14], "float32"))
    same(x @ np.arange(3, dtype="float32"), np.array([5, 14], "float32"))
    same(divmod(i, 2)[0], np.array([0, 1, 1], "int32"))
    same(divmod(7, i)[1], np.array([0, 1, 1], "int32"))
    same(-i, np.array([-1, -2, -3], "int32"))
    same(+i, i)
    same(abs(-i), i)
    same(~i, ~np.array(i))
    same(~(i > 1), np.array([True, False, False]))
    same(round(tnp.asarray([0.5, 1.5])), np.array([0, 2], "float32"))
    with pytest.raises(TypeError):
        [1, 2, 3] @ i


def test_wide_dtypes_are_honoured_and_python_numbers_do_not_widen():
    single, double, narrow = tnp.ones(2), tnp.ones(2, "float64"), tnp.ones(2, "int8")
    assert (single * 2.5).dtype == (2 * single).dtype == "float32"
    assert (single * np.float64(2)).dtype == "float32" and (single + double).dtype == "float64"
    assert (double * 2).dtype == "float64"
    assert (narrow + 1).dtype == "int8"
    assert (narrow * np.int64(2)).dtype == "int64"
    assert (narrow + 1.0).dtype == (narrow / narrow).dtype == "float32"
    assert tnp.asarray(np.arange(3)).dtype == "int64"
    assert (tnp.asarray(1.0) * tnp.ones(2, "bfloat16")).dtype == "bfloat16"
    assert tvmfun.jit(lambda v: v * 2)(np.float64(2)).dtype == "float64"
    with pytest.raises(DtypeError, match=r"\[add\] the Python integer does not fit int8"):
        narrow + 300


@pytest.mark.slow
def test_methods_take_the_arguments_of_numpy(x):
    host = np.array(x)
    for name in ("sum", "prod", "mean", "var", "std", "max", "min"):
        np.testing.assert_allclose(getattr(x, name)(0), getattr(host, name)(0), rtol=1e-6)
        np.testing.assert_allclose(getattr(x, name)(axis=-1, keepdims=True), getattr(host, name)(-1, keepdims=True))
        np.testing.assert_allclose(getattr(np, name)(x), getattr(np, name)(host), rtol=1e-6)
        assert isinstance(getattr(np, name)(x, axis=0), tvmfun.Array)
    assert (x.argmax(1).tolist(), x.argmin().tolist()) == ([2, 2], 0)
    assert (bool(x.any()), bool(x.all())) == (True, False)
    assert x.reshape(3, 2).shape == x.reshape((3, -1)).shape == x.T.shape == x.mT.shape == (3, 2)
    assert x.transpose().shape == x.transpose(1, 0).shape == x.transpose((1, 0)).shape == x.swapaxes(0, 1).shape
    assert x.ravel().shape == x.flatten().shape == (6,)
    assert x[None].squeeze(0).shape == (2, 3)
    same(x.astype("int32").clip(1, 3), host.astype("int32").clip(1, 3))
    same(x.take(tnp.asarray([1, 0]), 1), host[:, [1, 0]])
    same(x.repeat(2, 1), host.repeat(2, 1))
    same(x.round(), host)
    same(x.argsort(), host.argsort().astype("int32"))
    same(x.copy(), host)
    assert float(x[0].dot(x[1])) == 14
    with pytest.raises(ArgumentError, match="immutable"):
        x.sum(out=host)


def test_indexing_errors(x, i):
    for index in (3, -4, np.int64(3)):
        with pytest.raises(IndexingError, match="3 elements"):
            i[index]
    for index in (1.0, "a", (0, 0), (..., ...), slice(None, None, 0), slice(0.5), [True, False], [0.5]):
        with pytest.raises(IndexError if index != [0.5] else DtypeError, match=r"\[index\]"):
            i[index]


def test_text_for_people_is_that_of_numpy():
    assert str(tnp.asarray(1.5)) == f"{tnp.asarray(1.5)}" == "1.5"
    assert str(tnp.asarray([1.0, 2.0])) == "[1. 2.]"


def test_masked_arrays_and_complex_numbers_are_refused():
    with pytest.raises(DtypeError, match=r"no mask.*filled"):
        tnp.asarray(np.ma.array([1, 2], mask=[True, False]))
    for product in (lambda x: x * 1j, lambda x: 1j * x):
        with pytest.raises(DtypeError, match="complex"):
            product(tnp.asarray([1.0]))


def test_assignments_name_the_way_to_update():
    x = tnp.asarray([1.0, 2.0])
    for target in (x, x.at):
        with pytest.raises(TypeError, match=r"x\.at\[index\]\.set"):
            target[0] = 3.0
