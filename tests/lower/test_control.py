"""How loops are written: over the cores where steps are independent, and in place."""

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.lower import control, pipeline, target

CORES = target.resolve({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 4})
RNG = np.random.default_rng(0)


def script(function, *shapes, on=CORES):
    """The function of the only loop."""
    program = tvmfun.trace(function)(*(tvmfun.ShapeDtype(shape, "float32") for shape in shapes))
    functions = pipeline.scheduled_module(program, on).functions
    (found,) = (function for var, function in functions.items() if var.name_hint.startswith("loop"))
    return found.script()


def products(xs):
    return lax.map(lambda x: tnp.tanh(x @ x), xs)


def test_independent_steps_run_at_the_same_time():
    text = script(products, (8, 64, 64))
    assert text.index("T.parallel(8)") < text.index("alloc_buffer")
    assert text.count("T.parallel") == 1
    xs = RNG.normal(size=(8, 64, 64)).astype("float32") / 8
    np.testing.assert_allclose(np.asarray(tvmfun.jit(products)(xs)), np.tanh(xs @ xs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (products, (8, 2, 2)),  # too little to do
        (products, (5, 64, 64)),  # three cores would wait for the fourth
        (lambda xs: lax.scan(lambda c, x: (c + 1, x @ x + c), 0.0, xs)[1], (8, 64, 64)),  # a carry
    ],
)
def test_other_steps_run_in_order(function, shape):
    assert "for i in range" in script(function, shape)


def test_steps_that_need_much_memory_run_in_order(monkeypatch):
    monkeypatch.setattr(control, "_STEP_BYTES", 64 * 64 * 4 - 1)
    pipeline.clear_cache()
    text = script(lambda xs: lax.map(lambda x: tnp.exp(x) @ x, xs), (8, 64, 64))
    pipeline.clear_cache()
    assert "for i in range(8)" in text
    assert "T.parallel" in text


def test_one_core():
    alone = target.resolve({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1})
    assert "T.parallel" not in script(products, (8, 64, 64), on=alone)


def sums(xs, w):
    """Loops in loops: a carry that only grows, through a branch."""

    def add(total, x):
        return lax.cond(x[0, 0] > 0, lambda t: t + x @ w, lambda t: t, total), None

    return lax.map(lambda rows: lax.scan(add, tnp.zeros((64, 64)), rows)[0], xs)


def test_a_carry_of_an_inner_loop_stays_where_it_is():
    assert "alloc_buffer((64, 64)" not in script(sums, (4, 3, 64, 64), (64, 64))
    xs, w = RNG.normal(size=(4, 3, 64, 64)).astype("float32"), RNG.normal(size=(64, 64)).astype("float32")
    expected = ((xs * (xs[:, :, :1, :1] > 0)) @ w).sum(axis=1)
    np.testing.assert_allclose(np.asarray(tvmfun.jit(sums)(xs, w)), expected, rtol=1e-3, atol=1e-3)


def updated(ys, xs):
    """A loop that rewrites the rows of the carry of another loop, which also reads all of them."""

    def outer(ys, x):
        total = tnp.sum(ys)
        _, ys = lax.scan(lambda c, y: (c, y * x + total), 0.0, ys)
        return ys, total

    return lax.scan(outer, ys, xs)


def test_rows_over_the_rows_they_are_made_of():
    ys, xs = RNG.normal(size=(5, 7)), RNG.normal(size=4)
    totals, expected = [], ys
    for x in xs:
        totals.append(expected.sum())
        expected = expected * x + totals[-1]
    got, sums = tvmfun.jit(updated)(ys, xs)
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-12)
    np.testing.assert_allclose(np.asarray(sums), totals, rtol=1e-12)


def test_carries_that_change_places_in_a_loop_in_a_loop():
    def swap(pair, x):
        inner = lambda p, _: ((p[1], p[0] + x), None)
        return lax.scan(inner, pair, None, length=3)[0], None

    a, b = np.arange(3.0), np.ones(3)
    xs = np.asarray([1.0, 2.0])
    got = tvmfun.jit(lambda a, b, xs: lax.scan(swap, (a, b), xs)[0])(a, b, xs)
    for x in xs:
        for _ in range(3):
            a, b = b, a + x
    np.testing.assert_allclose([np.asarray(x) for x in got], [a, b])
