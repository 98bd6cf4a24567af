r"""Maxima that are subtracted to avoid overflow, and whose derivatives cancel.

Softmax is often written as ``e / sum(e)`` with ``e = exp(x - max(x))``. It does not depend on the maximum: the
cotangents that arrive there add up to zero, but only after more passes over the rows, one of which finds the elements
that attain the maximum. :func:`without_cancelling_maxima` proves the zero from the equations, and saves the passes.

The proof follows a maximum :math:`m` through the Program. A value that depends on it is a term,
:math:`v = v_0 + k m`, or a factor, :math:`v = v_0 e^{k m}`, for a number :math:`k`, its power; :math:`m` itself is a
term of power 1. ``exp`` makes a factor of a term and ``log`` a term of a factor; a difference subtracts the powers of
terms, a quotient those of factors. A value of power 0 does not depend on :math:`m`. If no other value is a result, or
reaches an op without such a rule, the derivative is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from tvmfun.core import dims
from tvmfun.core.derivative import is_float
from tvmfun.core.op import Op
from tvmfun.core.program import Atom, Equation, Literal, Program, Variable
from tvmfun.ops import index, reduce
from tvmfun.ops import pointwise as pw
from tvmfun.ops import shape as shapes

_Axes = tuple[int | None, ...]


class _Dependence(NamedTuple):
    """The dependence of a value on the maximum: its power, and for each axis the axis of the maximum, or None."""

    is_factor: bool
    power: float
    axes: _Axes


class _UnknownError(Exception):
    """A dependence of another form."""


def without_cancelling_maxima(program: Program) -> Program:
    """Returns the Program with ``stop_gradient`` after maxima and minima whose derivatives are provably zero.

    Programs of loops, branches and calls are included. No value changes.
    """
    renamed: dict[Atom, Variable] = {}
    equations: list[Equation] = []
    for i, equation in enumerate(program.equations):
        params = {key: _in_programs(value) for key, value in equation.params.items()}
        inputs = tuple(renamed.get(atom, atom) for atom in equation.inputs)
        equations.append(equation._replace(inputs=inputs, params=params))
        if equation.op in (reduce.max, reduce.min) and _cancels(program, i):
            (out,) = equation.outputs
            renamed[out] = Variable(out.aval)
            equations.append(Equation(pw.stop_gradient, (out,), {}, (renamed[out],), equation.source))
    is_same = all(new.params == old.params for new, old in zip(equations, program.equations, strict=False))
    return program if is_same and not renamed else replace(program, equations=tuple(equations))


def _in_programs(value: Any) -> Any:
    if isinstance(value, Program):
        return without_cancelling_maxima(value)
    return tuple([_in_programs(item) for item in value]) if isinstance(value, tuple) else value


def _cancels(program: Program, i: int) -> bool:
    """Whether the derivative with respect to the result of equation ``i`` is provably zero."""
    (maximum,) = program.equations[i].outputs
    shape = maximum.aval.shape
    if not is_float(maximum) or dims.is_dynamic(shape):
        return False
    axes = tuple(None if size == 1 else axis for axis, size in enumerate(shape))
    known: dict[Atom, _Dependence] = {maximum: _Dependence(False, 1.0, axes)}
    for equation in program.equations[i + 1 :]:
        if known.keys().isdisjoint(equation.inputs) or not any(map(is_float, equation.outputs)):
            continue
        rule = _RULES.get(equation.op)
        if rule is None:
            return False
        try:
            result = rule(equation, [known.get(atom) for atom in equation.inputs])
        except _UnknownError:
            return False
        if result is not None and result.power:
            known[equation.outputs[0]] = result
    return known.keys().isdisjoint(program.outputs)


# -- rules -----------------------------------------------------------------------------------------------------------

#: The dependence of an equation's result, given the dependences of its arguments; None where there is none.
_Rule = Callable[[Equation, list[_Dependence | None]], _Dependence | None]


def _of_first(rule: Callable[[Equation, _Dependence], _Dependence]) -> _Rule:
    """The rule of an op for which only the first argument has a derivative, as a function of its dependence."""

    def of_all(equation: Equation, dependences: list[_Dependence | None]) -> _Dependence | None:
        (x, *_) = dependences
        assert x is not None  # rules are only asked if an argument depends on the maximum
        return rule(equation, x)

    return of_all


def _sizes(atom: Atom) -> tuple[int, ...]:
    if dims.is_dynamic(atom.aval.shape):
        raise _UnknownError
    return atom.aval.shape


def _repeated(x: _Dependence, source: Atom, rank: int) -> _Axes:
    """The axes of an argument that is repeated to a result with ``rank`` axes."""
    return (None,) * (rank - len(_sizes(source))) + x.axes


def _joined(equation: Equation, x: _Dependence, y: _Dependence) -> _Axes:
    """The axes of a pointwise result of two arguments that depend on the same elements of the maximum."""
    rank = len(_sizes(equation.outputs[0]))
    left, right = (_repeated(d, atom, rank) for d, atom in zip((x, y), equation.inputs[-2:], strict=True))
    if left != right:
        raise _UnknownError
    return left


def _number(atom: Atom) -> float | None:
    return float(atom.value) if isinstance(atom, Literal) else None


def _sum(sign: float) -> _Rule:
    """Sums: the powers of terms add up; a sum of factors is one if both have the same power."""

    def rule(equation: Equation, dependences: list[_Dependence | None]) -> _Dependence | None:
        x, y = dependences
        if x is not None and y is not None:
            axes = _joined(equation, x, y)
            if x.is_factor != y.is_factor or (x.is_factor and x.power != y.power):
                raise _UnknownError
            return _Dependence(x.is_factor, x.power if x.is_factor else x.power + sign * y.power, axes)
        return _with_one(equation, x, y, sign, is_factor=False)

    return rule


def _with_one(
    equation: Equation, x: _Dependence | None, y: _Dependence | None, sign: float, *, is_factor: bool
) -> _Dependence:
    """The dependence of a sum, or of a product, with one argument that depends on the maximum."""
    known, atom = (x, equation.inputs[0]) if x is not None else (y, equation.inputs[1])
    assert known is not None
    if known.is_factor != is_factor:
        raise _UnknownError
    power = known.power if x is not None else sign * known.power
    return _Dependence(is_factor, power, _repeated(known, atom, len(_sizes(equation.outputs[0]))))


def _product(sign: float) -> _Rule:
    """Products: the powers of factors add up; a number multiplies the power of a term."""

    def rule(equation: Equation, dependences: list[_Dependence | None]) -> _Dependence | None:
        x, y = dependences
        if x is not None and y is not None:
            if not (x.is_factor and y.is_factor):
                raise _UnknownError
            return _Dependence(True, x.power + sign * y.power, _joined(equation, x, y))
        left, right = map(_number, equation.inputs)
        if x is not None and not x.is_factor and right and math.isfinite(right):
            return x._replace(power=x.power * right if sign > 0 else x.power / right)
        if y is not None and not y.is_factor and left and math.isfinite(left) and sign > 0:
            return y._replace(power=y.power * left)
        return _with_one(equation, x, y, sign, is_factor=True)

    return rule


@_of_first
def _exp(equation: Equation, x: _Dependence) -> _Dependence:
    if x.is_factor:
        raise _UnknownError
    return x._replace(is_factor=True)


@_of_first
def _log(equation: Equation, x: _Dependence) -> _Dependence:
    if not x.is_factor:
        raise _UnknownError
    return x._replace(is_factor=False)


@_of_first
def _negative(equation: Equation, x: _Dependence) -> _Dependence:
    return x if x.is_factor else x._replace(power=-x.power)


def _where(equation: Equation, dependences: list[_Dependence | None]) -> _Dependence | None:
    """Selections: NaN and infinities do not change when a term is added, nor does 0 when multiplied by a factor."""
    _, x, y = dependences
    if x is not None and y is not None:
        axes = _joined(equation, x, y)
        if (x.is_factor, x.power) != (y.is_factor, y.power):
            raise _UnknownError
        return x._replace(axes=axes)
    known, atom, other = (x, *equation.inputs[1:]) if x is not None else (y, *equation.inputs[:0:-1])
    assert known is not None
    value = _number(other)
    if value is None or (math.isfinite(value) and not (known.is_factor and value == 0)):
        raise _UnknownError
    return known._replace(axes=_repeated(known, atom, len(_sizes(equation.outputs[0]))))


def _reduced(scale: Callable[[int], float]) -> _Rule:
    """Reductions over axes along which the maximum is constant; ``scale`` gives the result for equal terms."""

    @_of_first
    def rule(equation: Equation, x: _Dependence) -> _Dependence:
        sizes, over = _sizes(equation.inputs[0]), equation.params["axis"]
        if any(x.axes[i] is not None for i in over):
            raise _UnknownError
        power = x.power if x.is_factor else x.power * scale(math.prod(sizes[i] for i in over))
        return _Dependence(x.is_factor, power, tuple(axis for i, axis in enumerate(x.axes) if i not in over))

    return rule


@_of_first
def _reshape(equation: Equation, x: _Dependence) -> _Dependence:
    """Reshapes that add and remove axes of size 1."""
    sizes, shape = _sizes(equation.inputs[0]), equation.params["shape"]
    if [size for size in sizes if size != 1] != [size for size in shape if size != 1]:
        raise _UnknownError
    kept = iter([axis for axis, size in zip(x.axes, sizes, strict=True) if size != 1])
    return x._replace(axes=tuple(None if size == 1 else next(kept) for size in shape))


@_of_first
def _broadcast_to(equation: Equation, x: _Dependence) -> _Dependence:
    return x._replace(axes=_repeated(x, equation.inputs[0], len(equation.params["shape"])))


@_of_first
def _permute_dims(equation: Equation, x: _Dependence) -> _Dependence:
    return x._replace(axes=tuple(x.axes[axis] for axis in equation.params["axes"]))


@_of_first
def _gather(equation: Equation, x: _Dependence) -> _Dependence:
    """Elements along axes along which the maximum is constant; a 0 that is read outside the array is a factor only."""
    batch, indices = equation.params["batch"], _sizes(equation.inputs[1])
    depth = indices[-1]
    if any(axis is not None for axis in x.axes[batch : batch + depth]):
        raise _UnknownError
    if equation.params["mode"] == "fill" and not x.is_factor:
        raise _UnknownError
    return x._replace(axes=(*x.axes[:batch], *(None for _ in indices[batch:-1]), *x.axes[batch + depth :]))


_RULES: dict[Op, _Rule] = {
    pw.add: _sum(1.0),
    pw.subtract: _sum(-1.0),
    pw.multiply: _product(1.0),
    pw.divide: _product(-1.0),
    pw.negative: _negative,
    pw.exp: _exp,
    pw.log: _log,
    pw.where: _where,
    pw.astype: lambda equation, dependences: dependences[0],
    pw.stop_gradient: lambda equation, dependences: None,
    reduce.sum: _reduced(float),
    reduce.max: _reduced(lambda count: 1.0),
    reduce.min: _reduced(lambda count: 1.0),
    shapes.reshape: _reshape,
    shapes.broadcast_to: _broadcast_to,
    shapes.permute_dims: _permute_dims,
    index.gather: _gather,
}
