"""The state of loops and the rows that they stack: the same ones, and those of an old state, which is written over."""

import functools

import jax
import numpy as np
import pytest
from support.cuda_emulator import GXX
from support.gpu_modules import gpu_module
from support.results import assert_agree
from tvm import tirx

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax, nn
from tvmfun.core.inline import inlined
from tvmfun.lower import pipeline
from tvmfun.lower import target as targets
from tvmfun.lower.codegen.cuda import compilers, lowering
from tvmfun.lower.codegen.cuda.effects import written_parameters
from tvmfun.runtime.cuda_module import Repeat

X0, XS = (np.random.default_rng(0).normal(size=shape).astype("float32") for shape in ((3, 40), (6, 3, 40)))


def twice(lax, tnp, x, xs):
    """Rows that are the same value, also as a number and as the carry."""

    def step(c, x):
        y = tnp.tanh(c * x)
        return y + 1, (y, tnp.sin(y), y, y + 1, 2.0, 2.0, c, c)

    return lax.scan(step, x, xs)


def counted(lax, tnp, x, xs):
    return lax.scan(lambda c, x: (c + x, (c, c, x, x)), x, xs, reverse=True)


def swapped(lax, tnp, x, xs):
    """Two parts of the state exchange their memory, and both old ones are stacked."""
    return lax.scan(lambda c, x: ((c[1], c[0] * x), (c[0], c[1], c[0] + c[1])), (x, x * 2), xs)


def both(lax, tnp, x, xs):
    """An update that reads its own old state and the other's, of which one is stacked."""

    def step(c, x):
        h, s = c
        s = tnp.sin(s) * h + x
        return (tnp.tanh(h @ tnp.ones((40, 40), "float32") / 40 + s), s), (h, s)

    return lax.scan(step, (x, x), xs)


def updated(lax, tnp, x, xs):
    """A table that is updated in place, with its old rows on the stack."""

    def step(table, x):
        return table.at[1].add(x[0]), (table, table[1], table[1])

    return lax.scan(step, x, xs)


def nested(lax, tnp, x, xs):
    def step(c, x):
        c, (inner, _) = lax.scan(lambda d, row: (d + row * c[0, 0], (d, d)), c, x[:, None] * tnp.ones((1, 3, 40)))
        return c, (inner, c, c)

    return lax.scan(step, x, xs)


PROGRAMS = {f.__name__: f for f in (twice, counted, swapped, both, updated, nested)}


@pytest.mark.quick("twice", "both")
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_derivatives_are_those_of_jax(name):
    ours = lambda x, xs: PROGRAMS[name](lax, tnp, x, xs)
    theirs = lambda x, xs: PROGRAMS[name](jax.lax, jax.numpy, x, xs)
    assert_agree(tvmfun.jit(ours)(X0, XS), jax.jit(theirs)(X0, XS), rtol=2e-5, atol=2e-6)

    def weighted(module, function):
        def total(x, xs):
            leaves = module.tree.leaves(function(x, xs))
            parts = (module.numpy.sum(leaf * (i + 1)) for i, leaf in enumerate(leaves))
            return sum(parts)

        return total

    pair = weighted(tvmfun, ours), weighted(jax, theirs)
    assert_agree(
        tvmfun.jit(tvmfun.grad(pair[0], (0, 1)))(X0, XS), jax.grad(pair[1], (0, 1))(X0, XS), rtol=2e-4, atol=2e-4
    )
    tangents = X0[::-1].copy(), XS[::-1].copy()
    assert_agree(tvmfun.jvp(ours, (X0, XS), tangents), jax.jvp(theirs, (X0, XS), tangents), rtol=2e-4, atol=2e-5)
    batched = np.stack([X0, -X0])
    assert_agree(
        tvmfun.jit(tvmfun.vmap(ours, (0, None)))(batched, XS),
        jax.vmap(theirs, (0, None))(batched, XS),
        rtol=2e-5,
        atol=2e-6,
    )
    second = [lambda x, f=f, m=m: m.jvp(m.grad(f), (x, XS), (X0, XS * 0))[1] for f, m in zip(pair, (tvmfun, jax))]  # noqa: B905
    assert_agree(tvmfun.jit(second[0])(X0), second[1](X0), rtol=2e-3, atol=2e-3)


def loops_of(function, *arguments):
    return [equation for equation in tvmfun.trace(function)(*arguments).equations if equation.op.name == "loop"]


def test_the_same_rows_are_stacked_once():
    (loop,) = loops_of(lambda x, xs: twice(lax, tnp, x, xs), X0, XS)
    # The tanh, its sine, the new state, two numbers, and the old state.
    assert len(loop.outputs) - loop.params["carry"] == 6
    (loop,) = loops_of(lambda x: lax.scan(lambda c, _: (c + 1, (c, c)), x, None, length=4)[1], X0)
    assert len(loop.outputs) - loop.params["carry"] == 1


def test_the_gradient_of_a_recurrence_stacks_its_cotangents_once():
    def loss(w, xs):
        return tnp.sum(lax.scan(lambda h, x: (tnp.tanh(h @ w + x),) * 2, X0, xs)[0])

    loops = loops_of(tvmfun.grad(loss, (0, 1)), np.eye(40, dtype="float32"), XS)
    rows = loops[-1].outputs[loops[-1].params["carry"] :]
    assert [row.aval.shape for row in rows] == [XS.shape]


def test_an_old_state_that_is_stacked_needs_no_copy_of_the_new_one():
    """The state is copied to the stack first, and then written over by what computes the new one."""

    def run(x, xs):
        return lax.scan(lambda c, x: (tnp.sin(c) * x, c), x, xs)

    text = tvmfun.jit(run, target={"kind": "cuda", "arch": "sm_90"}).lower(X0, XS).compile().as_text()
    loop = text[text.index("for i in") :]
    assert loop.count("blockIdx.x") == 4  # in each of two steps the copy and the sine


@pytest.mark.parametrize("donated", [(), (0,), (1,), (0, 1)])
def test_donated_stacks(donated):
    """Rows may be written over those that are read, which then cannot be copied first."""
    run = lambda x, xs: lax.scan(lambda c, x: (c * 0.5 + x, (c, x * c)), x, xs)
    ours = tvmfun.jit(run, donate_argnums=donated)(tvmfun.device_put(X0), tvmfun.device_put(XS))
    theirs = jax.lax.scan(lambda c, x: (c * 0.5 + x, (c, x * c)), X0, XS)
    assert_agree(ours, theirs, rtol=1e-5)


def test_bounded_loops_stack_the_old_state():
    def run(lax, x):
        step = lambda c, _: (c * 1.5, (c, c))
        return lax.scan(step, x, None, length=3)

    assert_agree(tvmfun.jit(lambda x: run(lax, x))(X0), run(jax.lax, X0), rtol=1e-6)
    until = lambda x: lax.while_loop(lambda c: tnp.sum(c[0]) < 50, lambda c: (c[1] + 1, c[0]), (x, x * 0.5))
    expected = jax.lax.while_loop(lambda c: jax.numpy.sum(c[0]) < 50, lambda c: (c[1] + 1, c[0]), (X0, X0 * 0.5))
    assert_agree(tvmfun.jit(until)(X0), expected, rtol=1e-6)


# -- a state in two buffers --------------------------------------------------------------------------------------------


def cell(state, x, w):
    """A recurrence whose old state is stacked: a product, and maps."""
    h, c = state
    i, f, g, o = tnp.split(x + h @ w, 4, axis=-1)
    new = nn.functional.sigmoid(f) * c + nn.functional.sigmoid(i) * tnp.tanh(g)
    return (nn.functional.sigmoid(o) * tnp.tanh(new), new), (h, c)


def launches(function, *arguments):
    (loop,) = (step for step in gpu_module(function, *arguments).steps if isinstance(step, Repeat))
    return loop.count, len(loop.body)


def test_independent_launches_of_two_steps_are_joined(monkeypatch):
    monkeypatch.setattr(compilers, "_libraries", lambda: iter(()))
    monkeypatch.setattr(compilers, "_nvccs", lambda: iter(()))
    run = lambda state, xs, w: lax.scan(lambda s, x: cell(s, x, w), state, xs)
    spec = lambda *shape: tvmfun.ShapeDtype(shape, "float32")
    state = spec(32, 64), spec(32, 64)
    # Per step the product, and the maps with the copies of the old state.
    assert launches(run, state, spec(6, 32, 256), spec(64, 256)) == (3, 4)
    # The code of many kernels is not there twice, and a table is written in place.
    several = lambda s, x, w: functools.reduce(lambda s, _: cell(s, x, w)[0], range(9), s)
    many = lambda state, xs, w: lax.scan(lambda s, x: (several(s, x, w), None), state, xs)
    assert launches(many, state, spec(6, 32, 256), spec(64, 256))[0] == 6
    update = lambda t, x, i: lax.dynamic_update_slice(t, x[None], (i, 0))
    table = lambda t, xs, i: lax.scan(lambda t, x: (update(t, x, i), t[3]), t, xs)
    assert launches(table, spec(100, 8), spec(6, 8), tvmfun.ShapeDtype((), "int32"))[0] == 6


@pytest.mark.slow
@pytest.mark.skipif(GXX is None, reason="g++ compiles the emulated kernels")
@pytest.mark.parametrize(("length", "reverse"), [(1, False), (4, False), (5, False), (5, True), (6, True)])
def test_states_in_two_buffers_on_emulated_gpus(length, reverse):
    from support.cuda_emulator.gpu import emulated_gpus

    def run(state, xs, w):
        loss = lambda state, xs, w: lax.scan(lambda s, x: cell(s, x, w), state, xs, reverse=reverse)
        results, pull = tvmfun.vjp(loss, state, xs, w)
        return results, pull(results)

    draw = lambda *shape: np.random.default_rng([length, *shape]).normal(size=shape).astype("float32")
    arguments = (draw(3, 16), draw(3, 16) + 1), draw(length, 3, 64), draw(16, 64) / 4
    expected = tvmfun.jit(run)(*arguments)
    with emulated_gpus(seed=length):
        for donated in ((), (0,)):
            for _ in range(2):
                ours = tvmfun.jit(run, donate_argnums=donated)(*tvmfun.device_put(arguments, "cuda"))
            assert_agree(ours, expected, rtol=1e-4, atol=1e-5)


def test_what_products_read_is_not_written(monkeypatch):
    monkeypatch.setattr(compilers, "_libraries", lambda: iter(()))
    monkeypatch.setattr(compilers, "_nvccs", lambda: iter(()))
    spec = lambda *shape: tvmfun.ShapeDtype(shape, "float32")
    target = targets.resolve({"kind": "cuda", "arch": "sm_90a"})
    program = inlined(
        tvmfun.trace(lambda x, w, r: tnp.tanh(x @ w) + r)(spec(32, 64), spec(64, 48), spec(32, 48)), "cuda"
    )
    module = pipeline.scheduled_module(program, target)
    functions = {name: f for name, f in module.functions.items() if isinstance(f, tirx.PrimFunc)}
    (kernel,) = lowering.split(functions, target)[1].functions.values()
    names = [parameter.name for parameter in kernel.params]
    assert [names[i] for i in written_parameters(kernel)] == [name for name in names if not name.startswith("x")]
