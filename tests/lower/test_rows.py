"""Kernels that go through the same rows become one."""

from __future__ import annotations

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, lax, nn
from tvmfun.lower.cache import text
from tvmfun.lower.fusion.fuse import fuse
from tvmfun.lower.fusion.row_fusion import merge_rows

MATRIX = ShapeDtype((64, 48), "float32")


def kernels(function, *specifications):
    program = tvmfun.trace(function)(*specifications)
    return [kernel for kernel in merge_rows(fuse(program), program.outputs) if not kernel.is_view]


def layer_norm(x, scale, shift):
    centred = x - tnp.mean(x, axis=-1, keepdims=True)
    variance = tnp.mean(centred * centred, axis=-1, keepdims=True)
    return centred * lax.rsqrt(variance + 1e-5) * scale + shift


VECTOR = ShapeDtype((48,), "float32")


@pytest.mark.quick("<lambda>-specifications4", "<lambda>-specifications5")
@pytest.mark.parametrize(
    ("function", "specifications"),
    [
        (nn.functional.softmax, [MATRIX]),
        (nn.functional.log_softmax, [MATRIX]),
        (layer_norm, [MATRIX, VECTOR, VECTOR]),
        (lambda x: nn.functional.softmax(tnp.where(x > 0, x, -tnp.inf) * 2), [ShapeDtype((4, 8, 16, 24), "float32")]),
        (lambda x: x / tnp.sqrt(tnp.sum(x * x, axis=(1, 2), keepdims=True)), [ShapeDtype((32, 8, 6), "float32")]),
        (lambda x: tnp.std(x, axis=-1), [MATRIX]),
    ],
)
def test_a_normalization_is_one_kernel_with_one_result(function, specifications):
    (kernel,) = kernels(function, *specifications)
    assert len(kernel.outputs) == 1
    rng = np.random.default_rng(0)
    values = [rng.normal(size=spec.shape).astype(spec.dtype) for spec in specifications]
    program = tvmfun.trace(function)(*specifications)
    expected = program.evaluate([*program.captured, *map(tnp.asarray, values)])[0]
    np.testing.assert_allclose(tvmfun.jit(function)(*values), expected, rtol=1e-5, atol=1e-6)
    assert '"tvmfun.rule": "reduction"' in text(program)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - tnp.mean(x, axis=0),  # columns
        lambda x: tnp.sum(tnp.sum(x, axis=1)) + x,  # one sum for all rows
        lambda x: tnp.sum(x, axis=1)[::-1, None] + x,  # the sum of another row
        lambda x: tnp.sum(x, axis=1, keepdims=True) + x @ x.T,  # a product in between
    ],
)
def test_what_needs_other_rows_stays_apart(function):
    assert len(kernels(function, MATRIX)) > 1


def test_results_that_others_need_are_stored():
    def function(x):
        total = tnp.sum(x, axis=1, keepdims=True)
        return x / total, total, tnp.reshape(total, (8, 8))

    (kernel,) = kernels(function, MATRIX)
    assert len(kernel.outputs) == 2
    x = np.random.default_rng(0).uniform(1, 2, (64, 48)).astype("float32")
    for got, expected in zip(tvmfun.jit(function)(x), function(tnp.asarray(x)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


STEPS = [
    lambda a, b: a + b,
    lambda a, b: tnp.tanh(a) * b,
    lambda a, b: a - tnp.mean(b, axis=1, keepdims=True),
    lambda a, b: a * tnp.max(b, axis=1, keepdims=True),
    lambda a, b: nn.functional.softmax(a) + b,
    lambda a, b: a - tnp.mean(b, axis=0),
    lambda a, b: tnp.reshape(tnp.reshape(a, (32, 24)), (32, 24)) + b[::-1],
    lambda a, b: tnp.sum(a * b) * 0.01 + a,
    lambda a, b: tnp.where(a > b, a, 0.1),
]


NUMBERS = [
    lambda a, b: a * (tnp.sum(b, axis=1) > 0)[:, None],
    lambda a, b: a - tnp.mean(tnp.max(b, axis=1)),
    lambda a, b: a + tnp.sum(b, axis=1)[::-1, None] * 0.1,
]


@pytest.mark.slow
# In the seventh a kernel computes again what the kernel before it reads.
@pytest.mark.parametrize(
    ("steps", "seed"), [*((STEPS, seed) for seed in (*range(6), 125)), *((STEPS + NUMBERS, seed) for seed in range(6))]
)
def test_random_programs(steps, seed):
    def random_program(x):
        rng = np.random.default_rng(seed)
        values = [x, x + 1]
        for _ in range(40):
            a, b = (values[i] for i in rng.integers(max(0, len(values) - 8), len(values), 2))
            values.append(steps[rng.integers(0, len(steps))](a, b))
        return values[-6:]

    # Values grow to 30,000, and small ones are their differences: in float32 nothing of these would be right.
    x = np.random.default_rng(seed).normal(size=(32, 24))
    program = tvmfun.trace(random_program)(x)
    merged = merge_rows(fuse(program), program.outputs)
    assert len(merged) < len(fuse(program))
    known = set(program.inputs)
    for kernel in merged:
        assert kernel.outputs and known.issuperset(kernel.inputs) and known.isdisjoint(kernel.outputs)
        known.update(kernel.outputs)
    one_by_one = program.evaluate([*program.captured, tnp.asarray(x)])
    for got, expected in zip(program(x), one_by_one, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-8)


def test_a_cross_entropy_and_its_gradient_store_no_probabilities():
    def value_and_gradient(logits, labels):
        return tvmfun.value_and_grad(nn.losses.cross_entropy)(logits, labels)

    specifications = ShapeDtype((64, 1000), "float32"), ShapeDtype((64,), "int32")
    matrices = lambda kernel: [out.aval.shape for out in kernel.outputs].count((64, 1000))
    (gradient,) = [kernel for kernel in kernels(value_and_gradient, *specifications) if matrices(kernel)]
    assert {"max", "exp", "sum"} <= {equation.op.name for equation in gradient.equations}
    assert matrices(gradient) == 1
    analysis = tvmfun.jit(value_and_gradient).lower(*specifications).compile().memory_analysis()
    # Only a few numbers per row are kept, and one row per thread.
    assert analysis.temporaries + analysis.workspaces < specifications[0].nbytes / 2


def test_what_does_not_fit_into_rows_does_not_part_them():
    def function(x, labels):
        exponentials = tnp.exp(x - tnp.max(x, axis=1, keepdims=True))
        totals = tnp.sum(exponentials, axis=1)
        mean = tnp.mean(tnp.log(totals))  # over all rows, and not needed for what follows
        return mean, exponentials / totals[:, None] * labels.astype("float32")[:, None], mean * 2 + labels[0]

    x = np.random.default_rng(0).normal(size=MATRIX.shape).astype("float32")
    labels = np.arange(64, dtype="int32")
    program = tvmfun.trace(function)(x, labels)
    (rows,) = [kernel for kernel in kernels(function, MATRIX, ShapeDtype((64,), "int32")) if len(kernel.equations) > 5]
    assert {"max", "sum", "divide"} <= {equation.op.name for equation in rows.equations}
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    totals = exponentials.sum(axis=1)
    mean = np.log(totals).mean()
    expected = mean, exponentials / totals[:, None] * labels[:, None], mean * 2
    for got, value in zip(program(x, labels), expected, strict=True):
        np.testing.assert_allclose(got, value, rtol=1e-5)
