r"""Large intermediates whose rows are aligned to 16 bytes, by additional columns that are not read.

With a vocabulary of 50,257 words, rows of logits are not aligned: threads of a GPU read and store such rows number by
number, and the copy engine cannot move them. With n' instead of n columns, n' the next multiple of 8, and

.. math:: \max_{j < n} x_j = \max_{j < n'} (x'_j \text{ if } j < n \text{ else } -\infty)

the product that makes such an array, and maps of it, compute n' columns. Reductions over the columns leave the last
ones out, and everything else reads the first n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.program import Atom, Equation, Literal, Program, Variable
from tvmfun.lower.rewrite.equations import producers_of
from tvmfun.ops import pointwise as pw
from tvmfun.ops import reduce
from tvmfun.ops.dot import dot_general
from tvmfun.ops.shape import iota, pad, reshape, slice

#: The fewest bytes of an array, in the dtype of its product, for which copying pays.
LEAST_BYTES = 16 << 20
#: The fewest columns: the added ones are then at most 1.4% of them.
LEAST_COLUMNS = 512
# Columns are padded to a multiple of this, 16 bytes in half precision.
_MULTIPLE = 8
# A vector of columns, such as a bias, may be copied if it is at least this many times smaller than the array.
_SMALLER = 64


def align_columns(program: Program) -> Program:
    """Returns the Program with aligned rows in products of many columns, and in maps of these.

    Programs in its loops and branches do not change.

    Args:
        program: without calls, for a GPU.
    """
    aligned = _Pass(program)
    if not aligned.products:
        return program
    for equation in program.equations:
        aligned.add(equation)
    return replace(program, equations=tuple(aligned.equations)).without_dead_code()


class _Pass:
    """The equations of a Program, some of them wider.

    Args:
        program: the Program.
    """

    def __init__(self, program: Program) -> None:
        self.equations: list[Equation] = []
        self._outputs = set(program.outputs)
        self._producers = producers_of(program)
        self._readers: dict[Atom, list[Equation]] = {}
        for equation in program.equations:
            for atom in equation.inputs:
                self._readers.setdefault(atom, []).append(equation)
        # The wider versions of results and of right factors, and the arrays whose old versions exist, too.
        self._wide: dict[Atom, Variable] = {}
        self._factors: dict[Atom, Variable] = {}
        self._kept: set[Atom] = set()
        self._can_be_wide: dict[Atom, bool] = {}
        #: The products whose results get more columns, and the axes of their right factors that are the columns.
        self.products: dict[Atom, int] = {}
        self._to_pad: dict[Atom, int] = {}
        for equation in program.equations:
            axis = _columns_of(equation)
            if axis is None or not self._is_worthwhile(equation.outputs[0]):
                continue
            # A factor gets longer along one axis.
            if self._to_pad.setdefault(self._narrowest(equation.inputs[1]), axis) == axis:
                self.products[equation.outputs[0]] = axis

    def add(self, equation: Equation) -> None:
        """Appends an equation, wider if it can be."""
        if not any(change(equation) for change in (self._product, self._conversion, self._map, self._reduction)):
            if equation.op is dot_general:
                equation = equation._replace(inputs=tuple(map(self._factor, equation.inputs)))
            else:
                for atom in equation.inputs:
                    self._restore(atom)
            self.equations.append(equation)
            self._kept.update(equation.outputs)
        for out in equation.outputs:
            if out in self._outputs:
                self._restore(out)
            if out in self._to_pad and out not in self._factors:
                self._factors[out] = self._padded(out, self._to_pad[out])

    def _is_worthwhile(self, product: Variable) -> bool:
        """Whether a reduction or another product reads a product's result, or maps of it, and no copy is needed.

        Results of the Program, and arguments of loops and sorts, would be copied to arrays of the first columns.
        """
        reached: dict[Atom, None] = {product: None}
        waiting, is_reduced = [product], False
        while waiting:
            atom = waiting.pop()
            if atom in self._outputs:
                return False
            for reader in self._readers.get(atom, ()):
                if _is_map(reader) or _keeps_columns(reader):
                    waiting += [out for out in reader.outputs if out not in reached]
                    reached.update(dict.fromkeys(reader.outputs))
                elif reader.op.kind in ("reduction", "contraction"):
                    is_reduced = True
                elif reader.op.kind != "injective" or reader.op.view:
                    return False
        return is_reduced

    # -- products ------------------------------------------------------------------------------------------------------

    def _narrowest(self, factor: Atom) -> Atom:
        """The array in half precision that a factor is converted from, or the factor itself."""
        atom, narrow = factor, factor
        while (producer := self._producers.get(atom)) is not None and producer.op is pw.astype:
            if atom.aval.dtype.itemsize == 2:
                narrow = atom
            (atom,) = producer.inputs
        return narrow

    def _product(self, equation: Equation) -> bool:
        """Appends an equation with more columns if it is one of the products; returns whether it is."""
        axis = self.products.get(equation.outputs[0])
        if axis is None:
            return False
        left, right = equation.inputs
        left = self._factor(left)
        if right not in self._factors:
            self._factors[right] = self._padded(right, axis)
        self._widen(equation, (left, self._factors[right]))
        return True

    def _conversion(self, equation: Equation) -> bool:
        """Converts all of a wider factor if the equation converts it; returns whether it does."""
        if equation.op is not pw.astype or equation.inputs[0] not in self._factors:
            return False
        (out,), wide = equation.outputs, self._factors[equation.inputs[0]]
        self._factors[out] = Variable(replace(out.aval, shape=wide.aval.shape))
        self.equations.append(equation._replace(inputs=(wide,), outputs=(self._factors[out],)))
        return True

    def _padded(self, atom: Atom, axis: int) -> Variable:
        """Appends an array with zeros after the last index of an axis."""
        self._restore(atom)
        none = (0,) * len(atom.aval.shape)
        more = tuple(_more(size) if i == axis else 0 for i, size in enumerate(atom.aval.shape))
        shape = tuple(size + amount for size, amount in zip(atom.aval.shape, more, strict=True))
        wide = Variable(replace(atom.aval, shape=shape))
        zero = Literal(atom.aval.dtype.type(0))
        self.equations.append(
            Equation(pad, (atom, zero), {"low": none, "high": more, "interior": none}, (wide,), self._source(atom))
        )
        return wide

    # -- maps ----------------------------------------------------------------------------------------------------------

    def _map(self, equation: Equation) -> bool:
        """Widens an equation if it is a map or a view of a wider array and can be wider; returns whether it is."""
        if self._wide.keys().isdisjoint(equation.inputs):
            return False
        if _keeps_columns(equation):
            shape = _wider(equation.outputs[0].aval.shape)
            self._widen(equation._replace(params={**equation.params, "shape": shape}), [self._wide[equation.inputs[0]]])
            return True
        if not _is_map(equation):
            return False
        if not all(self._fits(atom, equation.outputs[0]) for atom in equation.inputs):
            return False
        self._widen(equation, [self._operand(atom, equation.outputs[0]) for atom in equation.inputs])
        return True

    def _fits(self, atom: Atom, result: Variable) -> bool:
        """Whether an operand of a map has one column, or as many as a wider result, or can have as many."""
        if _has_one_column(atom) or atom in self._wide:
            return True
        if atom not in self._can_be_wide:
            producer = self._producers.get(atom)
            is_small = not dims.is_dynamic(atom.aval.shape) and atom.aval.size * _SMALLER <= result.aval.size
            is_map = producer is not None and _is_map(producer)
            made = producer is not None and (
                producer.op is iota
                or (is_map and all(self._fits(each, producer.outputs[0]) for each in producer.inputs))
            )
            self._can_be_wide[atom] = made or is_small
        return self._can_be_wide[atom]

    def _operand(self, atom: Atom, result: Variable) -> Atom:
        """The operand of a wider map; if there is no wider array yet, it is computed again."""
        if _has_one_column(atom):
            return atom
        if atom not in self._wide:
            producer = self._producers.get(atom)
            if producer is not None and producer.op is iota:
                shape = _wider(atom.aval.shape)
                self._widen(producer._replace(params={**producer.params, "shape": shape}), ())
            elif producer is not None and _is_map(producer) and all(self._fits(x, atom) for x in producer.inputs):
                self._widen(producer, [self._operand(each, producer.outputs[0]) for each in producer.inputs])
            else:
                self._wide[atom] = self._padded(atom, len(atom.aval.shape) - 1)
        return self._wide[atom]

    def _widen(self, equation: Equation, inputs: Sequence[Atom]) -> None:
        """Appends an equation with more columns in its result."""
        (out,) = equation.outputs
        self._wide[out] = Variable(replace(out.aval, shape=_wider(out.aval.shape)))
        self.equations.append(equation._replace(inputs=tuple(inputs), outputs=(self._wide[out],)))

    # -- readers -------------------------------------------------------------------------------------------------------

    def _reduction(self, equation: Equation) -> bool:
        """Adapts an equation that reduces a wider array: it leaves columns out, or has more of them itself."""
        if equation.op not in _IDENTITIES or equation.inputs[0] not in self._wide:
            return False
        (atom,), wide = equation.inputs, self._wide[equation.inputs[0]]
        if len(atom.aval.shape) - 1 not in equation.params["axis"]:
            self._widen(equation, (wide,))
            self._restore(equation.outputs[0])
            del self._wide[equation.outputs[0]]  # the result is small, so its readers need no alignment
        elif wide.aval.dtype in _FLOATS:
            identity = wide.aval.dtype.type(_IDENTITIES[equation.op])
            self.equations += _without_last(equation, wide, atom.aval.shape[-1], Literal(identity))
            self._kept.update(equation.outputs)
        else:
            return False
        return True

    def _factor(self, atom: Atom) -> Atom:
        """The old version of an array for one product, which reads it in the wider one.

        If the wider version is converted from half precision, the product reads it in half precision.
        """
        # A computed factor is stored once, with its zeros.
        is_stored_wide = atom in self._factors and atom in self._producers
        if not is_stored_wide and (atom in self._kept or atom not in self._wide):
            return atom
        producer, narrow = self._producers.get(atom), None
        if producer is not None and producer.op is pw.astype:
            narrow = self._wide.get(producer.inputs[0]) or self._factors.get(producer.inputs[0])
        if producer is None or narrow is None or narrow.aval.dtype.itemsize != 2:
            return self._first(self._wide.get(atom) or self._factors[atom], Variable(atom.aval))
        part = self._first(narrow, Variable(producer.inputs[0].aval))
        self.equations.append(producer._replace(inputs=(part,), outputs=(Variable(atom.aval),)))
        return self.equations[-1].outputs[0]

    def _first(self, wide: Variable, out: Variable) -> Variable:
        """Appends the slice of an array's first elements."""
        shape = out.aval.shape
        params = {"start": (0,) * len(shape), "stop": shape, "step": (1,) * len(shape)}
        self.equations.append(Equation(slice, (wide,), params, (out,), self._source(out)))
        return out

    def _restore(self, atom: Atom) -> None:
        """Appends the old version of an array as a slice of the wider one, unless it exists."""
        wide = self._wide.get(atom) or self._factors.get(atom)
        if wide is None or atom in self._kept or not isinstance(atom, Variable) or atom not in self._producers:
            return
        self._kept.add(atom)
        self._first(wide, atom)

    def _source(self, atom: Atom) -> Any:
        producer = self._producers.get(atom)
        return producer.source if producer is not None else None


_FLOATS = (dtypes.float32, dtypes.float16, dtypes.bfloat16)
# The reductions that can leave elements out, with the numbers that replace these.
_IDENTITIES: dict[Any, float] = {reduce.sum: 0.0, reduce.max: -math.inf, reduce.min: math.inf}


def _more(columns: int) -> int:
    """The columns up to the next aligned number."""
    return -columns % _MULTIPLE


def _wider(shape: Sequence[Any]) -> tuple[Any, ...]:
    return (*shape[:-1], shape[-1] + _more(shape[-1]))


def _has_one_column(atom: Atom) -> bool:
    """Whether an operand of a map is repeated along the columns."""
    return atom.aval.shape[-1:] in ((), (1,))


def _is_map(equation: Equation) -> bool:
    return equation.op.kind in ("pointwise", "barrier") and len(equation.outputs) == 1


def _keeps_columns(equation: Equation) -> bool:
    """Whether an equation only changes the axes before the columns."""
    return equation.op is reshape and equation.inputs[0].aval.shape[-1:] == equation.outputs[0].aval.shape[-1:]


def _columns_of(equation: Equation) -> int | None:
    """The axis of the right factor that holds a product's columns, if there should be more; else None."""
    if equation.op is not dot_general or isinstance(equation.inputs[1], Literal):
        return None
    (out,), (_, right) = equation.outputs, equation.inputs
    if dims.is_dynamic((out.aval.shape, right.aval.shape)) or out.aval.dtype not in _FLOATS:
        return None
    contract, batch = equation.params["contract"], equation.params["batch"]
    free = [axis for axis in range(len(right.aval.shape)) if axis not in (*contract[1], *batch[1])]
    is_large = out.aval.size * out.aval.dtype.itemsize >= LEAST_BYTES and right.aval.size < out.aval.size
    columns = right.aval.shape[free[-1]] if free else 0
    return free[-1] if is_large and columns >= LEAST_COLUMNS and columns % _MULTIPLE else None


def _without_last(reduction: Equation, wide: Variable, columns: int, identity: Literal) -> list[Equation]:
    """The reduction of the first columns: the others are replaced.

    Indices have the shape of the array, so that each row is computed from one row.
    """
    shape = wide.aval.shape
    index = Variable(replace(wide.aval, shape=shape, dtype=dtypes.int32))
    exists = Variable(replace(wide.aval, shape=shape, dtype=dtypes.bool_))
    kept = Variable(wide.aval)
    params = {"shape": shape, "axis": len(shape) - 1, "dtype": "int32"}
    return [
        Equation(iota, (), params, (index,), reduction.source),
        Equation(pw.less, (index, Literal(np.int32(columns))), {}, (exists,), reduction.source),
        Equation(pw.where, (exists, wide, identity), {}, (kept,), reduction.source),
        reduction._replace(inputs=(kept,)),
    ]
