"""Control flow that calls its kernels: results as of kernels put inline, and equal ones are compiled once."""

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax, nn, reference
from tvmfun.counters import counters
from tvmfun.lower import pipeline, target
from tvmfun.lower.disk_cache import has_linker
from tvmfun.lower.schedule.control_ops import statements
from tvmfun.lower.tir.calling_convention import called_functions

RNG = np.random.default_rng(0)
CORES = target.resolve({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 4})


@pytest.fixture
def all_calls(monkeypatch):
    """Whatever control flow runs is a function of its own."""
    monkeypatch.setattr(statements, "_FEW_KERNELS", -1)
    monkeypatch.setattr(statements, "_FEW_ELEMENTS", 0)
    tvmfun.clear_caches()
    yield
    monkeypatch.undo()
    tvmfun.clear_caches()


def block(weights, x):
    h = nn.functional.softmax(x @ weights["a"]) @ weights["b"]
    y = x + nn.functional.gelu(h)
    return (y - y.mean(-1, keepdims=True)) / tnp.sqrt(y.var(-1, keepdims=True) + 1e-5)


def weights(blocks, width=16, dtype="float32"):
    draw = lambda: (RNG.normal(size=(width, width)) / 4).astype(dtype)
    return [{"a": draw(), "b": draw()} for _ in range(blocks)]


def blocks(layers, x):
    for layer in layers:
        x = block(layer, x)
    return x


def steps(layers, x):
    """Three steps of all blocks."""
    return lax.scan(lambda x, _: (blocks(layers, x), None), x, None, length=3)[0]


def unrolled(layers, x):
    for _ in range(3):
        x = blocks(layers, x)
    return x


def evaluated(function, *arguments):
    """The results of a function by NumPy, which compiles nothing."""
    return reference.evaluate(tvmfun.trace(function)(*arguments), tvmfun.tree.leaves(arguments))


def functions(function, *arguments, on=CORES):
    """The functions of a compiled function but its own, by name."""
    program = tvmfun.trace(function)(*arguments)
    found = pipeline.scheduled_module(program, on).functions
    return {var.name_hint: f for var, f in found.items() if var.name_hint != "main"}


def called(found):
    (caller,) = (f for name, f in found.items() if name.startswith("loop"))
    return [name for name, _ in called_functions(caller.body)]


def test_equal_kernels_of_a_body_are_compiled_once():
    x = np.ones((4, 16), "float32")
    few, many = (functions(steps, weights(n), x) for n in (4, 12))
    assert few.keys() - many.keys() == set()
    assert len(many) < 16
    assert len(called(many)) > 2.5 * len(called(few)) > len(few)
    assert set(called(many)) == {name for name in many if not name.startswith("loop")}


def test_short_bodies_have_their_kernels_inline():
    found = functions(lambda x: lax.scan(lambda c, x: (tnp.sin(c @ x), tnp.sort(c)), x[0], x), np.ones((3, 16, 16)))
    assert called(found) == []


def test_loops_share_the_kernels_that_they_call():
    x = np.ones((4, 16), "float32")
    twice = functions(lambda layers, x: steps(layers, steps(layers, x)), weights(4), x)
    once = functions(steps, weights(4), x)
    assert {name for name in twice if not name.startswith("loop")} == {n for n in once if not n.startswith("loop")}


@pytest.mark.slow
def test_dynamic_sizes_are_put_inline():
    spec = tvmfun.ShapeDtype((tvmfun.Dim("n"), 16), "float32")
    layers = weights(4)
    assert list(functions(lambda x: steps(layers, x), spec)) == ["loop_0"]
    f = tvmfun.jit(lambda x: steps(layers, x), dynamic_shapes=((tvmfun.Dim("n"), 16),))
    x = RNG.normal(size=(5, 16)).astype("float32")
    (expected,) = evaluated(unrolled, layers, x)
    np.testing.assert_allclose(np.asarray(f(x)), expected, rtol=1e-4, atol=1e-5)


def loss(function):
    return lambda layers, x: tnp.sum(tnp.sin(function(layers, x)))


WAYS = {
    "value": lambda f: f,
    "gradient": lambda f: tvmfun.grad(loss(f), (0, 1)),
    "second order": lambda f: tvmfun.grad(lambda *a: tnp.sum(tnp.cos(tvmfun.grad(loss(f), 1)(*a))), (0, 1)),
    "forward": lambda f: lambda layers, x: tvmfun.jvp(lambda x: f(layers, x), (x,), (tnp.ones_like(x),)),
    "batched": lambda f: tvmfun.vmap(f, (None, 0)),
    "checkpointed": lambda f: tvmfun.grad(loss(tvmfun.checkpoint(f))),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_long_body_computes_what_it_does_without_a_loop(way):
    layers = weights(3, dtype="float64")
    x = RNG.normal(size=(2, 3, 16) if way == "batched" else (3, 16))
    found = tvmfun.tree.leaves(tvmfun.jit(WAYS[way](steps))(layers, x))
    for one, other in zip(found, evaluated(WAYS[way](unrolled), layers, x), strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_results_of_one_thread_and_of_several_are_the_same():
    layers, x = weights(3), RNG.normal(size=(4, 16)).astype("float32")
    here = tvmfun.jit(tvmfun.grad(loss(steps)))(layers, x)
    alone = target.resolve({**target.host().export(), "num-cores": 1})
    other = tvmfun.jit(tvmfun.grad(loss(steps)), target=alone)(layers, x)
    tvmfun.tree.map(lambda a, b: np.testing.assert_allclose(np.asarray(a), np.asarray(b), 1e-5, 1e-5), here, other)


def rows(xs):
    """Rows of seven elements, none but the first at a multiple of 16 bytes."""
    return lax.scan(lambda c, x: (c + tnp.sum(x), tnp.cumsum(tnp.sin(x)) + c), tnp.zeros((), xs.dtype), xs)


def backwards(xs):
    return lax.scan(lambda c, x: (tnp.tanh(c * x), tnp.sort(x)[::-1] + c), tnp.ones_like(xs[0]), xs, reverse=True)


def parallel(xs):
    return lax.map(lambda x: tnp.tanh(tnp.outer(x, x) @ tnp.outer(x, tnp.ones_like(x))), xs)


def while_larger(xs):
    return lax.while_loop(lambda c: tnp.sum(abs(c)) > 1, lambda c: tnp.sin(c) * tnp.roll(c, 1) / 2, xs[0])


def branches(xs):
    def choose(c, x):
        cases = [lambda c: c + tnp.exp(-(x**2)), lambda c: c * tnp.max(x), lambda c: tnp.cumsum(c)[::-1]]
        return lax.switch(tnp.astype(tnp.abs(x[0]) * 10, "int32") % 3, cases, c), tnp.any(x > c)

    return lax.scan(choose, xs[0], xs)


def nested(xs):
    inner = lambda c, x: (lax.fori_loop(0, 3, lambda i, c: tnp.sin(c + i) @ tnp.outer(x, x), c), c[0] > 0)
    return lax.scan(inner, xs[0], xs)


def scattered(xs):
    return lax.fori_loop(0, 5, lambda i, ys: ys.at[i, 1:3].add(ys[i + 1, 2:4]).at[:, 0].set(i), xs)


def swapped(xs):
    return lax.scan(lambda c, x: ((c[1], c[0] + x), c[0] * c[1]), (xs[0], xs[1]), xs)


def same_rows(xs):
    return lax.scan(lambda c, x: (c + x[0] * x[1] * xs[1], x[0] @ xs.T), xs[0], (xs, xs))


def flags(xs):
    return lax.scan(lambda c, x: (c ^ (x > 0), (c & (x < 1), tnp.argmax(x))), xs[0] > 0, xs)


def nothing(xs):
    return lax.scan(lambda c, x: (c, tnp.concatenate([x[:0], x[:0]])), xs[0], xs)


LOOPS = [rows, backwards, parallel, while_larger, branches, nested, scattered, swapped, same_rows, flags, nothing]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_calls_compute_what_kernels_put_inline_do(monkeypatch, all_calls, dtype):
    xs = tvmfun.device_put(RNG.normal(size=(8, 7))).astype(dtype)
    compute = tvmfun.jit(lambda xs: [loop(xs) for loop in LOOPS])
    found = compute(xs)
    monkeypatch.undo()
    tvmfun.clear_caches()
    expected = tvmfun.jit(lambda xs: [loop(xs) for loop in LOOPS])(xs)
    for loop, one, other in zip(LOOPS, found, expected, strict=True):
        for a, b in zip(tvmfun.tree.leaves(one), tvmfun.tree.leaves(other), strict=True):
            assert a.dtype == b.dtype, loop
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=loop.__name__)


@pytest.mark.quick("nested")
@pytest.mark.parametrize("loop", [rows, backwards, parallel, branches, nested, swapped, same_rows])
def test_derivatives_with_calls(all_calls, monkeypatch, loop):
    def value(xs):
        leaves = [leaf for leaf in tvmfun.tree.leaves(loop(xs)) if leaf.dtype == np.float64]
        return sum(tnp.sum(tnp.sin(leaf)) for leaf in leaves)

    xs = RNG.normal(size=(8, 7))
    found = tvmfun.jit(tvmfun.grad(value))(xs), tvmfun.jit(tvmfun.vmap(tvmfun.grad(value)))(xs[None])
    monkeypatch.undo()
    tvmfun.clear_caches()
    expected = tvmfun.jit(tvmfun.grad(value))(xs)
    np.testing.assert_allclose(np.asarray(found[0]), np.asarray(expected), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(np.asarray(found[1][0]), np.asarray(expected), rtol=1e-9, atol=1e-12)


def test_steps_at_the_same_time_call_kernels_without_threads(all_calls):
    big = lambda xs: lax.map(lambda x: tnp.tanh(x @ x), xs)
    found = functions(big, np.ones((8, 64, 64), "float32"))
    (caller,) = (f.script() for name, f in found.items() if name.startswith("loop"))
    assert caller.index("T.parallel(8)") < caller.index("tvm_stack_alloca")
    assert not any("T.parallel" in f.script() for name, f in found.items() if not name.startswith("loop"))
    xs = RNG.normal(size=(8, 64, 64)).astype("float32") / 8
    np.testing.assert_allclose(np.asarray(tvmfun.jit(big)(xs)), np.tanh(xs @ xs), rtol=1e-4, atol=1e-5)


def test_donated_state_is_updated_in_place(all_calls):
    def step(state, x):
        return lax.fori_loop(0, 3, lambda i, s: tree_step(s, x), state)

    def tree_step(state, x):
        return {"w": state["w"] - 0.1 * tnp.outer(state["v"], x), "v": state["v"] + x @ state["w"]}

    state = {"w": RNG.normal(size=(7, 7)), "v": RNG.normal(size=7)}
    x = RNG.normal(size=7)
    expected = tvmfun.jit(step)(state, x)
    given = tvmfun.tree.map(lambda leaf: tvmfun.device_put(leaf.copy()), state)
    compiled = tvmfun.jit(step, donate_argnums=0)
    assert compiled.lower(given, x).compile().memory_analysis().outputs == 0
    found = compiled(given, x)
    tvmfun.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), found, expected)


def analysis(function, *arguments):
    return tvmfun.jit(function).lower(*arguments).compile().memory_analysis()


@pytest.mark.slow
def test_a_longer_body_needs_no_more_memory():
    x = np.ones((64, 64), "float32")
    few, many = (analysis(steps, weights(n, 64), x) for n in (2, 8))
    assert few.workspaces == many.workspaces <= 10 * x.nbytes
    assert few.temporaries == many.temporaries


@pytest.mark.slow
@pytest.mark.skipif(not has_linker(), reason="there is no linker")
def test_a_stored_loop_calls_its_kernels_too(tmp_path, monkeypatch):
    monkeypatch.setenv("TVMFUN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TVMFUN_CACHE_MIN_SECONDS", "0")
    layers, x = weights(4), RNG.normal(size=(4, 16)).astype("float32")
    (expected,) = evaluated(unrolled, layers, x)
    before = counters.loads
    for loads in (0, 1):
        tvmfun.clear_caches()
        np.testing.assert_allclose(np.asarray(tvmfun.jit(steps)(layers, x)), expected, rtol=1e-4, atol=1e-5)
        assert counters.loads - before == loads


def minibatches(xs):
    """Loops over rows of reshaped intermediates, while memory of the same size and another shape is free."""
    order = tnp.argsort(xs[:, 0])

    def step(w, batch):
        x, label = batch
        return w - 0.1 * x.T @ (tnp.tanh(x @ w) - label[:, None]), tnp.sum(x @ w)

    def epoch(w, _):
        shuffled, labels = xs[order], tnp.astype(tnp.arange(8)[order] % 3, xs.dtype)
        w, sums = lax.scan(step, w, (shuffled.reshape(4, 2, 7), labels.reshape(4, 2)))
        w, again = lax.scan(step, w, (tnp.sin(shuffled).reshape(2, 4, 7), labels.reshape(2, 4)))
        return w, (sums, again)

    return lax.scan(epoch, tnp.ones((7, 3), xs.dtype), None, length=2)


@pytest.mark.quick("batched-False")
@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("way", ["value", "gradient", "batched"])
def test_rows_of_reshaped_intermediates(request, forced, way):
    if forced:
        request.getfixturevalue("all_calls")
    xs = RNG.normal(size=(8, 7))
    plain = lambda xs: tnp.sum(minibatches(xs)[0] ** 2)
    function = {"value": minibatches, "gradient": tvmfun.grad(plain), "batched": tvmfun.vmap(minibatches)}[way]
    x = xs[None] if way == "batched" else xs
    found = tvmfun.tree.leaves(tvmfun.jit(function)(x))
    for one, other in zip(found, evaluated(function, x), strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-9, atol=1e-9)
