"""Loops: the matrices that every step multiplies by are brought into the order of the register tiles once.

A product reads its right factor in panels of some columns. Where neighbouring lines of a panel are far apart, or lie
across, each call copies it together first; within a loop, each step would.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import te
from tvm.target import Target

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import ShapeDtype
from tvmfun.core.expressions import plain
from tvmfun.core.op import Op
from tvmfun.core.program import Equation, Program, Variable
from tvmfun.lower.machine import Machine

# A loop of fewer steps does not pay for a second copy of its matrices, and products of fewer rows have wider panels.
_MIN_STEPS = 16
_MIN_ROWS = 7


def _panel_dot_shape(x: ShapeDtype, panels: ShapeDtype) -> ShapeDtype:
    count, _, width = panels.shape
    return ShapeDtype((*x.shape[:-1], count * width), x.dtype)


def _panel_dot(x: te.Tensor, panels: te.Tensor) -> te.Tensor:
    count, depth, width = plain(tuple(panels.shape))
    k = te.reduce_axis((0, depth), "k")
    element = lambda *i: te.sum(x(*i[:-1], k) * panels(i[-1] // width, k, i[-1] % width), axis=k)
    return te.compute((*x.shape[:-1], count * width), element, name="panel_dot")


def _panels_shape(y: ShapeDtype, *, contract: int, width: int) -> ShapeDtype:
    return ShapeDtype((y.shape[1 - contract] // width, y.shape[contract], width), y.dtype)


def _panels(y: te.Tensor, *, contract: int, width: int) -> te.Tensor:
    sizes = plain(tuple(y.shape))
    at = lambda column, k: y(k, column) if contract == 0 else y(column, k)
    shape = (sizes[1 - contract] // width, sizes[contract], width)
    return te.compute(shape, lambda p, k, j: at(p * width + j, k), name="panels")


# Two ops that only lowering knows. ``panels(y, contract=, width=)``: a matrix in panels of ``width`` columns,
# ``panels[p, k, j] = y[k, p * width + j]``, or of the transposed matrix. ``panel_dot(x, panels)``: ``x @ y``.
panels = Op("panels", "injective", _panels_shape, _panels, inexpensive=False)
panel_dot = Op("panel_dot", "contraction", _panel_dot_shape, _panel_dot, inexpensive=False)


def with_panels(program: Program, target: Target) -> Program:
    """Returns the Program with such matrices of its loops in panels.

    Args:
        program: without calls.
        target: a CPU.
    """
    equations: list[Equation] = []
    for equation in program.equations:
        equations += _loop_with_panels(equation, Machine.of(target)) if equation.op.name == "loop" else [equation]
    return replace(program, equations=tuple(equations)) if len(equations) > len(program.equations) else program


def _loop_with_panels(loop: Equation, machine: Machine) -> list[Equation]:
    """A loop, and before it the equations that bring its matrices into panels."""
    params = loop.params
    body, first = params["body"], int(params["counted"])
    if params["cond"] is not None or (params["length"] is not None and dims.typical(params["length"]) < _MIN_STEPS):
        return [loop]
    outside = dict(zip(body.inputs[: params["consts"]], loop.inputs[first:], strict=False))
    before: dict[tuple[Variable, int], Equation] = {}
    inner: dict[tuple[Variable, int], Variable] = {}
    equations = []
    for equation in body.equations:
        contract = _contracted(equation, machine) if equation.inputs[-1:] and equation.inputs[-1] in outside else None
        if contract is None:
            equations.append(equation)
            continue
        x, matrix = equation.inputs
        key = matrix, contract
        if key not in inner:
            params_of_panels = {"contract": contract, "width": machine.tile_columns(dtypes.NAMES[matrix.aval.dtype])}
            aval = _panels_shape(matrix.aval, **params_of_panels)
            before[key] = Equation(panels, (outside[matrix],), params_of_panels, (Variable(aval),), loop.source)
            inner[key] = Variable(aval)
        equations.append(equation._replace(op=panel_dot, inputs=(x, inner[key]), params={}))
    if not before:
        return [loop]
    body = replace(body, inputs=(*inner.values(), *body.inputs), equations=tuple(equations))
    params = {**params, "body": body, "consts": params["consts"] + len(inner)}
    matrices = (equation.outputs[0] for equation in before.values())
    return [
        *before.values(),
        loop._replace(inputs=(*loop.inputs[:first], *matrices, *loop.inputs[first:]), params=params),
    ]


def _contracted(equation: Equation, machine: Machine) -> int | None:
    """The axis of its matrix that an equation contracts with the last one of rows, if panels are of use to it."""
    if equation.op.name != "dot_general":
        return None
    x, matrix = (atom.aval for atom in equation.inputs)
    (ours, theirs), batch = equation.params["contract"], equation.params["batch"]
    if batch != ((), ()) or matrix.ndim != 2 or x.ndim < 2 or ours != (x.ndim - 1,) or len(theirs) != 1:
        return None
    if matrix.dtype not in (dtypes.float32, dtypes.float64) or dims.is_dynamic((*x.shape, *matrix.shape)):
        return None
    fits = matrix.shape[1 - theirs[0]] % machine.tile_columns(dtypes.NAMES[matrix.dtype]) == 0
    return theirs[0] if fits and x.size // x.shape[-1] >= _MIN_ROWS else None
