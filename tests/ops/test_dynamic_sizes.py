"""Every op with a dynamic first axis: values against NumPy's for several sizes, gradients against static programs.

Run with ``-s`` for a table of what ran and what was refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_cases import CASES, Case
from op_cases.dynamic import can_be_dynamic, grown, traced, variants

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Program, errors, tree
from tvmfun.core import dims
from tvmfun.core.op import REGISTRY

# Ops that need more than a size of at least 1, or static sizes, and their errors.
REFUSED = {
    "dropout_bits": r"\[dropout_bits\] keys must fit scores .* where b is a dynamic size",
    "dynamic_slice": r"\[dynamic_slice\] it depends on the call whether b >= 2.*min=2",
    "dynamic_update_slice": r"\[dynamic_update_slice\] it depends on the call whether b >= 2.*min=2",
}


def eligible(name: str) -> list[Case]:
    return [case for case in CASES[name] if can_be_dynamic(case)]


@pytest.mark.quick("max", "argmin")
@pytest.mark.parametrize(
    "name",
    [
        # The tests against JAX have a dynamic axis, too; pointwise ops do nothing of their own with it.
        pytest.param(name, marks=[pytest.mark.slow] if REGISTRY[name].kind == "pointwise" and name != "add" else [])
        for name in CASES
        if eligible(name)
    ],
)
def test_every_op_serves_every_size(name: str):
    op, refusals = REGISTRY[name], []
    for case in eligible(name):
        for places, params in variants(case):
            try:
                program = traced(op, case, places, params)
                compiled = tvmfun.jit(program).lower(*program.in_avals).compile()
            except errors.TvmfunError as error:
                refusals.append(str(error))
                continue
            check(op, case, places, params, program, compiled)
            print(f"\n{name}: {', '.join(map(str, program.in_avals))} -> {', '.join(map(str, program.out_avals))}")
            return
    print(f"\n{name}: {refusals[0]}")
    with pytest.raises(errors.TvmfunError, match=REFUSED[name]):
        case = eligible(name)[0]
        traced(op, case, *next(variants(case)))


def check(op: Any, case: Case, places: list, params: dict, program: Program, compiled: Any) -> None:
    for n in (1, case.arguments[0].shape[0], 11):
        arguments = grown(case, places, n)
        actual = {key: dims.at(value, {"b": n}) for key, value in params.items()}
        got = compiled(*arguments)
        expected = tvmfun.jit(lambda *a, actual=actual: op(*a, **actual))(*arguments) if n == 11 else None
        for a, aval in zip(tree.leaves(got), program.out_avals, strict=True):
            assert (a.shape, a.dtype) == (dims.at(aval.shape, {"b": n}), aval.dtype)
        for a, b in zip(tree.leaves(got), tree.leaves(expected), strict=False):
            np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=1e-9, atol=1e-10)
    floats = tuple(i for i, x in enumerate(case.arguments) if x.dtype == np.float64)
    if case.order and floats and (op.vjp or op.pullback) and all(a.dtype == np.float64 for a in program.out_avals):
        check_gradient(op, case, places, params, program, floats)


def check_gradient(op: Any, case: Case, places: list, params: dict, program: Program, floats: tuple) -> None:
    def gradient(params: dict) -> Any:
        loss = lambda *a: sum(tnp.sum(tnp.sin(leaf)) for leaf in tree.leaves(op(*a, **params)))
        return tvmfun.jit(tvmfun.grad(loss, floats))

    arguments = grown(case, places, 11)
    got = gradient(params).lower(*program.in_avals).compile()(*arguments)
    expected = gradient({key: dims.at(value, {"b": 11}) for key, value in params.items()})(*arguments)
    for a, b in zip(tree.leaves(got), tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-8, atol=1e-8)
