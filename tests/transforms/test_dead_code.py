"""Parts of loops and branches that nobody uses: they take no part in derivatives, and are not computed.

Each function has an infinite derivative where the result does not depend on it: 0 times that would be NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import oracle

import tvmfun
from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.core.program import Program

X = np.asarray([0.0, 1.0, 2.0])


class Ours:
    np, lax, ops = tnp, lax, tvmfun


class Theirs:
    np, lax, ops = jnp, jax.lax, jax


def logarithms(m: Any, x: Any) -> tuple:
    return m.lax.scan(lambda c, row: (c + m.np.log(row), row * 2), 0.0 * x[0], x)


def unused_carry(m: Any, x: Any) -> Any:
    return m.np.sum(logarithms(m, x)[1])


def unused_rows(m: Any, x: Any) -> Any:
    return m.lax.scan(lambda c, row: (c * 0.5 + row * row, m.np.log(row) + c), 0.0 * x[0], x)[0]


def carry_without_cotangent(m: Any, x: Any) -> Any:
    def with_carry(x: Any) -> tuple:
        carry, rows = logarithms(m, x)
        return m.np.sum(rows), carry

    return m.np.sum(m.ops.grad(with_carry, has_aux=True)(x)[0] * x)


def one_of_two_carries(m: Any, x: Any) -> Any:
    step = lambda c, row: ((c[0] + m.np.log(row), c[1] * row + 1), (c[1], m.np.sqrt(row)))
    return m.np.sum(m.lax.scan(step, (0.0 * x[0], x[1]), x)[0][1])


def chain_of_carries(m: Any, x: Any) -> Any:
    step = lambda c, row: ((c[1], c[2], c[0] + m.np.log(row)), c[0] * row)
    return m.lax.scan(step, (x[0], x[1], x[2]), m.np.ones(2))[0][0]


def counted(m: Any, x: Any) -> Any:
    step = lambda i, c: (c[0] * x[1] + x[0], c[1] + m.np.log(x[0]))
    return m.lax.fori_loop(0, 3, step, (x[2], x[1]))[0]


def one_result_of_a_branch(m: Any, x: Any) -> Any:
    return m.lax.cond(x[1] > 0, lambda x: (x[1] * x[0], m.np.log(x[0])), lambda x: (x[0], x[1]), x)[0]


def nested(m: Any, x: Any) -> Any:
    def step(c: Any, row: Any) -> tuple:
        inner, rows = m.lax.scan(lambda d, y: (d + m.np.log(y), y * row), 0.0 * row, x)
        return c + inner, row * 2 + m.np.sum(rows)

    return m.np.sum(m.lax.scan(step, 0.0 * x[0], x)[1])


def carry_of_a_loop_within(m: Any, x: Any) -> Any:
    def step(c: Any, row: Any) -> tuple:
        return m.lax.fori_loop(0, 2, lambda i, d: (d[0] + m.np.log(row) * d[0], d[1] * row), c), row

    return m.lax.scan(step, (x[1], x[2]), x)[0][1]


def checkpointed(m: Any, x: Any) -> Any:
    step = m.ops.checkpoint(lambda c, row: (c + m.np.log(row), row * 2))
    return m.np.sum(m.lax.scan(step, 0.0 * x[0], x)[1])


def custom_rule(m: Any, x: Any) -> Any:
    both = m.ops.custom_jvp(lambda x: (x * 3, m.np.log(x)))
    both.defjvp(lambda primals, tangents: (both(*primals), (3 * tangents[0], tangents[0] / primals[0])))
    return m.np.sum(both(x)[0] ** 2)


@pytest.mark.quick("unused_carry", "checkpointed")
@pytest.mark.parametrize(
    "function",
    [
        unused_carry,
        unused_rows,
        carry_without_cotangent,
        one_of_two_carries,
        chain_of_carries,
        counted,
        one_result_of_a_branch,
        nested,
        carry_of_a_loop_within,
        checkpointed,
        custom_rule,
    ],
)
def test_what_is_not_used_has_no_derivative(function: Callable):
    def derivatives(m: Any, x: Any) -> list:
        value = lambda x: function(m, x)
        first = m.ops.grad(value)
        second = m.ops.grad(lambda x: m.np.sum(first(x) * m.np.asarray([1.0, 2.0, 3.0])))
        return [value(x), first(x), second(x), m.ops.jvp(value, (x,), (m.np.ones_like(x),))[1]]

    with oracle.x64():
        expected = jax.jit(lambda x: derivatives(Theirs, x))(jnp.asarray(X))
    got = tvmfun.jit(lambda x: derivatives(Ours, x))(X)
    for ours, theirs in zip(got, expected, strict=True):
        assert np.isfinite(theirs).all()
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), 1e-12)


def ops_of(program: Program) -> set[str]:
    """The names of all ops, also in loops and branches."""
    names = set()
    for equation in program.equations:
        names.add(equation.op.name)
        for value in equation.params.values():
            for part in value if isinstance(value, tuple) else (value,):
                names |= ops_of(part) if isinstance(part, Program) else set()
    return names


def test_what_is_not_used_is_not_computed():
    assert "log" not in ops_of(tvmfun.trace(lambda x: logarithms(Ours, x)[1])(X))
    assert "log" not in ops_of(tvmfun.trace(lambda x: nested(Ours, x))(X))
    assert "log" not in ops_of(tvmfun.trace(lambda x: checkpointed(Ours, x))(X))
    assert "log" not in ops_of(tvmfun.trace(lambda x: one_result_of_a_branch(Ours, x))(X))
    program = tvmfun.trace(lambda x: carry_of_a_loop_within(Ours, x))(X)
    assert "log" not in ops_of(program)
    (loop,) = (e for e in program.equations if e.op.name == "loop")
    assert (loop.params["carry"], loop.params["consts"]) == (1, 0)


@pytest.mark.slow
def test_what_the_condition_needs_is_computed():
    def until_large(x: Any) -> Any:
        cond = lambda c: (c[0] < 10) & (c[2] < 5)
        return lax.while_loop(cond, lambda c: (c[0] + c[3], c[1] * 2, c[2] + 1, c[3] * 2, c[4] * 3), (x, x, 0, x, x))[1]

    program = tvmfun.trace(until_large)(1.0)
    (loop,) = (e for e in program.equations if e.op.name == "loop")
    assert loop.params["carry"] == 4
    assert float(tvmfun.jit(until_large)(1.0)) == 16
    assert float(tvmfun.jvp(until_large, (1.0,), (1.0,))[1]) == 16
