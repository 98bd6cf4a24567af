"""Rows that loops stack: those that are the same, and those of the old state, which the new one is written over."""

import jax
import numpy as np
import pytest
from support.results import assert_agree

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax

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
    assert loop.count("blockIdx.x") == 2  # the copy and the sine


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
