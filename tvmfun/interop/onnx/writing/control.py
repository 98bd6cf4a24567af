"""Spellings of calls, branches and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core.program import Program
from tvmfun.errors import ProgramError
from tvmfun.interop.onnx.writing.builder import Builder, Value, spells


@spells("custom_vjp_call", "custom_jvp_call", "checkpoint")
def _call(b: Builder, *xs: Value, program: Program, **params: Any) -> list[str]:
    """Calls, as the operators of their Programs."""
    return b.program(program, xs)


@spells("platform_call")
def _platform_call(b: Builder, *xs: Value, cpu: Program, cuda: Program) -> list[str]:
    return b.program(cpu, xs)


def _results(b: Builder, program: Program, xs: Sequence[Value]) -> list[Value]:
    """The results of a Program as values that a graph may return: each has a node of its own."""
    names = b.program(program, xs)
    avals = program.out_avals
    return [Value(b("Identity", name), aval.shape, aval.dtype) for name, aval in zip(names, avals, strict=True)]


@spells("switch")
def _switch(b: Builder, index: Value, *xs: Value, branches: tuple[Program, ...]) -> list[str]:
    """A branch where the index is at most its number, another choice otherwise."""
    if len(branches) == 1:
        return b.program(branches[0], xs)

    def graph(name: str, write: Any) -> Any:
        inner = Builder(b)
        return inner.graph(name, [], write(inner))

    avals = branches[0].out_avals
    rest = lambda inner: [
        Value(inner("Identity", name), aval.shape, aval.dtype)
        for name, aval in zip(_switch_after(inner, index, xs, branches), avals, strict=True)
    ]
    first = graph("first", lambda inner: _results(inner, branches[0], xs))
    others = graph("others", rest)
    is_first = b("LessOrEqual", b.cast(index, np.int64), b.constant(0, np.int64))
    return b.node("If", [is_first], len(avals), then_branch=first, else_branch=others)


def _switch_after(b: Builder, index: Value, xs: Sequence[Value], branches: tuple[Program, ...]) -> list[str]:
    next_ = Value(b("Sub", b.cast(index, np.int64), b.constant(1, np.int64)), (), dtypes.int64)
    return _switch(b, next_, *xs, branches=branches[1:])


@spells("loop")
def _loop(
    b: Builder,
    *xs: Value,
    body: Program,
    cond: Program | None,
    length: int | None,
    reverse: bool,
    counted: bool,
    consts: int,
    carry: int,
) -> list[str]:
    """``Loop`` with the carry as its state; rows are read by the number of the step."""
    count, rest = xs[:counted], xs[counted:]
    fixed, state, rows = rest[:consts], rest[consts : consts + carry], rest[consts + carry :]
    stacked = body.out_avals[carry:]
    if cond is not None and stacked:
        got = "results for each step of a while loop, whose number is not known"
        raise ProgramError("to_onnx", "loops with a condition must return their carry alone", got=got)
    most = b.cast(count[0], np.int64) if counted else "" if length is None else b.constant(length, np.int64)
    start = b.program(cond, [*fixed, *state])[0] if cond is not None else b.constant(True, np.bool_)

    inner = Builder(b)
    step = Value(inner.fresh("step"), (), dtypes.int64)
    going = Value(inner.fresh("going"), (), dtypes.bool_)
    held = [Value(inner.fresh("carry"), x.shape, x.dtype) for x in state]
    has_steps = cond is not None and length is not None
    counter = [Value(inner.fresh("steps"), (), dtypes.int32)] if has_steps else []
    row = step.name
    if reverse:
        row = inner("Sub", inner("Sub", most, inner.constant(1, np.int64)), step)
    parts = [Value(inner("Gather", x, row, axis=0), x.shape[1:], x.dtype) for x in rows]
    results = _results(inner, body, [*fixed, *held, *parts])
    news, ys = results[:carry], results[carry:]
    if cond is not None:
        again = Value(inner("Identity", inner.program(cond, [*fixed, *news])[0]), (), dtypes.bool_)
    else:
        again = Value(inner("Identity", going), (), dtypes.bool_)
    steps = [Value(inner("Add", c, inner.constant(1, np.int32)), (), dtypes.int32) for c in counter]
    graph = inner.graph("body", [step, going, *held, *counter], [again, *news, *steps, *ys])
    starts = [*state, *(b.constant(0, np.int32) for _ in counter)]
    names = b.node("Loop", [most, start, *starts], carry + len(counter) + len(ys), body=graph)
    last, steps_done, collected = names[:carry], names[carry : carry + len(counter)], names[carry + len(counter) :]
    if reverse:
        back = lambda name: b("Slice", name, b.ints(-1), b.ints(-(1 << 62)), b.ints(0), b.ints(-1))
        collected = [back(name) for name in collected]
    return [*last, *collected, *steps_done]
