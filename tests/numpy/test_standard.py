"""The namespace against the array API standard 2024.12: names, signatures, dtypes, and inspection."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.errors import ArgumentError, DtypeError


def words(text: str) -> list[str]:
    return text.split()


# Everything the standard has, but for `conj`, `imag`, `real`, the complex dtypes and the extension `fft`.
CONSTANTS = ["e", "inf", "nan", "newaxis", "pi"]
DTYPES = words("""
    bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64
""")
INSPECTION = ["__array_api_version__", "__array_namespace_info__"]
OF_ONE_ARRAY = words("""
    abs acos acosh asin asinh atan atanh bitwise_invert ceil cos cosh exp expm1 floor isfinite isinf isnan log log1p
    log2 log10 logical_not negative positive reciprocal round sign signbit sin sinh square sqrt tan tanh trunc
    matrix_transpose nonzero unique_all unique_counts unique_inverse unique_values
""")
OF_TWO_ARRAYS = words("""
    add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign divide equal
    floor_divide greater greater_equal hypot less less_equal logaddexp logical_and logical_or logical_xor maximum
    minimum multiply nextafter not_equal pow remainder subtract matmul
""")
SIGNATURES = {
    **dict.fromkeys(OF_ONE_ARRAY, "x, /"),
    **dict.fromkeys(OF_TWO_ARRAYS, "x1, x2, /"),
    "arange": "start, /, stop=None, step=1, *, dtype=None, device=None",
    "asarray": "obj, /, *, dtype=None, device=None, copy=None",
    "empty": "shape, *, dtype=None, device=None",
    "empty_like": "x, /, *, dtype=None, device=None",
    "eye": "n_rows, n_cols=None, /, *, k=0, dtype=None, device=None",
    "from_dlpack": "x, /, *, device=None, copy=None",
    "full": "shape, fill_value, *, dtype=None, device=None",
    "full_like": "x, /, fill_value, *, dtype=None, device=None",
    "linspace": "start, stop, /, num, *, dtype=None, device=None, endpoint=True",
    "meshgrid": "*arrays, indexing='xy'",
    "ones": "shape, *, dtype=None, device=None",
    "ones_like": "x, /, *, dtype=None, device=None",
    "tril": "x, /, *, k=0",
    "triu": "x, /, *, k=0",
    "zeros": "shape, *, dtype=None, device=None",
    "zeros_like": "x, /, *, dtype=None, device=None",
    "astype": "x, dtype, /, *, copy=True, device=None",
    "broadcast_arrays": "*arrays",
    "broadcast_to": "x, /, shape",
    "can_cast": "from_, to, /",
    "finfo": "type, /",
    "iinfo": "type, /",
    "isdtype": "dtype, kind",
    "result_type": "*arrays_and_dtypes",
    "clip": "x, /, min=None, max=None",
    "take": "x, indices, /, *, axis=None",
    "take_along_axis": "x, indices, /, *, axis=-1",
    "tensordot": "x1, x2, /, *, axes=2",
    "vecdot": "x1, x2, /, *, axis=-1",
    "concat": "arrays, /, *, axis=0",
    "expand_dims": "x, /, axis",
    "flip": "x, /, *, axis=None",
    "moveaxis": "x, source, destination, /",
    "permute_dims": "x, /, axes",
    "repeat": "x, repeats, /, *, axis=None",
    "reshape": "x, /, shape, *, copy=None",
    "roll": "x, /, shift, *, axis=None",
    "squeeze": "x, /, axis",
    "stack": "arrays, /, *, axis=0",
    "tile": "x, repetitions, /",
    "unstack": "x, /, *, axis=0",
    "argmax": "x, /, *, axis=None, keepdims=False",
    "argmin": "x, /, *, axis=None, keepdims=False",
    "count_nonzero": "x, /, *, axis=None, keepdims=False",
    "searchsorted": "x1, x2, /, *, side='left', sorter=None",
    "where": "condition, x1, x2, /",
    "argsort": "x, /, *, axis=-1, descending=False, stable=True",
    "sort": "x, /, *, axis=-1, descending=False, stable=True",
    "cumulative_prod": "x, /, *, axis=None, dtype=None, include_initial=False",
    "cumulative_sum": "x, /, *, axis=None, dtype=None, include_initial=False",
    "max": "x, /, *, axis=None, keepdims=False",
    "mean": "x, /, *, axis=None, keepdims=False",
    "min": "x, /, *, axis=None, keepdims=False",
    "prod": "x, /, *, axis=None, dtype=None, keepdims=False",
    "std": "x, /, *, axis=None, correction=0.0, keepdims=False",
    "sum": "x, /, *, axis=None, dtype=None, keepdims=False",
    "var": "x, /, *, axis=None, correction=0.0, keepdims=False",
    "all": "x, /, *, axis=None, keepdims=False",
    "any": "x, /, *, axis=None, keepdims=False",
    "diff": "x, /, *, axis=-1, n=1, prepend=None, append=None",
}
LINALG = {
    "cholesky": "x, /, *, upper=False",
    "cross": "x1, x2, /, *, axis=-1",
    "det": "x, /",
    "diagonal": "x, /, *, offset=0",
    "eigh": "x, /",
    "eigvalsh": "x, /",
    "inv": "x, /",
    "matmul": "x1, x2, /",
    "matrix_norm": "x, /, *, keepdims=False, ord='fro'",
    "matrix_power": "x, n, /",
    "matrix_rank": "x, /, *, rtol=None",
    "matrix_transpose": "x, /",
    "outer": "x1, x2, /",
    "pinv": "x, /, *, rtol=None",
    "qr": "x, /, *, mode='reduced'",
    "slogdet": "x, /",
    "solve": "x1, x2, /",
    "svd": "x, /, *, full_matrices=True",
    "svdvals": "x, /",
    "tensordot": "x1, x2, /, *, axes=2",
    "trace": "x, /, *, offset=0, dtype=None",
    "vecdot": "x1, x2, /, *, axis=-1",
    "vector_norm": "x, /, *, axis=None, keepdims=False, ord=2",
}
METHODS = words("""
    __abs__ __add__ __and__ __array_namespace__ __bool__ __complex__ __dlpack__ __dlpack_device__ __eq__ __float__
    __floordiv__ __ge__ __getitem__ __gt__ __index__ __int__ __invert__ __le__ __lshift__ __lt__ __matmul__ __mod__
    __mul__ __ne__ __neg__ __or__ __pos__ __pow__ __radd__ __rand__ __rfloordiv__ __rlshift__ __rmatmul__ __rmod__
    __rmul__ __ror__ __rpow__ __rrshift__ __rshift__ __rsub__ __rtruediv__ __rxor__ __setitem__ __sub__ __truediv__
    __xor__ T device dtype mT ndim shape size to_device
""")


def test_no_name_of_the_standard_is_missing():
    wanted = {*CONSTANTS, *DTYPES, *INSPECTION, *SIGNATURES, "linalg"}
    assert wanted - set(dir(tnp)) == set()
    assert wanted - set(tnp.__all__) == set()
    assert set(LINALG) - set(tnp.linalg.__all__) == set()
    assert set(METHODS) - set(dir(tnp.zeros(1))) == set()


@pytest.mark.parametrize(
    ("function", "standard"),
    [
        *(pytest.param(name, signature, id=name) for name, signature in SIGNATURES.items()),
        *(pytest.param(f"linalg.{name}", signature, id=f"linalg.{name}") for name, signature in LINALG.items()),
    ],
)
def test_signatures_take_what_the_standard_says(function: str, standard: str):
    ours = inspect.signature(tnp.linalg.__dict__[function[7:]] if "." in function else getattr(tnp, function))
    theirs = inspect.signature(eval(f"lambda {standard}: None"))
    positional = [p for p in ours.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in ours.parameters.values())
    place = 0
    for parameter in theirs.parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            assert takes_any or place < len(positional), parameter.name
            place += 1
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            own = ours.parameters[parameter.name]
            assert own.kind in (own.KEYWORD_ONLY, own.POSITIONAL_OR_KEYWORD)
            if parameter.default is not parameter.empty:
                assert own.default == parameter.default
    required = [p for p in positional[place:] if p.default is p.empty]
    assert required == []


def test_complex_numbers_are_refused_with_a_reason():
    for name in ("complex64", "complex128", "fft"):
        with pytest.raises(AttributeError, match="complex numbers"):
            getattr(tnp, name)
    with pytest.raises(AttributeError, match="there is no 'nonsense'"):
        tnp.nonsense
    with pytest.raises(DtypeError, match="not supported"):
        tnp.asarray(np.ones(2, "complex64"))


# -- dtypes ----------------------------------------------------------------------------------------------------

# The tables of the standard: the result for each pair of dtypes of one kind.
_BITS = {"i": (8, 16, 32, 64), "u": (8, 16, 32, 64), "f": (32, 64)}
_NAMES = {"i": "int", "u": "uint", "f": "float"}


def promotion_table() -> list[tuple[str, str, str]]:
    table = [("bool", "bool", "bool")]
    for kind, sizes in _BITS.items():
        table += [tuple(f"{_NAMES[kind]}{n}" for n in (a, b, max(a, b))) for a in sizes for b in sizes]  # type: ignore[misc]
    for signed in _BITS["i"]:
        for unsigned in (8, 16, 32):
            joined = signed if signed > unsigned else 2 * unsigned
            table += [
                (f"int{signed}", f"uint{unsigned}", f"int{joined}"),
                (f"uint{unsigned}", f"int{signed}", f"int{joined}"),
            ]
    return table  # type: ignore[reportReturnType]


@pytest.mark.parametrize(("first", "second", "joined"), promotion_table())
def test_dtypes_promote_as_in_the_standard(first: str, second: str, joined: str):
    assert tnp.result_type(first, second) == joined
    x, y = tnp.ones(2, first), tnp.ones(2, second)
    assert tnp.result_type(x, y) == joined
    assert tnp.promote_types(first, second) == joined
    function = tnp.logical_and if joined == "bool" else tnp.add
    assert tvmfun.eval_shape(function, x, y).dtype == joined
    assert tnp.can_cast(first, joined)


def test_python_numbers_take_the_dtype_of_the_array():
    for name in dtypes.NAMES.values():
        x = tnp.ones(2, name)
        numbers: tuple[Any, ...] = (True,) if name == "bool" else (1,) if "int" in name else (1, 1.5)
        for number in numbers:
            assert tnp.result_type(x, number) == name
            for left, right in ((x, number), (number, x)):
                assert tvmfun.eval_shape(tnp.maximum, left, right).dtype == name


def test_sums_of_narrow_integers_are_wider():
    for function in (tnp.sum, tnp.prod, tnp.cumulative_sum, tnp.cumulative_prod):
        for name, wide in (
            ("bool", "int32"),
            ("int8", "int32"),
            ("uint16", "uint32"),
            ("int64", "int64"),
            ("uint64", "uint64"),
        ):
            assert tvmfun.eval_shape(function, tnp.ones(2, name)).dtype == wide
        assert function(tnp.ones(2, "int8"), dtype="float64").dtype == "float64"


def test_can_cast():
    assert tnp.can_cast("int8", "int16") and not tnp.can_cast("int16", "int8")
    assert tnp.can_cast(tnp.ones(2, "float32"), "float64") and not tnp.can_cast("float32", "int64")
    assert tnp.can_cast("bfloat16", "float32") and not tnp.can_cast("float32", "bfloat16")
    assert tnp.can_cast("bool", "int8")


@pytest.mark.quick("float64")
@pytest.mark.parametrize("name", [n for n in dtypes.NAMES.values() if "float" in n])
def test_finfo(name: str):
    limits = tnp.finfo(name)
    one = tnp.ones((), name)
    assert limits.bits == one.dtype.itemsize * 8
    assert limits.dtype == one.dtype
    assert float(tnp.nextafter(one, 2)) == 1 + float(limits.eps)
    assert float(limits.max) == -float(limits.min)
    assert 0 < float(limits.smallest_subnormal) <= float(limits.smallest_normal) < float(limits.eps)
    assert tnp.finfo(one).eps == limits.eps


def test_limits_of_integers():
    assert (tnp.iinfo("int16").bits, tnp.iinfo("int16").min, tnp.iinfo("int16").max) == (16, -(2**15), 2**15 - 1)
    assert tnp.iinfo(tnp.ones(2, "uint8")).max == 255
    for function, name in ((tnp.iinfo, "float32"), (tnp.finfo, "int8"), (tnp.finfo, "bool")):
        with pytest.raises(DtypeError):
            function(name)


def test_isdtype():
    kinds = {
        "bool": ["bool"],
        "signed integer": ["int8", "int16", "int32", "int64"],
        "unsigned integer": ["uint8", "uint16", "uint32", "uint64"],
        "real floating": ["bfloat16", "float16", "float32", "float64"],
        "complex floating": [],
    }
    kinds["integral"] = kinds["signed integer"] + kinds["unsigned integer"]
    kinds["numeric"] = kinds["integral"] + kinds["real floating"]
    for kind, members in kinds.items():
        assert [name for name in dtypes.NAMES.values() if tnp.isdtype(name, kind)] == [
            name for name in dtypes.NAMES.values() if name in members
        ]
    assert tnp.isdtype(tnp.float32, tnp.float32) and not tnp.isdtype(tnp.float32, tnp.float64)
    assert tnp.isdtype("int8", ("real floating", "int8"))
    with pytest.raises(ArgumentError, match=r"\[isdtype\] a kind"):
        tnp.isdtype("int8", "whole")


def test_issubdtype():
    assert tnp.issubdtype("bfloat16", tnp.floating) and tnp.issubdtype("bfloat16", tnp.number)
    assert tnp.issubdtype(tnp.ones(2, "bfloat16"), tnp.floating) and not tnp.issubdtype(np.ones(2), tnp.integer)
    tvmfun.trace(lambda x: [] if tnp.issubdtype(x, tnp.integer) else 1 / 0)(tnp.arange(2))
    assert not tnp.issubdtype("bfloat16", tnp.integer) and not tnp.issubdtype("int8", tnp.inexact)
    assert tnp.issubdtype(None, tnp.floating) and not tnp.issubdtype(None, tnp.complexfloating)
    assert tnp.issubdtype("bfloat16", tnp.bfloat16) and not tnp.issubdtype("bfloat16", "float32")
    assert tnp.issubdtype("uint8", tnp.unsignedinteger) and not tnp.issubdtype("uint8", tnp.signedinteger)
    assert tnp.issubdtype(np.float32, np.float32)


# -- what the namespace says about itself ----------------------------------------------------------------------


def test_info():
    info = tnp.__array_namespace_info__()
    assert set(info.capabilities()) == {"boolean indexing", "data-dependent shapes", "max dimensions"}
    assert info.default_device() in info.devices()
    assert info.default_dtypes() == {
        "real floating": tnp.zeros(1).dtype,
        "complex floating": None,
        "integral": tnp.asarray(1).dtype,
        "indexing": tnp.argmax(tnp.zeros(1)).dtype,
    }
    assert set(info.dtypes()) == set(DTYPES)
    assert set(info.dtypes(kind=("bool", "real floating"))) == {"bool", "float32", "float64"}
    assert all(getattr(tnp, name) == dtype for name, dtype in info.dtypes(kind="numeric").items())
    with pytest.raises(ArgumentError, match=r"\[dtypes\]"):
        info.dtypes(kind="whole")


def test_an_array_knows_its_namespace():
    x = tnp.zeros(2)
    assert x.__array_namespace__() is tnp
    assert x.__array_namespace__(api_version="2024.12") is tnp
    assert tnp.__array_api_version__ == "2024.12"
    with pytest.raises(ArgumentError, match="2024.12"):
        x.__array_namespace__(api_version="2099.12")


@pytest.mark.slow
def test_a_function_written_for_the_standard():
    """Works on NumPy's arrays and on ours, traced or not, without knowing which."""

    def standardized(x: Any) -> Any:
        xp = x.__array_namespace__()
        centred = xp.astype(x, xp.float64) - xp.mean(xp.astype(x, xp.float64), axis=0, keepdims=True)
        _, s, vh = xp.linalg.svd(centred, full_matrices=False)
        return xp.abs(xp.matmul(centred, vh.mT)) / xp.where(s > 0, s, xp.asarray(1.0, dtype=xp.float64))

    x = np.random.default_rng(0).standard_normal((6, 3))
    expected = standardized(x)
    np.testing.assert_allclose(standardized(tnp.asarray(x)), expected, rtol=1e-9)
    np.testing.assert_allclose(tvmfun.jit(standardized)(x), expected, rtol=1e-9)
