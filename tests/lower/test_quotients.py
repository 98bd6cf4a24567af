"""Index quotients: what TVM's simplification of indices makes of them in compiled kernels."""

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
from tvmfun.lower import target as targets
from tvmfun.lower.codegen import native
from tvmfun.lower.tir.quotients import protect_quotients
from tvmfun.lower.tir.walk import find

LENGTH, OFFSET = 2048, 1024


def random_index(rng: random.Random, variables: list[ir.Var], depth: int) -> Any:
    """A random sum of variables, multiples, quotients and remainders."""
    inner = lambda: random_index(rng, variables, depth - 1)
    draw = rng.random()
    if depth == 0 or draw < 0.2:
        return rng.choice(variables) if rng.random() < 0.7 else tirx.const(rng.randint(-9, 9), "int32")
    if draw < 0.45:
        return inner() + inner()
    if draw < 0.6:
        return inner() - inner()
    if draw < 0.7:
        return inner() * rng.randint(-4, 4)
    return (tirx.floordiv if draw < 0.85 else tirx.floormod)(inner(), rng.choice([2, 3, 4, 5, 6, 8]))


@pytest.mark.quick("0")
@pytest.mark.parametrize("seed", range(2))
def test_random_indices_in_compiled_kernels_are_those_of_python(seed: int):
    rng = random.Random(seed)
    target, functions, cases = targets.host(), {}, []
    for i in range(150):
        sizes = rng.choice([2, 3, 4, 5, 8]), rng.choice([2, 3, 4, 6, 16])
        x, y = (ir.Var(name, ir.PrimType("int32")) for name in "xy")
        index = random_index(rng, [x, y], 3)
        numbers, result = tirx.decl_buffer((LENGTH,), "int32"), tirx.decl_buffer(sizes, "int32")
        kind = rng.choice([tirx.ForKind.SERIAL, tirx.ForKind.VECTORIZED])
        body = tirx.For(y, 0, sizes[1], kind, tirx.BufferStore(result, numbers[index + OFFSET], [x, y]))
        body = tirx.For(x, 0, sizes[0], tirx.ForKind.SERIAL, body)
        function = tirx.PrimFunc([numbers, result], body).with_attrs({"s_tir": True, "global_symbol": f"f{i}"})
        functions[ir.GlobalVar(f"f{i}")] = function
        cases.append((f"f{i}", index, sizes))
    module = native.compiled(target, functions)
    numbers = tvm.runtime.tensor(np.arange(-OFFSET, LENGTH - OFFSET, dtype=np.int32))
    for name, index, sizes in cases:
        expected = [[value(index, {"x": i, "y": j}) for j in range(sizes[1])] for i in range(sizes[0])]
        if np.abs(expected).max() >= OFFSET:
            continue
        result = tvm.runtime.empty(sizes, "int32")
        module[name](numbers.data_ptr(), result.data_ptr())
        np.testing.assert_array_equal(result.numpy(), expected, str(index))


def test_indices_that_only_rise_are_left_to_tvm():
    x = ir.Var("x", ir.PrimType("int32"))
    source, result = tirx.decl_buffer((8,), "float32"), tirx.decl_buffer((8,), "float32")
    body = tirx.For(x, 0, 8, tirx.ForKind.SERIAL, tirx.BufferStore(result, source[7 - x // 2 * 2], [x]))
    assert protect_quotients(body).same_as(body)
    descending = tirx.For(x, 0, 8, tirx.ForKind.SERIAL, tirx.BufferStore(result, source[(7 - x) // 2], [x]))
    assert len(find(protect_quotients(descending), ir.Call)) == 2


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
