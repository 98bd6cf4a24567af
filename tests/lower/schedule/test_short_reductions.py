"""Reductions of few terms, which are maps, and intermediates that are read in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.results import assert_evaluated, draw

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax, nn, reference
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.machine import Machine

# Fewer than a vector has lanes, as many, and more, with some that fill no other vector.
TERMS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 50)


def distances(x: Any) -> Any:
    """Distances of the first 20 rows to all rows."""
    return tnp.sqrt(tnp.sum((x[:20, None] - x) ** 2, axis=-1) + 1)


def overlaps(x: Any) -> Any:
    """The areas that boxes of two corners share."""
    low, high = tnp.minimum(x, x[::-1]), tnp.maximum(x, x[::-1]) + 1
    sides = tnp.clip(tnp.minimum(high[:20, None], high) - tnp.maximum(low[:20, None], low), 0, None)
    return sides[..., 0] * sides[..., -1]


REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: tnp.sum(x, axis=-1),
    "product": lambda x: tnp.prod(x, axis=-1),
    "maximum": lambda x: tnp.max(x, axis=-1),
    "minimum of rows": lambda x: tnp.min(x.T, axis=0),
}
FORMULAS: dict[str, Callable[[Any], Any]] = {
    "mean and variance": lambda x: (tnp.mean(x, axis=-1), tnp.var(x, axis=-1)),
    "softmax": lambda x: nn.functional.softmax(x, axis=-1),
    "logarithm of the sum of exponentials": lambda x: tnp.log(tnp.sum(tnp.exp(x - tnp.max(x)), axis=-1)),
    "normalization": lambda x: (x - tnp.mean(x, axis=-1, keepdims=True)) / tnp.sqrt(tnp.var(x) + 1),
    "norm": lambda x: x / tnp.sqrt(tnp.sum(x * x, axis=-1, keepdims=True) + 1),
    "distances": distances,
    "overlaps": overlaps,
    "windows": lambda x: tnp.max(tnp.concatenate([x, x + 1], axis=0).reshape(2, -1, x.shape[1]), axis=0),
    "weighted": lambda x: tnp.sum(x * tnp.arange(x.shape[1]), axis=-1) - tnp.sum(x[:, :1] * x, axis=1),
    "of other rows": lambda x: tnp.sum(x[tnp.arange(x.shape[0]) * 5 % x.shape[0]], axis=-1),
}
ROUNDING = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 3e-2}


def check(f: Callable[[Any], Any], dtype: str) -> None:
    """Compares values for all numbers of terms, and gradients of floats, with the reference's."""
    scale = 1 if dtype in ROUNDING else 3
    arrays = [(draw(67, terms) * scale).astype(dtype) for terms in TERMS]
    assert_evaluated(f, arrays, ROUNDING.get(dtype))


@pytest.mark.quick("maximum-*", "sum-*")
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32", "uint8"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, dtype):
    check(REDUCTIONS[name], dtype)


@pytest.mark.quick("*-float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FORMULAS)
def test_formulas(name, dtype):
    if name == "overlaps" and dtype == "bfloat16":
        pytest.skip("rounding decides which of two nearly equal numbers is the smaller one")
    check(FORMULAS[name], dtype)


# Lengths, strides, padding before and after, and dilation of windows, some of which overlap or leave gaps.
WINDOWS = [
    (2, 2, (0, 0), 1),
    (2, 1, (1, 0), 1),
    (3, 2, (1, 1), 1),
    (3, 1, (0, 2), 2),
    (2, 3, (1, 1), 1),
    (1, 2, (0, 0), 1),
]
COMPUTATIONS = {"largest": (lax.max, -np.inf), "smallest": (lax.min, np.inf), "sum": (lax.add, 0.0)}


@pytest.mark.quick("*-float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("channels", [1, 3, 17])
@pytest.mark.parametrize("name", COMPUTATIONS)
def test_windows(name, channels, dtype):
    computation, init = COMPUTATIONS[name]

    def windows(x: Any, rows: tuple, columns: tuple) -> Any:
        size, strides, padding, dilation = ((1, *pair, 1) for pair in zip(rows, columns, strict=True))
        padding = [(0, 0), *padding[1:3], (0, 0)]
        return lax.reduce_window(
            x, np.asarray(init, dtype), computation, size, strides, padding, window_dilation=dilation
        )

    def pooled(x: Any) -> list[Any]:
        """Windows of two axes of different kinds, after another map, before another one, and in a loop."""
        pairs = list(zip(WINDOWS, WINDOWS[1:] + WINDOWS[:1], strict=True))
        results = [windows(x, *pair) for pair in pairs]
        results += [tnp.tanh(windows(tnp.sin(x), *pair)) * 2 for pair in pairs]
        same = lambda _, x: windows(x, (2, 1, (1, 0), 1), (3, 1, (1, 1), 1))
        return [*results, lax.fori_loop(0, 2, same, x)]

    assert_evaluated(pooled, [draw(2, 9, 8, channels).astype(dtype)], ROUNDING[dtype])


def test_truth():
    check(lambda x: (tnp.all(x, axis=-1), tnp.any(x, axis=-1), tnp.sum(x, axis=-1)), "bool")


@pytest.mark.parametrize("terms", [4, 15, 16, 19, 47])
def test_nan_and_infinities(terms):
    x = draw(40, terms)
    x[::7, 1], x[1::7, 0], x[2::7, -1], x[3::7], x[4::7, -1], x[5::7] = np.nan, np.inf, -np.inf, -np.inf, np.nan, -0.0
    extrema = lambda x: (tnp.max(x, axis=1), tnp.min(x, axis=1), tnp.sum(x, axis=1), tnp.max(x, axis=1, initial=0.5))
    with np.errstate(invalid="ignore"):
        expected = x.max(1), x.min(1), x.sum(1), x.max(1, initial=0.5)
    for got, want in zip(tvmfun.jit(extrema)(x), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def rules(f: Callable[..., Any], *args: Any) -> list[str]:
    kernels = pipeline.scheduled_kernels(tvmfun.trace(f)(*args), targets.host())
    return [str(kernel.function.attrs["tvmfun.rule"]) for kernel in kernels]


def test_few_terms_are_maps():
    lanes = Machine.of(targets.host()).lanes("float32")
    assert rules(REDUCTIONS["maximum"], draw(64, lanes - 1)) == ["elementwise"]
    assert rules(REDUCTIONS["maximum"], draw(64, lanes)) == ["reduction"]
    columns = lambda x: tnp.max(x, axis=0)
    assert rules(columns, draw(lanes // 2, 64)) == ["elementwise"]
    assert rules(columns, draw(lanes // 2 + 1, 64)) == ["reduction"]
    assert rules(lambda x, w: x @ w, draw(64, 3), draw(3, 5)) == ["contraction"]


def test_loops_batches_and_second_derivatives():
    x, w = draw(3, 21, 4).astype("float64"), draw(21, 4, seed=1).astype("float64")

    def f(x: Any) -> Any:
        step = lambda carry, _: (nn.functional.softmax(carry * w, axis=-1), tnp.max(carry, axis=-1))
        carry, largest = lax.scan(step, x, None, length=3)
        return tnp.sum(carry * w) + tnp.sum(largest**3)

    second = tvmfun.vmap(lambda x: tvmfun.grad(lambda x: tnp.sum(tvmfun.grad(f)(x) * w))(x))
    program = tvmfun.trace(second)(x)
    (expected,) = reference.evaluate(program, [*program.captured, x])
    np.testing.assert_allclose(tvmfun.jit(second)(x), expected, rtol=1e-11, atol=1e-11)


def test_any_number_of_rows():
    f = lambda x: (nn.functional.softmax(x, axis=-1), tnp.max(x, axis=-1), distances(x))
    dynamic = tvmfun.jit(f, dynamic_shapes={"x": {0: tvmfun.Dim("rows", min=20)}})
    for rows in (20, 31, 500):
        x = draw(rows, 3)
        for got, want in zip(dynamic(x), tvmfun.jit(f)(x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)
    assert tvmfun.jit(REDUCTIONS["sum"])(draw(0, 4)).shape == (0,)
    np.testing.assert_array_equal(tvmfun.jit(REDUCTIONS["sum"])(draw(4, 0)), np.zeros(4))


def test_results_are_written_over_donated_arrays():
    x = draw(3000, 4)
    f = lambda x: x / tnp.sum(tnp.exp(x), axis=-1, keepdims=True)
    expected = np.asarray(tvmfun.jit(f)(x))
    for _ in range(5):
        np.testing.assert_array_equal(tvmfun.jit(f, donate_argnums=0)(tvmfun.device_put(x)), expected)


def test_parts_of_parts():
    x = draw(50, 4)

    def f(x: Any) -> Any:
        wide = tnp.exp(x) * tnp.sin(x) + tnp.cos(x) / (x * x + 1)
        pairs = tnp.tanh(wide[:, :2] / (wide[:, 2:] ** 2 + 1)) + tnp.exp(wide[:, :2])
        return tnp.sin(pairs[:, 0]) / (pairs[:, 1] ** 2 + 1) + pairs[:, 0] * pairs[:, 1]

    program = tvmfun.trace(f)(x)
    (expected,) = reference.evaluate(program, [*program.captured, x])
    np.testing.assert_allclose(tvmfun.jit(f)(x), expected, rtol=1e-5, atol=1e-5)


def test_parts_behind_a_condition():
    """Elements that a condition excludes are not read."""
    x = draw(50, 2)

    def f(x: Any) -> Any:
        wide = tnp.exp(x) * tnp.sin(x) + tnp.cos(x) * x
        return tnp.pad(wide[:, 1], (3, 2)) + tnp.pad(wide[:, 0], (1, 4), constant_values=2)

    wide = np.exp(x) * np.sin(x) + np.cos(x) * x
    expected = np.pad(wide[:, 1], (3, 2)) + np.pad(wide[:, 0], (1, 4), constant_values=2)
    np.testing.assert_allclose(tvmfun.jit(f)(x), expected, rtol=1e-5, atol=1e-5)
