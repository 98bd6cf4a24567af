"""Closed Programs, which ops contain: their captured values, and the parts of their derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tvmfun.core.array import ShapeDtype
from tvmfun.core.batching import batch
from tvmfun.core.derivative import Tape, flat_program, is_float, partition, trace_leaves
from tvmfun.core.leaf import abstract
from tvmfun.core.program import Program, Variable
from tvmfun.ops import pointwise as pw
from tvmfun.ops import shape as shapes


def closed(fun: Callable, avals: Sequence[ShapeDtype], name: str) -> tuple[Program, tuple]:
    """Traces a function of arrays as a closed Program: captured values become its leading inputs."""
    return closing(trace_leaves(fun, strong(avals), name))


def closing(program: Program) -> tuple[Program, tuple]:
    """A Program with its captured values as ordinary inputs, and those values."""
    if not program.captured:
        return program, ()
    inputs = program.inputs
    same = trace_leaves(lambda *values: program.evaluate(values), [v.aval for v in inputs], program.name)
    return same, program.captured


def strong(avals: Sequence[ShapeDtype]) -> list[ShapeDtype]:
    """The types without weak dtypes."""
    return [ShapeDtype(aval.shape, aval.dtype) for aval in avals]


def stacked(aval: ShapeDtype, length: Any) -> ShapeDtype:
    """The type of ``length`` such arrays, stacked along a new first axis."""
    return ShapeDtype((length, *aval.shape), aval.dtype)


def influenced(program: Program, active: Sequence[bool]) -> list[bool]:
    """Flags of the outputs that a derivative with respect to the active inputs reaches."""
    reached = {v for v, flag in zip(program.inputs, active, strict=True) if flag and is_float(v)}
    for equation in program.equations:
        rules = equation.op.vjp
        carries = (
            atom in reached and not (isinstance(rules, tuple) and rules[i] is None)
            for i, atom in enumerate(equation.inputs)
        )
        if any(carries):
            reached.update(filter(is_float, equation.outputs))
    return [atom in reached for atom in program.outputs]


def batched_outputs(program: Program, flags: Sequence[bool], size: Any) -> list[bool]:
    """Flags of the outputs that have a batch axis if these inputs have one."""
    result: list[bool] = []

    def run(*values: Any) -> list:
        outputs, result[:] = batch(program, values, flags)
        return outputs

    avals = [stacked(v.aval, size) if flag else v.aval for v, flag in zip(program.inputs, flags, strict=True)]
    trace_leaves(run, avals, program.name)
    return result


def select(condition: Any, new: Any, old: Any) -> Any:
    """``where`` for one condition per example of a batch, and values with more axes after the batch axis."""
    ndim = abstract(new).ndim
    size = condition.shape[0]
    return pw.where(shapes.reshape(condition, shape=(size, *(1,) * (ndim - 1))), new, old)


class SplitDerivative(NamedTuple):
    """Reverse mode through a Program in two Programs, one for each direction.

    Args:
        forward: ``(*captured, *inputs) -> (*outputs, *kept)``.
        captured: the values that it captures.
        backward: ``(*residuals, *cotangents of the live outputs) -> cotangents of the inputs arriving``, linear in the
            cotangents.
        residuals: the first inputs of ``backward``. They are inputs of ``forward``, or kept.
        kept: the residuals that the forward pass has to keep, in the order in which ``forward`` returns them.
        arriving: the indices of the inputs whose cotangents ``backward`` returns.
    """

    forward: Program
    captured: tuple
    backward: Program
    residuals: tuple[Variable, ...]
    kept: list[Variable]
    arriving: list[int]

    @property
    def inputs(self) -> tuple[Variable, ...]:
        """The variables of the inputs, without the captured values."""
        return self.forward.inputs[len(self.captured) :]

    @property
    def seeds(self) -> tuple[Variable, ...]:
        """The variables of the cotangents of the live outputs."""
        return self.backward.inputs[len(self.residuals) :]


def split_derivative(
    program: Program, live: Sequence[bool], live_out: Sequence[bool], free: Sequence[bool]
) -> SplitDerivative:
    """Splits the derivative of a closed Program into a forward and a backward Program.

    Args:
        program: the Program.
        live: the inputs to differentiate with respect to.
        live_out: the outputs that depend on them.
        free: the inputs that are available in the backward pass anyway, and need not be kept.
    """
    visible, count = len(program.outputs), len(program.inputs)
    present: list[int] = []  # the inputs that get a cotangent

    def joint(*values: Any) -> list:
        tape = Tape(program, values[:count], live)
        seeds = iter(values[count:])
        cotangents = tape.backward([next(seeds) if flag else None for flag in live_out])
        present[:] = [i for i, g in enumerate(cotangents) if g is not None]
        return [*tape.outputs, *(cotangents[i] for i in present)]

    seeds = [aval for aval, flag in zip(program.out_avals, live_out, strict=True) if flag]
    both, captured = closed(joint, [*(v.aval for v in program.inputs), *seeds], program.name)
    inputs = both.inputs[: len(captured) + count]
    is_free = [True] * len(captured) + list(free)
    is_seed = [False] * len(inputs) + [True] * len(seeds)
    early, backward, is_known = partition(both, [not flag for flag in is_seed], [*is_free, *(False for _ in seeds)])
    # A cotangent that does not depend on cotangents of the outputs is zero or does not exist.
    arriving = [i for i, flag in zip(present, is_known[visible:], strict=True) if not flag]
    residuals = backward.inputs[: len(backward.inputs) - len(seeds)]
    available = {v for v, flag in zip(inputs, is_free, strict=True) if flag}
    kept = [v for v in residuals if v not in available]
    forward = flat_program(inputs, early.equations, [*both.outputs[:visible], *kept], program.name)
    return SplitDerivative(forward, captured, backward, residuals, kept, arriving)
