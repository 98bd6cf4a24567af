"""Functions of tensors with derivatives of any order: forward and backward are compiled apart.

The forward pass returns what the backward pass needs of it. A backward pass that is to be differentiated itself
(``create_graph=True``) is a function like any other, of the arguments and the cotangents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from tvmfun import dtypes
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.derivative import Tape, partition, trace_leaves, zeros
from tvmfun.core.leaf import abstract
from tvmfun.core.program import Immutable, Program, Variable
from tvmfun.interop.torch.tensors import aval_of, borrowed, owned, to_tensor
from tvmfun.jit import jit
from tvmfun.typing import PyTree


class Split(NamedTuple):
    """The two passes of a function.

    Args:
        early: the compiled function ``(*captured, *leaves) -> (*outputs, *constants, *residuals)``.
        late: the compiled function ``(*values, *cotangents) -> gradients``.
        captured: arrays that the function closes over.
        constants: for each gradient, whether it does not depend on the cotangents.
        sources: what each of the values is: an input, an output or a residual, and its number.
    """

    early: Callable
    late: Callable
    captured: tuple[Array, ...]
    constants: tuple[bool, ...]
    sources: tuple[tuple[str, int], ...]


class Differentiable(Immutable):
    """A compiled function with pullbacks.

    Args:
        function: a function of arrays as positional arguments that returns a tree of arrays.
        name: its name in errors.
    """

    def __init__(self, function: Callable[..., PyTree], name: str) -> None:
        self.function, self.name = function, name
        self._programs: dict[tuple, Program] = {}
        self._compiled: dict[tuple, Callable[..., list]] = {}
        self._splits: dict[tuple, Split] = {}
        self._pullbacks: dict[tuple, Differentiable] = {}

    def program(self, avals: tuple[ShapeDtype, ...]) -> Program:
        """The Program for arguments of these types."""
        if avals not in self._programs:
            self._programs[avals] = trace_leaves(self.function, avals, self.name)
        return self._programs[avals]

    def compiled(self, avals: tuple[ShapeDtype, ...]) -> Callable[..., list]:
        """The compiled function ``(*captured, *leaves) -> outputs`` for arguments of these types."""
        if avals not in self._compiled:
            self._compiled[avals] = _compiled(self.program(avals))
        return self._compiled[avals]

    def pullback(self, avals: tuple[ShapeDtype, ...], wanted: tuple[bool, ...]) -> Differentiable:
        """The function ``(*leaves, *cotangents) -> gradients`` of the leaves that are wanted."""
        key = (avals, wanted)
        if key not in self._pullbacks:
            program = self.program(avals)

            def back(*values: Any) -> list:
                return _gradients(program, values[: len(avals)], values[len(avals) :], wanted)[1]

            self._pullbacks[key] = Differentiable(back, self.name)
        return self._pullbacks[key]

    def split(self, avals: tuple[ShapeDtype, ...], wanted: tuple[bool, ...]) -> Split:
        """The forward and the backward pass for arguments of these types."""
        key = (avals, wanted)
        if key not in self._splits:
            self._splits[key] = _split(self.program(avals), avals, wanted)
        return self._splits[key]


def _gradients(program: Program, leaves: Sequence[Any], cotangents: Sequence[Any], wanted: Sequence[bool]) -> Any:
    """The outputs of a Program, and the cotangents of its leaves for those of its outputs that are floats."""
    tape = Tape(program, leaves, wanted)
    given = iter(cotangents)
    seeds = [next(given) if dtypes.is_float(aval.dtype) else None for aval in program.out_avals]
    results = zip(tape.backward(seeds), leaves, wanted, strict=True)
    return tape.outputs, [zeros(leaf) if g is None else g for g, leaf, is_wanted in results if is_wanted]


def _split(program: Program, avals: tuple[ShapeDtype, ...], wanted: tuple[bool, ...]) -> Split:
    captured, count = program.captured, len(program.captured)
    inputs = [*(array.aval for array in captured), *avals]
    floats = [aval for aval in program.out_avals if dtypes.is_float(aval.dtype)]

    def both(*values: Any) -> list:
        closed = replace(program, captured=tuple(values[:count]))
        outputs, gradients = _gradients(closed, values[count : len(inputs)], values[len(inputs) :], wanted)
        return [*outputs, *gradients]

    joint = trace_leaves(both, [*inputs, *floats], program.name)
    known = [True] * (len(joint.captured) + len(inputs)) + [False] * len(floats)
    free = [True] * (len(joint.captured) + len(inputs)) + [False] * len(floats)
    early, late, is_known = partition(replace(joint, captured=()), known, free)
    outputs, constants = len(program.outputs), tuple(is_known[len(program.outputs) :])
    first = outputs + sum(constants)
    sources, kept = _sources(early, outputs, first)
    early = replace(early, outputs=(*early.outputs[:first], *kept))
    return Split(_compiled(early), _compiled(late), (*joint.captured, *captured), constants, sources)


def _sources(early: Program, outputs: int, first: int) -> tuple[tuple[tuple[str, int], ...], list[Any]]:
    """The source of each residual, and the residuals that are neither inputs nor outputs."""
    known: dict[Any, tuple[str, int]] = {}
    for i, atom in enumerate(early.outputs[:outputs]):
        if isinstance(atom, Variable):
            known.setdefault(atom, ("output", i))
    known.update({variable: ("input", i) for i, variable in enumerate(early.inputs)})
    sources, kept = [], []
    for atom in early.outputs[first:]:
        if atom not in known:
            known[atom] = ("residual", len(kept))
            kept.append(atom)
        sources.append(known[atom])
    return tuple(sources), kept


def _compiled(program: Program) -> Callable[..., list]:
    """A Program as a compiled function of its inputs that returns the list of its outputs."""

    def run(*values: Any) -> list:
        return list(program.evaluate(list(values)))

    run.__name__ = program.name
    return jit(run)


def types_of(leaves: Sequence[Any]) -> tuple[ShapeDtype, ...]:
    """The shapes and dtypes of tensors and numbers."""
    return tuple(aval_of(x) if hasattr(x, "data_ptr") else abstract(x) for x in leaves)


def _arrays(leaves: Sequence[Any]) -> list[Any]:
    return [borrowed(x) if hasattr(x, "data_ptr") else x for x in leaves]


@cache
def _call_class() -> type:
    import torch

    class Call(torch.autograd.Function):
        """A call of a compiled function that autograd records."""

        @staticmethod
        def forward(ctx: Any, function: Differentiable, *leaves: Any) -> tuple:
            wanted, avals = tuple(ctx.needs_input_grad[1:]), types_of(leaves)
            ctx.function, ctx.avals, ctx.wanted = function, avals, wanted
            split, arrays = function.split(avals, wanted), _arrays(leaves)
            results = split.early(*split.captured, *arrays)
            count = len(function.program(avals).outputs)
            ctx.constants = results[count : count + sum(split.constants)]
            ctx.residuals = results[count + sum(split.constants) :]
            fresh = owned(results[:count], [*split.captured, *(x for x in arrays if isinstance(x, Array))])
            outputs = tuple(to_tensor(array) for array in fresh)
            ctx.mark_non_differentiable(*(x for x in outputs if not x.is_floating_point()))
            tensors = [x if hasattr(x, "data_ptr") else None for x in leaves]
            ctx.numbers = [None if tensor is not None else x for tensor, x in zip(tensors, leaves, strict=True)]
            # Autograd notices if one of these is written in place before the backward pass.
            used = {i for kind, i in split.sources if kind == "output"}
            ctx.save_for_backward(*tensors, *(x if i in used else None for i, x in enumerate(outputs)))
            return outputs

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> tuple:
            count = len(ctx.numbers)
            saved = ctx.saved_tensors
            leaves = [n if x is None else x for x, n in zip(saved[:count], ctx.numbers, strict=True)]
            types = ctx.function.program(ctx.avals).out_avals
            floats = [g for g, aval in zip(cotangents, types, strict=True) if dtypes.is_float(aval.dtype)]
            if torch.is_grad_enabled():
                pullback = ctx.function.pullback(ctx.avals, ctx.wanted)
                gradients = apply(pullback, [*leaves, *floats])
            else:
                gradients = _backward(ctx, leaves, saved[count:], floats)
            given = iter(gradients)
            return None, *(next(given) if wanted else None for wanted in ctx.wanted)

    return Call


def _backward(ctx: Any, leaves: list, outputs: Sequence[Any], cotangents: list) -> list:
    """The gradients by the second pass of the split."""
    split = ctx.function.split(ctx.avals, ctx.wanted)
    inputs = [*split.captured, *_arrays(leaves)]
    kept = [None if x is None else borrowed(x) for x in outputs]
    parts = {"input": inputs, "output": kept, "residual": ctx.residuals}
    values = [*(parts[kind][i] for kind, i in split.sources), *_arrays(cotangents)]
    late, fixed = iter(split.late(*values)), iter(ctx.constants)
    gradients = [next(fixed) if is_constant else next(late) for is_constant in split.constants]
    return [to_tensor(array) for array in owned(gradients, [x for x in values if isinstance(x, Array)])]


def apply(function: Differentiable, leaves: Sequence[Any]) -> tuple:
    """Calls a function with tensors and numbers; returns the leaves of its result as tensors that autograd knows."""
    import torch

    if torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in leaves):
        return _call_class().apply(function, *leaves)
    avals = types_of(leaves)
    inputs = [*function.program(avals).captured, *_arrays(leaves)]
    results = owned(function.compiled(avals)(*inputs), [x for x in inputs if isinstance(x, Array)])
    return tuple(to_tensor(array) for array in results)
