"""Buffers on the stack become registers in modules that LLVM does not optimize, if all indices are constants."""

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
from tvmfun.llvm_modules import FUNCTION
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.codegen import native
from tvmfun.lower.codegen.optimizer import is_straight
from tvmfun.lower.schedule.cpu.rules import schedule
from tvmfun.lower.tir import build

X = (100 * np.random.default_rng(0).normal(size=16)).astype("float32")
_X, _Y, _KEPT = (build.buffer((16,), "float32", name) for name in ("x", "y", "kept"))
_SECOND, _THIRD = (build.buffer((16,), "float32", name) for name in ("second", "third"))
_INTEGERS = build.buffer((16,), "int32", "integers")


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
_IS_LARGE = tirx.BufferLoad(_X, [3]) > tirx.const(1e9, "float32")


def repeated(count, make):
    i = ir.Var("i", ir.PrimType("int32"))
    return tirx.For(i, 0, count, tirx.ForKind.SERIAL, make(i))


def element(buffer, index):
    return tirx.BufferLoad(buffer, [index])


def add(value, begin=0, size=16):
    return store(_KEPT, load(_KEPT, begin, size) + value, begin, size)


def larger(a, b):
    return tirx.if_then_else(tirx.any(b < a, tirx.isnan(a)), a, b)


#: Statements, and what they store.
REGISTERS = {
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
    "stored twice": (
        block(store(_KEPT, load(_X)), store(_KEPT, load(_KEPT) * load(_X)), store(_Y, load(_KEPT))),
        X * X,
    ),
    "overlapping": (
        block(store(_KEPT, load(_X)), store(_KEPT, half(_X, 0), 4, 8), store(_Y, load(_KEPT))),
        np.concatenate([X[:4], X[:8], X[12:]]),
    ),
    "stored on a condition": (
        block(
            store(_KEPT, half(_X, 0), 0, 8),
            store(_KEPT, half(_X, 0), 8, 8),
            tirx.IfThenElse(_IS_SMALL, store(_KEPT, half(_X, 8), 8, 8), None),
            tirx.IfThenElse(_IS_LARGE, store(_KEPT, half(_X, 8), 0, 8), add(half(_X, 0), 8, 8)),
            store(_Y, load(_KEPT)),
        ),
        np.concatenate([X[:8], X[8:] + X[:8]]),
    ),
    "integers": (
        block(
            store(_INTEGERS, tirx.Cast("int32x16", load(_X))),
            store(_Y, tirx.Cast("float32x16", load(_INTEGERS))),
            buffers=(_INTEGERS,),
        ),
        np.trunc(X),
    ),
    "a sum in a loop": (
        block(store(_KEPT, load(_X)), repeated(5, lambda i: add(load(_X))), store(_Y, load(_KEPT))),
        6 * X,
    ),
    "a sum in two loops": (
        block(
            store(_KEPT, load(_X)),
            repeated(3, lambda i: build.seq(repeated(2, lambda j: add(load(_X))), add(element(_X, i), 0, 16))),
            repeated(0, lambda i: add(load(_X))),
            store(_Y, load(_KEPT)),
        ),
        7 * X + X[:3].sum(),
    ),
    "halves that are exchanged": (
        block(
            store(_KEPT, load(_X)),
            repeated(
                3,
                lambda i: build.seq(
                    store(_SECOND, half(_KEPT, 0), 0, 8),
                    store(_KEPT, half(_KEPT, 8), 0, 8),
                    store(_KEPT, half(_SECOND, 0), 8, 8),
                ),
            ),
            store(_Y, load(_KEPT)),
            buffers=(_KEPT, _SECOND),
        ),
        np.roll(X, 8),
    ),
    "two that are exchanged": (
        block(
            store(_KEPT, load(_X)),
            store(_SECOND, -load(_X)),
            repeated(
                5,
                lambda i: build.seq(
                    store(_THIRD, load(_KEPT)), store(_KEPT, load(_SECOND)), store(_SECOND, load(_THIRD))
                ),
            ),
            store(_Y, load(_KEPT)),
            buffers=(_KEPT, _SECOND, _THIRD),
        ),
        -X,
    ),
    "not changed in a loop": (
        block(store(_KEPT, load(_X)), repeated(2, lambda i: store(_Y, half(_KEPT, 8), i * 8, 8))),
        np.tile(X[8:], 2),
    ),
    "chosen in branches": (
        block(
            tirx.BufferStore(_KEPT, tirx.const(-1e9, "float32"), [0]),
            repeated(
                16,
                lambda i: build.seq(
                    tirx.BufferStore(_KEPT, larger(element(_KEPT, 0), element(_X, i)), [0]),
                    tirx.BufferStore(_Y, element(_KEPT, 0), [i]),
                ),
            ),
        ),
        np.maximum.accumulate(X),
    ),
    "elements of a vector": (
        block(
            store(_KEPT, load(_X)),
            repeated(4, lambda i: tirx.BufferStore(_KEPT, element(_KEPT, 3) + element(_X, 0), [3])),
            store(_Y, load(_KEPT)),
        ),
        np.concatenate([X[:3], [X[3] + 4 * X[0]], X[4:]]),
    ),
    "in a loop that a condition skips": (
        block(
            store(_KEPT, load(_X)),
            repeated(
                4,
                lambda i: tirx.IfThenElse(i % 2 == 0, repeated(3, lambda j: add(load(_X))), store(_KEPT, -load(_KEPT))),
            ),
            store(_Y, load(_KEPT)),
        ),
        -(-(X * 4) + 3 * X),
    ),
}
MEMORY = {
    "stored in a loop": (
        block(each_half(lambda i: store(_KEPT, half(_X, i), i, 8)), store(_Y, load(_KEPT))),
        X,
    ),
    "at an index": (
        block(store(_KEPT, load(_X)), each_half(lambda i: store(_Y, half(_KEPT, 8 - i), i, 8))),
        np.roll(X, 8),
    ),
    "its address": (
        block(
            store(_KEPT, load(_X)),
            build.prefetch(element(_KEPT, 0)),
            store(_Y, load(_KEPT)),
        ),
        X,
    ),
}


def in_memory(module) -> list[str]:
    """The addresses on the stack that functions of an LLVM module load numbers from or store them to."""
    found = []
    for function in FUNCTION.findall(module.inspect_source("ll")):
        own = set(re.findall(r"(%\S+) = alloca (?:float|i32),", function))
        own |= {name for name, of in re.findall(r"(%\S+) = getelementptr .*ptr (%\S+),", function) if of in own}
        accesses = re.findall(r"^ +(?:%\S+ = load|store) .*, ptr (%\S+),", function, re.MULTILINE)
        found += [address for address in accesses if address in own]
    return found


@pytest.mark.parametrize("name", [*REGISTERS, *MEMORY])
def test_buffers_become_registers(name):
    """And the values are those of memory."""
    body, expected = {**REGISTERS, **MEMORY}[name]
    function = tirx.PrimFunc([_X, _Y], body).with_attrs({"global_symbol": "kernel", "s_tir": True})
    lowered, _ = native._lowered(targets.host(), {ir.GlobalVar("kernel"): function}, False)
    module = native._built(targets.host(), lowered, False)
    assert bool(in_memory(module)) == (name in MEMORY)
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
@pytest.mark.own_vectors
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


@pytest.mark.parametrize(
    "function,count",
    [
        (lambda x, m: ((x - 0.1 * (m * 0.9 + x)), m * 0.9 + x), 2),
        (lambda x, m: tnp.sum(tnp.where(x > 0, m - 1, x), axis=(0, 1)), 2),
    ],
)
def test_nothing_of_a_straight_kernel_is_on_the_stack(function, count):
    spec = tvmfun.ShapeDtype((16, 32, 64), "float32")
    (kernel,) = pipeline.scheduled_kernels(tvmfun.trace(function)(*[spec] * count), targets.host())
    assert is_straight(kernel.function)
    module = native._built(
        targets.host(), native._lowered(targets.host(), {tvm.ir.GlobalVar("kernel"): kernel.function}, False)[0], False
    )
    assert not in_memory(module)
