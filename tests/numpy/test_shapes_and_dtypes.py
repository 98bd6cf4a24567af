"""Shapes and dtypes of results against JAX, for random shapes that broadcast, all dtypes, and no elements."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.oracle import x64

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.errors import TvmfunError

# JAX's defaults depend on whether it has 64-bit numbers; ours are those without.
DTYPES = [name for dtype, name in dtypes.NAMES.items() if dtype.itemsize <= 4]
many = settings(max_examples=60)


def words(text: str) -> list[str]:
    return text.split()


UNARY = words("""
    abs acos acosh asin asinh atan atanh bitwise_invert cbrt ceil cos cosh deg2rad exp exp2 expm1 floor isfinite isinf
    isnan isneginf isposinf log log10 log1p log2 logical_not nan_to_num negative positive rad2deg reciprocal round
    sign signbit sin sinc sinh sqrt square tan tanh trunc
""")
BINARY = words("""
    add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign divide equal
    float_power floor_divide fmax fmin fmod greater greater_equal heaviside hypot isclose less less_equal logaddexp
    logical_and logical_or logical_xor maximum minimum multiply nextafter not_equal pow remainder subtract
""")
REDUCTIONS = words("""
    sum prod mean var std max min ptp any all count_nonzero argmax argmin nansum nanmean nanmax nanmin nanvar nanargmax
    median cumsum cumprod cumulative_sum sort argsort
""")
# The standard leaves open how numeric functions treat bools.
OF_NUMBERS = words("""
    abs bitwise_left_shift bitwise_right_shift floor_divide fmod negative positive pow ptp remainder round sign square
    subtract
""")


def described(function: Any, library: Any, *avals: Any) -> Any:
    """The shape and dtype of the result, or None if the function refuses."""
    try:
        result = library.eval_shape(function, *avals)
    except (TypeError, ValueError, TvmfunError):
        return None
    return tuple(result.shape), np.dtype(result.dtype).name


def compare(name: str, shapes: Any, kinds: Any, **options: Any) -> None:
    specs = list(zip(shapes, kinds, strict=True))
    ours = described(lambda *x: getattr(tnp, name)(*x, **options), tvmfun, *(tvmfun.ShapeDtype(s, d) for s, d in specs))
    with x64(False):
        like = [jax.ShapeDtypeStruct(s, jnp.dtype(d)) for s, d in specs]
        theirs = described(lambda *x: getattr(jnp, name)(*x, **options), jax, *like)
    if not (name in OF_NUMBERS and set(kinds) == {"bool"}):
        assert ours == theirs, (name, specs, options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_of_functions_of_one_array(dtype: str):
    for name in UNARY:
        compare(name, [(2, 0)], [dtype])


@pytest.mark.quick("bool")
@pytest.mark.parametrize("first", DTYPES)
def test_dtypes_of_functions_of_two_arrays(first: str):
    for second in DTYPES:
        if dtypes.result_type(first, second).itemsize > 4:
            continue
        for name in BINARY:
            compare(name, [(2, 1), (3,)], [first, second])


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_of_reductions(dtype: str):
    for name in REDUCTIONS:
        compare(name, [(2, 3)], [dtype], axis=1)


@given(hnp.mutually_broadcastable_shapes(num_shapes=2, min_side=0, max_dims=4), st.sampled_from(BINARY))
@many
def test_shapes_that_broadcast(shapes: Any, name: str):
    compare(name, shapes.input_shapes, ["int32", "int32"])
    assert tnp.broadcast_shapes(*shapes.input_shapes) == shapes.result_shape


@given(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
@many
def test_shapes_that_may_not_broadcast(first: Any, second: Any):
    compare("add", [first, second], ["float32", "float32"])
    compare("where", [first, second, first], ["bool", "float32", "float32"])


@pytest.mark.slow
@given(st.data(), hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4))
@many
def test_shapes_of_reductions(data: Any, shape: Any):
    axes = data.draw(hnp.valid_tuple_axes(len(shape), min_size=1))
    for name in ("sum", "mean", "any", "max", "std"):
        compare(name, [shape], ["float32"], axis=axes, keepdims=data.draw(st.booleans()))
    for name in ("argmax", "cumsum", "sort", "flip", "diff", "take_along_axis"):
        if name == "take_along_axis":
            compare(name, [shape, shape], ["float32", "int32"], axis=axes[0])
        else:
            compare(name, [shape], ["float32"], axis=axes[0])


@pytest.mark.slow
@given(st.data(), hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4))
@many
def test_shapes_of_manipulations(data: Any, shape: Any):
    rank = len(shape)
    axis = data.draw(st.integers(-rank, rank - 1))
    other = data.draw(st.integers(-rank, rank - 1))
    order = data.draw(st.permutations(range(rank)))
    for name, options in (
        ("permute_dims", {"axes": order}),
        ("moveaxis", {"source": axis, "destination": other}),
        ("expand_dims", {"axis": axis}),
        ("repeat", {"repeats": 2, "axis": axis}),
        ("roll", {"shift": 3, "axis": axis}),
        ("ravel", {}),
        ("squeeze", {}),
        ("tril", {"k": 1}),
        ("diagonal", {"offset": 1}),
        ("vstack", {}),
        ("rot90", {}),
        ("atleast_3d", {}),
    ):
        call = {
            "moveaxis": lambda xp, x, o: xp.moveaxis(x, o["source"], o["destination"]),
            "repeat": lambda xp, x, o: xp.repeat(x, o["repeats"], axis=o["axis"]),
            "roll": lambda xp, x, o: xp.roll(x, o["shift"], axis=o["axis"]),
            "vstack": lambda xp, x, o: xp.vstack([x, x]),
        }.get(name, lambda xp, x, o, name=name: getattr(xp, name)(x, **o))
        ours = described(lambda x, c=call, o=options: c(tnp, x, o), tvmfun, tvmfun.ShapeDtype(shape, "float32"))
        like = jax.ShapeDtypeStruct(shape, jnp.float32)
        theirs = described(lambda x, c=call, o=options: c(jnp, x, o), jax, like)
        assert ours == theirs, (name, shape, options)


EMPTY = np.zeros((0, 3), "float32")


@pytest.mark.quick("<lambda>1", "<lambda>27", "<lambda>39", "<lambda>29")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "function",
    [
        lambda xp: xp.sum(EMPTY, axis=0),
        lambda xp: xp.prod(EMPTY),
        lambda xp: xp.mean(EMPTY, axis=1),
        lambda xp: xp.mean(EMPTY, axis=0),
        lambda xp: xp.var(EMPTY),
        lambda xp: xp.any(EMPTY, axis=0),
        lambda xp: xp.all(EMPTY),
        lambda xp: xp.max(EMPTY, axis=1),
        lambda xp: xp.max(EMPTY, initial=2),
        lambda xp: xp.cumsum(EMPTY, axis=0),
        lambda xp: xp.sort(EMPTY, axis=0),
        lambda xp: xp.argsort(EMPTY, axis=0),
        lambda xp: xp.matmul(EMPTY.T, EMPTY),
        lambda xp: xp.matmul(EMPTY, EMPTY.T),
        lambda xp: xp.tensordot(EMPTY, EMPTY, 2),
        lambda xp: xp.einsum("ij,ik->jk", EMPTY, EMPTY),
        lambda xp: xp.concatenate([EMPTY, np.ones((1, 3), "float32")]),
        lambda xp: xp.diff(EMPTY, axis=0),
        lambda xp: xp.diff(EMPTY),
        lambda xp: xp.diagonal(EMPTY),
        lambda xp: xp.trace(EMPTY),
        lambda xp: xp.tile(EMPTY, 2),
        lambda xp: xp.repeat(EMPTY, 2, axis=0),
        lambda xp: xp.roll(EMPTY, 1),
        lambda xp: xp.pad(EMPTY, 1),
        lambda xp: xp.flip(EMPTY),
        lambda xp: xp.unique(EMPTY),
        lambda xp: xp.nonzero(EMPTY),
        lambda xp: xp.searchsorted(EMPTY[:, 0], np.float32(1)),
        lambda xp: xp.searchsorted(np.ones(3, "float32"), EMPTY),
        lambda xp: xp.digitize(EMPTY, np.ones(2, "float32")),
        lambda xp: xp.isin(EMPTY, np.ones(2, "float32")),
        lambda xp: xp.isin(np.ones(2, "float32"), EMPTY),
        lambda xp: xp.histogram(EMPTY)[1],
        lambda xp: xp.take(EMPTY, np.asarray([1, 0]), axis=1),
        lambda xp: xp.take(EMPTY, np.zeros(0, "int32"), axis=0),
        lambda xp: xp.kron(EMPTY, np.ones((2, 2), "float32")),
        lambda xp: xp.linalg.det(np.zeros((2, 0, 0), "float32")),
        lambda xp: xp.linalg.inv(np.zeros((0, 2, 2), "float32")),
        lambda xp: xp.linalg.cholesky(np.zeros((0, 0), "float32")),
        lambda xp: xp.linalg.norm(EMPTY),
        lambda xp: xp.meshgrid(EMPTY[:, 0], EMPTY[:, 0])[0],
        lambda xp: xp.interp(EMPTY[:, 0], np.arange(2.0), np.arange(2.0)),
        lambda xp: xp.convolve(np.ones(1, "float32"), np.ones(3, "float32")),
        lambda xp: xp.trapezoid(EMPTY, axis=1),
        lambda xp: xp.vander(EMPTY[:, 0], 2),
        lambda xp: xp.diag(EMPTY[:, 0], 1),
    ],
)
def test_no_elements(function: Any):
    expected = function(np)
    for got in (
        (function(tnp), tvmfun.jit(lambda: function(tnp))()) if not isinstance(expected, tuple) else [function(tnp)]
    ):
        pairs = zip(got, expected, strict=True) if isinstance(expected, tuple) else [(got, expected)]
        for ours, theirs in pairs:
            assert ours.shape == np.shape(theirs)
            np.testing.assert_array_equal(np.asarray(ours), theirs)


def test_the_names_of_dtypes_make_numbers():
    x = tnp.float32(0.5) * tnp.ones(2)
    assert x.dtype == tnp.float32
    assert (tnp.int8(3) + tnp.ones(2, "int8")).dtype == tnp.int8
    assert tvmfun.jit(lambda x: x * tnp.bfloat16(2))(tnp.ones(2, tnp.bfloat16)).dtype == tnp.bfloat16
    assert tvmfun.jit(lambda x: tnp.int8(x))(1.0).dtype == tnp.int8


def test_shapes_of_what_only_has_a_shape():
    for value in (tvmfun.ShapeDtype((2, 3), "float32"), np.ones((2, 3)), [[1, 2, 3], [4, 5, 6]]):
        assert (tnp.shape(value), tnp.ndim(value), tnp.size(value), tnp.size(value, 1)) == ((2, 3), 2, 6, 3)
    assert (tnp.shape(3.0), tnp.ndim(True), tnp.size(np.float32(1))) == ((), 0, 1)


SIZED = {
    "nonzero": lambda x, n: tnp.nonzero(x, size=n)[0],
    "where": lambda x, n: tnp.where(x > 0, size=n)[0],
    "unique": lambda x, n: tnp.unique(x, size=n),
    "setdiff1d": lambda x, n: tnp.setdiff1d(tnp.arange(8), x, size=n),
    "union1d": lambda x, n: tnp.union1d(tnp.arange(3), x, size=n),
    "setxor1d": lambda x, n: tnp.setxor1d(tnp.arange(3), x, size=n),
    "linspace": lambda x, n: tnp.linspace(x[0], 1, n),
    "split": lambda x, n: tnp.split(x[:6], n)[1],
    "top_k": lambda x, n: tvmfun.lax.top_k(x, n)[0],
    "scan": lambda x, n: tvmfun.lax.scan(lambda c, _: (c + 1, c), x, length=n)[1],
    "iota": lambda x, n: tvmfun.lax.iota("int32", n) + x[0],
    "dynamic_slice_in_dim": lambda x, n: tvmfun.lax.dynamic_slice_in_dim(x, 1, n),
}


@pytest.mark.parametrize("name", SIZED)
def test_sizes_in_arrays_with_data(name):
    """Sizes computed before tracing, which are constants of the trace."""
    x = np.array([3, 0, 1, 2, 2, 0, 5], "int32")
    expected = SIZED[name](tnp.asarray(x), 3)
    for size in (tnp.asarray(3), np.int32(3)):
        np.testing.assert_array_equal(SIZED[name](tnp.asarray(x), size), expected)
        np.testing.assert_array_equal(tvmfun.jit(lambda x, size=size: SIZED[name](x, size))(x), expected)
    with pytest.raises(TvmfunError):
        tvmfun.jit(SIZED[name])(x, 3)
