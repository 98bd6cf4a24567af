"""Every op with a dynamic first axis: values against NumPy's for several sizes, gradients against static programs.

Run with ``-s`` for a table of what ran and what was refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from op_cases import CASES, Case

import tvmfun
import tvmfun.numpy as tnp
from tvmfun import Dim, Program, ShapeDtype, errors, tree
from tvmfun.core import dims
from tvmfun.core.op import REGISTRY

B = Dim("b")
# Parameters that are sizes: where the axis is dynamic, so are they.
SIZES = ("shape", "size", "sizes", "stop")

# What needs to know more about the size than that it is at least 1, and what it says.
REFUSED = {
    "dynamic_slice": r"\[dynamic_slice\] it depends on the call whether b >= 2.*min=2",
    "dynamic_update_slice": r"\[dynamic_update_slice\] it depends on the call whether b >= 2.*min=2",
}


def grown(case: Case, places: list[tuple[int, ...]], n: int) -> tuple[np.ndarray, ...]:
    """The arguments with ``n`` elements along the dynamic axes, repeated or left out."""
    result = []
    for x, axes in zip(case.arguments, places, strict=True):
        for axis in axes:
            x = np.take(x, np.arange(n) % x.shape[axis], axis=axis)
        result.append(x)
    return tuple(result)


def variants(case: Case) -> Iterator[tuple[list[tuple[int, ...]], dict[str, Any]]]:
    """Which axes to make dynamic, beginning with the first of all arguments, and the parameters for that."""
    size = case.arguments[0].shape[0]
    lead = [(0,) if x.ndim and x.shape[0] == size else () for x in case.arguments]
    first = [(0,), *(() for _ in case.arguments[1:])]
    every = [tuple(i for i, n in enumerate(x.shape) if n == size) for x in case.arguments]
    sizes = {key: value for key, value in case.params.items() if key in SIZES and isinstance(value, tuple)}
    named = {key: (B, *value[1:]) if value[:1] == (size,) else value for key, value in sizes.items()}
    for places in (lead, first, every):
        for params in (case.params, {**case.params, **named}):
            yield places, params


def traced(op: Any, case: Case, places: list, params: dict) -> Program:
    specs = []
    for x, axes in zip(case.arguments, places, strict=True):
        shape = tuple(B if i in axes else n for i, n in enumerate(x.shape))
        specs.append(ShapeDtype(shape, x.dtype))
    return tvmfun.trace(lambda *arguments: op(*arguments, **params))(*specs).verify()


def eligible(name: str) -> list[Case]:
    return [case for case in CASES[name] if case.arguments and case.arguments[0].ndim and case.arguments[0].shape[0]]


@pytest.mark.parametrize("name", [name for name in CASES if eligible(name)])
def test_every_op_serves_every_size(name: str):
    op, refusals = REGISTRY[name], []
    for case in eligible(name):
        for places, params in variants(case):
            try:
                program = traced(op, case, places, params)
            except errors.TvmfunError as error:
                refusals.append(str(error))
                continue
            check(op, case, places, params, program)
            print(f"\n{name}: {', '.join(map(str, program.in_avals))} -> {', '.join(map(str, program.out_avals))}")
            return
    print(f"\n{name}: {refusals[0]}")
    with pytest.raises(errors.TvmfunError, match=REFUSED[name]):
        case = eligible(name)[0]
        traced(op, case, *next(variants(case)))


def check(op: Any, case: Case, places: list, params: dict, program: Program) -> None:
    compiled = tvmfun.jit(program).lower(*program.in_avals).compile()
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
