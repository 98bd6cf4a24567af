"""The shortcut for operands of one dtype against the promotion that it leaves out."""

from __future__ import annotations

from itertools import product

import numpy as np

import tvmfun
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
