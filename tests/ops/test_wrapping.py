"""Integers computed from indices wrap around as in NumPy: TVM's simplifier assumes that integers do not overflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.cuda_emulator.gpu import emulated_gpus

import tvmfun
import tvmfun.numpy as tnp

LARGE = 73856093
#: Functions of a module, the numbers from 0 to below n, and n.
FUNCTIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "quotient of a product": lambda xp, i, n: i * n * 10007 // 7,
    "remainder of a product": lambda xp, i, n: (i * LARGE + n) % n,
    "remainder of a power": lambda xp, i, n: i**7 % 1000,
    "quotient of a shift": lambda xp, i, n: (i << 29) // 3,
    "quotient of a sum": lambda xp, i, n: (i + 2147483000) // 3,
    "quotient of a difference": lambda xp, i, n: (-i - 2147483000) // 3,
    "int8": lambda xp, i, n: i.astype("int8") // 3,
    "int8 of a sum": lambda xp, i, n: (i + n).astype("int8") % 5,
    "int16": lambda xp, i, n: (i.astype("int16") * 331) // 13,
    "int16 as int8": lambda xp, i, n: i.astype("int16").astype("int8") // 3,
    "uint8": lambda xp, i, n: i.astype("uint8") // 3,
    "uint32": lambda xp, i, n: (i.astype("uint32") * np.uint32(2654435761)) // np.uint32(13),
    "sum of int8": lambda xp, i, n: (i % 100).astype("int8") + np.int8(100) > 0,
    "negative int8": lambda xp, i, n: -(i.astype("int8")) // 2,
    "shift of int8": lambda xp, i, n: i.astype("int8") >> 1,
    "comparison": lambda xp, i, n: i * LARGE < 0,
    "equality": lambda xp, i, n: i * 65536 * 65536 == 0,
    "choice": lambda xp, i, n: xp.where(i * LARGE + n >= 0, i, -i),
    "maximum": lambda xp, i, n: xp.maximum(i * LARGE, 0),
    "absolute value": lambda xp, i, n: xp.abs(i * LARGE),
    "clip": lambda xp, i, n: xp.clip(i * LARGE, -5, 5),
    "sign": lambda xp, i, n: xp.sign(i * LARGE),
    "float64": lambda xp, i, n: (i * LARGE).astype("float64"),
    "int64": lambda xp, i, n: (i * LARGE).astype("int64") // 7,
    "multiple of a divisor": lambda xp, i, n: i * 1073741824 // 1073741824,
    "gather": lambda xp, i, n: xp.take(xp.asarray(np.arange(7, dtype="int32")), i * LARGE % 7),
}
SIZES = (1, 2, 17, 1001)


def numbers(x: Any) -> list[Any]:
    """The results of all functions for as many numbers as an array has elements."""
    n = x.shape[0]
    return [function(tnp, tnp.arange(n), n) for function in FUNCTIONS.values()]


def check(found: list[Any], size: int) -> None:
    i = np.arange(size, dtype="int32")
    with np.errstate(over="ignore"):
        for (name, function), got in zip(FUNCTIONS.items(), found, strict=True):
            expected = function(np, i, np.int32(size))
            assert got.dtype == expected.dtype, name
            np.testing.assert_array_equal(np.asarray(got), expected, err_msg=name)


@pytest.mark.quick("1001")
@pytest.mark.parametrize("size", SIZES)
def test_of_static_sizes(size: int):
    check(tvmfun.jit(numbers)(np.zeros(size, "float32")), size)
    check(numbers(np.zeros(size, "float32")), size)


def test_of_dynamic_sizes():
    dynamic = tvmfun.jit(numbers, dynamic_shapes=({0: "n"},))
    for size in SIZES:
        check(dynamic(np.zeros(size, "float32")), size)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic_shapes", [None, ({0: "n"},)], ids=["static", "dynamic"])
def test_on_emulated_gpus(dynamic_shapes: Any):
    with emulated_gpus(seed=3):
        function = tvmfun.jit(numbers, dynamic_shapes=dynamic_shapes)
        for size in SIZES:
            check(function(tvmfun.device_put(np.zeros(size, "float32"), "cuda")), size)
