"""Products of an odd number of columns, which get more of them on GPUs."""

from __future__ import annotations

import numpy as np
import pytest
from support.emulated_products import emulate, needs_gxx
from support.gpu_modules import gpu_module

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import ShapeDtype, lax, nn
from tvmfun.core.inline import inlined
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
    monkeypatch.setattr(aligned_columns, "_SMALLER", 2)


def half(x):
    return tnp.astype(tnp.astype(x, "bfloat16"), "float32")


def cross_entropy(x, table, bias=BIAS, convert=lambda x: x):
    logits = convert(x) @ convert(table).T + bias
    return tnp.mean(nn.losses.softmax_cross_entropy_with_integer_labels(logits, LABELS))


def columns_of_products(program):
    """The last sizes of the results of products, in order."""
    return [one.outputs[0].aval.shape[-1] for one in program.equations if one.op.name == "dot_general"]


def aligned(function, *args):
    """The Program of a function before and after, after a check that both compute the same."""
    program = inlined(tvmfun.trace(function)(*args), "cuda")
    rewritten = align_columns(program)
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
    "softmax": lambda x, t: nn.functional.softmax(x @ t.T),
    "sorted": lambda x, t: tnp.sort(tnp.tanh(x @ t.T)),
    "one of them": lambda x, t: tnp.tanh(x @ t.T)[:, 3],
    "reversed": lambda x, t: tnp.exp(x @ t.T)[:, ::-1].sum(0),
    "product again": lambda x, t: tnp.tanh(x @ t.T) @ t,
    "product of both": lambda x, t: tnp.tanh(x @ t.T).T @ tnp.cos(x @ t.T),
    "columns": lambda x, t: tnp.tanh(x @ lax.optimization_barrier(t.T)).max(1),
    "one-hot": lambda x, t: tnp.sum(tnp.where(tnp.arange(WORDS) == LABELS[:, None], x @ t.T, 0.0)),
    "result as well": lambda x, t: (lambda y: (y, tnp.exp(y), tnp.max(y, 1)))(tnp.tanh(x @ t.T)),
    "half precision": lambda x, t: (lambda y: (half(y).max(1), half(y) @ half(t)))(half(x) @ half(t).T),
    "cross-entropy": cross_entropy,
    "gradient": tvmfun.value_and_grad(cross_entropy, (0, 1)),
    "gradient of the bias": lambda x, t: tvmfun.grad(lambda b: cross_entropy(x, t, b))(tnp.asarray(BIAS)),
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


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x, t: x @ t.T, WORDS),  # a result, which has its shape
        (lambda x, t: tnp.max(x @ t.T, 1), 24),
        (lambda x, t: tnp.max(x.astype("int32") @ t.astype("int32").T, 1), WORDS),
    ],
    ids=["a result", "aligned", "integers"],
)
def test_other_products_stay(function, words, small):
    program = inlined(tvmfun.trace(function)(X, random(words, WIDTH)), "cuda")
    assert align_columns(program) is program


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
    """Those of the logits, and of both gradients, whose rows have 50,257 columns."""

    def loss(x, table, labels):
        logits = (x.astype("bfloat16") @ table.astype("bfloat16").T).astype("float32")
        return tnp.mean(nn.losses.softmax_cross_entropy_with_integer_labels(logits, labels))

    types = ShapeDtype((512, 128), "float32"), ShapeDtype((50257, 128), "float32"), ShapeDtype((512,), "int32")
    module = gpu_module(tvmfun.grad(loss, (0, 1)), *types)
    maps = [sum(isinstance(arg, TensorMap) for arg in launch.arguments) for launch in module.launches()]
    assert sorted(maps)[-3:] == [2, 2, 2]
