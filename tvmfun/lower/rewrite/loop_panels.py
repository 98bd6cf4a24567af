"""Loop-invariant packing: the matrices that every step of a loop multiplies by are packed into panels before the loop.

A product reads its right operand in panels of a few columns. If the rows of a panel are far apart in memory, or the
matrix is transposed, the kernel packs each panel first; inside a loop it would do so in every step.
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
from tvmfun.ops.control import loop
from tvmfun.ops.dot import dot_general

# The fewest steps that pay for a packed copy of the matrices, and the fewest rows: with fewer, panels are wider.
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


# Ops of lowering, which no trace contains. ``panels(y, contract=, width=)``: a matrix in panels of ``width`` columns,
# ``panels[p, k, j] = y[k, p * width + j]``, or of ``y.T`` for ``contract=1``. ``panel_dot(x, panels)``: ``x @ y``.
panels = Op("panels", "injective", _panels_shape, _panels, inexpensive=False)
panel_dot = Op("panel_dot", "contraction", _panel_dot_shape, _panel_dot, inexpensive=False)


def pack_loop_panels(program: Program, target: Target) -> Program:
    """Returns the Program with the loop-invariant matrices of its loops packed into panels.

    Args:
        program: without calls.
        target: a CPU.
    """
    equations: list[Equation] = []
    for equation in program.equations:
        equations += _loop_with_panels(equation, Machine.of(target)) if equation.op is loop else [equation]
    return replace(program, equations=tuple(equations)) if len(equations) > len(program.equations) else program


def _loop_with_panels(equation: Equation, machine: Machine) -> list[Equation]:
    """Returns the equations that pack the matrices of a loop, and the loop that reads the panels."""
    params = equation.params
    body, first = params["body"], int(params["counted"])
    if params["cond"] is not None or (params["length"] is not None and dims.typical(params["length"]) < _MIN_STEPS):
        return [equation]
    outside = dict(zip(body.inputs[: params["consts"]], equation.inputs[first:], strict=False))
    packing: dict[tuple[Variable, int], Equation] = {}
    inside: dict[tuple[Variable, int], Variable] = {}
    equations = []
    for step in body.equations:
        contract = _contracted(step, machine) if step.inputs[-1:] and step.inputs[-1] in outside else None
        if contract is None:
            equations.append(step)
            continue
        x, matrix = step.inputs
        key = matrix, contract
        if key not in inside:
            layout = {"contract": contract, "width": machine.tile_columns(dtypes.NAMES[matrix.aval.dtype])}
            aval = _panels_shape(matrix.aval, **layout)
            packing[key] = Equation(panels, (outside[matrix],), layout, (Variable(aval),), equation.source)
            inside[key] = Variable(aval)
        equations.append(step._replace(op=panel_dot, inputs=(x, inside[key]), params={}))
    if not packing:
        return [equation]
    body = replace(body, inputs=(*inside.values(), *body.inputs), equations=tuple(equations))
    params = {**params, "body": body, "consts": params["consts"] + len(inside)}
    matrices = (pack.outputs[0] for pack in packing.values())
    inputs = (*equation.inputs[:first], *matrices, *equation.inputs[first:])
    return [*packing.values(), equation._replace(inputs=inputs, params=params)]


def _contracted(equation: Equation, machine: Machine) -> int | None:
    """The axis of the matrix that a product contracts with the last axis of ``x``; None if panels do not help."""
    if equation.op is not dot_general:
        return None
    x, matrix = (atom.aval for atom in equation.inputs)
    (x_axes, matrix_axes), batch = equation.params["contract"], equation.params["batch"]
    if batch != ((), ()) or matrix.ndim != 2 or x.ndim < 2 or x_axes != (x.ndim - 1,) or len(matrix_axes) != 1:
        return None
    if matrix.dtype not in (dtypes.float32, dtypes.float64) or dims.is_dynamic((*x.shape, *matrix.shape)):
        return None
    fits = matrix.shape[1 - matrix_axes[0]] % machine.tile_columns(dtypes.NAMES[matrix.dtype]) == 0
    return matrix_axes[0] if fits and x.size // x.shape[-1] >= _MIN_ROWS else None
