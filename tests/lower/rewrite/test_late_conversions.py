"""Conversions from half precision after changes of layout."""

from __future__ import annotations

import numpy as np
import pytest
from support.rewrites import assert_same_values, ops

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.lower.rewrite.late_conversions import convert_late

X = np.random.default_rng(0).normal(size=(6, 8)).astype("float16")


def wide(x):
    return tnp.astype(x, "float32")


def half(x):
    return tnp.astype(x, "float16")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: tnp.exp(wide(x).reshape(3, 16)), ["reshape float16", "astype float32", "exp float32"]),
        (
            lambda x: tnp.exp(half(tnp.flip(wide(x).T, 0)[:, 1:].reshape(5, 8))),
            [f"{op} float16" for op in ("permute_dims", "flip", "slice", "reshape", "exp")],
        ),
        # A result of the Program is converted again.
        (lambda x: half(wide(x).T), ["permute_dims float16", "astype float32", "astype float16"]),
        # Both the moved array and the one before are needed.
        (
            lambda x: (lambda y: (y.T, y + 1))(wide(x)),
            ["astype float32", "permute_dims float16", "astype float32", "add float32"],
        ),
        # The rounding to the other format of half precision stays.
        (
            lambda x: tnp.astype(wide(x).T, "bfloat16"),
            ["permute_dims float16", "astype float32", "astype bfloat16"],
        ),
        # A sum in float32 is more than a layout.
        (lambda x: half(tnp.sum(wide(x), axis=0)), None),
        (lambda x: tnp.astype(x > 0, "float32").T, None),
    ],
)
def test_layouts_change_in_half_precision(function, expected):
    program = tvmfun.trace(function)(X)
    rewritten = convert_late(program)
    if expected is None:
        assert rewritten is program
        return
    assert ops(rewritten) == expected
    assert_same_values(program, rewritten, X)


def test_an_argument_is_returned_where_it_is_converted_back():
    program = tvmfun.trace(lambda x: (half(wide(x).reshape(48)).reshape(6, 8), wide(x) * 2))(X)
    rewritten = convert_late(program)
    assert_same_values(program, rewritten, X)
    assert "reshape float32" not in ops(rewritten)


def test_the_programs_of_loops_change_too():
    def f(x):
        body = lambda c, _: (half(wide(c).T.reshape(6, 8)), tnp.sum(wide(c).T, axis=0))
        return lax.scan(body, x, None, length=3)

    program = tvmfun.trace(f)(X)
    rewritten = convert_late(program)
    assert rewritten is not program
    assert_same_values(program, rewritten, X)
