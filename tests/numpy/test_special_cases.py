"""The special cases of the array API standard 2024.12, for float32 and float64."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp

INF, NAN, PI = np.inf, np.nan, np.pi

#: For each function of one argument: argument and result. NaN gives NaN but for the functions in `OF_NAN`.
UNARY: dict[str, list[tuple[float, float | bool]]] = {
    "abs": [(-0.0, 0.0), (-INF, INF), (-2.0, 2.0)],
    "acos": [(1.5, NAN), (-1.5, NAN), (1.0, 0.0), (INF, NAN), (-1.0, PI)],
    "acosh": [(0.5, NAN), (-1.0, NAN), (1.0, 0.0), (INF, INF)],
    "asin": [(1.5, NAN), (-1.5, NAN), (0.0, 0.0), (-0.0, -0.0), (1.0, PI / 2)],
    "asinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF)],
    "atan": [(0.0, 0.0), (-0.0, -0.0), (INF, PI / 2), (-INF, -PI / 2)],
    "atanh": [(-1.5, NAN), (1.5, NAN), (-1.0, -INF), (1.0, INF), (0.0, 0.0), (-0.0, -0.0)],
    "ceil": [(2.0, 2.0), (INF, INF), (-INF, -INF), (0.0, 0.0), (-0.0, -0.0), (-0.5, -0.0)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN)],
    "cosh": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF)],
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1.0)],
    "floor": [(2.0, 2.0), (INF, INF), (-INF, -INF), (0.0, 0.0), (-0.0, -0.0), (-0.5, -1.0)],
    "isfinite": [(INF, False), (-INF, False), (1.0, True), (-0.0, True)],
    "isinf": [(INF, True), (-INF, True), (1.0, False)],
    "isnan": [(INF, False), (1.0, False)],
    "log": [(-1.0, NAN), (-INF, NAN), (0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF)],
    "log10": [(-1.0, NAN), (0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (1000.0, 3.0)],
    "log1p": [(-1.5, NAN), (-1.0, -INF), (0.0, 0.0), (-0.0, -0.0), (INF, INF)],
    "log2": [(-1.0, NAN), (0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (8.0, 3.0)],
    "negative": [(0.0, -0.0), (-0.0, 0.0), (INF, -INF)],
    "positive": [(-0.0, -0.0), (INF, INF)],
    "reciprocal": [(INF, 0.0), (-INF, -0.0), (0.0, INF), (-0.0, -INF)],
    "round": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (0.5, 0.0), (1.5, 2.0), (2.5, 2.0), (-0.5, -0.0)],
    "sign": [(-2.0, -1.0), (0.0, 0.0), (-0.0, 0.0), (INF, 1.0), (-INF, -1.0)],
    "signbit": [(0.0, False), (-0.0, True), (INF, False), (-INF, True), (-1.0, True), (1.0, False)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "sinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF)],
    "sqrt": [(-1.0, NAN), (-INF, NAN), (0.0, 0.0), (-0.0, -0.0), (INF, INF)],
    "square": [(INF, INF), (-INF, INF), (-0.0, 0.0)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0)],
    "trunc": [(2.0, 2.0), (INF, INF), (-INF, -INF), (0.0, 0.0), (-0.0, -0.0), (-0.5, -0.0), (1.7, 1.0)],
}
OF_NAN = {"isfinite": False, "isinf": False, "isnan": True, "signbit": False}

#: For each function of two arguments: both, and the result.
BINARY: dict[str, list[tuple[float, float, float | bool]]] = {
    "add": [
        (NAN, 1.0, NAN), (1.0, NAN, NAN), (INF, -INF, NAN), (-INF, INF, NAN), (INF, INF, INF), (-INF, -INF, -INF),
        (INF, 1.0, INF), (-INF, 1.0, -INF), (1.0, INF, INF), (1.0, -INF, -INF), (-0.0, -0.0, -0.0), (-0.0, 0.0, 0.0),
        (0.0, -0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 2.0, 2.0), (-0.0, 2.0, 2.0), (2.0, -0.0, 2.0), (2.0, -2.0, 0.0),
    ],
    "subtract": [(INF, INF, NAN), (-INF, -INF, NAN), (0.0, 0.0, 0.0), (-0.0, 0.0, -0.0), (INF, -INF, INF)],
    "multiply": [
        (NAN, 1.0, NAN), (0.0, NAN, NAN), (INF, 0.0, NAN), (-INF, -0.0, NAN), (0.0, INF, NAN), (-0.0, -INF, NAN),
        (INF, INF, INF), (INF, -INF, -INF), (-INF, 2.0, -INF), (2.0, -INF, -INF), (-0.0, 2.0, -0.0), (-0.0, -2.0, 0.0),
    ],
    "divide": [
        (NAN, 1.0, NAN), (1.0, NAN, NAN), (INF, INF, NAN), (-INF, INF, NAN), (0.0, 0.0, NAN), (-0.0, 0.0, NAN),
        (0.0, 2.0, 0.0), (-0.0, 2.0, -0.0), (0.0, -2.0, -0.0), (-0.0, -2.0, 0.0), (2.0, 0.0, INF), (2.0, -0.0, -INF),
        (-2.0, 0.0, -INF), (-2.0, -0.0, INF), (INF, 2.0, INF), (INF, -2.0, -INF), (-INF, 2.0, -INF), (-INF, -2.0, INF),
        (2.0, INF, 0.0), (2.0, -INF, -0.0), (-2.0, INF, -0.0), (-2.0, -INF, 0.0),
    ],
    "floor_divide": [
        (NAN, 1.0, NAN), (1.0, NAN, NAN), (INF, INF, NAN), (-INF, INF, NAN), (0.0, 0.0, NAN), (-0.0, 0.0, NAN),
        (0.0, 2.0, 0.0), (-0.0, 2.0, -0.0), (0.0, -2.0, -0.0), (-0.0, -2.0, 0.0), (2.0, 0.0, INF), (2.0, -0.0, -INF),
        (-2.0, 0.0, -INF), (-2.0, -0.0, INF), (INF, 2.0, NAN), (INF, -2.0, NAN), (-INF, 2.0, NAN), (-INF, -2.0, NAN),
        (2.0, INF, 0.0), (2.0, -INF, -1.0), (-2.0, INF, -1.0), (-2.0, -INF, 0.0), (7.0, 2.0, 3.0), (-7.0, 2.0, -4.0),
    ],
    "remainder": [
        (NAN, 1.0, NAN), (1.0, NAN, NAN), (INF, INF, NAN), (-INF, INF, NAN), (0.0, 0.0, NAN), (-0.0, 0.0, NAN),
        (0.0, 2.0, 0.0), (-0.0, 2.0, 0.0), (0.0, -2.0, -0.0), (-0.0, -2.0, -0.0), (2.0, 0.0, NAN), (-2.0, -0.0, NAN),
        (INF, 2.0, NAN), (-INF, -2.0, NAN), (2.0, INF, 2.0), (2.0, -INF, -INF), (-2.0, INF, INF), (-2.0, -INF, -2.0),
        (4.0, 2.0, 0.0), (4.0, -2.0, -0.0), (-4.0, 2.0, 0.0), (-7.0, 2.0, 1.0), (7.0, -2.0, -1.0),
    ],
    "pow": [
        (2.0, NAN, NAN), (NAN, 0.0, 1.0), (NAN, -0.0, 1.0), (NAN, 2.0, NAN), (1.0, NAN, 1.0), (2.0, INF, INF),
        (-2.0, INF, INF), (2.0, -INF, 0.0), (1.0, INF, 1.0), (-1.0, -INF, 1.0), (0.5, INF, 0.0), (-0.5, -INF, INF),
        (INF, 2.0, INF), (INF, -2.0, 0.0), (-INF, 3.0, -INF), (-INF, 2.0, INF), (-INF, 2.5, INF), (-INF, -3.0, -0.0),
        (-INF, -2.0, 0.0), (0.0, 2.0, 0.0), (0.0, -2.0, INF), (-0.0, 3.0, -0.0), (-0.0, 2.0, 0.0), (-0.0, -3.0, -INF),
        (-0.0, -2.0, INF), (-2.0, 0.5, NAN), (-2.0, 3.0, -8.0),
    ],
    "atan2": [
        (NAN, 1.0, NAN), (1.0, NAN, NAN), (1.0, 0.0, PI / 2), (1.0, -0.0, PI / 2), (0.0, 2.0, 0.0), (0.0, 0.0, 0.0),
        (0.0, -0.0, PI), (0.0, -2.0, PI), (-0.0, 2.0, -0.0), (-0.0, 0.0, -0.0), (-0.0, -0.0, -PI), (-0.0, -2.0, -PI),
        (-1.0, 0.0, -PI / 2), (-1.0, -0.0, -PI / 2), (1.0, INF, 0.0), (1.0, -INF, PI), (-1.0, INF, -0.0),
        (-1.0, -INF, -PI), (INF, 1.0, PI / 2), (-INF, 1.0, -PI / 2), (INF, INF, PI / 4), (INF, -INF, 3 * PI / 4),
        (-INF, INF, -PI / 4), (-INF, -INF, -3 * PI / 4),
    ],
    "copysign": [
        (2.0, -1.0, -2.0), (-2.0, 1.0, 2.0), (2.0, -0.0, -2.0), (0.0, -3.0, -0.0), (INF, -0.0, -INF), (NAN, -1.0, NAN),
        (2.0, NAN, 2.0), (-2.0, 0.0, 2.0),
    ],
    "hypot": [
        (INF, NAN, INF), (NAN, -INF, INF), (1.0, INF, INF), (NAN, 1.0, NAN), (1.0, NAN, NAN), (0.0, -0.0, 0.0),
        (0.0, -2.0, 2.0), (3.0, 4.0, 5.0), (3e38, 0.0, 3e38),
    ],
    "logaddexp": [
        (NAN, 1.0, NAN), (1.0, NAN, NAN), (INF, 1.0, INF), (1.0, INF, INF), (-INF, -INF, -INF), (INF, -INF, INF),
    ],
    "maximum": [(NAN, 1.0, NAN), (1.0, NAN, NAN), (NAN, NAN, NAN), (INF, 1.0, INF), (-INF, 1.0, 1.0)],
    "minimum": [(NAN, 1.0, NAN), (1.0, NAN, NAN), (NAN, NAN, NAN), (INF, 1.0, 1.0), (-INF, 1.0, -INF)],
    "nextafter": [(NAN, 1.0, NAN), (1.0, NAN, NAN), (0.0, -0.0, -0.0), (-0.0, 0.0, 0.0), (2.0, 2.0, 2.0)],
    "equal": [(NAN, NAN, False), (NAN, 1.0, False), (INF, INF, True), (-INF, INF, False), (-0.0, 0.0, True)],
    "not_equal": [(NAN, NAN, True), (NAN, 1.0, True), (INF, INF, False), (-0.0, 0.0, False)],
    "less": [(NAN, 1.0, False), (1.0, NAN, False), (INF, 1.0, False), (-INF, INF, True), (-0.0, 0.0, False)],
    "less_equal": [(NAN, NAN, False), (INF, INF, True), (1.0, INF, True), (-0.0, 0.0, True), (0.0, -0.0, True)],
    "greater": [(NAN, 1.0, False), (1.0, NAN, False), (INF, 1.0, True), (INF, INF, False), (0.0, -0.0, False)],
    "greater_equal": [(NAN, NAN, False), (INF, INF, True), (INF, 1.0, True), (-0.0, 0.0, True)],
}  # fmt: skip


def arguments(name: str, dtype: str) -> list[np.ndarray]:
    """The columns of the table but for the result."""
    rows = [(x,) for x, _ in UNARY[name]] + [(NAN,)] if name in UNARY else [row[:2] for row in BINARY[name]]
    return [np.asarray(column, dtype) for column in zip(*rows, strict=True)]


@cache
def compiled(dtype: str) -> dict[str, np.ndarray]:
    """The results of all functions, from one program."""
    table = {name: arguments(name, dtype) for name in (*UNARY, *BINARY)}
    function = tvmfun.jit(lambda table: {name: getattr(tnp, name)(*columns) for name, columns in table.items()})
    return {name: np.asarray(result) for name, result in function(table).items()}


@pytest.mark.quick("trunc-float32", "less-float32", "pow-float32", "add-float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_special_cases(name: str, dtype: str):
    expected = [row[-1] for row in (UNARY[name] if name in UNARY else BINARY[name])]
    if name in UNARY:
        expected.append(OF_NAN.get(name, NAN))
    together = compiled(dtype)[name]
    alone = np.asarray(getattr(tnp, name)(*arguments(name, dtype)))
    for got in (together, alone):
        want = np.asarray(expected, got.dtype)
        assert got.dtype == (bool if isinstance(expected[0], bool) else dtype)
        np.testing.assert_allclose(got, want, rtol=1e-6 if dtype == "float32" else 1e-15, atol=0)
        numbers = ~np.isnan(got.astype(float))
        np.testing.assert_array_equal(np.signbit(got.astype(float))[numbers], np.signbit(want.astype(float))[numbers])


def test_hypot_does_not_overflow():
    np.testing.assert_allclose(tnp.hypot(np.float32(3e38), np.float32(1e38)), np.hypot(3e38, 1e38), rtol=1e-6)
    np.testing.assert_allclose(tnp.hypot(3e-320, np.float64(4e-320)), 5e-320, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_next_float(dtype):
    kind = tnp.asarray(0, dtype).dtype.type
    limits = tnp.finfo(dtype)
    up = lambda x: np.asarray(tnp.nextafter(tnp.asarray(kind(x), dtype), tnp.asarray(kind(np.inf), dtype)))
    assert up(1) == kind(1) + limits.eps
    assert up(0) == limits.smallest_subnormal
    assert up(-limits.smallest_subnormal) == 0 and np.signbit(up(-limits.smallest_subnormal).astype("float32"))
    assert up(limits.max) == kind(np.inf)
    assert up(-np.inf) == limits.min
    if dtype in ("float32", "float64"):
        x = np.random.default_rng(0).standard_normal(99).astype(dtype)
        y = np.roll(x, 1)
        np.testing.assert_array_equal(tnp.nextafter(x, y), np.nextafter(x, y))
