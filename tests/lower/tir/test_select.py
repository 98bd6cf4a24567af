"""Choices between numbers: extrema that keep NaN, and choices written over one of their numbers."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from lower.schedule.test_hot_kernels import modules

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, lax
from tvmfun.lower import target as targets

SPECIAL = [0.0, -0.0, 1.0, -1.0, 1e-40, np.inf, -np.inf, np.nan, -np.nan, 3.5]
PAIRS = np.array(list(itertools.product(SPECIAL, repeat=2)), "float64")
EXTREMA = {"maximum": (tnp.maximum, np.greater), "minimum": (tnp.minimum, np.less)}


def bits(array):
    """The bits of floats, but of NaN only that it is one."""
    array = np.asarray(array)
    return np.where(np.isnan(array), np.nan, array).view(f"int{array.itemsize * 8}")


def defined(name, x, y):
    """The first number if it is NaN or beyond the second one, else the second one; zeros of both signs are equal."""
    return np.where(np.isnan(x) | EXTREMA[name][1](x, y), x, y)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", EXTREMA)
class TestExtremaOfSpecialNumbers:
    def numbers(self, dtype):
        return (np.tile(column, 7).astype(dtype) for column in PAIRS.T)

    def test_of_arrays(self, name, dtype):
        x, y = self.numbers(dtype)
        function, _ = EXTREMA[name]
        expected = bits(defined(name, x, y))
        for compute in (function, tvmfun.jit(function), tvmfun.jit(tvmfun.vmap(function))):
            np.testing.assert_array_equal(bits(compute(x, y)), expected)
        # One number or both are computed.
        doubled = defined(name, x * 2, y * 2)
        np.testing.assert_array_equal(bits(tvmfun.jit(lambda x, y: function(x * 2, y * 2))(x, y)), bits(doubled))
        mixed = defined(name, x, y * 2)
        np.testing.assert_array_equal(bits(tvmfun.jit(lambda x, y: function(x, y * 2))(x, y)), bits(mixed))

    @pytest.mark.parametrize("number", SPECIAL)
    def test_with_a_constant(self, name, dtype, number):
        x, _ = self.numbers(dtype)
        function, _ = EXTREMA[name]
        constant = np.asarray(number, dtype)
        doubled = tvmfun.jit(lambda x: function(x * 2, constant))(x)
        np.testing.assert_array_equal(bits(doubled), bits(defined(name, x * 2, constant)))
        np.testing.assert_array_equal(
            bits(tvmfun.jit(lambda x: function(x, constant))(x)), bits(defined(name, x, constant))
        )
        np.testing.assert_array_equal(
            bits(tvmfun.jit(lambda x: function(constant, x))(x)), bits(defined(name, constant, x))
        )

    def test_written_over_a_number(self, name, dtype):
        x, y = self.numbers(dtype)
        function, _ = EXTREMA[name]
        first = tvmfun.jit(function, donate_argnums=0)(tvmfun.device_put(x), y)
        np.testing.assert_array_equal(bits(first), bits(defined(name, x, y)))
        second = tvmfun.jit(function, donate_argnums=1)(x, tvmfun.device_put(y))
        np.testing.assert_array_equal(bits(second), bits(defined(name, x, y)))
        looped = tvmfun.jit(lambda x, y: lax.fori_loop(0, 3, lambda i, c: function(c, y), x))(x, y)
        np.testing.assert_array_equal(bits(looped), bits(defined(name, defined(name, x, y), y)))

    @pytest.mark.parametrize("shape", [(5, 37), (37, 5), (300, 64), (2048, 128), (3, 40, 17)])
    def test_of_axes(self, name, dtype, shape):
        values = np.random.default_rng(3).normal(size=shape).astype(dtype)
        values.flat[::23] = np.nan
        values.flat[::7] = -np.inf
        reduced, expected = (getattr(module, name[:3]) for module in (tnp, np))
        for axis in (*range(len(shape)), None):
            got = tvmfun.jit(lambda x, axis=axis: reduced(x, axis=axis))(values)
            np.testing.assert_array_equal(got, expected(values, axis=axis))


def chosen(mask, new, x):
    return tnp.where(mask, new, x)


CHOICES = {
    "donated": (lambda mask, x: chosen(mask, x * 2, x), (0, 1)),
    "other way round": (lambda mask, x: chosen(mask, x, x * 2), (0, 1)),
    "by the number": (lambda mask, x: chosen(x > 1, x * 2, x), (0, 1)),
    "of arrays": (lambda mask, x: chosen(mask, tnp.flip(mask).astype(x.dtype), x), (1,)),
    "in a loop": (lambda mask, x: lax.fori_loop(0, 3, lambda i, c: chosen(mask, c * 2, c), x), ()),
    "in a batched loop": (
        lambda mask, x: tvmfun.vmap(
            lambda mask, x: lax.while_loop(lambda c: c[0] < mask, lambda c: (c[0] + 1, c[1] + 2), (mask * 0 - 3, x))
        )(mask.astype("int32"), x)[1],
        (),
    ),
    "twice": (lambda mask, x: chosen(mask, chosen(x > 2, x * 2, x), x), (1,)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint32", "int8", "float16", "bfloat16"])
@pytest.mark.parametrize("name", CHOICES)
def test_choices_written_over_a_number(name, dtype):
    function, donated = CHOICES[name]
    rng = np.random.default_rng(5)
    mask, x = rng.integers(0, 2, 1003).astype(bool), rng.integers(0, 9, 1003).astype(dtype)
    expected = np.asarray(function(mask, x))
    result = tvmfun.jit(function, donate_argnums=donated)(tvmfun.device_put(mask), tvmfun.device_put(x))
    np.testing.assert_array_equal(np.asarray(result), expected)


def machine_code(function, *arguments, **options):
    target = targets.resolve({"kind": "llvm", "mcpu": "x86-64-v3", "mtriple": "x86_64-linux-gnu", "num-cores": 2})
    compiled = tvmfun.jit(function, target=target, **options).lower(*arguments).compile()
    return "\n".join(module.inspect_source("asm") for module in modules(compiled.executable.module))


@pytest.mark.parametrize("dtype", ["float32", "int32", "float64"])
@pytest.mark.parametrize("name", ["donated", "other way round", "by the number", "in a loop", "twice"])
def test_what_is_written_over_a_number_is_a_whole_vector(name, dtype):
    """LLVM stores with a mask what is chosen between a number at an address and another one."""
    function, donated = CHOICES[name]
    code = machine_code(function, ShapeDtype((4096,), "bool"), ShapeDtype((4096,), dtype), donate_argnums=donated)
    assert "ymm" in code and "maskmov" not in code


@pytest.mark.parametrize("function", [tnp.maximum, lambda x, y: lax.fori_loop(0, 9, lambda i, x: tnp.maximum(x, y), x)])
def test_extrema_are_three_instructions(function):
    code = machine_code(function, *[ShapeDtype((4096,), "float32")] * 2)
    found = [
        re.findall(rf"{name}\w*\s[^\n]*ymm", code) for name in ("vmaxps", "vcmpordps|vcmpunordps", "vblendv", "vpand")
    ]
    assert [len(lines) > 0 for lines in found] == [True, True, True, False] and "maskmov" not in code
