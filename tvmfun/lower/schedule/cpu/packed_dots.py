"""Products of narrow numbers: instructions that multiply and add several neighbouring terms at once.

A *packed word* of 32 bits holds 2 or 4 neighbouring terms of a sum. :func:`with_words` turns a contraction of narrow
numbers into one of packed words, over an axis that is shorter by that factor. It is scheduled like any other; only the
register tile combines two words and a sum by an instruction instead of ``sum + left * right``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import ir, tirx

from tvmfun.core import dims, expressions
from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule.cpu.dot_instructions import DOTS, FEWEST, WORD, WORD_BITS, AmxDot, Dot
from tvmfun.lower.schedule.cpu.transpose import ramp
from tvmfun.lower.schedule.reduction_passes import MIN_REUSE
from tvmfun.lower.schedule.stages import Stage
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Expr, Size

# The most terms, padding of the last word included, per actual term.
MAX_WASTE = 1.5

# The largest copy of an operand, relative to the arrays that it reads.
MAX_COPY = 2


def with_words(
    stage: Stage, contraction, machine: Machine, promoted: Sequence[tirx.Buffer]
) -> tuple[list[Stage], Stage] | None:
    """Turns a contraction of narrow numbers into one of packed words.

    Args:
        stage: the contraction.
        contraction: its operands.
        machine: the processor.
        promoted: buffers that will hold wider numbers than their dtype says.

    Returns:
        The stages that pack operands, and the contraction; None if no instruction fits.
    """
    sides = _narrow(contraction.left), _narrow(contraction.right)
    if sides[0] is None or sides[1] is None:
        return None
    if any(load.source.same_as(buffer) for side in sides for load in build.loads(side) for buffer in promoted):
        return None
    free = contraction.row, contraction.column
    for dot in DOTS:
        if not dot.runs_on(machine) or not dot.takes(*(str(side.ty) for side in sides), stage.dtype):
            continue
        if dot.shifted and not all(isinstance(axis.extent, int) for axis in stage.reduce):
            continue
        if isinstance(dot, AmxDot) and any(build.points([axis]) < FEWEST for axis in free):
            continue
        found = [packed for axis in reversed(stage.reduce) if (packed := _packed(stage, dot, axis, free[0], *sides))]
        if found:
            return min(found, key=lambda packed: packed[0])[1:]
    return None


def _packed(
    stage: Stage, dot: Dot, axis: Axis, row: Axis, left: Expr, right: Expr
) -> tuple[int, list[Stage], Stage] | None:
    """The number of words to copy, the stages that copy them, and the contraction."""
    packing = _Packing(stage, dot, axis)
    sides = packing.operand(left, True), packing.operand(right, False)
    useful = packing.waste <= MAX_WASTE and dims.always_le(1, packing.words.extent)
    if not useful or sides[0] is None or sides[1] is None:
        return None
    value = dot.value(*(side.word for side in sides))
    others = [other for other in stage.reduce if other is not axis]
    if not isinstance(dot, AmxDot):
        reduce = tuple(packing.words if other is axis else other for other in stage.reduce)
    elif packing.span < FEWEST or row_stride(sides[0].word, row, stage.domain) is None:
        return None
    else:  # the words of an instruction are the last axis, so that they follow one another in a panel
        steps, within = Axis.fresh(axis, packing.steps), Axis.fresh(axis, packing.span)
        value = build.substitute(value, {packing.words.var: steps.var * packing.span + within.var})
        reduce = (*others, steps, within)
    copies = [copy for side in sides for copy in side.copies]
    return sum(side.cost for side in sides), copies, replace(stage, reduce=reduce, value=value)


def row_stride(word: Expr, row: Axis, domain: Sequence[Axis]) -> Size | None:
    """The bytes from a packed word in memory to that of the next row, or None if that varies."""
    load = first_load(word)
    step = build.stride(load.source, load.indices, row, domain)
    return None if step is None else step * build.bits(str(load.source.dtype)) // 8


def first_load(word: Expr) -> ir.TensorLoad:
    """The load of the first term of a packed word in memory, or of the word itself."""
    load = build.bits_read(word)
    *outer, last = load.indices
    return load.source[(*outer, last.base if isinstance(last, tirx.Ramp) else last)]


def _narrow(value: Expr) -> Expr | None:
    """The operand of a conversion, or None."""
    return value.value if isinstance(value, tirx.Cast) else None


@dataclass(frozen=True)
class _Array:
    """An operand as an element of an array: of the one that it loads from, or of a new one over its axes."""

    shape: tuple[Size, ...]
    index: tuple[Expr, ...]
    read: Callable[[Sequence[Expr]], Expr]
    buffer: tirx.Buffer | None

    def dimension(self, axis: Axis) -> int | None:
        """The dimension whose index is this axis, or None if the axis occurs in other indices."""
        found = [i for i, index in enumerate(self.index) if build.uses(index, axis.var)]
        return found[0] if len(found) == 1 and self.index[found[0]].same_as(axis.var) else None


def _arrays(stage: Stage, value: Expr):
    """Yields the arrays that an operand can be regarded as an element of."""
    load = build.bits_read(value)
    if isinstance(load, ir.TensorLoad):
        shape = tuple(map(expressions.to_size, load.source.shape))
        yield _Array(shape, tuple(load.indices), lambda at: load.source[tuple(at)], load.source)
    axes = [axis for axis in stage.domain if build.uses(value, axis.var)]
    loaded = sum(dims.typical(math.prod(map(expressions.to_size, load.source.shape))) for load in build.loads(value))
    if build.points(axes) <= MAX_COPY * loaded:
        names = [axis.var for axis in axes]
        read = lambda at: build.substitute(value, dict(zip(names, at, strict=True)))
        yield _Array(tuple(axis.extent for axis in axes), tuple(names), read, None)


@dataclass(frozen=True)
class _Words:
    """A word of an operand as an expression, and the stages that copy the words, if any are needed."""

    word: Expr
    copies: tuple[Stage, ...] = ()

    @property
    def cost(self) -> int:
        """The number of words to copy."""
        return sum(build.points(copy.space) * build.bits(copy.dtype) // WORD_BITS for copy in self.copies)


class _Packing:
    """A contraction by one instruction, with neighbours along one reduced axis in a word."""

    def __init__(self, stage: Stage, dot: Dot, axis: Axis) -> None:
        self.stage, self.dot, self.axis = stage, dot, axis
        words = build.ceil_div(axis.extent, dot.depth)
        self.span = dot.span(words)
        self.steps = build.ceil_div(words, self.span)
        self.words = Axis.fresh(axis, self.steps * self.span)
        self.is_even = isinstance(axis.extent, int) and self.words.extent * dot.depth == axis.extent

    @property
    def waste(self) -> float:
        """Terms, padding included, per actual term."""
        return build.points([self.words]) * self.dot.depth / max(1, build.points([self.axis]))

    def operand(self, value: Expr, is_left: bool) -> _Words | None:
        """The cheapest words of an operand; None if packing does not pay."""
        if not build.uses(value, self.axis.var):
            return None
        ways = [way for array in _arrays(self.stage, value) for way in self._ways(array, value, is_left)]
        if not ways and not is_left:
            ways.append(
                _Words(self._joined(lambda k: build.substitute(value, {self.axis.var: k}), self.words.var, False))
            )
        return min(ways, key=lambda way: way.cost) if ways else None

    def _ways(self, array: _Array, value: Expr, is_left: bool):
        dot, dim = self.dot, array.dimension(self.axis)
        if dim is None:
            return
        is_last = dim == len(array.shape) - 1
        if is_last and array.buffer is not None and self.is_even and dot.is_term(str(value.ty), is_left):
            yield _Words(self._packed_word(array.buffer, array.index))
        elif is_left or (is_last and array.buffer is not None):
            copy = self._copy(array, dim, is_left)
            if build.points(self.stage.domain) < MIN_REUSE * build.points(copy.space):
                return
            index = _replace_item(array.index, dim, self.words.var)
            if is_last:
                yield _Words(self._packed_word(copy.output, array.index), (copy,))
            elif isinstance(dot, AmxDot):  # whose left rows are contiguous
                turned = _with_last(copy, dim)
                yield _Words(turned.output[_moved_last(index, dim)], (copy, turned))
            else:
                yield _Words(copy.output[index], (copy,))

    def _packed_word(self, buffer: tirx.Buffer, index: Sequence[Expr]) -> Expr:
        """A word of terms that are contiguous in memory."""
        return tirx.reinterpret(WORD, buffer[(*index[:-1], ramp(self.words.var * self.dot.depth, self.dot.depth))])

    def _copy(self, array: _Array, dim: int, is_left: bool) -> Stage:
        """The stage that packs an operand, term by term along the last dimension and word by word otherwise."""
        is_last = dim == len(array.shape) - 1
        size = self.words.extent * self.dot.depth if is_last else self.words.extent
        sizes = _replace_item(array.shape, dim, size)
        axes = [Axis(ir.Var("i", index.ty), extent) for index, extent in zip(array.index, sizes, strict=True)]
        at = tuple(build.index(axis, 0) if axis.extent == 1 else axis.var for axis in axes)
        term = lambda k: array.read(_replace_item(at, dim, k))
        value = self._term(term, at[dim], is_left) if is_last else self._joined(term, at[dim], is_left)
        name = f"{self.stage.name}_{'left' if is_left else 'right'}"
        buffer = build.buffer(sizes, str(value.ty), name)
        return Stage(name, tuple(axis for axis in axes if axis.extent != 1), (), buffer, at, value)

    def _term(self, term: Callable[[Expr], Expr], k: Expr, is_left: bool) -> Expr:
        """The bits of a term, or 0 past the last one."""
        bits = self.dot.term(term(k), is_left)
        if self.is_even:
            return bits
        return tirx.if_then_else(k < build.index(self.axis, self.axis.extent), bits, build.zero(str(bits.ty)))

    def _joined(self, term: Callable[[Expr], Expr], word: Expr, is_left: bool) -> Expr:
        depth = self.dot.depth
        return self.dot.word([self._term(term, word * depth + i, is_left) for i in range(depth)])


def _replace_item(items: Sequence, dim: int, item) -> tuple:
    """The items with the one at a position replaced."""
    return (*items[:dim], item, *items[dim + 1 :])


def _moved_last(items: Sequence, dim: int) -> tuple:
    """The items with the one at a position moved to the end."""
    return (*items[:dim], *items[dim + 1 :], items[dim])


def _with_last(copy: Stage, dim: int) -> Stage:
    """The stage that copies the result of another one, with a dimension moved to the end."""
    axes = {axis.var: Axis.fresh(axis, axis.extent) for axis in copy.space}
    at = tuple(axes[index].var if index in axes else index for index in copy.index)
    sizes = tuple(map(expressions.to_size, copy.output.shape))
    buffer = build.buffer(_moved_last(sizes, dim), copy.dtype, f"{copy.name}_rows")
    space = tuple(axis for axis in _moved_last(tuple(axes.get(index) for index in copy.index), dim) if axis is not None)
    return Stage(buffer.name, space, (), buffer, _moved_last(at, dim), copy.output[at])
