"""Kernels that go through the same rows become one."""

from __future__ import annotations

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, ShapeDtype, lax, nn
from tvmfun.lower.cache import text
from tvmfun.lower.fusion.fuse import fuse
from tvmfun.lower.fusion.row_fusion import merge_rows
from tvmfun.lower.tir.build import LAUNCH_POINT

MATRIX = ShapeDtype((64, 48), "float32")


def kernels(function, *specifications):
    program = tvmfun.trace(function)(*specifications)
    return [kernel for kernel in merge_rows(fuse(program), program.outputs) if not kernel.is_view]


def layer_norm(x, scale, shift):
    centred = x - tnp.mean(x, axis=-1, keepdims=True)
    variance = tnp.mean(centred * centred, axis=-1, keepdims=True)
    return centred * lax.rsqrt(variance + 1e-5) * scale + shift


VECTOR = ShapeDtype((48,), "float32")
CUBE = ShapeDtype((20, 9, 33), "float32")


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
        # Images of a batch, reduced along some of their axes: what is left are columns.
        (lambda x: nn.functional.softmax(x, axis=1), [CUBE]),
        (lambda x: tnp.std(x, axis=1), [CUBE]),
        (lambda x: x / tnp.sum(x * x, axis=(1, 2), keepdims=True), [ShapeDtype((16, 5, 7, 19), "float32")]),
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


@pytest.mark.parametrize("shape", [(2000, 9, 3), (8, 9, 33), (20, 300, 300), (Dim("b"), 9, 33)], ids=str)
def test_columns_that_are_few_rows_that_are_few_or_long_and_dynamic_ones_stay_apart(shape):
    """Columns that fill no vector, fewer rows than cores may need, and rows that stay in no cache."""
    assert len(kernels(lambda x: x - tnp.mean(x, axis=1, keepdims=True), ShapeDtype(shape, "float32"))) > 1


def standardized(x, np_=tnp):
    centred = x - np_.mean(x, axis=1, keepdims=True)
    return centred / np_.sqrt(np_.mean(centred * centred, axis=1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("shape", [(20, 9, 33), (16, 257, 16), (33, 1, 40), (17, 64, 128)], ids=str)
def test_columns_in_loops_batches_derivatives_and_donating_calls(shape):
    x, t = (np.random.default_rng(seed).normal(size=shape) for seed in (0, 1))
    close = lambda found, expected: np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    expected = standardized(x, np)
    close(tvmfun.jit(standardized, donate_argnums=0)(tnp.asarray(x)), expected)
    step = lambda x: standardized(x) - 0.5 * x
    loop = tvmfun.jit(lambda x: lax.fori_loop(0, 2, lambda _, x: step(x), x), donate_argnums=0)
    once = expected - 0.5 * x
    close(loop(tnp.asarray(x)), standardized(once, np) - 0.5 * once)
    batch = np.stack([x, 2 * x + t])
    close(tvmfun.jit(tvmfun.vmap(standardized))(batch), np.stack([standardized(own, np) for own in batch]))
    # Second order, against the reference, which knows of no kernels.
    slope = tvmfun.grad(lambda x: tnp.sum(standardized(x) ** 3 * tnp.max(x, axis=1, keepdims=True)))
    along = lambda x, t: tvmfun.jvp(slope, (x,), (t,))
    program = tvmfun.trace(along)(x, t)
    evaluated = program.evaluate([*program.captured, tnp.asarray(x), tnp.asarray(t)])
    for found, value in zip(tvmfun.jit(along)(x, t), evaluated, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-7, atol=1e-7 * np.abs(value).max())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "int32", "bool", "float64"])
def test_columns_of_each_dtype(dtype):
    """Maxima along the middle axis, with NaN and infinities among floats, and how often and where they occur."""

    def function(x):
        most = tnp.max(x, axis=1, keepdims=True)
        return most == x, tnp.sum(x == most, axis=1), tnp.sum(x * (x == most), axis=1)

    values = np.random.default_rng(0).integers(-3, 4, (20, 9, 33)).astype("float32")
    if dtype.endswith(("16", "64")):
        values[3, 4, 5], values[4, 5, 6], values[5, 6, 7] = np.nan, np.inf, -np.inf
    x = tnp.asarray(values).astype(dtype)
    program = tvmfun.trace(function)(x)
    for found, expected in zip(tvmfun.jit(function)(x), program.evaluate([*program.captured, x]), strict=True):
        np.testing.assert_array_equal(np.asarray(found, "float64"), np.asarray(expected, "float64"))


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


COLUMNS = [
    lambda a, b: a - tnp.mean(b, axis=1, keepdims=True),
    lambda a, b: a * tnp.max(b, axis=(1, 2), keepdims=True),
    lambda a, b: nn.functional.softmax(a, axis=1) + b,
    lambda a, b: a + tnp.tanh(tnp.sum(a * b, axis=2, keepdims=True)),
    lambda a, b: a - tnp.mean(tnp.sum(b, axis=1), axis=1)[:, None, None] * 0.1,
]


@pytest.mark.slow
# With seed 125 a kernel computes again what the kernel before it reads.
@pytest.mark.parametrize(
    ("steps", "shape", "seed"),
    [
        *((STEPS, (32, 24), seed) for seed in (0, 1, 4, 5, 125)),
        *((STEPS + NUMBERS, (32, 24), seed) for seed in (0, 1, 2, 4, 6, 7)),
        *((STEPS[:2] + STEPS[7:] + COLUMNS, (16, 5, 18), seed) for seed in range(5)),
    ],
)
def test_random_programs(steps, shape, seed):
    def random_program(x):
        rng = np.random.default_rng(seed)
        values = [x, x + 1]
        for _ in range(40):
            a, b = (values[i] for i in rng.integers(max(0, len(values) - 8), len(values), 2))
            values.append(steps[rng.integers(0, len(steps))](a, b))
        return values[-6:]

    # Values grow to 30,000, and small ones are their differences: in float32 nothing of these would be right.
    # With other seeds, which are left out, a change of the last bit of x changes the ninth digit of float64.
    x = np.random.default_rng(seed).normal(size=shape)
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


@pytest.mark.parametrize(("columns", "is_allocated"), [(1024, True), (64, False)])
def test_a_row_is_allocated_once_per_thread(columns, is_allocated):
    target = {"kind": "llvm", "mcpu": "x86-64-v3", "mtriple": "x86_64-linux-gnu", "num-cores": 3}
    compiled = tvmfun.jit(nn.functional.softmax, target=target).lower(ShapeDtype((4096, columns), "float32")).compile()
    scheduled = compiled.as_text()
    assert (f'"{LAUNCH_POINT}"' in scheduled) == is_allocated
    if is_allocated:
        assert scheduled.index(f"alloc_buffer((1, {columns}))") < scheduled.index("T.parallel(4096)")
    assert compiled.memory_analysis().workspaces == (3 * columns * 4 if is_allocated else 0)


@pytest.mark.quick("parallel", "serial")
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((301, 1024), id="parallel"),
        pytest.param((3, 301), id="serial"),
        pytest.param((1, 40000), id="one row"),
        pytest.param((0, 1024), id="no rows"),
        pytest.param((2, 17, 5, 517), id="4-D"),
    ],
)
def test_rows_in_memory_of_threads_are_those_of_the_reference(shape):
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    softmax = nn.functional.softmax
    expected = np.exp(x - x.max(-1, keepdims=True, initial=-np.inf))
    expected /= expected.sum(-1, keepdims=True)
    tolerance = {"rtol": 3e-6, "atol": 1e-12}
    np.testing.assert_allclose(tvmfun.jit(softmax)(x), expected, **tolerance)
    np.testing.assert_allclose(tvmfun.jit(softmax, donate_argnums=0)(tnp.asarray(x.copy())), expected, **tolerance)
    np.testing.assert_allclose(
        tvmfun.jit(softmax, dynamic_shapes={"x": {0: Dim("n", min=0)}})(x), expected, **tolerance
    )
    steps = tvmfun.jit(lambda x: lax.scan(lambda total, _: (total + softmax(x + total), None), x * 0, length=3)[0])
    got = steps(x)
    total = x * 0
    for _ in range(3):
        total = total + np.asarray(softmax(x + total))
    np.testing.assert_allclose(got, total, rtol=1e-5, atol=1e-9)
    if x.shape[0] > 1:
        np.testing.assert_allclose(tvmfun.jit(tvmfun.vmap(softmax))(x), expected, **tolerance)


def test_what_does_not_fit_into_rows_does_not_part_them():
    def function(x, labels):
        exponentials = tnp.exp(x - tnp.max(x, axis=1, keepdims=True))
        totals = tnp.sum(exponentials, axis=1)
        mean = tnp.mean(tnp.log(totals))  # over all rows, and not needed for what follows
        return mean, exponentials / totals[:, None] * labels.astype("float32")[:, None], mean * 2 + labels[0]

    x = np.random.default_rng(0).normal(size=MATRIX.shape).astype("float32")
    labels = np.arange(64, dtype="int32")
    program = tvmfun.trace(function)(x, labels)
    ops = [{e.op.name for e in kernel.equations} for kernel in kernels(function, MATRIX, ShapeDtype((64,), "int32"))]
    (rows,) = [names for names in ops if "max" in names]
    assert {"max", "sum", "divide"} <= rows
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    totals = exponentials.sum(axis=1)
    mean = np.log(totals).mean()
    expected = mean, exponentials / totals[:, None] * labels[:, None], mean * 2
    for got, value in zip(program(x, labels), expected, strict=True):
        np.testing.assert_allclose(got, value, rtol=1e-5)
