"""The promotion table, against JAX with 64-bit types."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from support.oracle import x64

from tvmfun import dtypes
from tvmfun import numpy as tnp
from tvmfun.errors import DtypeError

WEAK = {"bool": True, "int": 1, "float": 1.0}


def test_every_pair_of_dtypes_promotes_as_in_jax():
    jax = pytest.importorskip("jax")
    with x64(True):
        for first, second in itertools.product(dtypes.ALL, dtypes.ALL):
            expected = jax.numpy.promote_types(first, second)
            if expected == np.float64 and dtypes.float64 not in (first, second):
                # JAX's result is its default float (uint64 and a signed integer); ours is float32.
                expected = dtypes.float32
            assert dtypes.promote((first, False), (second, False))[0] == expected, (first, second)


@pytest.mark.parametrize("scalar", WEAK.values(), ids=WEAK)
def test_every_pair_with_a_python_number_promotes_as_in_jax(scalar):
    jax = pytest.importorskip("jax")
    with x64(True):
        for dtype in dtypes.ALL:
            expected = jax.numpy.result_type(jax.numpy.zeros((), dtype), scalar)
            if dtypes.is_float(expected) and not dtypes.is_float(dtype):
                expected = dtypes.DEFAULT_FLOAT
            if dtypes.is_integer(expected) and dtype == dtypes.bool_:
                expected = dtypes.DEFAULT_INT
            operands = (dtype, False), (dtypes.of_scalar(scalar), True)
            assert dtypes.promote(*operands)[0] == expected, dtype
            assert dtypes.promote(*reversed(operands))[0] == expected, dtype


def test_only_numbers_stay_weak():
    assert dtypes.promote((dtypes.int32, True), (dtypes.float32, True)) == (dtypes.float32, True)
    assert dtypes.promote((dtypes.int8, False), (dtypes.int32, True)) == (dtypes.int8, False)
    assert dtypes.promote((dtypes.float64, True), (dtypes.float32, True)) == (dtypes.float64, True)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_promotion_is_idempotent_and_has_bool_as_its_bottom(dtype):
    assert dtypes.result_type(dtype, dtype) == dtype
    assert dtypes.result_type(dtype, bool) == dtype


def test_canonical_takes_what_means_a_dtype():
    for meaning in ("float32", np.float32, np.dtype("float32"), float, ">f4"):
        assert dtypes.canonical(meaning) == np.dtype("float32")
    assert dtypes.canonical(int) == np.dtype("int32")
    assert dtypes.canonical(bool) == np.dtype("bool")
    assert dtypes.canonical(ml_dtypes.bfloat16) == dtypes.canonical("bfloat16") == dtypes.bfloat16


@pytest.mark.parametrize("dtype", ["complex64", complex, object, "U3", "datetime64[s]", "nonsense", None, [1], 3.5])
def test_unknown_dtypes_are_explained(dtype):
    with pytest.raises(DtypeError, match=r"\[dtype\] the dtype is not supported, got .* Try one of bool, int8"):
        dtypes.canonical(dtype)


def test_python_numbers_are_not_numpy_numbers():
    assert all(map(dtypes.is_scalar, (True, 1, 1.5)))
    assert not any(map(dtypes.is_scalar, (np.float64(1), np.int64(1), np.bool_(True), "1", None, 1j)))


def test_result_type_takes_arrays_numbers_and_dtypes():
    assert tnp.result_type(tnp.ones(2, "int8"), 1) == "int8"
    assert tnp.result_type(tnp.ones(2, "int8"), 1.0) == "float32"
    assert tnp.result_type(np.float64(1.0), tnp.float32) == tnp.result_type(1.0, tnp.float32) == "float32"
    assert tnp.result_type("int32", tnp.ones(2, "bfloat16")) == "bfloat16"
    with pytest.raises(DtypeError, match=r"\[result_type\]"):
        tnp.result_type(tnp.ones(2), [1])
