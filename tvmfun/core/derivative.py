"""Derivatives of Programs: reverse mode, forward mode, and the split of a Program in two.

Reverse mode applies the derivative rules of the records from the last equation to the first. Forward mode transposes
them: the rule of an op is linear in the cotangent, so its derivative with respect to the cotangent maps
tangents to tangents. Ops that contain Programs have rules for both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmfun import dtypes, tree
from tvmfun.core import dims
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.leaf import abstract
from tvmfun.core.op import REGISTRY, Op
from tvmfun.core.program import Atom, Equation, Literal, Program, Variable
from tvmfun.core.source import Replay
from tvmfun.core.trace import trace_flat
from tvmfun.errors import GradientError

if TYPE_CHECKING:
    from tvmfun.typing import ArrayLike


def zeros(like: ArrayLike | ShapeDtype) -> Array:
    """Zeros of the shape and dtype of ``like``."""
    aval = abstract(like)
    return REGISTRY["broadcast_to"](aval.dtype.type(0), shape=aval.shape)


def add(x: Any, y: Any) -> Any:
    """The sum of two cotangents or tangents, where None is zero."""
    if x is None or y is None:
        return y if x is None else x
    return REGISTRY["add"](x, y)


def is_float(atom: Atom) -> bool:
    """Whether a value has a derivative at all."""
    return dtypes.is_float(atom.aval.dtype)


def trace_leaves(fun: Callable, avals: Sequence[ShapeDtype], name: str) -> Program:
    """Traces a function of arrays as positional arguments that returns a tree of arrays."""
    return trace_flat(fun, list(avals), tree.structure((tuple(avals), {})), name)


def _no_derivative(equation: Equation) -> GradientError:
    return GradientError(
        "grad",
        f"{equation.op} has no derivative",
        got=f"an influence on the result through it at {equation.source or 'an unknown line'}",
        hint="tvmfun.lax.stop_gradient where none should flow",
    )


# -- backwards ---------------------------------------------------------------------------------------------------------


class VariableUse(NamedTuple):
    """An equation that has a variable as an argument, and the cotangents of its results."""

    equation: Equation
    argument: int
    arguments: list
    cotangents: list


class Tape:
    """A recorded run of a Program: the values of its variables, for the walk backwards.

    Args:
        program: the Program to run.
        leaves: one value per leaf of its arguments.
        active: the leaves to differentiate with respect to; by default all floats.
        known: values of variables that are not computed again.
    """

    def __init__(
        self,
        program: Program,
        leaves: Sequence[Any],
        active: Sequence[bool] | None = None,
        known: dict[Variable, Any] | None = None,
    ) -> None:
        self.program = program
        self.leaves = leaves
        self.wanted = program.inputs[len(program.captured) :]
        values = [*program.captured, *leaves]
        self.values: dict[Variable, Any] = dict(zip(program.inputs, values, strict=True))
        chosen = [True] * len(self.wanted) if active is None else active
        self.active = {v for v, wanted in zip(self.wanted, chosen, strict=True) if wanted and is_float(v)}
        self._known = known or {}
        self._pulls: dict[int, Callable[[Sequence[Any]], list]] = {}
        # The first error on the way to values that have no reverse mode.
        self._failed: dict[Atom, GradientError] = {}
        self.outputs = program.evaluate(values, self._record)

    def _record(self, equation: Equation, arguments: list) -> Any:
        carried = [self._carries(i, atom, equation) for i, atom in enumerate(equation.inputs)]
        failed = next((self._failed[atom] for atom in equation.inputs if atom in self._failed), None)
        if equation.op.pullback is not None and any(carried):
            try:
                result, pull = equation.op.pullback(tuple(carried), *arguments, **equation.params)
            except GradientError as error:  # which matters only if a cotangent arrives
                failed = failed or error
                result, pull = equation.op(*arguments, **equation.params), partial(_fail, failed)
            self._pulls[id(equation)] = pull
        elif equation.outputs[0] in self._known:
            result = tuple(self._known[out] for out in equation.outputs)
        else:
            result = equation.op(*arguments, **equation.params)
        results = result if isinstance(result, tuple) else (result,)
        self.values.update(zip(equation.outputs, results, strict=True))
        if any(carried):
            self.active.update(filter(is_float, equation.outputs))
            if failed is not None:
                self._failed.update(dict.fromkeys(equation.outputs, failed))
        return result

    def _carries(self, i: int, atom: Any, equation: Equation) -> bool:
        rules = equation.op.vjp
        return atom in self.active and not (isinstance(rules, tuple) and rules[i] is None)

    def backward(self, cotangents: Sequence[Any], unsummed: Collection[Variable] = ()) -> list[Any]:
        """Returns the cotangents of the leaves for cotangents of the outputs; None stands for zero in both.

        For leaves whose variables are in ``unsummed``, returns a list of :class:`VariableUse` instead of the sum.
        """
        sums: dict[Atom, Any] = {variable: [] for variable in unsummed}
        for atom, cotangent in zip(self.program.outputs, cotangents, strict=True):
            if isinstance(atom, Variable) and atom in self.active and cotangent is not None:
                sums[atom] = add(sums.get(atom), cotangent)
        with Replay() as replay:
            for equation in reversed(self.program.equations):
                replay.line = equation.source
                arriving = [sums.pop(out, None) for out in equation.outputs]
                if all(g is None for g in arriving):
                    continue
                carried = [i for i, atom in enumerate(equation.inputs) if self._carries(i, atom, equation)]
                for i in carried:
                    if equation.inputs[i] in unsummed:
                        sums[equation.inputs[i]].append(VariableUse(equation, i, self._arguments(equation), arriving))
                carried = [i for i in carried if equation.inputs[i] not in unsummed]
                for i, cotangent in self._step(equation, carried, arriving) if carried else ():
                    atom = equation.inputs[i]
                    sums[atom] = add(sums.get(atom), cotangent)
        return [sums.get(variable) for variable in self.wanted]

    def _arguments(self, equation: Equation) -> list:
        return [a.value if isinstance(a, Literal) else self.values[a] for a in equation.inputs]

    def _step(self, equation: Equation, carried: list[int], arriving: list) -> list[tuple[int, Any]]:
        if equation.op.pullback is not None:
            pulled = self._pulls[id(equation)](arriving)
            return [(i, pulled[i]) for i in carried if pulled[i] is not None]
        if equation.op.vjp is None:
            raise _no_derivative(equation)
        results = [self.values[out] for out in equation.outputs]
        arguments = self._arguments(equation)
        gs = [zeros(out) if g is None else g for g, out in zip(arriving, results, strict=True)]
        return [(i, _cotangent(equation.op, i, gs, results, arguments, equation.params)) for i in carried]


def _fail(error: GradientError, cotangents: Sequence[Any]) -> list:
    raise error


def transposed(program: Program, avals: Sequence[ShapeDtype], seeds: Sequence[ShapeDtype], where: str) -> Program:
    """The transpose of a linear Program, ``(*leaves, *cotangents) -> cotangents``; the leaves are unused.

    Raises:
        GradientError: if the Program is not linear, so that the transpose uses the leaves.
    """

    def back(*values: Any) -> list:
        leaves, cotangents = values[: len(avals)], values[len(avals) :]
        missing = [None] * (len(program.outputs) - len(seeds))
        result = Tape(program, leaves).backward([*missing, *cotangents])
        return [zeros(leaf) if g is None else g for g, leaf in zip(result, leaves, strict=True)]

    joint = trace_leaves(back, [*avals, *seeds], program.name)
    leaves = set(joint.inputs[len(joint.captured) : len(joint.captured) + len(avals)])
    for equation in joint.equations:
        if not leaves.isdisjoint(equation.inputs):
            raise GradientError(
                where,
                "the function is not linear",
                got=f"{equation.op} of an argument's value, at {equation.source or 'an unknown line'}",
                hint="vjp, which differentiates at a point" if where == "linear_transpose" else "",
            )
    return joint


def _cotangent(op: Op, i: int, gs: list, results: list, arguments: list, params: dict) -> Any:
    """The derivative rule of ``op`` for its argument ``i``."""
    rule = op.vjp_rule(i)
    assert rule is not None
    if len(results) == 1:
        return rule(gs[0], results[0], *arguments, **params)
    return rule(tuple(gs), tuple(results), *arguments, **params)


def evaluate_linear(program: Program, values: Sequence[Any], seeds: Sequence[Any]) -> list[Any]:
    """Evaluates a Program that is linear in its last inputs, the seeds; None stands for a zero, also in the result.

    Results that depend on zeros alone are not computed: times an infinite factor they would be NaN.
    """
    linear = set(program.inputs[len(values) :])

    def apply(equation: Equation, arguments: list) -> Any:
        indices = [i for i, atom in enumerate(equation.inputs) if atom in linear]
        if not indices:
            return equation.op(*arguments, **equation.params)
        linear.update(equation.outputs)
        if all(arguments[i] is None for i in indices):
            return (None,) * len(equation.outputs)
        filled = [zeros(a.aval) if x is None else x for a, x in zip(equation.inputs, arguments, strict=True)]
        return equation.op(*filled, **equation.params)

    return program.evaluate([*values, *seeds], apply)


# -- forwards ----------------------------------------------------------------------------------------------------------


def pushforward(program: Program, leaves: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Runs a Program on leaves and tangents; None stands for a zero tangent, also in the result."""
    wanted = program.inputs[len(program.captured) :]
    moving = {v: t for v, t in zip(wanted, tangents, strict=True) if t is not None and is_float(v)}

    def apply(equation: Equation, arguments: list) -> Any:
        arriving = [moving.get(atom) if isinstance(atom, Variable) else None for atom in equation.inputs]
        if all(t is None for t in arriving) or not any(map(is_float, equation.outputs)):
            return equation.op(*arguments, **equation.params)
        if equation.op.pushforward is not None:
            result, leaving = equation.op.pushforward(tuple(arguments), tuple(arriving), **equation.params)
        else:
            result = equation.op(*arguments, **equation.params)
            results = list(result) if isinstance(result, tuple) else [result]
            leaving = _transposed(equation, arguments, results, arriving)
        for out, tangent in zip(equation.outputs, leaving, strict=True):
            if tangent is not None:
                moving[out] = tangent
        return result

    outputs = program.evaluate([*program.captured, *leaves], apply)
    return outputs, [moving.get(atom) if isinstance(atom, Variable) else None for atom in program.outputs]


def _transposed(equation: Equation, arguments: list, results: list, tangents: list) -> list[Any]:
    """The tangents of one equation's results: its derivative rules, transposed."""
    op, params = equation.op, equation.params
    if op.vjp is None:
        raise _no_derivative(equation)
    active = [i for i, t in enumerate(tangents) if t is not None and op.vjp_rule(i) is not None]
    floats = [i for i, out in enumerate(equation.outputs) if is_float(out)]
    if not active:
        return [None] * len(results)

    def rules(*gs: Any) -> list[Any]:
        full = dict(zip(floats, gs, strict=True))
        gs = [full[i] if i in full else zeros(out) for i, out in enumerate(results)]  # type: ignore[assignment]
        return [_cotangent(op, i, gs, results, arguments, params) for i in active]  # type: ignore[arg-type]

    linear = trace_leaves(rules, [equation.outputs[i].aval for i in floats], op.name)
    pushed = Tape(linear, [zeros(results[i]) for i in floats]).backward([tangents[i] for i in active])
    by_index = dict(zip(floats, pushed, strict=True))
    return [by_index.get(i) for i in range(len(results))]


# -- the split ---------------------------------------------------------------------------------------------------------


def partition(
    program: Program, known: Sequence[bool], free: Sequence[bool] | None = None
) -> tuple[Program, Program, list[bool]]:
    """Splits a closed Program into the part that only needs the known inputs, and the rest.

    The second part recomputes values after a barrier, and values that are cheap to compute from residuals that are kept
    anyway, or from fewer bytes.

    Args:
        program: without captured arrays.
        known: a flag per input: whether the first part gets it.
        free: a flag per input: whether it costs nothing to keep.

    Returns:
        The first Program, from the known inputs to the known outputs and then the residuals; the second, from the
        residuals and then the other inputs to the other outputs; and which outputs are known.
    """
    first = {v for v, is_known in zip(program.inputs, known, strict=True) if is_known}
    computable = set(first)
    kept_free = {v for v, is_free in zip(program.inputs, free or [False] * len(program.inputs), strict=True) if is_free}
    producer: dict[Variable, Equation] = {}
    early: list[Equation] = []
    late: list[Equation] = []
    for equation in program.equations:
        if all(isinstance(atom, Literal) or atom in computable for atom in equation.inputs):
            computable.update(equation.outputs)
            early.append(equation)
        if equation.op.kind != "barrier" and all(isinstance(a, Literal) or a in first for a in equation.inputs):
            first.update(equation.outputs)
            producer.update(dict.fromkeys(equation.outputs, equation))
        else:
            late.append(equation)
    # A known output may come after a barrier: it is computed in the first part, and in the second again.
    is_known = [isinstance(atom, Literal) or atom in computable for atom in program.outputs]
    needed = dict.fromkeys(atom for equation in late for atom in equation.inputs if atom in first)
    position = {out: i for i, equation in enumerate(program.equations) for out in equation.outputs}
    again: set[int] = set()
    waiting = sorted(needed, key=lambda v: position.get(v, -1))
    while waiting:
        variable = waiting.pop()
        equation = producer.get(variable)
        if equation is None or not _is_cheap(equation):
            continue
        equations, sources = _recipe(equation, producer, {*needed, *kept_free})
        new = [atom for atom in sources if atom not in needed and atom not in kept_free]
        if sum(map(_bytes, new)) < _bytes(variable) or not new:
            del needed[variable]
            needed.update(sources)
            again.update(map(id, equations))
            waiting = sorted({*waiting, *sources}, key=lambda v: position.get(v, -1))
    residuals = sorted(needed, key=lambda v: position.get(v, -1))
    chosen = {id(equation) for equation in late} | again
    outputs = zip(program.outputs, is_known, strict=True)
    early_out = [atom for atom, is_early in zip(program.outputs, is_known, strict=True) if is_early]
    late_out = [atom for atom, is_early in outputs if not is_early]
    return (
        flat_program(
            [v for v in program.inputs if v in first],
            early,
            [*early_out, *residuals],
            program.name,
        ),
        flat_program(
            [*residuals, *(v for v in program.inputs if v not in first)],
            [equation for equation in program.equations if id(equation) in chosen],
            late_out,
            program.name,
        ),
        is_known,
    )


# The maximum number of equations that recompute one value.
_MAX_RECOMPUTED = 8


def _recipe(
    equation: Equation, producer: Mapping[Variable, Equation], kept: Collection[Variable]
) -> tuple[list[Equation], dict[Variable, None]]:
    """Collects cheap equations that recompute the result of ``equation``, from ``kept`` variables where possible.

    Returns:
        The equations, and their inputs.
    """
    equations: list[Equation] = []
    sources: dict[Variable, None] = {}
    pending = [equation]
    while pending:
        equation = pending.pop()
        equations.append(equation)
        for atom in equation.inputs:
            if not isinstance(atom, Variable) or atom in sources:
                continue
            maker = producer.get(atom)
            follow = atom not in kept and maker is not None and _is_cheap(maker)
            if follow and len(equations) + len(pending) < _MAX_RECOMPUTED:
                pending.append(maker)
            else:
                sources[atom] = None
    return equations, sources


def _is_cheap(equation: Equation) -> bool:
    if equation.op.kind not in ("pointwise", "injective") or len(equation.outputs) != 1:
        return False
    return equation.op.is_inexpensive(equation.outputs[0].aval.dtype)


def _bytes(variable: Variable) -> int:
    return dims.typical(variable.aval.size) * variable.aval.dtype.itemsize


def flat_program(
    inputs: Sequence[Variable], equations: Sequence[Equation], outputs: Sequence[Atom], name: str
) -> Program:
    """A closed Program of positional arguments that returns a list, without dead code."""
    in_tree, out_tree = tree.structure((tuple(inputs), {})), tree.structure(list(outputs))
    return Program(tuple(inputs), tuple(equations), tuple(outputs), in_tree, out_tree, name=name).without_dead_code()


def needed_inputs(program: Program, used: Sequence[bool]) -> list[bool]:
    """A flag per input of a Program: whether a used output depends on it."""
    live = {atom for atom, flag in zip(program.outputs, used, strict=True) if flag}
    for equation in reversed(program.equations):
        if not live.isdisjoint(equation.outputs):
            live.update(equation.pruned(live).inputs)
    return [v in live for v in program.inputs]


def restricted(program: Program, inputs: Sequence[bool], outputs: Sequence[bool]) -> Program:
    """A closed Program with some of its inputs and outputs."""
    return flat_program(
        [v for v, flag in zip(program.inputs, inputs, strict=True) if flag],
        program.equations,
        [atom for atom, flag in zip(program.outputs, outputs, strict=True) if flag],
        program.name,
    )


def indices_of(flags: Sequence[bool], start: int = 0) -> list[int]:
    """The indices of the flags that are set, counted from ``start``."""
    return [i for i, flag in enumerate(flags, start) if flag]
