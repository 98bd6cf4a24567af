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
from tvm.tirx import AttrStmt, Stmt

from tvmfun.core import dims, expressions
from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule.cpu.transpose import ramp
from tvmfun.lower.schedule.reduction_passes import MIN_REUSE
from tvmfun.lower.schedule.stages import Stage
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Expr, Size
from tvmfun.lower.tir.walk import called

WORD = "uint32"
WORD_BITS = 32

# The most terms, padding of the last word included, per actual term.
MAX_WASTE = 1.5

# The largest copy of an operand, relative to the arrays that it reads.
MAX_COPY = 2

PREFIX = "tvmfun_"


@dataclass(frozen=True)
class Dot:
    """An instruction that adds the products of the terms in two packed words to each lane of a vector.

    Args:
        name: its name in generated functions.
        left, right: the dtypes of the terms, which determine how many fit a word.
        result: the dtype of the sums.
        vectors: by vector width in bytes, the required processor feature and LLVM's name of the instruction.
        adds: whether it adds to a sum; if not, it only adds the products of a word.
        shifted: whether 128 is added to the left terms, which are signed where the instruction takes unsigned ones.
    """

    name: str
    left: str
    right: str
    result: str
    vectors: dict[int, tuple[str, str]]
    adds: bool = True
    shifted: bool = False

    @property
    def bits(self) -> int:
        """The bits of a term."""
        return build.bits(self.left)

    @property
    def depth(self) -> int:
        """The number of terms in a word."""
        return WORD_BITS // self.bits

    @property
    def offset(self) -> Expr:
        """The shift of the left terms, as a word."""
        return tirx.const(sum(1 << (self.bits * (i + 1) - 1) for i in range(self.depth)), WORD)

    def runs_on(self, machine: Machine) -> bool:
        """Whether the processor has the instruction for its widest vectors."""
        return self.vectors.get(machine.vector_bytes, ("none",))[0] in machine.features

    def takes(self, left: str, right: str, result: str) -> bool:
        """Whether operands of these dtypes can be its terms."""
        sides = ((left, "int8" if self.shifted else self.left), (right, self.right))
        return result == self.result and all(own in (term, *_WITHIN.get(term, ())) for own, term in sides)

    def is_term(self, dtype: str, is_left: bool) -> bool:
        """Whether numbers of a dtype are terms without a conversion."""
        return build.bits(dtype) == self.bits and not (is_left and self.shifted)

    def term(self, value: Expr, is_left: bool) -> Expr:
        """A number as the bits of a term."""
        wide = self.left if is_left else self.right
        if build.bits(str(value.ty)) < self.bits:
            value = build.cast(value, wide)
        bits = f"uint{self.bits}"
        value = build.bits_read(value)
        value = value if str(value.ty) == bits else tirx.reinterpret(bits, value)
        return value ^ tirx.const(1 << (self.bits - 1), bits) if is_left and self.shifted else value

    def word(self, terms: Sequence[Expr]) -> Expr:
        """The word of these terms, the first in the lowest bits."""
        total = build.cast(terms[0], WORD)
        for i, term in enumerate(terms[1:], 1):
            total = total | build.cast(term, WORD) << tirx.const(i * self.bits, WORD)
        return total

    def value(self, left: Expr, right: Expr) -> Expr:
        """The sum of the products of two words, as an expression that :func:`factors` recognizes."""
        return tirx.call_pure_extern(self.result, PREFIX + self.name, left, right)

    def add(self, total: Expr, left: Expr, right: Expr, lanes: int) -> Expr:
        """The instruction on vectors, valid inside :meth:`with_definition`."""
        return tirx.call_pure_extern(f"{self.result}x{lanes}", PREFIX + self.name, total, left, right)

    def with_definition(self, stmt: Stmt, lanes: int) -> Stmt:
        """The statement with the definition, in LLVM, of the function that it calls; TVM lacks vectors of bfloat."""
        sums = f"<{lanes} x {_LLVM.get(self.result, 'i32')}>"
        words, terms = f"<{lanes} x i32>", f"<{lanes * self.depth} x {_LLVM.get(self.left, f'i{self.bits}')}>"
        _, intrinsic = self.vectors[lanes * WORD_BITS // 8]
        total = f"{sums} %total, " if self.adds else ""
        text = f"""
define linkonce_odr {sums} @{PREFIX}{self.name}({sums} %total, {words} %left, {words} %right) alwaysinline {{
  %x = bitcast {words} %left to {terms}
  %y = bitcast {words} %right to {terms}
  %dot = call {sums} @{intrinsic}({total}{terms} %x, {terms} %y)
  {"" if self.adds else f"%sum = add {sums} %total, %dot"}
  ret {sums} {"%dot" if self.adds else "%sum"}
}}
declare {sums} @{intrinsic}({f"{sums}, " if self.adds else ""}{terms}, {terms})
"""
        return AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", ir.StringImm(text), stmt)


_LLVM = {"float32": "float", "bfloat16": "bfloat"}

# Dtypes whose numbers can all be represented in another one.
_WITHIN = {"int16": ("int8", "uint8")}

_BF16 = {64: ("avx512bf16", "llvm.x86.avx512bf16.dpbf16ps.512")}
_QUADS = {
    32: ("avxvnni", "llvm.x86.avx512.vpdpbusd.256"),
    64: ("avx512vnni", "llvm.x86.avx512.vpdpbusd.512"),
}
_ADDED_PAIRS = {
    32: ("avxvnni", "llvm.x86.avx512.vpdpwssd.256"),
    64: ("avx512vnni", "llvm.x86.avx512.vpdpwssd.512"),
}
_PAIRS = {
    16: ("sse2", "llvm.x86.sse2.pmadd.wd"),
    32: ("avx2", "llvm.x86.avx2.pmadd.wd"),
    64: ("avx512bw", "llvm.x86.avx512.pmaddw.d.512"),
}

# The fastest first. Integer instructions are exact modulo 2**32.
DOTS = (
    Dot("dpbf16ps", "bfloat16", "bfloat16", "float32", _BF16),
    Dot("dpbusd", "uint8", "int8", "int32", _QUADS),
    Dot("dpbusd_shifted", "uint8", "int8", "int32", _QUADS, shifted=True),
    Dot("dpwssd", "int16", "int16", "int32", _ADDED_PAIRS),
    Dot("pmaddwd", "int16", "int16", "int32", _PAIRS, adds=False),
)
_BY_NAME = {PREFIX + dot.name: dot for dot in DOTS}


def factors(value: Expr) -> tuple[Expr, Expr, Dot | None] | None:
    """The operands of a product, and the instruction if they are packed words."""
    if isinstance(value, tirx.Mul):
        return value.a, value.b, None
    if called(value) == "tirx.call_pure_extern":
        name, *words = value.args
        dot = _BY_NAME.get(name.value)
        return None if dot is None else (*words, dot)
    return None


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
    for dot in DOTS:
        if not dot.runs_on(machine) or not dot.takes(*(str(side.ty) for side in sides), stage.dtype):
            continue
        if dot.shifted and not all(isinstance(axis.extent, int) for axis in stage.reduce):
            continue
        found = [packed for axis in reversed(stage.reduce) if (packed := _packed(stage, dot, axis, *sides))]
        if found:
            return min(found, key=lambda packed: packed[0])[1:]
    return None


def _packed(stage: Stage, dot: Dot, axis: Axis, left: Expr, right: Expr) -> tuple[int, list[Stage], Stage] | None:
    """The number of words to copy, the stages that copy them, and the contraction."""
    packing = _Packing(stage, dot, axis)
    sides = packing.operand(left, True), packing.operand(right, False)
    useful = packing.waste <= MAX_WASTE and dims.always_le(1, packing.words.extent)
    if not useful or sides[0] is None or sides[1] is None:
        return None
    reduce = tuple(packing.words if other is axis else other for other in stage.reduce)
    narrow = replace(stage, reduce=reduce, value=dot.value(*(side.word for side in sides)))
    copies = [side.copy for side in sides if side.copy is not None]
    return sum(side.cost for side in sides), copies, narrow


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
    """Yields the arrays of which an operand can be regarded as an element."""
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
    """A word of an operand as an expression, and the stage that copies the words, if one is needed."""

    word: Expr
    copy: Stage | None = None

    @property
    def cost(self) -> int:
        """The number of words to copy."""
        return 0 if self.copy is None else build.points(self.copy.space) * build.bits(self.copy.dtype) // WORD_BITS


class _Packing:
    """A contraction by one instruction, with neighbours along one reduced axis in a word."""

    def __init__(self, stage: Stage, dot: Dot, axis: Axis) -> None:
        self.stage, self.dot, self.axis = stage, dot, axis
        self.words = Axis.fresh(axis, build.ceil_div(axis.extent, dot.depth))
        self.is_even = isinstance(axis.extent, int) and axis.extent % dot.depth == 0

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
            if build.points(self.stage.domain) >= MIN_REUSE * build.points(copy.space):
                index = array.index
                word = (
                    self._packed_word(copy.output, index)
                    if is_last
                    else copy.output[_replace_item(index, dim, self.words.var)]
                )
                yield _Words(word, copy)

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
