"""Every pointwise op at special points: values, first and second derivatives, compared with JAX.

The points are zeros of both signs, ties, infinities, NaN, subnormal and huge numbers, and what the op's test case adds.
An op gets them without asking for it. XLA takes subnormal numbers for 0, and NumPy says what values are there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_cases import CASES
from op_cases.oracles import ORACLES
from support import oracle

import tvmfun
from tvmfun import dtypes, errors
from tvmfun import numpy as tnp
from tvmfun.core.op import REGISTRY, Op

TOLERANCES = {"float32": 3e-5, "float64": 1e-9}
#: Ops that are not functions of floats, or of their positions.
OTHERS = {"where", "astype", "bitcast", "name", "barrier"}
#: Ops whose results are not floats, so that only values are compared.
NAMES = [name for name, op in REGISTRY.items() if op.kind == "pointwise" and name not in OTHERS]
DTYPES = ["float32", pytest.param("float64", marks=pytest.mark.slow)]


def takes_floats(op: Op) -> bool:
    aval = tvmfun.ShapeDtype((), "float64")
    try:
        op.shape(*[aval] * count(op), **ORACLES[op.name].params)
    except errors.DtypeError:
        return False
    return True


def count(op: Op) -> int:
    return len(CASES[op.name][0].arguments)


def points(dtype: str, more: tuple[float, ...]) -> np.ndarray:
    limits = np.finfo(dtype)
    numbers = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-3, 1e4, -1e4, np.inf, -np.inf, np.nan]
    ends = [limits.tiny, -limits.tiny, limits.max, -limits.max]
    return np.asarray([*numbers, *ends, *more], dtype)


def arguments(op: Op, dtype: str, more: tuple[float, ...] = ()) -> tuple[np.ndarray, ...]:
    """Every point, or every pair of them."""
    grid = np.meshgrid(*[points(dtype, more)] * count(op), indexing="ij")
    return tuple(axis.ravel() for axis in grid)


def with_derivatives(module: Any, numpy: Any, function: Callable, *values: Any) -> dict[str, Any]:
    """The value, and the derivatives by each argument and by each two: all by reverse mode."""
    result = {"value": function(*values)}
    if not dtypes.is_float(np.dtype(result["value"].dtype)):
        return result

    def by(function: Callable, i: int, *values: Any) -> Any:
        out, pull = module.vjp(function, *values)
        return pull(numpy.ones_like(out))[i]

    for i in range(len(values)):
        first = partial(by, function, i)
        result[f"derivative by {i}"] = first(*values)
        for j in range(i, len(values)):
            result[f"derivative by {i} and {j}"] = by(first, j, *values)
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in NAMES if takes_floats(REGISTRY[name])])
def test_value_and_derivatives_at_special_points_are_those_of_jax(name: str, dtype: str):
    op, expected_by = REGISTRY[name], ORACLES[name]
    values = arguments(op, dtype, expected_by.special)
    ours = lambda *xs: op(*xs, **expected_by.params)
    theirs = lambda *xs: expected_by.function(*xs, **expected_by.params)
    with oracle.x64(), np.errstate(all="ignore"):
        got = tvmfun.jit(partial(with_derivatives, tvmfun, tnp, ours))(*values)
        expected = jax.jit(partial(with_derivatives, jax, jnp, theirs))(*map(jnp.asarray, values))
        exempt = {which: expected_by.exempt(which, *values) for which in expected}
    compare(name, dtype, values, got, expected, exempt)


def compare(name: str, dtype: str, values: tuple, got: dict, expected: dict, exempt: dict) -> None:
    assert got.keys() == expected.keys()
    # Outside of its domain a function has no derivative.
    outside = np.isnan(np.asarray(expected["value"], np.float64))
    for which in expected:
        x, y = (np.asarray(result[which], np.float64) for result in (got, expected))
        # Where JAX has no derivative, such as an infinity times 0, there may be one.
        skip = exempt[which] | (np.isnan(y) | outside if which != "value" else False)
        tolerance = TOLERANCES[dtype]
        with np.errstate(invalid="ignore"):
            alike = (x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= tolerance * (np.abs(y) + 0.1))
        wrong = [
            f"at {tuple(v[i].tolist() for v in values)}: {x[i]}, JAX {y[i]}" for i in np.flatnonzero(~(alike | skip))
        ]
        assert not wrong, f"{name}, {which}: " + "; ".join(wrong)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in NAMES if takes_floats(REGISTRY[name])])
def test_values_of_subnormal_numbers_are_those_of_numpy(name: str, dtype: str):
    op, params = REGISTRY[name], ORACLES[name].params
    x = np.asarray([1, -1, 1000], dtype) * np.finfo(dtype).smallest_subnormal
    values = (x,) if count(op) == 1 else (np.repeat(x, 4), np.tile(np.asarray([*x[:2], 1, -1], dtype), 3))
    got = np.asarray(op(*values, **params))
    with np.errstate(all="ignore"):
        expected = np.asarray(CASES[name][0].reference(*(v.astype(np.float64) for v in values), **params))
        expected = expected.astype(got.dtype)
    smallest = float(np.finfo(dtype).smallest_subnormal) if got.dtype == dtype else 0
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(expected, np.float64), 2e-5, 1.01 * smallest)


#: Ops along an axis, each of which has its parameters for rows in its oracle.
ALONG = [name for name, op in REGISTRY.items() if op.kind != "pointwise" and getattr(ORACLES.get(name), "params", None)]


def test_every_reduction_has_special_rows():
    others = ("arg", "window")  # of no derivative, or of windows
    reductions = {name for name, op in REGISTRY.items() if op.kind == "reduction" and not name.startswith(others)}
    assert reductions <= set(ALONG)


@pytest.mark.quick("cummin", "min", "sum")
@pytest.mark.parametrize("name", ALONG)
def test_rows_of_special_numbers_have_the_derivatives_of_jax(name: str):
    op, expected_by = REGISTRY[name], ORACLES[name]
    numbers = [0.0, -0.0, 1.0, 2.5, -1.0, np.inf, -np.inf, np.nan]
    rows = np.stack(np.meshgrid(*[numbers] * 3, indexing="ij"), axis=-1).reshape(-1, 3)

    def orders(module: Any, numpy: Any, function: Callable, x: Any) -> dict[str, Any]:
        weights = numpy.asarray([1.0, -0.5, 2.0])
        result = {"value": function(x)}
        if not dtypes.is_float(np.dtype(result["value"].dtype)):
            return result
        total = lambda y: numpy.sum(weights[: y.shape[1]] * y) if y.ndim == 2 else numpy.sum(y)
        first = lambda x: module.grad(lambda x: total(function(x)))(x)
        result["derivative"] = first(x)
        result["second derivative"] = module.grad(lambda x: total(first(x)))(x)
        return result

    with oracle.x64():
        theirs = lambda x: expected_by.function(x, **expected_by.params)
        expected = jax.jit(partial(orders, jax, jnp, theirs))(jnp.asarray(rows))
        got = tvmfun.jit(partial(orders, tvmfun, tnp, lambda x: op(x, **expected_by.params)))(rows)
    for which, want in expected.items():
        have, want = (np.asarray(y, np.float64) for y in (got[which], want))
        known = ~np.isnan(want) if which != "value" else np.full(want.shape, True)
        exempt = np.broadcast_to(expected_by.exempt(which, rows), len(rows))
        known &= ~exempt.reshape(len(rows), *(1,) * (want.ndim - 1))
        with np.errstate(invalid="ignore"):
            alike = (
                (have == want) | (np.isnan(have) & np.isnan(want)) | (np.abs(have - want) <= 1e-9 * (1 + np.abs(want)))
            )
        bad = np.argwhere(~alike & known)
        lines = [f"at {rows[i[0]].tolist()}: {have[i[0]]}, JAX {want[i[0]]}" for i in bad]
        assert not lines, f"{name}, {which}, {len(lines)}: " + "; ".join(lines[:12])


def test_acosh_has_a_derivative_where_it_has_no_value():
    masked = lambda numpy: lambda x: numpy.sum(numpy.where(x >= 1, numpy.arccosh(x), 0))
    x = np.asarray([-1.5, 2.0, 1e30], np.float32)
    np.testing.assert_allclose(tvmfun.grad(masked(tnp))(x), [0, 3**-0.5, 1e-30], rtol=1e-6)
    x = np.asarray([-2.5, 0.5])
    with oracle.x64():
        expected = jax.grad(lambda x: jnp.sum(jnp.arccosh(x)))(x)
    np.testing.assert_allclose(tvmfun.grad(lambda x: tnp.sum(tnp.arccosh(x)))(x), expected, rtol=1e-12)


OUTSIDE = [np.nan, np.inf, -np.inf, 1e30, -1e30, 300.7, -3.5, 127.9, -128.9, 65535.5, 2.0**31, -(2.0**63), 0.0]


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@pytest.mark.parametrize("integer", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_floats_as_integers(dtype, integer):
    """Truncated and saturating, and 0 for NaN: of arguments and of constants, as in JAX."""
    with jax.enable_x64(True):
        x = jax.numpy.asarray(OUTSIDE, dtype)
        expected = np.asarray(x.astype(integer))
    x = tnp.asarray(np.asarray(x, "float64")).astype(dtype)
    np.testing.assert_array_equal(tvmfun.jit(lambda x: x.astype(integer))(x), expected)
    filled = lambda: [tnp.full((3,), value, dtype).astype(integer) for value in OUTSIDE]
    np.testing.assert_array_equal(tvmfun.jit(filled)(), np.repeat(expected[:, None], 3, 1))
