"""Micro-kernels: which tiles they compute, their names, and numbers for every form of their loops and stores."""

import numpy as np
import pytest
from support.run_texts import outcomes
from tvm import ir

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, ShapeDtype, lax, tree
from tvmfun.core.inline import inlined
from tvmfun.lower import kernel_cache, pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.schedule.cpu import product_tiles
from tvmfun.lower.tir.llvm_text import PREFIX
from tvmfun.lower.tir.micro_kernels.definitions import with_definitions
from tvmfun.lower.tir.micro_kernels.moves import RowsCopy, TileTranspose
from tvmfun.lower.tir.micro_kernels.products import Next, Terms, TileProduct
from tvmfun.lower.tir.micro_kernels.winograd import Panels, Steps, WinogradTransform
from tvmfun.lower.tir.walk import called, find
from tvmfun.reference import evaluate

FUNCTIONS = [
    TileProduct(32, 6, 64, 16, 64, 1280, 320, True, (Terms(0, 1, 64),), 8, Next(7680, 0, 1920)),
    TileProduct(32, 6, 64, 16, 64, 1280, 320, True, (Terms(0, 16, 1024), Terms(16, 1, 64)), 8, Next(0, 9, 64, 2560), 2),
    TileProduct(32, 3, 33, 8, 33, -7, 5, False, (Terms(0, 10, 0), Terms(3, -1, 33))),
    TileProduct(64, 1, 8, 8, 8, 0, None, False, (Terms(0, 1, 8),)),
    TileTranspose(16, 16),
    RowsCopy(64, 11, 8),
    WinogradTransform("patch", 8, Steps(800, 200), Steps(640, -64), clipped=True),
    WinogradTransform("cotangent", 16, Steps(800, 200), Steps(640, 64), panels=Panels(2, 96)),
    WinogradTransform("gradient", 4, Steps(800, 200), Steps(640, 64), part=3200),
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.name.removeprefix(PREFIX))
def test_a_name_says_all(function):
    fields = function.name.removeprefix(PREFIX).split(".")
    assert type(function).of_name(fields[1:]) == function
    declared = f"declare i32 @{function.name}(ptr)\n!0 = !{{}}"
    assert function.definition() in with_definitions(declared)


def test_a_module_without_them_stays():
    assert with_definitions("declare i32 @tvmfun_other(ptr)") == "declare i32 @tvmfun_other(ptr)"


def used(function, *arguments) -> set[str]:
    """The kinds of the micro-kernels in the kernels of a function."""
    target = targets.host()
    program = inlined(tvmfun.trace(function)(*(ShapeDtype(x.shape, x.dtype) for x in arguments)), "cpu")
    pairs = [pair for pair in pipeline.fused_kernels(program, target) if not pair[0].is_view]
    functions = [function for pair in pairs if (function := kernel_cache.scheduled(pair[0], target, pair[1]))]
    calls = [call for function in functions for call in find(function.body, ir.Call)]
    names = [str(call.args[0].value) for call in calls if called(call) == "tirx.call_extern"]
    return {name.removeprefix(PREFIX).split(".")[0] for name in names if name.startswith(PREFIX)}


def convolved(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def flat(x, y):
    """A product over two axes that are apart in one factor."""
    return tnp.einsum("iabj,abk->ijk", x, y)


CASES = {
    "whole tiles": (lambda x, y: x @ y, (24, 40), (40, 64), {"product"}),
    "parts of vectors and fewer rows": (lambda x, y: x @ y, (29, 40), (40, 77), {"product"}),
    "few columns": (lambda x, y: x @ y, (29, 40), (40, 13), {"product"}),
    "one row": (lambda x, y: x @ y, (1, 40), (40, 77), set()),
    "one column more than a panel": (lambda x, y: x @ y, (50, 40), (40, 65), {"product"}),
    "blocks of terms": (lambda x, y: x @ y, (29, 3001), (3001, 77), {"product"}),
    "blocks of terms and an epilogue": (lambda x, y: tnp.tanh(x @ y / 64), (29, 3001), (3001, 77), {"product"}),
    "an epilogue": (lambda x, y: tnp.maximum(x @ y, 1) + y[0], (29, 40), (40, 77), {"product"}),
    "two results": (lambda x, y: (x @ y, x @ y + 1), (29, 40), (40, 77), {"product"}),
    "many panels": (lambda x, y: x @ y, (300, 64), (64, 700), {"product"}),
    "many panels and an epilogue": (lambda x, y: x @ y + y[0], (300, 200), (200, 700), {"product"}),
    "transposed rows": (lambda x, y: x.T @ y, (500, 300), (500, 200), {"product", "transpose"}),
    "transposed columns": (lambda x, y: x @ y.T, (70, 200), (90, 200), {"product", "transpose"}),
    "rows backwards": (lambda x, y: x[::-1] @ y, (29, 40), (40, 77), {"product"}),
    "terms backwards": (lambda x, y: x[:, ::-1] @ y[::-1], (29, 40), (40, 77), {"product"}),
    "terms apart": (flat, (5, 6, 7, 30), (6, 7, 70), {"product"}),
    "a convolution": (convolved, (2, 9, 11, 12), (3, 3, 12, 20), {"product"}),
    "a batch": (lambda x, y: x @ y, (6, 20, 30), (6, 30, 40), {"product"}),
    "a transpose": (lambda x, y: (x.T, y), (60, 50), (3,), {"transpose"}),
    "a transpose and a sum": (lambda x, y: x.T + y, (60, 50), (50, 60), set()),
}


def numbers(*shape, dtype="float32"):
    return np.random.default_rng(len(shape)).integers(-4, 5, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_numbers(name, dtype):
    function, *shapes, kinds = CASES[name]
    check(function, [numbers(*shape, dtype=dtype) for shape in shapes], kinds)


@pytest.mark.parametrize("dtype,columns", [("float32", 13), ("float64", 7)])
def test_rows_of_a_single_panel_are_copied(dtype, columns):
    check(lambda x, y: x @ y, [numbers(*s, dtype=dtype) for s in ((300, 12000), (12000, columns))], {"product", "copy"})


def check(function, arguments, kinds):
    """Checks which micro-kernels are used, and the numbers."""
    assert kinds <= used(function, *arguments)
    expected = evaluate(tvmfun.trace(function)(*arguments), arguments)
    # Integers are exact, in whatever order they are added.
    for got, wanted in zip(tree.leaves(tvmfun.jit(function)(*arguments)), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=2e-6)


def test_parts_of_vectors_are_read_within_the_array():
    def text(function, columns):
        return tvmfun.trace(function)(ShapeDtype((23, 64), "float32"), ShapeDtype((64, columns), "float32")).text

    functions = (lambda x, y: x @ y, lambda x, y: tnp.tanh(x @ y))
    texts = [text(function, columns) for function in functions for columns in (9, 15, 33, 65, 127)]
    assert {one.outcome for one in outcomes(texts)} == {"ran"}


@pytest.mark.parametrize("shape", [(127, 24, 700, 128), (61, 40, 600, 24), (61, 40, 900, 128)], ids=str)
def test_blocks_of_terms_that_end_early(shape):
    """Over two axes, neighbours in one factor and apart in the other."""
    outer, inner, rows, columns = shape
    x, y = numbers(rows, outer, inner), numbers(outer, columns, inner)
    product = tvmfun.jit(lambda x, y: tnp.einsum("iab,ajb->ij", x, y))
    np.testing.assert_array_equal(product(x, y), np.einsum("iab,ajb->ij", x, y))


@pytest.mark.parametrize("columns", [384, 394, 768, 778, 1100])
@pytest.mark.parametrize("rows", [13, 300])
def test_the_last_of_a_group_of_panels(rows, columns):
    x, y = numbers(rows, 70), numbers(70, columns)
    np.testing.assert_array_equal(tvmfun.jit(lambda x, y: x @ y)(x, y), x @ y)
    np.testing.assert_array_equal(tvmfun.jit(lambda x, y: x @ y - y[1])(x, y), x @ y - y[1])


def test_rows_of_a_dynamic_number():
    rows = Dim("m", min=0)
    product = tvmfun.jit(lambda x, y: (x @ y, x @ y + 1), dynamic_shapes=({0: rows}, None))
    y = numbers(70, 90)
    for m in (0, 1, 5, 13, 64, 101):
        x = numbers(m, 70)
        for got, wanted in zip(product(x, y), (x @ y, x @ y + 1), strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_columns_of_a_dynamic_number(dtype):
    """The distance of rows of the output is not known."""
    columns = Dim("n", min=1)
    right = tvmfun.jit(lambda x, y: x @ y.T, dynamic_shapes=(None, {0: columns}))
    left = tvmfun.jit(lambda x, y: (x @ y, x @ y + 1), dynamic_shapes=(None, {1: columns}))
    for m, k in ((7, 40), (3, 600), (72, 4), (20, 18)):
        x = numbers(m, k, dtype=dtype)
        for n in (1, 7, 36, 64, 101):
            y = numbers(n, k, dtype=dtype)
            np.testing.assert_array_equal(right(x, y), x @ y.T)
            for got, wanted in zip(left(x, y.T.copy()), (x @ y.T, x @ y.T + 1), strict=True):
                np.testing.assert_array_equal(got, wanted)


def test_attention_of_a_dynamic_length():
    def attend(x, w):
        q = (x @ w).reshape(*x.shape[:2], 3, 8)
        weights = tnp.exp(tnp.einsum("bthd,bshd->bhts", q, q) / 8)
        return tnp.einsum("bhts,bshd->bthd", weights, q)

    w = np.random.default_rng(0).normal(size=(16, 24)).astype("float32") / 4
    length = Dim("t", min=1)
    dynamic = tvmfun.jit(attend, dynamic_shapes=({1: length}, None))
    derivative = tvmfun.grad(lambda w, x: tnp.sum(attend(x, w) ** 2))
    gradient = tvmfun.jit(derivative, dynamic_shapes=(None, {1: length}))
    for t in (1, 5, 17, 64, 70):
        x = np.random.default_rng(t).normal(size=(2, t, 16)).astype("float32") / 4
        (value,) = evaluate(tvmfun.trace(attend)(x, w), [x, w])
        np.testing.assert_allclose(dynamic(x, w), value, rtol=2e-5, atol=2e-5)
        (value,) = evaluate(tvmfun.trace(derivative)(w, x), [w, x])
        np.testing.assert_allclose(gradient(w, x), value, rtol=2e-4, atol=2e-4)


def test_products_in_loops_over_themselves():
    x, y = numbers(48, 48) % 2, np.eye(48, dtype="float32")[::-1].copy()
    step = lambda i, x: (x @ y).T + (x.T @ y) - x
    expected = x
    for i in range(5):
        expected = step(i, expected)
    loop = tvmfun.jit(lambda x: lax.fori_loop(0, 5, step, x), donate_argnums=0)
    np.testing.assert_array_equal(loop(tnp.asarray(x)), expected)
    mapped = tvmfun.jit(lambda x: lax.map(lambda x: lax.fori_loop(0, 5, step, x), x))
    np.testing.assert_array_equal(mapped(np.stack([x, x + 1]))[0], expected)


@pytest.mark.parametrize("share", [0.0, 1e9])
def test_fetching_ahead_changes_no_bits(share, monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(29, 3001)).astype("float32"), rng.normal(size=(3001, 77)).astype("float32")
    multiply = lambda: np.asarray(tvmfun.jit(lambda x, y: x @ y)(x, y))
    expected = multiply()
    tvmfun.clear_caches()
    kernel_cache.clear_cache()
    monkeypatch.setattr(product_tiles, "_SHARE_OF_PANEL", share)
    np.testing.assert_array_equal(multiply(), expected)


def test_systems_without_files_in_memory(monkeypatch):
    monkeypatch.delattr("os.memfd_create", raising=False)
    x = numbers(29, 41)
    np.testing.assert_array_equal(tvmfun.jit(lambda x: x @ x.T)(x), x @ x.T)
