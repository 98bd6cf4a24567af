"""Buffers between vector statements become variables, where all that is read has been stored once."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest
import tvm
from support.te_kernels import placeholder
from tvm import ir, te, tirx

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import reference
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.codegen import native
from tvmfun.lower.schedule.cpu.rules import schedule
from tvmfun.lower.tir import build
from tvmfun.lower.tir.vector_variables import keep_vectors
from tvmfun.lower.tir.walk import find

X = (100 * np.random.default_rng(0).normal(size=16)).astype("float32")
_X, _Y, _KEPT = (build.buffer((16,), "float32", name) for name in ("x", "y", "kept"))
_SECOND, _INTEGERS = build.buffer((16,), "float32", "second"), build.buffer((16,), "int32", "integers")


def at(begin, size, stride=1):
    return [tirx.Ramp(begin, stride, size)]


def load(buffer, begin=0, size=16, stride=1):
    return tirx.BufferLoad(buffer, at(begin, size, stride))


def store(buffer, value, begin=0, size=16):
    return tirx.BufferStore(buffer, value, at(begin, size))


def block(*statements, buffers=(_KEPT,)):
    return build.seq(*map(tirx.AllocBuffer, buffers), *statements)


def each_half(make):
    i = ir.Var("i", ir.PrimType("int32"))
    return tirx.For(i, 0, 2, tirx.ForKind.SERIAL, make(i * 8))


def half(buffer, begin):
    return load(buffer, begin, 8)


_DOUBLE = load(_X) + load(_X)
_IS_SMALL = tirx.BufferLoad(_X, [0]) < tirx.const(1e9, "float32")
#: Statements, and what they store.
VARIABLES = {
    "whole": (block(store(_KEPT, _DOUBLE), store(_Y, load(_KEPT) + load(_KEPT))), 4 * X),
    "halves": (
        block(store(_KEPT, _DOUBLE), store(_Y, half(_KEPT, 8), 0, 8), store(_Y, half(_KEPT, 0), 8, 8)),
        2 * np.roll(X, 8),
    ),
    "joined": (
        block(store(_KEPT, half(_X, 8), 0, 8), store(_KEPT, half(_X, 0), 8, 8), store(_Y, load(_KEPT))),
        np.roll(X, 8),
    ),
    "across parts": (
        block(
            store(_KEPT, half(_X, 0), 8, 8),
            store(_KEPT, half(_X, 8), 0, 8),
            store(_Y, half(_KEPT, 4), 0, 8),
            store(_Y, half(_KEPT, 0), 8, 8),
        ),
        np.concatenate([X[12:], X[:4], X[8:]]),
    ),
    "in a loop below": (
        block(
            store(_KEPT, half(_X, 0), 0, 8),
            each_half(lambda i: store(_Y, half(_KEPT, 0) + half(_X, i), i, 8)),
        ),
        X + np.tile(X[:8], 2),
    ),
    "of one another": (
        block(
            store(_KEPT, load(_X)),
            store(_SECOND, load(_KEPT) * load(_X)),
            store(_Y, load(_SECOND) - load(_KEPT)),
            buffers=(_KEPT, _SECOND),
        ),
        X * X - X,
    ),
    "read before it is overwritten": (
        block(
            store(_KEPT, load(_X)),
            store(_X, _DOUBLE),
            store(_SECOND, load(_KEPT) * load(_KEPT)),
            store(_X, load(_SECOND)),
            store(_Y, load(_SECOND) - load(_KEPT)),
            buffers=(_KEPT, _SECOND),
        ),
        X * X - X,
    ),
    "in each iteration": (
        each_half(lambda i: block(store(_KEPT, half(_X, i), 0, 8), store(_Y, half(_KEPT, 0) * half(_KEPT, 0), i, 8))),
        X * X,
    ),
}
MEMORY = {
    "stored twice": (
        block(store(_KEPT, load(_X)), store(_KEPT, load(_KEPT) * load(_X)), store(_Y, load(_KEPT))),
        X * X,
    ),
    "overlapping": (
        block(store(_KEPT, load(_X)), store(_KEPT, half(_X, 0), 4, 8), store(_Y, load(_KEPT))),
        np.concatenate([X[:4], X[:8], X[12:]]),
    ),
    "stored in a loop": (
        block(each_half(lambda i: store(_KEPT, half(_X, i), i, 8)), store(_Y, load(_KEPT))),
        X,
    ),
    "stored on a condition": (
        block(
            store(_KEPT, half(_X, 0), 0, 8),
            tirx.IfThenElse(_IS_SMALL, store(_KEPT, half(_X, 8), 8, 8), None),
            store(_Y, load(_KEPT)),
        ),
        X,
    ),
    "backwards": (block(store(_KEPT, load(_X)), store(_Y, load(_KEPT, 15, 16, -1))), X[::-1]),
    "at an index": (
        block(store(_KEPT, load(_X)), each_half(lambda i: store(_Y, half(_KEPT, 8 - i), i, 8))),
        np.roll(X, 8),
    ),
    "integers": (
        block(
            store(_INTEGERS, tirx.Cast("int32x16", load(_X))),
            store(_Y, tirx.Cast("float32x16", load(_INTEGERS))),
            buffers=(_INTEGERS,),
        ),
        np.trunc(X),
    ),
}


@pytest.mark.parametrize("name", [*VARIABLES, *MEMORY])
def test_buffers_become_variables(name):
    """And the values are those of memory; the kernels are built without the optimizer."""
    body, expected = {**VARIABLES, **MEMORY}[name]
    kept = keep_vectors(body)
    assert (not find(kept, tirx.AllocBuffer)) == (name in VARIABLES)
    function = tirx.PrimFunc([_X, _Y], kept).with_attrs({"global_symbol": "kernel", "s_tir": True})
    lowered, _ = native._lowered(targets.host(), {ir.GlobalVar("kernel"): function}, False)
    module = native._built(targets.host(), lowered, False)
    x, y = tvm.runtime.tensor(X), tvm.runtime.tensor(np.zeros(16, "float32"))
    module["kernel"](*(ctypes.c_void_p(array.data_ptr()) for array in (x, y)))
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "mcpu,dtype,lanes",
    [
        ("znver5", "float32", {16}),
        ("znver5", "float64", {8}),
        ("znver3", "float32", {8}),
        ("x86-64", "float32", {4}),
        ("znver5", "bool", {16}),  # two for each vector of 32 truth values
        ("znver3", "bool", {8}),
    ],
)
def test_functions_take_as_many_floats_as_registers_hold(mcpu, dtype, lanes):
    is_bool = dtype == "bool"
    x = placeholder((256,), dtype="float32" if is_bool else dtype, name="x")
    value = lambda i: tirx.cosh(x[i]) > tirx.const(2, "float32") if is_bool else tirx.cosh(x[i])
    function = te.create_prim_func([x, te.compute((256,), value, "y")])
    text = schedule(function, tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": 2})).script()
    assert set(map(int, re.findall(r"tvmfun\.micro\.math\.cosh\.\d+\.(\d+)", text))) == lanes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_several_results_and_functions(dtype):
    """An update with several results, in which functions are called, on whole vectors and a remainder."""

    def update(x, m):
        m = 0.9 * m + 0.1 * tnp.sinh(x)
        return x - m / (tnp.sqrt(tnp.abs(m)) + 1), m, tnp.arctan(m) * tnp.cosh(x)

    x = np.random.default_rng(1).normal(size=(3, 1003)).astype("float32")
    arguments = [tnp.asarray(x).astype(dtype), tnp.asarray(x[::-1].copy()).astype(dtype)]
    program = tvmfun.trace(update)(*arguments)
    expected = reference.evaluate(program, [*program.captured, *map(np.asarray, arguments)])
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    for result, wanted in zip(tvmfun.jit(update)(*arguments), expected, strict=True):
        result = np.asarray(result.astype("float32"))
        np.testing.assert_allclose(result, np.asarray(wanted).astype("float32"), rtol=tolerance, atol=tolerance)


def test_no_buffer_is_left_in_an_update():
    """Vectors of a map with several results do not go through the stack."""
    function = lambda x, m: ((x - 0.1 * (m * 0.9 + x)), m * 0.9 + x)
    spec = tvmfun.ShapeDtype((1 << 16,), "float32")
    (kernel,) = pipeline.scheduled_kernels(tvmfun.trace(function)(spec, spec), targets.host())
    module, _ = native._lowered(targets.host(), {tvm.ir.GlobalVar("kernel"): kernel.function}, False)
    (lowered,) = module.functions.values()
    assert not [b for b in find(lowered.body, tirx.AllocBuffer) if not b.buffer.name.startswith("tvmfun_formula")]
