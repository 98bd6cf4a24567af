"""Checks the Programs of loops, branches and calls against the operands and results of their ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import ShapeDtype
from tvmfun.core.inline import subprograms
from tvmfun.core.program import Equation, Program
from tvmfun.errors import ProgramError
from tvmfun.ops.control import LoopOperands


def check_programs(equation: Equation) -> None:
    """Checks the Programs of an equation; compiled code would read memory that is not there for others.

    Raises:
        ProgramError: if one takes or returns other types.
        Exception: any other one, for parameters of a wrong kind.
    """
    avals = [atom.aval for atom in equation.inputs]
    programs = list(subprograms(tuple(equation.params.values())))
    if equation.op.name == "loop":
        _check_loop(avals, **equation.params)
    elif equation.op.name == "switch":
        index, *operands = avals
        if index.shape or not dtypes.is_integer(index.dtype):
            raise _wrong("the index must be an integer", str(index))
        _check_equal(programs, operands)
    elif equation.op.kind == "call" and programs:
        _check_equal(programs, avals)
    for program in programs:
        if program.captured:
            raise _wrong("a Program inside of another must be closed", f"{len(program.captured)} captured arrays")


def _check_loop(
    avals: Sequence[ShapeDtype],
    *,
    body: Program,
    cond: Program | None,
    length: Any,
    reverse: bool,
    counted: bool,
    consts: int,
    carry: int,
) -> None:
    if min(consts, carry) < 0 or counted + consts + carry > len(avals):
        raise _wrong(f"{len(avals)} operands cannot have these roles", repr((counted, consts, carry)))
    operands = LoopOperands.split(avals, counted=counted, consts=consts, carry=carry)
    if counted and (operands.count[0].shape or not dtypes.is_integer(operands.count[0].dtype)):
        raise _wrong("the number of steps must be an integer", str(operands.count[0]))
    if length is not None and not dims.is_dynamic(length) and not 0 <= length < 2**31:
        raise _wrong("the length of a loop must be from 0 to below 2**31", str(length))
    if length is None and (operands.xs or len(body.outputs) > carry or (cond is None and not counted)):
        raise _wrong("a loop of unlimited length cannot have rows", "None for the length")
    if any(x.shape[:1] != (length,) for x in operands.xs):
        raise _wrong(f"the arrays of which each step gets a row must have {length}", _text(operands.xs))
    rows = [ShapeDtype(x.shape[1:], x.dtype) for x in operands.xs]
    _check("the body", body.in_avals, [*operands.consts, *operands.carry, *rows])
    _check("the first results of the body", body.out_avals[:carry], operands.carry)
    if cond is not None:
        _check("the condition", cond.in_avals, operands.of_condition)
        _check("the result of the condition", cond.out_avals, [ShapeDtype((), dtypes.bool_)])


def _check_equal(programs: Sequence[Program], operands: Sequence[ShapeDtype]) -> None:
    """Checks that all Programs take the operands, and return the same."""
    for program in programs:
        _check(program.name, program.in_avals, operands)
        _check(f"results of {program.name}", program.out_avals, programs[0].out_avals)


def _check(what: str, got: Sequence[ShapeDtype], expected: Sequence[ShapeDtype]) -> None:
    if [(aval.shape, aval.dtype) for aval in got] != [(aval.shape, aval.dtype) for aval in expected]:
        raise _wrong(f"{what} must have the types {_text(expected)}", _text(got))


def _text(avals: Sequence[ShapeDtype]) -> str:
    return ", ".join(map(str, avals)) or "none"


def _wrong(what: str, got: str) -> ProgramError:
    return ProgramError("Program.load", what, got=got)
