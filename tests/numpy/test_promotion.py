"""Promotion: the shortcut for operands of one dtype, and weak dtypes as in JAX."""

from __future__ import annotations

from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, dtypes
from tvmfun.numpy import promotion

NUMBERS = (1, 2.5, True, np.int32(1), np.float32(1), np.float64(1))


def test_a_common_dtype_is_the_promoted_one():
    checked = 0

    def check(x, y):
        nonlocal checked
        for values in ((x,), (x, y), *((x, n) for n in NUMBERS), *((n, x, y) for n in NUMBERS)):
            common = promotion._common_dtype(values)
            if common is not None:
                assert common == dtypes.promote(*promotion.operand_types("check", values))[0], values
                checked += 1
        return x

    for (first, second), weak in product(product(dtypes.ALL, repeat=2), product((False, True), repeat=2)):
        avals = [ShapeDtype((2,), dtype, flag) for dtype, flag in zip((first, second), weak, strict=True)]
        tvmfun.trace(check)(*avals)
    assert checked > len(dtypes.ALL) ** 2


def test_numbers_beside_weak_arrays_and_integers_are_promoted():
    def check(weak, integer):
        assert promotion._common_dtype((weak, 1.0)) is None
        assert promotion._common_dtype((integer, 1.0)) is None
        assert promotion._common_dtype((1, 2)) is None
        return weak

    tvmfun.trace(check)(ShapeDtype((), "bfloat16", True), ShapeDtype((), "int32"))


INTEGERS = ("bool", "uint8", "int8", "int32", "uint16")
WEAK = {
    "product": lambda np, x: x * 1.5,
    "reversed": lambda np, x: 1 - x,
    "quotient": lambda np, x: x / 2,
    "maximum": lambda np, x: np.maximum(x, 1),
    "shift": lambda np, x: (x * 2) % 2,
    "power": lambda np, x: np.power(x, 0.5),
    "chosen": lambda np, x: np.where(x > 0, x * 0.5, 0.0),
    "moved": lambda np, x: np.concatenate([(x * 0.5)[1:], x[:1] * 2.0]).reshape(1, -1)[0],
    "taken": lambda np, x: (x * 0.5)[x.astype("int32")],
    "product of vectors": lambda np, x: np.dot(x * 0.5, x * 0.5),
    "sum": lambda np, x: np.sum(x * 0.5),
    "largest": lambda np, x: np.max(x * 0.5),
    "root": lambda np, x: np.sqrt(x),
    "array": lambda np, x: x * np.asarray(1.5),
}


@pytest.mark.parametrize("name", WEAK)
@pytest.mark.parametrize("jitted", [False, True])
def test_integers_with_python_numbers_give_way_to_arrays(name, jitted):
    for dtype in INTEGERS:
        for other in ("bfloat16", "float16", "int8", "float32"):
            ours = lambda x, y: WEAK[name](tnp, x) * y
            theirs = lambda x, y: WEAK[name](jnp, x) * y
            x = np.asarray([0, 1, 1, 0]).astype(dtype)
            got = (tvmfun.jit(ours) if jitted else ours)(tnp.asarray(x), tnp.ones(4, other))
            want = theirs(jnp.asarray(x), jnp.ones(4, other))
            assert got.dtype == want.dtype, (dtype, other)
            assert got.weak_type == want.weak_type, (dtype, other)
            np.testing.assert_allclose(np.asarray(got).astype("float32"), np.asarray(want).astype("float32"), rtol=1e-2)
