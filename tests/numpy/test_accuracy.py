"""Functions of the math library over the whole range of floats, in units in the last place of the exact result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special  # comes with jax

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax

RNG = np.random.default_rng(5)

#: The function, NumPy's, its largest error in float32 and float64.
UNARY: dict[str, tuple[Callable[..., Any], Callable[..., Any], float, float]] = {
    "acos": (tnp.acos, np.arccos, 2, 2),
    "acosh": (tnp.acosh, np.arccosh, 3, 3),
    "asin": (tnp.asin, np.arcsin, 2, 2),
    "asinh": (tnp.asinh, np.arcsinh, 2, 3),
    "atan": (tnp.atan, np.arctan, 2, 2),
    "atanh": (tnp.atanh, np.arctanh, 3, 3),
    "cbrt": (tnp.cbrt, np.cbrt, 2, 4),
    "cosh": (tnp.cosh, np.cosh, 2, 2),
    "exp2": (tnp.exp2, np.exp2, 1, 1),
    "log2": (tnp.log2, np.log2, 1.5, 2),
    "log10": (tnp.log10, np.log10, 2, 2),
    "sinh": (tnp.sinh, np.sinh, 2, 3),
    "tan": (tnp.tan, np.tan, 2, 2),
    "square": (tnp.square, np.square, 1, 1),
    "reciprocal": (tnp.reciprocal, np.reciprocal, 1, 1),
}
BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any], float, float]] = {
    "atan2": (tnp.atan2, np.arctan2, 2, 2),
    "hypot": (tnp.hypot, np.hypot, 2, 2),
    "fmod": (tnp.fmod, np.fmod, 0.5, 0.5),
}
#: Checked against SciPy's in float64, which is not exact itself: a relative and an absolute error.
SPECIAL: dict[str, tuple[Callable[..., Any], Callable[..., Any], float, float]] = {
    "erfc": (lax.erfc, special.erfc, 1e-12, 1e-307),
    "lgamma": (lax.lgamma, special.gammaln, 1e-13, 1e-14),
    "digamma": (lax.digamma, special.digamma, 1e-13, 1e-14),
    "trigamma": (lambda x: lax.polygamma(1, x), lambda x: special.polygamma(1, x), 1e-12, 0),
}


def samples(dtype: str, count: int = 20000) -> np.ndarray:
    """Random bits, and numbers of ordinary size."""
    bits = RNG.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    if dtype == "float64":
        bits = RNG.integers(0, 2**64, count, dtype=np.uint64).view(np.float64)
    usual = RNG.standard_normal(count) * RNG.choice([1e-3, 0.1, 1, 10, 100], count)
    return np.concatenate([bits, usual.astype(dtype)])


def check(name: str, got: Any, exact: np.ndarray, ulps: float) -> None:
    got = np.asarray(got)
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(rounded), name)
    np.testing.assert_array_equal(np.isinf(got), np.isinf(rounded), name)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(np.signbit(got[finite]), np.signbit(rounded[finite]), name)
    unit = np.spacing(np.maximum(np.abs(rounded[finite]), np.finfo(got.dtype).tiny)).astype(exact.dtype)
    error = np.abs(got[finite].astype(exact.dtype) - exact[finite]) / unit
    assert error.max() <= ulps, f"{name} is {error.max():.2f} ulp off"


@pytest.mark.quick("acos-float64", "reciprocal-float32", "atan-float32", "log10-float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*UNARY, *BINARY])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_error_in_units_in_the_last_place(name: str, dtype: str):
    ours, exact, *ulps = (UNARY | BINARY)[name]
    columns = [samples(dtype) for _ in range(1 if name in UNARY else 2)]
    wide = np.longdouble if dtype == "float64" else np.float64
    expected = exact(*(column.astype(wide) for column in columns))
    check(name, tvmfun.jit(ours)(*columns), expected, ulps[dtype == "float64"])


@pytest.mark.quick("digamma", "lgamma")
@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_special_functions(name: str):
    ours, reference, relative, absolute = SPECIAL[name]
    x = samples("float64", 4000)
    x = x[np.isfinite(x)]
    if name not in ("erfc", "lgamma"):
        x = x[(x > -50) & (x < 1e150)]  # where SciPy's is right
        x = x[(x > 0) | (np.abs(x - np.round(x)) > 1e-3)]
        relative = np.where(x < 0, 1e-9, relative)
    if name == "lgamma":
        x = x[np.abs(x) < 1e300]
    expected = reference(x)
    got = np.asarray(tvmfun.jit(ours)(x))
    close = np.abs(got - expected) <= absolute + relative * np.abs(expected)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    assert (close | same).all(), (x[~(close | same)][:5], got[~(close | same)][:5], expected[~(close | same)][:5])
    narrow = x.astype("float32")
    narrow = narrow[(np.abs(narrow) > 1e-30) & (np.abs(narrow) < 1e30) & ((narrow > 0) | (narrow != np.round(narrow)))]
    exact = reference(narrow.astype("float64"))
    single = np.asarray(tvmfun.jit(ours)(narrow), "float64")
    safe = np.abs(exact) < 3e38
    np.testing.assert_allclose(single[safe], exact[safe], rtol=3e-6, atol=1e-6 if name in ("lgamma", "erfc") else 1e-9)


def test_poles_of_polygamma():
    x = np.asarray([-1.0, -2.0, 0.0])
    assert np.isnan(np.asarray(lax.digamma(x))[:2]).all()
    assert np.isposinf(np.asarray(lax.polygamma(1, x))).all()
    assert np.isneginf(float(lax.digamma(np.float64(0))))


def test_logarithms_of_powers_are_exact():
    powers = np.arange(-20, 21)
    for dtype in ("float32", "float64"):
        np.testing.assert_array_equal(tnp.log2(np.exp2(powers).astype(dtype)), powers)
        np.testing.assert_array_equal(tnp.exp2(powers.astype(dtype)), np.exp2(powers))
    np.testing.assert_array_equal(tnp.log10(10.0 ** np.arange(0, 16)), np.arange(0, 16))


@pytest.mark.quick("bfloat16")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once(dtype: str):
    x = np.linspace(0.01, 0.99, 50).astype(tnp.asarray(0, dtype).dtype)
    for name in UNARY:
        argument = x + x.dtype.type(1) if name == "acosh" else x
        got = np.asarray(getattr(tnp, name)(argument))
        assert got.dtype == x.dtype
        exact = UNARY[name][1](argument.astype("float64"))
        eps = float(tnp.finfo(x.dtype).eps)
        np.testing.assert_allclose(got.astype("float64"), exact, rtol=eps, atol=eps * 1e-3)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((20_001,), 0), ((3, 20_001), 1), ((20_001, 37), 0)], ids=str)
def test_running_sums_of_float32_are_rounded_once(shape, axis, reverse):
    x = np.random.default_rng(0).random(shape, "float32")
    turned = np.flip(x, axis) if reverse else x
    exact = np.cumsum(turned.astype("float64"), axis).astype("float32")
    running = lambda x: lax.cumsum(x, axis=axis, reverse=reverse)
    for f in (running, tvmfun.jit(running)):
        got = np.asarray(f(x))
        np.testing.assert_array_equal(np.flip(got, axis) if reverse else got, exact)


def test_float64_is_rounded_to_float16_once():
    """All numbers of half precision, the middles between them, and what is just beside these."""
    numbers = np.arange(1 << 16, dtype="uint16").view("float16").astype("float64")
    numbers = np.sort(numbers[np.isfinite(numbers)])
    middles = (numbers[1:] + numbers[:-1]) / 2
    near = [np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf), middles * (1 + 2**-40)]
    ends = [65520, np.nextafter(65520, 0), 1e300, -1e300, 1e-320, -1e-320, -0.0, np.inf, -np.inf, np.nan]
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 1 << 64, 100_001, dtype="uint64").view("float64"), rng.normal(size=100_001) * 1e-7
    x = np.concatenate([numbers, middles, *near, *drawn, ends])
    with np.errstate(all="ignore"):
        expected = x.astype("float16")
    got = np.asarray(tvmfun.jit(lambda x: x.astype("float16"))(x))
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got[x == 0]), np.signbit(expected[x == 0]))
