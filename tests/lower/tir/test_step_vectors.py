"""Vectors of consecutive integers: masks and functions of indices."""

from __future__ import annotations

import numpy as np
import pytest
from support.results import draw
from tvm import ir, tirx

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.lower.tir import build
from tvmfun.lower.tir.step_vectors import with_step_vectors
from tvmfun.lower.tir.walk import find

AT = ir.Var("i", ir.PrimType("int32"))
X, Y = build.buffer((64,), "int32", "x"), build.buffer((64,), "int32", "y")


def ramp(base, lanes=16, stride=1):
    return tirx.Ramp(base, tirx.const(stride, "int32"), lanes)


def store(value, index):
    return tirx.BufferStore(Y, value, [index])


def test_ramps_outside_of_indices_become_sums():
    body = store(X[ramp(AT)] + ramp(AT), ramp(AT))
    changed = with_step_vectors(body)
    assert [str(load.indices[0]) for load in find(changed, ir.TensorLoad)] == [str(ramp(AT))]
    assert str(changed.indices[0]) == str(ramp(AT))
    (total,) = (node for node in find(changed.value, tirx.Add) if isinstance(node.a, tirx.Broadcast))
    assert str(total.b) == str(ramp(tirx.const(0, "int32")))


def test_indices_that_are_computed_and_constants_stay():
    gathered = store(X[tirx.FloorDiv(ramp(AT), tirx.Broadcast(tirx.const(2, "int32"), 16))], ramp(AT, stride=3))
    assert str(with_step_vectors(gathered)) == str(gathered)
    constant = store(ramp(tirx.const(0, "int32")), ramp(tirx.const(5, "int32")))
    assert with_step_vectors(constant).same_as(constant)


@pytest.mark.parametrize("dtype", ["float32", "bool", "int8", "bfloat16", "float64"])
def test_masks_by_index(dtype):
    for shape in ((3, 5), (70, 131), (40, 64)):
        x = draw(*shape).astype(dtype)
        triangles = lambda x: (tnp.tril(x), tnp.triu(x, 2), tnp.eye(*x.shape, 1, dtype=x.dtype))
        expected = np.tril(x), np.triu(x, 2), np.eye(*shape, 1).astype(dtype)
        for got, want in zip(tvmfun.jit(triangles)(x), expected, strict=True):
            np.testing.assert_array_equal(got, want)


def test_functions_of_indices():
    """With tails, in loops, of dynamic sizes, and as indices of a gather."""

    def f(x):
        n = x.shape[0]
        i = tnp.arange(n)
        hashes = i * 73856093 ^ (i << 7)
        looped = lax.fori_loop(0, 3, lambda k, total: total + i * k - (i % (k + 1)), tnp.zeros(n, "int32"))
        return hashes % 1000, x[i * 5 % n], tnp.where(i % 3 == 0, x, -x), looped, (i[:, None] <= i).astype("int8")

    def expected(x):
        n = x.shape[0]
        i = np.arange(n, dtype="int32")
        looped = sum(i * k - i % (k + 1) for k in range(3))
        hashes = (i * 73856093) ^ (i << 7)
        return hashes % 1000, x[i * 5 % n], np.where(i % 3 == 0, x, -x), looped, i[:, None] <= i

    dynamic = tvmfun.jit(f, dynamic_shapes={"x": {0: "n"}})
    for n in (1, 15, 33, 100):
        x = draw(n)
        for results in (tvmfun.jit(f)(x), dynamic(x)):
            for got, want in zip(results, expected(x), strict=True):
                np.testing.assert_array_equal(got, want)
