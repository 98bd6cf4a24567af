"""Flattened buffers: indices of compiled kernels, most with quotients, against Python's integers."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import numpy as np
import pytest
import tvm
from support.indices import value
from tvm import ir, tirx

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.errors import ShapeError
from tvmfun.lower import target as targets
from tvmfun.lower.codegen import native
from tvmfun.lower.tir.flatten import flatten_buffers
from tvmfun.lower.tir.walk import find

LENGTH = 1 << 14


def random_index(rng: random.Random, variables: list[ir.Var], depth: int) -> Any:
    """A random sum of variables, multiples, quotients and remainders."""
    inner = lambda: random_index(rng, variables, depth - 1)
    draw = rng.random()
    if depth == 0 or draw < 0.1:
        return rng.choice(variables) if rng.random() < 0.7 else tirx.const(rng.randint(-9, 9), "int32")
    if draw < 0.2:
        return inner() + inner()
    if draw < 0.3:
        return inner() - inner()
    if draw < 0.4:
        return inner() * rng.randint(-4, 4)
    if draw < 0.6:
        return inner() + rng.choice([1, 2, 3, 7, 15, -1])
    return (tirx.floordiv if draw < 0.8 else tirx.floormod)(inner(), rng.choice([2, 3, 4, 8, 16]))


def range_of(index: Any, sizes: tuple[int, int]) -> tuple[int, int]:
    """The least and the greatest value of an index over all points of two axes."""
    values = [value(index, {"x": i, "y": j}) for i in range(sizes[0]) for j in range(sizes[1])]
    return min(values), max(values)


@pytest.mark.quick("7")
@pytest.mark.parametrize("seed", range(10))
def test_random_indices_in_compiled_kernels_are_those_of_python(seed: int):
    rng = random.Random(seed)
    target, functions, cases = targets.host(), {}, []
    for i in range(150):
        sizes = rng.choice([3, 4, 8, 16, 32]), rng.choice([3, 4, 8, 16])
        x, y = (ir.Var(name, ir.PrimType("int32")) for name in "xy")
        # Of one axis, or of the two that a number has been taken apart into.
        indices = [random_index(rng, [x, y], 3) for _ in range(rng.choice([1, 2]))]
        bounds = [range_of(index, sizes) for index in indices]
        shape = [last - first + 1 for first, last in bounds]
        if np.prod(shape) > LENGTH:
            continue
        numbers, result = tirx.decl_buffer(shape, "int32"), tirx.decl_buffer(sizes, "int32")
        kind = rng.choice([tirx.ForKind.SERIAL, tirx.ForKind.VECTORIZED])
        inside = [index - first for index, (first, _) in zip(indices, bounds, strict=True)]
        body = tirx.For(y, 0, sizes[1], kind, tirx.BufferStore(result, numbers[tuple(inside)], [x, y]))
        body = tirx.For(x, 0, sizes[0], tirx.ForKind.SERIAL, body)
        function = tirx.PrimFunc([numbers, result], body).with_attrs({"s_tir": True, "global_symbol": f"f{i}"})
        functions[ir.GlobalVar(f"f{i}")] = function
        cases.append((f"f{i}", inside, shape, sizes))
    module = native.compiled(target, functions)
    for name, inside, shape, sizes in cases:
        numbers = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
        at = lambda i, j, inside=inside: tuple(value(index, {"x": i, "y": j}) for index in inside)
        expected = [[numbers[at(i, j)] for j in range(sizes[1])] for i in range(sizes[0])]
        source, result = tvm.runtime.tensor(numbers), tvm.runtime.empty(sizes, "int32")
        module[name](source.data_ptr(), result.data_ptr())
        np.testing.assert_array_equal(result.numpy(), expected, str(inside))


@pytest.mark.parametrize(
    ("shape", "index"),
    [
        ((9,), lambda i: [(i % 16 + 1) // 2]),
        ((4, 9), lambda i: [i // 16, (i % 16 + 1) // 2]),
        ((64, 4), lambda i: [i, (i - 1) % 4]),
        ((16, 3), lambda i: [i // 4, (i + 7) % 3]),
        ((12,), lambda i: [(i + 7) // 3 // 2]),
        ((33,), lambda i: [(63 - i) // 2]),
        ((8,), lambda i: [(i % 4 + i % 16) // 8]),
        ((64,), lambda i: [i - i % 5]),
    ],
    ids=lambda part: str(part) if isinstance(part, tuple) else "",
)
def test_indices_that_tvm_simplifies_wrongly(shape: tuple[int, ...], index: Any):
    i = ir.Var("i", ir.PrimType("int32"))
    source, result = tirx.decl_buffer(shape, "int32"), tirx.decl_buffer((64,), "int32")
    body = tirx.For(i, 0, 64, tirx.ForKind.SERIAL, tirx.BufferStore(result, source[tuple(index(i))], [i]))
    module = flatten_buffers(tvm.IRModule({"f": tirx.PrimFunc([source, result], body).with_attr("s_tir", True)}))
    [load] = find(module["f"].body, ir.TensorLoad)
    [loop] = find(module["f"].body, tirx.For)
    expected = [int(np.ravel_multi_index(index(number), shape)) for number in range(64)]
    assert [value(load.indices[0], {loop.loop_var.name: number}) for number in range(64)] == expected


def test_quotients_and_remainders_of_a_number_are_joined():
    i = ir.Var("i", ir.PrimType("int32"))
    source, result = tirx.decl_buffer((4, 4, 4), "int32"), tirx.decl_buffer((64,), "int32")
    body = tirx.BufferStore(result, source[i // 16, i % 16 // 4, i % 4], [i])
    body = tirx.For(i, 0, 64, tirx.ForKind.SERIAL, body)
    module = flatten_buffers(tvm.IRModule({"f": tirx.PrimFunc([source, result], body).with_attr("s_tir", True)}))
    [load] = find(module["f"].body, ir.TensorLoad)
    assert load.indices[0].same_as(find(module["f"].body, tirx.For)[0].loop_var)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: tnp.sin(x),
        lambda x: tnp.sum(x, axis=0),
        lambda x: x.reshape(1 << 12, 1 << 4, -1).max(axis=1),
        lambda x: x.T + 1,
        lambda x: x @ x,
        lambda x: x[5:, 3:],
        lambda x: x[::-1, 5],
    ],
)
def test_indices_that_32_bits_cannot_hold_are_refused(f):
    with pytest.raises(ShapeError, match="arrays of 2,147,483,648 or more elements"):
        tvmfun.jit(f).lower(tvmfun.ShapeDtype((1 << 16, 1 << 16), "float32")).compile()


@pytest.mark.parametrize("shape", [("b", "b"), (1, "b")], ids=str)
def test_operands_that_become_constant(shape: tuple):
    # The loop over the rows of a block has one step, and the protected row becomes the number 0.
    factorize = tvmfun.jit(lax.linalg.lu)
    compiled = factorize.lower(tvmfun.ShapeDtype(shape, "float64")).compile()
    for size in (1, 2, 5):
        matrix = np.random.default_rng(size).normal(size=(size if shape[0] == "b" else 1, size))
        for result, expected in zip(compiled(matrix), factorize(matrix), strict=True):
            np.testing.assert_array_equal(result, expected)


def configurations() -> list[tuple[int, int, int, int, int]]:
    """Sizes, paddings before, after and between, and steps of a slice of the flip."""
    return [(n, *rest) for n in (1, 2, 3, 5) for rest in product((0, 1, 2), (0, 1, 3), (0, 1, 2), (1, 2, 3))]


@pytest.mark.slow
def test_flips_of_padded_arrays_and_their_gradients():
    zero = np.float32(0)
    cases = configurations()
    arrays = {n: np.arange(1, n + 1, dtype=np.float32) for n in {case[0] for case in cases}}

    def padded(x: Any, low: int, high: int, interior: int, step: int) -> Any:
        return tnp.flip(lax.pad(x, zero, [(low, high, interior)]))[::step]

    def of_numpy(x: np.ndarray, low: int, high: int, interior: int, step: int) -> np.ndarray:
        full = np.zeros(low + len(x) + (len(x) - 1) * interior + high, np.float32)
        full[low : low + (len(x) - 1) * (interior + 1) + 1 : interior + 1] = x
        return full[::-1][::step]

    results = tvmfun.jit(lambda xs: [padded(xs[n], *rest) for n, *rest in cases])(arrays)
    weight = lambda n: np.arange(1, n + 1, dtype=np.float32) ** 2

    def loss(xs: dict[int, Any]) -> Any:
        parts = (padded(x, *rest) for x, (_, *rest) in zip(xs, cases, strict=True))
        return sum(tnp.sum(part * weight(part.shape[0])) for part in parts)

    each = [arrays[case[0]] for case in cases]
    gradients = tvmfun.jit(tvmfun.grad(loss))(each)
    for (n, *rest), result, gradient in zip(cases, results, gradients, strict=True):
        expected = of_numpy(arrays[n], *rest)
        np.testing.assert_array_equal(result, expected, str((n, *rest)))
        # Each element arrives once, so its derivative is the weight at its position.
        weights = weight(len(expected))
        derivative = [weights[expected == number].sum() for number in arrays[n]]
        np.testing.assert_array_equal(gradient, derivative, str((n, *rest)))
