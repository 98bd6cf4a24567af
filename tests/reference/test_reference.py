"""The reference evaluator: every op has a meaning, and compiled Programs agree with it."""

from __future__ import annotations

import numpy as np
import pytest
from op_cases import CASES, Case
from op_cases.dynamic import can_be_dynamic, grown, variants

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import lax, reference
from tvmfun.core import dims
from tvmfun.core.op import REGISTRY
from tvmfun.errors import TvmfunError

ALL = [pytest.param(name, case, id=f"{name}-{i}") for name in CASES for i, case in enumerate(CASES[name])]
# The signs of their vectors are nobody's choice.
UP_TO_SIGNS = ("eigh", "svd", "qr")


def test_every_op_has_a_meaning():
    plain = {name for name, op in REGISTRY.items() if op.kind not in ("control", "call")}
    assert set(reference.MEANINGS) == plain
    control = {name for name, op in REGISTRY.items() if op.kind == "control"}
    assert set(reference.evaluator.control.CONTROL) == control


@pytest.mark.parametrize(("name", "case"), ALL)
def test_meanings_are_those_of_the_table(name: str, case: Case):
    program = tvmfun.trace(lambda *arguments: REGISTRY[name](*arguments, **case.params))(*case.arguments)
    expected = case.reference(*case.arguments, **case.params)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for got, want in zip(reference.evaluate(program, case.arguments), expected, strict=True):
        want = np.asarray(want)
        if name in UP_TO_SIGNS:
            got, want = np.abs(got), np.abs(want)
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_no_elements(name: str):
    """Results of empty arrays have the shapes and dtypes that the op says; the evaluator checks them."""
    for case in filter(can_be_dynamic, CASES[name]):
        for axes, params in variants(case):
            arguments = grown(case, axes, 0)
            static = {key: dims.at(value, {"b": 0}) for key, value in params.items()}
            try:
                program = tvmfun.trace(lambda *xs, static=static: REGISTRY[name](*xs, **static))(*arguments)
            except TvmfunError:
                continue
            reference.evaluate(program, arguments)


LOOPS = {
    "scan": lambda x: lax.scan(lambda c, x: (tnp.tanh(c * x), c + x), x[0], x),
    "reverse": lambda x: lax.scan(lambda c, x: (c + x, c * x), x[0], x, reverse=True),
    "while": lambda x: lax.while_loop(lambda c: tnp.sum(c) < 9, lambda c: c * 1.5 + 0.1, abs(x)),
    "bounded": lambda x: lax.while_loop(lambda c: tnp.sum(c) < 9, lambda c: c * 1.5 + 0.1, abs(x), max_steps=3),
    "counted": lambda x: lax.fori_loop(0, tnp.sum(x > 0, dtype="int32"), lambda i, c: c * x + i, x),
    "branch": lambda x: lax.cond(x[0, 0] > 0, lambda x: x * 2, lambda x: x - 1, x),
    "switch": lambda x: [lax.switch(i, [lambda x: x * 2, lambda x: x - 1], x) for i in (-1, 0, 1, 5)],
    "checkpoint": lambda x: tvmfun.grad(lambda x: tnp.sum(tvmfun.checkpoint(tnp.sin)(x) ** 2))(x),
    "gradient": lambda x: tvmfun.grad(lambda x: tnp.sum(lax.scan(lambda c, x: (tnp.sin(c * x), c), x[0], x)[1]))(x),
    "batched": tvmfun.vmap(lambda x: lax.while_loop(lambda c: tnp.sum(c) < 9, lambda c: c * 1.5 + 0.1, abs(x))),
    "dropout": lambda x: tvmfun.random.bernoulli(tvmfun.random.key(3), 0.5, x.shape) * x,
}


@pytest.mark.quick("while", "reverse", "batched")
@pytest.mark.parametrize("name", LOOPS)
def test_control_flow_and_calls_agree_with_compiled_programs(name: str):
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    program = tvmfun.trace(LOOPS[name])(x)
    compiled = tvmfun.tree.leaves(tvmfun.jit(LOOPS[name])(x))
    values = [*map(np.asarray, program.captured), x]
    for got, want in zip(reference.evaluate(program, values), compiled, strict=True):
        np.testing.assert_allclose(got, np.asarray(want), rtol=2e-5, atol=1e-6)


def test_rounding_errors_are_those_of_the_dtype():
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    program = tvmfun.trace(lambda x: (tnp.exp(x), x[::-1], tnp.sum(x)))(x)
    exact = reference.evaluate(program, [x])
    for got, want in zip(reference.evaluate(program, [x], reference.Rounding(0)), exact, strict=True):
        assert np.all(np.abs(got - want) <= 3e-7 * np.abs(x).sum())
    np.testing.assert_array_equal(reference.evaluate(program, [x], reference.Rounding(0))[1], exact[1])


def test_one_element_is_gathered():
    x = np.arange(3.0)
    program = tvmfun.trace(lambda x: x.at[1].get(mode="fill"))(x)
    assert reference.evaluate(program, [x])[0] == 1


def test_places_out_of_bounds_are_read_at_the_ends():
    x = np.arange(6.0).reshape(2, 3)
    program = tvmfun.trace(lambda x, i: x[i])(x, np.array([-9, 7]))
    np.testing.assert_array_equal(reference.evaluate(program, [x, np.array([-9, 7])])[0], x)


def test_digamma_at_its_ends():
    x = np.array([0.0, -0.0, -1.0, 1.7e308, np.inf])
    program = tvmfun.trace(lax.digamma)(x)
    want = [-np.inf, np.inf, np.nan, np.log(1.7e308), np.inf]
    np.testing.assert_allclose(reference.evaluate(program, [x])[0], want)
    np.testing.assert_allclose(tvmfun.jit(lax.digamma)(x), want)
