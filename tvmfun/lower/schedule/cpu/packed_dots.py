"""Products of narrow numbers: instructions that multiply and add several neighbouring terms at once.

A *word* of 32 bits holds 2 or 4 neighbouring terms of a sum. `with_words` writes a contraction of narrow numbers as one
of words, over an axis that is shorter by that factor; from there on it is scheduled like any other, and only the
register tile knows that what it does to two words and a sum is not `sum + left * right`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import ir, tirx
from tvm.tirx import AttrStmt, Stmt

from tvmfun.core import dims, expressions
from tvmfun.lower.machine import Machine
from tvmfun.lower.schedule.cpu.reduction_passes import MIN_REUSE
from tvmfun.lower.schedule.cpu.stages import Stage
from tvmfun.lower.schedule.cpu.transpose import ramp
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Expr, Size
from tvmfun.lower.tir.walk import called

WORD = "uint32"
WORD_BITS = 32

# At most so many times as many terms as there are, to fill the last word.
MAX_WASTE = 1.5

# A copy of what an operand reads at all points may be so many times as large as the array it reads.
MAX_COPY = 2

PREFIX = "tvmfun_"


@dataclass(frozen=True)
class Dot:
    """An instruction that adds to each number of a vector the products of the terms in two words.

    Args:
        name: what to call it.
        left, right: the dtypes of the terms; they say how many are in a word.
        result: the dtype of the sums.
        vectors: by the bytes of a vector, the feature a processor needs, and LLVM's name of the instruction.
        adds: whether it adds to a sum, or only terms to each other.
        shifted: whether the left numbers are signed, so that 128 has to be added to make terms of them.
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
        """Of a term."""
        return build.bits(self.left)

    @property
    def depth(self) -> int:
        """The terms of a word."""
        return WORD_BITS // self.bits

    @property
    def offset(self) -> Expr:
        """What is added to the left terms of a word, as a word of terms."""
        return tirx.const(sum(1 << (self.bits * (i + 1) - 1) for i in range(self.depth)), WORD)

    def runs_on(self, machine: Machine) -> bool:
        """Whether the processor has it, for its widest vectors."""
        return self.vectors.get(machine.vector_bytes, ("none",))[0] in machine.features

    def takes(self, left: str, right: str, result: str) -> bool:
        """Whether numbers of these dtypes can be its terms."""
        sides = ((left, "int8" if self.shifted else self.left), (right, self.right))
        return result == self.result and all(own in (term, *_WITHIN.get(term, ())) for own, term in sides)

    def is_term(self, dtype: str, is_left: bool) -> bool:
        """Whether numbers of a dtype are terms as they are."""
        return build.bits(dtype) == self.bits and not (is_left and self.shifted)

    def term(self, value: Expr, is_left: bool) -> Expr:
        """The bits of a term."""
        wide = self.left if is_left else self.right
        if build.bits(str(value.ty)) < self.bits:
            value = build.cast(value, wide)
        bits = f"uint{self.bits}"
        value = build.bits_read(value)
        value = value if str(value.ty) == bits else tirx.reinterpret(bits, value)
        return value ^ tirx.const(1 << (self.bits - 1), bits) if is_left and self.shifted else value

    def word(self, terms: Sequence[Expr]) -> Expr:
        """Terms in one word, the first in its lowest bits."""
        total = build.cast(terms[0], WORD)
        for i, term in enumerate(terms[1:], 1):
            total = total | build.cast(term, WORD) << tirx.const(i * self.bits, WORD)
        return total

    def value(self, left: Expr, right: Expr) -> Expr:
        """The products of two words, as a formula; `factors` reads it."""
        return tirx.call_pure_extern(self.result, PREFIX + self.name, left, right)

    def add(self, total: Expr, left: Expr, right: Expr, lanes: int) -> Expr:
        """The instruction on vectors; what surrounds it has to be `with_definition`."""
        return tirx.call_pure_extern(f"{self.result}x{lanes}", PREFIX + self.name, total, left, right)

    def with_definition(self, stmt: Stmt, lanes: int) -> Stmt:
        """A statement and the function that it calls: TVM itself has no vectors of LLVM's bfloat."""
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

# The dtypes whose numbers another one has, too.
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

# The fastest first. Those of integers are exact modulo 2**32.
DOTS = (
    Dot("dpbf16ps", "bfloat16", "bfloat16", "float32", _BF16),
    Dot("dpbusd", "uint8", "int8", "int32", _QUADS),
    Dot("dpbusd_shifted", "uint8", "int8", "int32", _QUADS, shifted=True),
    Dot("dpwssd", "int16", "int16", "int32", _ADDED_PAIRS),
    Dot("pmaddwd", "int16", "int16", "int32", _PAIRS, adds=False),
)
_BY_NAME = {PREFIX + dot.name: dot for dot in DOTS}


def factors(value: Expr) -> tuple[Expr, Expr, Dot | None] | None:
    """The operands of a product: of numbers, or of words by an instruction."""
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
    """A contraction of narrow numbers as one of words.

    Args:
        stage: the sum.
        contraction: its operands.
        machine: what for.
        promoted: buffers whose numbers are wider than their dtype says.

    Returns:
        What has to be computed before, and the contraction; None if no instruction fits.
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
    """The words to copy, the copies, and the contraction."""
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
    """What is converted before it is multiplied."""
    return value.value if isinstance(value, tirx.Cast) else None


@dataclass(frozen=True)
class _Array:
    """An operand as an array, and the place that is read: what it loads from, or a new one over its own axes."""

    shape: tuple[Size, ...]
    index: tuple[Expr, ...]
    read: Callable[[Sequence[Expr]], Expr]
    buffer: tirx.Buffer | None

    def place(self, axis: Axis) -> int | None:
        """The dimension along which an axis runs, and nothing else does."""
        places = [i for i, index in enumerate(self.index) if build.uses(index, axis.var)]
        return places[0] if len(places) == 1 and self.index[places[0]].same_as(axis.var) else None


def _arrays(stage: Stage, value: Expr):
    """The arrays that an operand may be seen as."""
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
    """How to get at the words of an operand: the formula of one, and the copy that it reads if it needs one."""

    word: Expr
    copy: Stage | None = None

    @property
    def cost(self) -> int:
        """The words to copy."""
        return 0 if self.copy is None else build.points(self.copy.space) * build.bits(self.copy.dtype) // WORD_BITS


class _Packing:
    """A contraction by one instruction, with neighbours along one reduced axis in a word."""

    def __init__(self, stage: Stage, dot: Dot, axis: Axis):
        self.stage, self.dot, self.axis = stage, dot, axis
        self.words = Axis.fresh(axis, build.ceil_div(axis.extent, dot.depth))
        self.is_even = isinstance(axis.extent, int) and axis.extent % dot.depth == 0

    @property
    def waste(self) -> float:
        """How many times as many terms as there are."""
        return build.points([self.words]) * self.dot.depth / max(1, build.points([self.axis]))

    def operand(self, value: Expr, is_left: bool) -> _Words | None:
        """The cheapest way to the words of an operand; None if it would not pay."""
        if not build.uses(value, self.axis.var):
            return None
        ways = [way for array in _arrays(self.stage, value) for way in self._ways(array, value, is_left)]
        if not ways and not is_left:
            ways.append(
                _Words(self._joined(lambda k: build.substitute(value, {self.axis.var: k}), self.words.var, False))
            )
        return min(ways, key=lambda way: way.cost) if ways else None

    def _ways(self, array: _Array, value: Expr, is_left: bool):
        dot, place = self.dot, array.place(self.axis)
        if place is None:
            return
        lies = place == len(array.shape) - 1
        if lies and array.buffer is not None and self.is_even and dot.is_term(str(value.ty), is_left):
            yield _Words(self._read(array.buffer, array.index))
        elif is_left or (lies and array.buffer is not None):
            copy = self._copy(array, place, is_left)
            if build.points(self.stage.domain) >= MIN_REUSE * build.points(copy.space):
                index = array.index
                word = self._read(copy.output, index) if lies else copy.output[_with(index, place, self.words.var)]
                yield _Words(word, copy)

    def _read(self, buffer: tirx.Buffer, index: Sequence[Expr]) -> Expr:
        """A word of terms that lie one after the other."""
        return tirx.reinterpret(WORD, buffer[(*index[:-1], ramp(self.words.var * self.dot.depth, self.dot.depth))])

    def _copy(self, array: _Array, place: int, is_left: bool) -> Stage:
        """The operand in words; one term after the other where terms that belong to a word lie that way."""
        lies = place == len(array.shape) - 1
        size = self.words.extent * self.dot.depth if lies else self.words.extent
        sizes = _with(array.shape, place, size)
        axes = [Axis(ir.Var("i", index.ty), extent) for index, extent in zip(array.index, sizes, strict=True)]
        at = tuple(build.index(axis, 0) if axis.extent == 1 else axis.var for axis in axes)
        term = lambda k: array.read(_with(at, place, k))
        value = self._term(term, at[place], is_left) if lies else self._joined(term, at[place], is_left)
        name = f"{self.stage.name}_{'left' if is_left else 'right'}"
        buffer = build.buffer(sizes, str(value.ty), name)
        return Stage(name, tuple(axis for axis in axes if axis.extent != 1), (), buffer, at, value)

    def _term(self, term: Callable[[Expr], Expr], k: Expr, is_left: bool) -> Expr:
        """The bits of a term, or 0 after the last one."""
        bits = self.dot.term(term(k), is_left)
        if self.is_even:
            return bits
        return tirx.if_then_else(k < build.index(self.axis, self.axis.extent), bits, build.zero(str(bits.ty)))

    def _joined(self, term: Callable[[Expr], Expr], word: Expr, is_left: bool) -> Expr:
        depth = self.dot.depth
        return self.dot.word([self._term(term, word * depth + i, is_left) for i in range(depth)])


def _with(items: Sequence, place: int, item) -> tuple:
    """The items with another one at a place."""
    return (*items[:place], item, *items[place + 1 :])
