"""Conversions to narrower floats before changes of layout."""

from __future__ import annotations

import numpy as np
import pytest
from support.rewrites import assert_same_values, ops

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core.inline import inlined
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.rewrite.early_conversions import convert_early

SM_90A = targets.resolve({"kind": "cuda", "arch": "sm_90a"})
X = np.random.default_rng(0).normal(size=(6, 8)).astype("float32")


def half(x):
    return tnp.astype(x, "bfloat16")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (
            lambda x: half((x @ x.T).reshape(3, 12)),
            ["dot_general float32", "astype bfloat16", "reshape bfloat16"],
        ),
        (
            lambda x: half((x @ x.T).reshape(3, 2, 6).transpose(1, 0, 2).reshape(2, 18)),
            ["dot_general float32", *(f"{op} bfloat16" for op in ("astype", "reshape", "permute_dims", "reshape"))],
        ),
        # The permutation, which both results read, stays; the conversion goes before the view of it.
        (
            lambda x: (lambda y: (half(y), y))((x @ x.T).reshape(3, 2, 6).transpose(1, 0, 2).reshape(2, 18)),
            [f"{op} float32" for op in ("dot_general", "reshape", "permute_dims", "reshape")]
            + [f"{op} bfloat16" for op in ("astype", "reshape")],
        ),
        # What is no product would be converted, and then moved by a second kernel.
        (lambda x: half(tnp.exp(x).T), ["exp float32", "permute_dims float32", "astype bfloat16"]),
        (lambda x: half(x.T), ["permute_dims float32", "astype bfloat16"]),
        (lambda x: half(x.T.reshape(4, 12)), ["permute_dims float32", "astype bfloat16", "reshape bfloat16"]),
        # An argument is stored already.
        (lambda x: half(x.reshape(4, 12)), ["reshape float32", "astype bfloat16"]),
        # Wider numbers, and those that are no floats.
        (lambda x: tnp.astype(half(x).reshape(4, 12), "float32"), None),
        (lambda x: tnp.astype((x @ x.T).reshape(4, 9), "int8"), None),
        (lambda x: half(tnp.astype(x, "int32").reshape(4, 12)), None),
    ],
)
def test_order(function, expected):
    program = inlined(tvmfun.trace(function)(X), "cuda")
    rewritten = convert_early(program)
    assert ops(rewritten) == (ops(program) if expected is None else expected)
    assert_same_values(program, rewritten, X)


def test_two_conversions_of_one_product():
    def function(x):
        product = (x @ x.T).reshape(4, 9)
        return half(product), tnp.astype(product, "float16"), product.reshape(3, 12)

    program = inlined(tvmfun.trace(function)(X), "cuda")
    rewritten = convert_early(program)
    (dot,) = (equation for equation in rewritten.equations if equation.op.name == "dot_general")
    conversions = [equation for equation in rewritten.equations if equation.op.name == "astype"]
    assert [conversion.inputs for conversion in conversions] == [dot.outputs, dot.outputs]
    assert_same_values(program, rewritten, X)


@pytest.mark.parametrize("shape", [(6, 8), (2, 3), (1, 1)])
def test_in_a_loop(shape):
    def function(x):
        def body(carry, _):
            product = (carry @ x.T @ x).reshape(shape[0], 1, shape[1])
            return tnp.astype(half(product.transpose(1, 0, 2)).reshape(shape), "float32"), None

        return lax.scan(body, x, None, length=2)[0]

    x = X[: shape[0], : shape[1]]
    program = inlined(tvmfun.trace(function)(x), "cuda")
    (loop,) = (equation for equation in convert_early(program).equations if equation.op.runs is not None)
    found = ops(next(value for value in loop.params.values() if isinstance(value, tvmfun.Program)))
    assert found.index("astype bfloat16") == found.index("astype bfloat16", found.index("dot_general float32"))
    assert "permute_dims bfloat16" in found
    assert_same_values(program, convert_early(program), x)


def test_products_of_a_gpu_store_half_precision():
    def function(x, weight):
        return half((x @ weight).reshape(64, 2, 32)).transpose(1, 0, 2)

    specs = tvmfun.ShapeDtype((64, 96), "float32"), tvmfun.ShapeDtype((96, 64), "float32")
    kernels = pipeline.fused(pipeline.rewritten(tvmfun.trace(function)(*specs), SM_90A), SM_90A)
    (product,) = (kernel for kernel in kernels if "dot_general" in kernel.name)
    assert [str(out.aval.dtype) for out in product.outputs] == ["bfloat16"]
