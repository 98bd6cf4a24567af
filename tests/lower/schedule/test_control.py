"""How loops are written: over the cores where steps are independent, and in place."""

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.lower import kernel_cache, pipeline, target
from tvmfun.lower.schedule.control_ops import statements

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
    monkeypatch.setattr(statements, "_STEP_BYTES", 64 * 64 * 4 - 1)
    kernel_cache.clear_cache()
    text = script(lambda xs: lax.map(lambda x: tnp.exp(x) @ x, xs), (8, 64, 64))
    kernel_cache.clear_cache()
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


LENGTH = 4096
UPDATES = {
    "rows set": lambda x, i, u: x.at[i].set(u),
    "rows added": lambda x, i, u: x.at[i].add(u),
}
COPIES = {
    "of a view": lambda x, i, u: x.reshape(-1).at[2 * i + 1].multiply(u[:, 0]).reshape(LENGTH, 2),
    "with itself": lambda x, i, u: x.at[i].set(u + x[i[::-1]]),
    "by itself": lambda x, i, u: x.at[(tnp.abs(x[:3, 0]) * 9).astype("int32")].set(u),
    "read later": lambda x, i, u: (y := x.at[i].set(u)) * (y[1, 1] + 2),
    "old one kept": lambda x, i, u: x.at[i].set(u) + x,
}


@pytest.mark.quick("by itself", "rows added", "read later", "rows set")
@pytest.mark.parametrize("name", [*UPDATES, *COPIES])
def test_scattering_into_a_carry(name):
    """Writes only the indexed rows, unless their old values are still needed."""
    update = (UPDATES | COPIES)[name]
    x, us = RNG.normal(size=(LENGTH, 2)).astype("float32"), RNG.normal(size=(5, 3, 2)).astype("float32")
    places = np.asarray([[0, 1, 2], [5, 5, 7], [1, LENGTH, -1], [3, 2, 1], [9, 9, 9]], "int32")

    def loop(x, places, us):
        return lax.scan(lambda x, row: (update(x, *row), None), x, (places, us))[0]

    compiled = tvmfun.jit(loop).lower(x, places, us).compile()
    expected = tnp.asarray(x)
    step = tvmfun.jit(update)
    for i, u in zip(places, us, strict=True):
        expected = step(expected, i, u)
    np.testing.assert_array_equal(np.asarray(compiled(x, places, us)), np.asarray(expected))
    if name in UPDATES:
        assert compiled.memory_analysis().workspaces < x.nbytes


def test_scattering_bools_and_two_carries_that_change_places():
    flags, x = np.zeros(70, bool), np.arange(70.0, dtype="float32")

    def loop(flags, x, y):
        def step(carry, i):
            flags, x, y = carry
            return (flags.at[i].set(~flags[i]), y.at[i].add(1), x.at[i].add(flags[i] * 10.0)), tnp.sum(flags)

        return lax.scan(step, (flags, x, y), np.asarray([3, 5, 3, 8], "int32"))

    (flags, a, b), counts = tvmfun.jit(loop)(flags, x, -x)
    p, q, seen, sums = x.copy(), -x, np.zeros(70, bool), []
    for i in (3, 5, 3, 8):
        sums.append(seen.sum())
        q[i] += 1
        p[i] += 10 * seen[i]
        p, q = q, p
        seen[i] = not seen[i]
    for got, want in zip((flags, a, b, counts), (seen, p, q, sums), strict=True):
        np.testing.assert_array_equal(np.asarray(got), want)


@pytest.mark.parametrize("batched", [False, True], ids=["alone", "batched"])
def test_a_while_loop_whose_body_and_condition_need_workspaces(batched):
    # Matrices of this size are packed before they are multiplied, in the condition, too.
    a = (RNG.normal(size=(64, 64)) / 16).astype("float32")
    far = lambda x: tnp.sum(tnp.abs(x @ a)) > 0.1

    def run(x):
        return lax.while_loop(lambda state: far(state[1]), lambda state: (state[0] + 1, state[1] @ a), (0, x))

    xs = np.stack([a, a * 100, a * 0])
    steps, results = tvmfun.jit(tvmfun.vmap(run))(xs) if batched else zip(*map(tvmfun.jit(run), xs), strict=True)
    for x, count, result in zip(xs, steps, results, strict=True):
        expected = 0
        while np.abs(x @ a).sum() > 0.1:
            x, expected = x @ a, expected + 1
        assert int(count) == expected
        np.testing.assert_allclose(np.asarray(result), x, rtol=1e-4, atol=1e-6)
