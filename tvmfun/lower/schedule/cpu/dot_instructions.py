"""Instructions that multiply and add several neighbouring terms of narrow numbers at once.

A *packed word* of 32 bits holds 2 or 4 neighbouring terms of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.tirx import AttrStmt, Stmt

from tvmfun.lower.machine import Machine
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Expr, Size
from tvmfun.lower.tir.walk import called
from tvmfun.ops.formula import bfloat16_bits

WORD = "uint32"
WORD_BITS = 32

PREFIX = "tvmfun_"


@dataclass(frozen=True)
class Dot:
    """An instruction that adds the products of the terms in two packed words to each lane of a vector.

    Args:
        name: its name in generated functions.
        left, right: the dtypes of the terms, which determine how many fit a word.
        result: the dtype of the sums.
        vectors: by vector width in bytes, the required processor feature and LLVM's name of the instruction, that of
            its intrinsic or, for tiles, of its assembly.
        adds: whether it adds to a sum, or only adds up the products of a word.
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
        if wide == "bfloat16" and isinstance(value, tirx.Cast) and str(value.value.ty).startswith(("int", "uint")):
            # TVM rounds integers by an expression that it does not vectorize inside a word.
            value = bfloat16_bits(value.value)
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

    def span(self, words: Size) -> int:
        """The number of words along the reduced axis that one instruction multiplies, if there are ``words`` in all."""
        return 1

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
        return _importing(text, stmt)


# The rows of a tile of AMX, and the words of a row.
TILE_ROWS = TILE_WORDS = 16

# The most words of padded rows, relative to those of the factor.
_MOST_PADDING = 1.25

# With fewer rows, columns or words, most of a tile would be empty, and vectors take less time.
FEWEST = 8


@dataclass(frozen=True)
class AmxDot(Dot):
    """An instruction of AMX, which multiplies whole tiles of packed words.

    A tile has up to 16 rows of 64 bytes. The left tile has a row of words for each row of the result, the right tile a
    row of 16 words for each word of a left row. Tiles are loaded only from memory, and stored only to it.
    """

    def span(self, words: Size) -> int:
        """The words of a left row: about as many as a tile holds, so that little or no padding is needed.

        An instruction takes as long for fewer words. Rows that are padded anyway fill whole lines if that adds little.
        """
        if not isinstance(words, int) or not words:
            return TILE_WORDS
        even = next((span for span in range(TILE_WORDS, TILE_WORDS // 2, -1) if words % span == 0), None)
        steps = build.ceil_div(words, TILE_WORDS)
        is_little = steps * TILE_WORDS <= _MOST_PADDING * words
        return even or (TILE_WORDS if is_little else build.ceil_div(words, steps))

    def with_definitions(self, stmt: Stmt, shapes: Sequence[tuple[int, int]]) -> Stmt:
        """The statement with the definitions, in LLVM, of the functions that it calls.

        Args:
            stmt: calls :meth:`call`.
            shapes: the numbers of tiles along the rows and the columns of blocks that it computes.
        """
        return _importing(_TILES + "".join(_block(self.name, *shape) for shape in shapes), stmt)

    def call(self, function: str, shape: tuple[int, int] | None, *arguments: Expr) -> Stmt:
        """A call of a function of :meth:`with_definitions`; names of a block's functions contain its shape."""
        name = "tiles" if shape is None else f"{self.name}_{shape[0]}x{shape[1]}"
        arguments = tuple(build.cast(x, "int32") if _is_integer(x) else x for x in arguments)
        return tirx.Evaluate(tirx.call_extern("int32", f"{PREFIX}{name}_{function}", *arguments))


def _is_integer(value: Expr) -> bool:
    return str(value.ty).startswith("int")


def _importing(text: str, stmt: Stmt) -> Stmt:
    return AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", ir.StringImm(text), stmt)


# The first tile of left factors; tiles 0 to 3 hold sums.
_LEFT = 4
# The first tile of right factors; the last one is 7.
_RIGHT = 6
# The offset of the bytes per row of tile 0 in the configuration; the other tiles follow.
_BYTES_AT = 16
# The offset of the number of rows of tile 0.
_ROWS_AT = 48


def _configure() -> str:
    """The stores of a configuration: tiles of ``%rows`` rows, and ``%span`` words in a row of a left factor."""
    sums, left, right = range(_LEFT), range(_LEFT, _RIGHT), range(_RIGHT, 8)
    fields = [(_ROWS_AT + i, "i8 %narrow") for i in (*sums, *left)] + [(_ROWS_AT + i, "i8 %deep") for i in right]
    fields += [(_BYTES_AT + 2 * i, "i16 64") for i in (*sums, *right)]
    fields += [(_BYTES_AT + 2 * i, "i16 %bytes") for i in left]
    at = lambda i, value: f"  %p{i} = getelementptr i8, ptr %config, i64 {i}\n  store {value}, ptr %p{i}\n"
    return "".join(at(*field) for field in fields)


def _assembly(lines: Sequence[str], *operands: str) -> str:
    """A statement of LLVM of these instructions, in which ``$0`` is the first operand.

    With intrinsics instead, LLVM's scheduler would rename tiles after register allocation, although their shapes
    differ.
    """
    changed = [f"~{{tmm{i}}}" for i in range(8)] + ["~{memory}"]
    types = ", ".join(f"{'i64' if name.endswith('step') else 'ptr'} {name}" for name in operands)
    constraints = ",".join(["r"] * len(operands) + changed)
    return f'  call void asm sideeffect "{"; ".join(lines)}", "{constraints}"({types})\n'


_TILES = f"""
define linkonce_odr i32 @{PREFIX}tiles_configure(i32 %rows, i32 %span) alwaysinline {{
  %config = alloca [64 x i8], align 64
  call void @llvm.memset.p0.i64(ptr %config, i8 0, i64 64, i1 false)
  store i8 1, ptr %config
  %narrow = trunc i32 %rows to i8
  %deep = trunc i32 %span to i8
  %wide = shl i32 %span, 2
  %bytes = trunc i32 %wide to i16
{_configure()}{_assembly(["ldtilecfg ($0)"], "%config")}  ret i32 0
}}
define linkonce_odr i32 @{PREFIX}tiles_release() alwaysinline {{
{_assembly(["tilerelease"])}  ret i32 0
}}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""


def _next_tiles(first: str, across: int) -> str:
    """The addresses of the tiles to the right of the first one of a row, whose name ends in 0."""
    return "".join(f"  {first}{j} = getelementptr i8, ptr {first}0, i64 {64 * j}\n" for j in range(1, across))


def _block(multiply: str, down: int, across: int) -> str:
    """The functions of a block of tiles: start at zero or at sums in memory, multiply and add, and store the sums.

    The second tile along the rows starts ``%second`` rows after the first; they may overlap.
    """
    places = [(i, j) for i in range(down) for j in range(across)]
    corners = [f"%c{i}{j}" for i, j in places]
    at = [f"(${n},${len(places)},1)" for n in range(len(places))]
    clear = _assembly([f"tilezero %tmm{k}" for k in range(len(places))])
    load = [f"tileloadd {memory}, %tmm{k}" for k, memory in enumerate(at)]
    store = [f"tilestored %tmm{k}, {memory}" for k, memory in enumerate(at)]
    addresses = """  %step = sext i32 %stride to i64
  %rows = sext i32 %second to i64
  %below = mul i64 %rows, %step
  %c10 = getelementptr i8, ptr %c00, i64 %below
"""
    addresses += "".join(_next_tiles(f"%c{i}", across) for i in range(down))
    lefts, rights = [f"%a{i}" for i in range(down)], [f"%b{j}" for j in range(across)]
    operands = [*lefts, *rights, "%a_step", "%b_step"]
    add = []
    for k, (i, j) in enumerate(places):
        left, right = _LEFT + i, _RIGHT + j % 2  # more than two right ones take turns: one product reads each
        if j == 0:
            add.append(f"tileloadd (${i},${down + across},1), %tmm{left}")
        if i == 0:
            add.append(f"tileloadd (${down + j},${down + across + 1},1), %tmm{right}")
        add.append(f"{multiply} %tmm{right}, %tmm{left}, %tmm{k}")
    name = f"{PREFIX}{multiply}_{down}x{across}"
    return f"""
define linkonce_odr i32 @{name}_clear() alwaysinline {{
{clear}  ret i32 0
}}
define linkonce_odr i32 @{name}_load(ptr %c00, i32 %stride, i32 %second) alwaysinline {{
{addresses}{_assembly(load, *corners, "%step")}  ret i32 0
}}
define linkonce_odr i32 @{name}_store(ptr %c00, i32 %stride, i32 %second) alwaysinline {{
{addresses}{_assembly(store, *corners, "%step")}  ret i32 0
}}
define linkonce_odr i32 @{name}_add(
    ptr %a, i32 %a_stride, i32 %second, ptr %b, i32 %b_stride, i32 %span, i32 %steps) alwaysinline {{
entry:
  %a_step = sext i32 %a_stride to i64
  %b_step = sext i32 %b_stride to i64
  %rows = sext i32 %second to i64
  %below = mul i64 %rows, %a_step
  %words = sext i32 %span to i64
  %along = shl i64 %words, 2
  %deeper = mul i64 %words, %b_step
  br label %loop
loop:
  %i = phi i32 [0, %entry], [%next, %loop]
  %a0 = phi ptr [%a, %entry], [%a_next, %loop]
  %b0 = phi ptr [%b, %entry], [%b_next, %loop]
  %a1 = getelementptr i8, ptr %a0, i64 %below
{_next_tiles("%b", across)}{_assembly(add, *operands)}  %a_next = getelementptr i8, ptr %a0, i64 %along
  %b_next = getelementptr i8, ptr %b0, i64 %deeper
  %next = add i32 %i, 1
  %more = icmp slt i32 %next, %steps
  br i1 %more, label %loop, label %end
end:
  ret i32 0
}}
"""


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
    AmxDot("tdpbf16ps", "bfloat16", "bfloat16", "float32", {64: ("amx-bf16", "tdpbf16ps")}),
    AmxDot("tdpfp16ps", "float16", "float16", "float32", {64: ("amx-fp16", "tdpfp16ps")}),
    AmxDot("tdpbssd", "int8", "int8", "int32", {64: ("amx-int8", "tdpbssd")}),
    AmxDot("tdpbsud", "int8", "uint8", "int32", {64: ("amx-int8", "tdpbsud")}),
    AmxDot("tdpbusd", "uint8", "int8", "int32", {64: ("amx-int8", "tdpbusd")}),
    AmxDot("tdpbuud", "uint8", "uint8", "int32", {64: ("amx-int8", "tdpbuud")}),
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
