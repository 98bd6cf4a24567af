"""Updates that move into branches: the same bits, and no memory for what the branches would return."""

import numpy as np
import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core.trace import trace
from tvmfun.execute import clear_caches
from tvmfun.lower import kernel_cache
from tvmfun.lower.rewrite.branch_updates import sink_updates

X = np.random.default_rng(0).normal(size=(5, 33, 17)).astype("float32")
X[0, 0, :4] = 0.0, -0.0, np.inf, np.nan


def flags(p):
    return p[1, 1] > -10


def update(p, q):
    return p + lax.cond(flags(p), lambda q: q * 0.1, lambda q: q * 0, q)


def chain(p, q):
    return p - 0.5 * tnp.sin(lax.cond(flags(p), tnp.exp, tnp.zeros_like, q))


def two_results(p, q):
    a, b = lax.cond(flags(p), lambda q: (q * 2, q + 1), lambda q: (q, q), q)
    return p + a, q * b


def both_in_one(p, q):
    a, b = lax.cond(flags(p), lambda q: (q * 2, q + 1), lambda q: (q, q), q)
    return p * a + b, q


def operand(p, q):
    mean = p + (q - p) / 3
    done = flags(q)
    u = lax.cond(done, lambda m: m * 2, tnp.zeros_like, mean)
    return tnp.where(done, 0.0, mean), q + u


def used_twice(p, q):
    u = lax.cond(flags(p), lambda q: q * 2, lambda q: q, q)
    return p + u, q - u


def returned_as_well(p, q):
    u = lax.cond(flags(p), lambda q: q * 2, lambda q: q, q)
    return p + u, u


def later_argument(p, q):
    u = lax.cond(flags(p), lambda q: q * 2, lambda q: q, q)
    v = lax.cond(tnp.sum(u) > 0, lambda p: p * 2, lambda p: p, p)
    return v + tnp.sum(v), u


def smaller(p, q):
    row = lax.cond(flags(p), lambda q: q[0] * 2, lambda q: q[0], q)
    return p + row, q


def three_branches(p, q):
    return lax.switch(p[2, 2].astype("int32") % 3, [tnp.sin, tnp.cos, lambda q: q * 0], q) + p, q


def read_again(p, q):
    new = p + lax.cond(flags(p), lambda q: q * 2, lambda q: q, q)
    return new, q + new.sum()


def one_after_the_other(p, q):
    p = p + lax.cond(flags(p), lambda q: q * 2, lambda q: q, q)
    q = q + lax.cond(flags(q), lambda p: p * 2, lambda p: -p, p)
    return p, q


MOVED = {
    update: 1, chain: 3, two_results: 2, both_in_one: 2, operand: 2, used_twice: 0, returned_as_well: 0,
    later_argument: 0, smaller: 0, three_branches: 1, read_again: 1, one_after_the_other: 2,
}  # fmt: skip


@pytest.mark.quick("operand", "both_in_one")
@pytest.mark.parametrize("function", MOVED)
def test_same_bits(function):
    p, q = X[:2]
    count = lambda program: sum(equation.op.kind == "pointwise" for equation in program.equations)
    program = trace(function)(p, q)
    assert count(program) - count(sink_updates(program)) == MOVED[function]
    expected = tvmfun.tree.leaves(function(tnp.array(p), tnp.array(q)))  # op by op
    for donated in ((), (0, 1)):
        got = tvmfun.tree.leaves(tvmfun.jit(function, donate_argnums=donated)(tnp.array(p), tnp.array(q)))
        for a, b in zip(expected, got, strict=True):
            np.testing.assert_allclose(np.asarray(b), np.asarray(a), rtol=2e-6, atol=1e-6)
    tvmfun.check(function, donate_argnums=(0, 1))(p, q)


@pytest.mark.parametrize("function", [update, chain, two_results, operand, three_branches, one_after_the_other])
def test_no_memory(function):
    p, q = X[:2]
    found = tvmfun.jit(function, donate_argnums=(0, 1)).lower(p, q).compile().memory_analysis()
    assert found.temporaries + found.workspaces < p.nbytes and found.outputs < 64


def test_a_sum_that_cannot_lie_over_its_input(monkeypatch):
    """Then no result may be written over it: it is in the memory of intermediates."""
    clear_caches()
    monkeypatch.setattr(kernel_cache, "schedule_in_place", lambda *args: None)
    p, q = X[2:4]
    step = tvmfun.jit(operand, donate_argnums=(0, 1))
    expected = operand(tnp.array(p), tnp.array(q))
    first = step(tnp.array(p), tnp.array(q))
    step(tnp.array(q), tnp.array(p))
    for a, b in zip(expected, first, strict=True):
        np.testing.assert_allclose(np.asarray(b), np.asarray(a), rtol=2e-6, atol=1e-6)
    clear_caches()
