"""Lines of the user's code: equations that transforms make come from those that they are made of."""

import pytest

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core.inline import subprograms
from tvmfun.core.source import Replay, user_line

X = tnp.ones((5, 4))
W = tnp.ones((4, 3))


def loss(w, x):
    h = x @ w
    h = tnp.tanh(h)
    return tnp.sum(h * h)


def step(c, row):
    c = tnp.cos(c * row)
    return c, tnp.sin(c)


def scanned(x):
    return lax.scan(step, tnp.ones(4), x)[1].sum()


def lines(program):
    """The lines of each op of a Program, those in loops included, counted from the first one of its function."""
    found = {}
    for equation in program.equations:
        path, _, line = equation.source.rpartition(":")
        assert path in ("", __file__)
        found.setdefault(equation.op.name, set()).add(int(line))
        for inner in subprograms(tuple(equation.params.values())):
            for op, more in lines(inner).items():
                found.setdefault(op, set()).update(more)
    return found


def line_of(function, offset):
    return {function.__code__.co_firstlineno + offset}


@pytest.mark.parametrize(
    "transformed",
    [
        loss,
        tvmfun.grad(loss),
        tvmfun.value_and_grad(loss),
        tvmfun.jit(tvmfun.grad(loss)),
        tvmfun.grad(tvmfun.jit(loss)),
        tvmfun.grad(tvmfun.checkpoint(loss)),
        tvmfun.jacrev(tvmfun.jacfwd(loss)),
        lambda w, x: tvmfun.jvp(loss, (w, x), (w, x)),
        lambda w, x: tvmfun.linearize(loss, w, x)[1](w, x),
        lambda w, x: tvmfun.vmap(tvmfun.grad(loss), (None, 0))(w, x[:, None]),
        lambda w, x: tvmfun.grad(lambda w: tvmfun.vmap(loss, (None, 0))(w, x[:, None]).sum())(w),
    ],
)
def test_ops_keep_their_lines_in_transforms(transformed):
    found = lines(tvmfun.trace(transformed)(W, X))
    assert found["tanh"] == line_of(loss, 2)
    assert found["dot_general"] >= line_of(loss, 1) and found.get("subtract", line_of(loss, 2)) >= line_of(loss, 2)


@pytest.mark.parametrize(
    "transformed",
    [
        scanned,
        tvmfun.grad(scanned),
        tvmfun.grad(lambda x: tvmfun.vmap(scanned)(tnp.stack([x, x])).sum()),
        lambda x: tvmfun.vmap(tvmfun.grad(scanned))(tnp.stack([x, x])),
        lambda x: tvmfun.jvp(tvmfun.jit(scanned), (x,), (x,)),
    ],
)
def test_ops_of_loops_keep_their_lines(transformed):
    found = lines(tvmfun.trace(transformed)(X))
    own = line_of(step, 1) | line_of(step, 2)  # either op is the derivative of the other one
    assert found["cos"] <= own and found["sin"] <= own and found["multiply"] <= own
    assert lines(tvmfun.jit(transformed).lower(X).program)["cos"] <= own


def test_rules_of_the_user_have_their_own_lines():
    @tvmfun.custom_vjp
    def f(x):
        return tnp.sin(x)

    def backward(x, g):
        return (g * tnp.cos(x),)

    f.defvjp(lambda x: (f(x), x), backward)
    found = lines(tvmfun.trace(lambda x: tvmfun.grad(lambda x: tnp.exp(f(x)).sum())(x))(X))
    assert found["cos"] == line_of(backward, 1) and found["exp"] != found["cos"]


def test_scopes_stay_with_their_ops():
    def f(x):
        with tvmfun.named_scope("layer"):
            return tnp.tanh(x).sum()

    program = tvmfun.trace(tvmfun.vmap(tvmfun.grad(f)))(X)
    (tanh,) = [equation for equation in program.equations if equation.op.name == "tanh"]
    assert tanh.source == f"{__file__}:{f.__code__.co_firstlineno + 2} (in layer)"


def test_a_replay_ends():
    before = user_line()
    with pytest.raises(KeyError), Replay("model.py:1"):
        with Replay("") as inner:  # an unknown line is that of the replay around it
            assert user_line() == "model.py:1"
            inner.line = "model.py:2"
            assert user_line() == "model.py:2"
        assert user_line() == "model.py:1"
        raise KeyError
    assert user_line().rpartition(":")[0] == before.rpartition(":")[0] == __file__
