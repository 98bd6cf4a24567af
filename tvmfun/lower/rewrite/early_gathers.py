"""Gathers, moved before pointwise operations, which then compute only the elements that are taken.

A cross-entropy takes the logarithm of one probability per row. If it takes the element from the logits, these are
needed only until their softmax is computed, which can then be written over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import ShapeDtype
from tvmfun.core.program import Atom, Equation, Literal, Program, Variable
from tvmfun.lower.rewrite.equations import producers_of, readers_of, with_inner
from tvmfun.ops import shape as shapes
from tvmfun.ops.index import gather

# The array of a gather is at least this many times as large as the elements that are taken.
_TIMES_LARGER = 8


def gather_early(program: Program) -> Program:
    """Moves gathers before pointwise operations in a Program, also in its loops and branches.

    Args:
        program: without calls.
    """
    producers, readers = producers_of(program), readers_of(program)
    equations: list[Equation] = []
    is_same = True
    for equation in program.equations:
        moved = _Gather(equation, producers, readers).moved() if equation.op is gather else []
        new = moved or [with_inner(equation, gather_early)]
        is_same = is_same and new[0] is equation
        equations += new
    if is_same:
        return program
    return replace(program, equations=tuple(equations)).without_dead_code()


@dataclass
class _Gather:
    """A gather, and the elements that it takes of the operands of pointwise operations."""

    equation: Equation
    producers: Mapping[Atom, Equation]
    readers: Mapping[Atom, int]
    added: list[Equation] = field(default_factory=list)
    known: dict[tuple[Atom, tuple[int, ...]], Atom | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.array, self.indices = self.equation.inputs
        self.batch = self.equation.params.get("batch", 0)
        self.end = self.batch + self.indices.aval.shape[-1]  # of the axes that the indices address

    def moved(self) -> list[Equation]:
        """The gathers of operands and the operations on the taken elements; none if that is not worthwhile."""
        x, result = self.array.aval, self.equation.outputs[0].aval
        if dims.is_dynamic((*x.shape, *self.indices.aval.shape)) or self.equation.params["mode"] == "fill":
            return []
        if result.size == 0 or _TIMES_LARGER * result.size > x.size:
            return []
        # If there are other readers, the array may be stored anyway.
        found = self.through(self.array, x.shape) if self.readers[self.array] == 1 else None
        if found is None or found.aval.shape != result.shape:
            return []
        *others, last = self.added  # including dead code of attempts that failed
        assert last.outputs == (found,)
        return [*others, last._replace(outputs=self.equation.outputs)]

    def of(self, atom: Atom, shape: tuple[int, ...]) -> Atom | None:
        """Elements of a value that is broadcast to a shape; None if another array would probably have to be stored."""
        if isinstance(atom, Literal) or atom.aval.ndim == 0:
            return atom
        if (atom, shape) not in self.known:
            self.known[atom, shape] = self.through(atom, shape) or self.direct(atom, shape)
        return self.known[atom, shape]

    def through(self, atom: Atom, shape: tuple[int, ...]) -> Atom | None:
        """Elements of a pointwise operation, computed from those of its operands or of a slice of a larger array."""
        producer = self.producers.get(atom)
        if producer is not None and atom.aval.shape == shape and self.takes_first(producer):
            (source,) = producer.inputs
            return self.of(source, source.aval.shape)
        if producer is None or producer.op.kind != "pointwise" or not producer.inputs:
            return None
        operands = [self.of(operand, shape) for operand in producer.inputs]
        inputs = tuple(operand for operand in operands if operand is not None)
        if len(inputs) < len(operands):
            return None
        return self.add(producer, inputs, np.broadcast_shapes(*(operand.aval.shape for operand in inputs)))

    def takes_first(self, producer: Equation) -> bool:
        """Whether it is a slice of the first elements along axes whose indices are promised to be inside."""
        if producer.op is not shapes.slice or any(producer.params["start"]) or set(producer.params["step"]) != {1}:
            return False
        sizes = zip(producer.inputs[0].aval.shape, producer.outputs[0].aval.shape, strict=True)
        is_kept = all(a == b or self.batch <= axis < self.end for axis, (a, b) in enumerate(sizes))
        return is_kept and self.equation.params["mode"] == "in_bounds"

    def direct(self, atom: Atom, shape: tuple[int, ...]) -> Atom | None:
        """The gather of an array that is stored, or the array in another shape if all indices take the same."""
        own = (*(1,) * (len(shape) - atom.aval.ndim), *atom.aval.shape)
        common, addressed, rest = own[: self.batch], own[self.batch : self.end], own[self.end :]
        if set(addressed) <= {1}:
            return self.reshaped(atom, (*common, *(1,) * (self.indices.aval.ndim - 1 - self.batch), *rest))
        if addressed != shape[self.batch : self.end]:
            return None
        batch = self.batch
        if common == shape[:batch]:
            if not self.is_stored(atom):
                return None
        elif set(common) <= {1}:
            atom, batch = self.reshaped(atom, (*addressed, *rest)), 0
        else:
            return None
        equation = self.equation._replace(params={**self.equation.params, "batch": batch})
        return self.add(equation, (atom, self.indices), (*self.indices.aval.shape[:-1], *rest), atom.aval.dtype)

    def is_stored(self, atom: Atom) -> bool:
        """Whether an array is probably stored anyway: an input, one that others read, or one in half precision."""
        is_half = atom.aval.dtype in (dtypes.float16, dtypes.bfloat16)
        return atom not in self.producers or self.readers[atom] > 1 or is_half

    def reshaped(self, atom: Atom, shape: tuple[int, ...]) -> Atom:
        """A value in another shape."""
        if atom.aval.shape == shape:
            return atom
        equation = Equation(shapes.reshape, (atom,), {"shape": shape}, (), self.equation.source)
        return self.add(equation, (atom,), shape, atom.aval.dtype)

    def add(
        self, like: Equation, inputs: tuple[Atom, ...], shape: tuple[int, ...], dtype: np.dtype | None = None
    ) -> Variable:
        """Adds an equation with these arguments and a result of this shape."""
        result = Variable(ShapeDtype(shape, dtype or like.outputs[0].aval.dtype))
        self.added.append(like._replace(inputs=inputs, outputs=(result,)))
        return result
