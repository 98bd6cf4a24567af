"""Products of an odd number of columns, which get more of them on GPUs."""

from __future__ import annotations

import numpy as np
import pytest
from support.emulated_products import emulate, needs_gxx, scheduled
from support.gpu_modules import gpu_module

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, lax, nn
from tvmfun.core.inline import inlined
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.rewrite import aligned_columns
from tvmfun.lower.rewrite.aligned_columns import align_columns
from tvmfun.runtime.cuda_module import TensorMap

ROWS, WIDTH, WORDS = 40, 16, 21
LABELS = np.arange(ROWS, dtype="int32") * 5 % WORDS


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


X, TABLE, BIAS = random(ROWS, WIDTH), random(WORDS, WIDTH, seed=1), random(WORDS, seed=2)


@pytest.fixture
def small(monkeypatch):
    """Lets small arrays be large enough."""
    monkeypatch.setattr(aligned_columns, "LEAST_BYTES", 0)
    monkeypatch.setattr(aligned_columns, "LEAST_COLUMNS", 0)
    monkeypatch.setattr(aligned_columns, "_SMALLER", 2)


def half(x):
    return tnp.astype(tnp.astype(x, "bfloat16"), "float32")


def cross_entropy(x, table, bias=BIAS, convert=lambda x: x):
    logits = convert(x) @ convert(table).T + bias
    return tnp.mean(nn.losses.softmax_cross_entropy_with_integer_labels(logits, LABELS))


def smoothed_cross_entropy(x, table):
    targets = 0.9 * nn.functional.one_hot(LABELS, WORDS) + 0.1 / WORDS
    return -tnp.mean(tnp.sum(targets * nn.functional.log_softmax(x @ table.T), -1))


def both_axes(x, table):
    up, down = x[:, :5] @ table[:, :5].T, tnp.tile(x, (1, 2))[:, :WORDS] @ table[:, :5]
    return tnp.max(up, 1), tnp.max(down, 1)


def columns_of_products(program):
    """The last sizes of the results of products, in order."""
    return [one.outputs[0].aval.shape[-1] for one in program.equations if one.op.name == "dot_general"]


def aligned(function, *args):
    """The Program of a function before and after, after a check that both compute the same."""
    program = inlined(tvmfun.trace(function)(*args), "cuda")
    rewritten = align_columns(program).verify()
    before, after = (one.evaluate([*one.captured, *map(tnp.asarray, args)]) for one in (program, rewritten))
    for expected, got in zip(before, after, strict=True):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(np.asarray(got, "float64"), np.asarray(expected, "float64"), rtol=2e-6, atol=1e-6)
    return program, rewritten


FUNCTIONS = {
    "maxima": lambda x, t: (x @ t.T).max(1),
    "minima": lambda x, t: (x @ t.T).min(1),
    "sums": lambda x, t: tnp.sum(tnp.exp(x @ t.T), 1),
    "sums of columns": lambda x, t: tnp.sum(tnp.exp(x @ t.T), 0),
    "all": lambda x, t: tnp.sum((x @ t.T + BIAS) ** 2),
    "argmax": lambda x, t: tnp.argmax(x @ t.T, 1),
    "logsumexp": lambda x, t: nn.functional.logsumexp(x @ t.T, 1),
    "softmax": lambda x, t: nn.functional.softmax(x @ t.T) @ t,
    "product": lambda x, t: tnp.prod(1 + x @ t.T / 99, 1),
    "one of them": lambda x, t: (lambda y: (y[:, 3], tnp.max(y, 1)))(tnp.tanh(x @ t.T)),
    "reversed": lambda x, t: (lambda y: (y[:, ::-1].sum(0), tnp.max(y)))(tnp.exp(x @ t.T)),
    "in part": lambda x, t: (lambda y: [tnp.sum(z) for z in (y, y[:, ::2], y[:, -5:], y.T[5])])(tnp.tanh(x @ t.T)),
    "with another array": lambda x, t: tnp.max(x @ t.T * tnp.tanh(tnp.tile(t.T, (3, 1))[:ROWS]), 1),
    "counted": lambda x, t: (lambda y: (tnp.sum(y > 0, 1), tnp.max(y, 1)))(x @ t.T),
    # A factor of two products, both of whose axes are odd; and one that is such a product itself.
    "both axes": both_axes,
    "product of products": lambda x, t: tnp.max(tnp.tile(x, (9, 3))[:, :ROWS] @ tnp.exp(x @ t.T), 1),
    "square": lambda x, t: (lambda y: (tnp.max(tnp.tile(y, (3, 1)) @ y[:37].T, 1), tnp.max(y, 1)))(tnp.tanh(x @ t.T)),
    "product again": lambda x, t: tnp.tanh(x @ t.T) @ t,
    "product of both": lambda x, t: tnp.tanh(x @ t.T).T @ tnp.cos(x @ t.T),
    "columns": lambda x, t: tnp.tanh(x @ lax.optimization_barrier(t.T)).max(1),
    "one-hot": lambda x, t: tnp.sum(tnp.where(tnp.arange(WORDS) == LABELS[:, None], x @ t.T, 0.0)),
    "rows of a batch": lambda x, t: tnp.max((x.reshape(4, 10, WIDTH) @ t.T).reshape(ROWS, WORDS), 1),
    "half precision": lambda x, t: (lambda y: (half(y).max(1), half(y) @ half(t)))(half(x) @ half(t).T),
    "cross-entropy": cross_entropy,
    "gradient": tvmfun.value_and_grad(cross_entropy, (0, 1)),
    "gradient of the bias": lambda x, t: tvmfun.grad(lambda b: cross_entropy(x, t, b))(tnp.asarray(BIAS)),
    "gradient of smoothed labels": tvmfun.value_and_grad(smoothed_cross_entropy, (0, 1)),
    "gradient with a checkpoint": tvmfun.value_and_grad(tvmfun.checkpoint(cross_entropy), (0, 1)),
    "gradient in half precision": tvmfun.value_and_grad(lambda x, t: cross_entropy(x, t, convert=half), (0, 1)),
    "second derivative": tvmfun.grad(lambda x, t: tnp.sum(tvmfun.grad(cross_entropy)(x, t) ** 2)),
    "batched": tvmfun.vmap(lambda x, t: tnp.max(x @ t.T, -1), (0, None)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_the_same(name, small):
    program, rewritten = aligned(FUNCTIONS[name], X, TABLE)
    assert 24 in columns_of_products(rewritten)
    assert 24 not in columns_of_products(program)


def test_what_a_product_leaves_out_counts_for_nothing(small):
    """Also where the results are infinities and NaNs, or less than what stands in the columns that are left out."""
    table = TABLE.copy()
    table[2], table[7, 0], table[9, 1] = -np.inf, np.inf, np.nan
    x = -np.abs(X)
    for function in (FUNCTIONS[name] for name in ("maxima", "minima", "sums", "logsumexp", "argmax", "softmax")):
        aligned(function, x, np.abs(TABLE))
        program, rewritten = (f(tvmfun.trace(function)(x, table)) for f in (lambda p: p, align_columns))
        before, after = (one.evaluate(list(map(tnp.asarray, (x, table)))) for one in (program, rewritten))
        np.testing.assert_allclose(np.asarray(after[0]), np.asarray(before[0]), rtol=2e-6)


def test_special_values_of_each_factor(small):
    """Whole numbers, whose sums are exact; all of them are less, or all more, than the zeros of padded factors."""

    def function(x, table, bias):
        y = x @ table.T + bias
        along = [f(y, 1) for f in (tnp.max, tnp.min, tnp.argmax, tnp.argmin, tnp.sum)]
        return along, tnp.max(y, 0), tnp.sum(y, 0), tnp.max(y), tnp.min(y)

    for offset in (-1000, 1000):
        given = [np.round(X), np.round(3 * TABLE), np.full_like(BIAS, offset)]
        for value in (0, np.nan, np.inf, -np.inf):
            for i, factor in enumerate(given):
                changed = factor.copy()
                changed[-1] = value
                aligned(function, *(changed if i == j else each for j, each in enumerate(given)))


def test_columns_that_nobody_reads_may_overflow(small):
    def function(x, table, bias):
        y = x @ table.T + bias
        e = tnp.exp(y - tnp.max(y, 1, keepdims=True))
        return tnp.sum(e, 1), tnp.exp(y / 1000).T @ x, tnp.max(1 / y), tnp.log(e) @ table

    for offset in (-1000, 1000):
        given = X, TABLE, BIAS + np.float32(offset)
        program = inlined(tvmfun.trace(function)(*given), "cuda")
        rewritten = align_columns(program).verify()
        before, after = (one.evaluate(list(map(tnp.asarray, given))) for one in (program, rewritten))
        assert 24 in columns_of_products(rewritten)
        for expected, got in zip(before, after, strict=True):
            np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=1e-5, atol=1e-3)


def in_a_loop(x, t):
    return lax.fori_loop(0, 2, lambda i, carry: carry + tnp.max(carry @ t.T), x)


STAYING = {
    # A result has its shape: its part of a wider array would be copied.
    "a result": (lambda x, t: x @ t.T, WORDS),
    "a map": (lambda x, t: tnp.tanh(x @ t.T + BIAS), WORDS),
    "softmax": (lambda x, t: nn.functional.softmax(x @ t.T), WORDS),
    "a result as well": (lambda x, t: (lambda y: (y, tnp.max(y, 1)))(tnp.tanh(x @ t.T)), WORDS),
    "sorted": (lambda x, t: tnp.sort(tnp.tanh(x @ t.T))[:, 0], WORDS),
    "into a loop": (lambda x, t: lax.fori_loop(0, 2, lambda i, carry: carry * 2, x @ t.T)[:, 0], WORDS),
    "in a loop": (in_a_loop, WORDS),
    "aligned": (lambda x, t: tnp.max(x @ t.T, 1), 24),
    "integers": (lambda x, t: tnp.max(x.astype("int32") @ t.astype("int32").T, 1), WORDS),
}


@pytest.mark.parametrize("name", STAYING)
def test_other_products_stay(name, small):
    function, words = STAYING[name]
    program = inlined(tvmfun.trace(function)(X, random(words, WIDTH)), "cuda")
    assert align_columns(program) is program


def test_dynamic_sizes_and_processors_stay(small):
    types = ShapeDtype((ROWS, WIDTH), "float32"), ShapeDtype(("n", WIDTH), "float32")
    program = inlined(tvmfun.trace(FUNCTIONS["maxima"])(*types), "cuda")
    assert align_columns(program) is program
    program = inlined(tvmfun.trace(FUNCTIONS["maxima"])(X, TABLE), "cpu")
    assert columns_of_products(pipeline.rewritten(program, targets.resolve("llvm"))) == [WORDS]


@pytest.mark.parametrize(
    ("rows", "words", "columns"),
    [(8192, 50257, 50264), (4096, 30522, 30528), (64, 50257, 50257), (1 << 20, 10, 10), (1 << 22, 1, 1)],
)
def test_many_columns_get_more(rows, words, columns):
    """A tenth column would cost more than it saves."""
    types = ShapeDtype((rows, 64), "float32"), ShapeDtype((words, 64), "float32")
    program = inlined(tvmfun.trace(lambda x, t: tnp.sum(tnp.exp(x @ t.T), 1))(*types), "cuda")
    assert columns_of_products(align_columns(program).verify()) == [columns]


def test_small_products_stay():
    program = inlined(tvmfun.trace(FUNCTIONS["maxima"])(X, TABLE), "cuda")
    assert align_columns(program) is program


@needs_gxx
@pytest.mark.parametrize("name", ["gradient", "gradient in half precision", "product again"])
def test_kernels_compute_the_same(name, small):
    results, _ = emulate(FUNCTIONS[name], X, TABLE, arch="sm_90a")
    expected = tvmfun.tree.leaves(tvmfun.jit(FUNCTIONS[name])(X, TABLE))
    for got, right in zip(results, expected, strict=True):
        np.testing.assert_allclose(got, np.asarray(right), rtol=2e-2, atol=2e-3)


def test_the_copy_engine_moves_the_factors_of_all_products(no_compiler):
    """Logits of 50,257 columns, and both of their gradients."""

    def loss(x, table, labels):
        logits = (x.astype("bfloat16") @ table.astype("bfloat16").T).astype("float32")
        return tnp.mean(nn.losses.softmax_cross_entropy_with_integer_labels(logits, labels))

    types = ShapeDtype((512, 128), "float32"), ShapeDtype((50257, 128), "float32"), ShapeDtype((512,), "int32")
    module = gpu_module(tvmfun.grad(loss, (0, 1)), *types)
    maps = [sum(isinstance(arg, TensorMap) for arg in launch.arguments) for launch in module.launches()]
    assert sorted(maps)[-3:] == [2, 2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("is_mixed", [False, True])
def test_nothing_large_is_copied(is_mixed):
    """A product stores logits, and a kernel of rows their gradient, in half precision; the table is converted once."""

    def loss(x, table, bias, labels):
        half = (lambda x: x) if is_mixed else (lambda x: x.astype("bfloat16"))
        logits = (half(x) @ half(table).T).astype("float32") + bias
        return tnp.mean(nn.losses.softmax_cross_entropy_with_integer_labels(logits, labels))

    rows, words, width = 4096, 30522, 768
    types = [ShapeDtype(shape, "float32") for shape in ((rows, width), (words, width), (words,))]
    step = tvmfun.grad(tvmfun.amp(loss) if is_mixed else loss, (0, 1, 2))
    kernels = scheduled(step, *types, ShapeDtype((rows,), "int32"), arch="sm_90a")
    large = [(one.rule, out.aval) for one in kernels for out in one.kernel.outputs if out.aval.shape[-1] == words + 6]
    stored = [(rule, str(aval.dtype)) for rule, aval in large if aval.ndim == 2]
    assert stored == [("product", "bfloat16"), ("rows", "bfloat16")]
    tables = [out.aval.shape for one in kernels for out in one.kernel.outputs if out.aval.dtype != "float32"]
    assert [shape for shape in tables if shape[0] >= words] == [(words + 6, width)]
