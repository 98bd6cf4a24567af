"""Functions of vectors in LLVM's language, for formulas that are too long to be part of every kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cache

from tvmfun.lower.tir.llvm_text import PREFIX, Instructions, declaration, type_of
from tvmfun.lower.tir.vector_math.table import FUNCTIONS, OF_USUAL_ARGUMENTS


@dataclass(frozen=True)
class VectorFunction:
    """A function of one or two vectors.

    Args:
        function: its name in C's math library.
        bits: the size of a float, in bits.
        lanes: the elements of a vector.
        arguments: their number.
    """

    function: str
    bits: int
    lanes: int
    arguments: int

    @property
    def dtype(self) -> str:
        """The type of the arguments and of the result."""
        return f"float{self.bits}" if self.lanes == 1 else f"float{self.bits}x{self.lanes}"

    @property
    def name(self) -> str:
        """The name of the function."""
        return f"{PREFIX}math.{'.'.join(map(str, astuple(self)))}"

    @classmethod
    def of_name(cls, fields: Sequence[str]) -> VectorFunction:
        """The function of a name, from the fields after its kind."""
        return cls(fields[0], *map(int, fields[1:]))

    @cache  # noqa: B019  # there are few functions, and writing one takes milliseconds
    def definition(self) -> str:
        """The function, after the declarations of the functions that it calls."""
        block, vector = Instructions(), type_of(self.dtype)
        values = [block.variable(f"x{i}", self.dtype) for i in range(self.arguments)]
        head = f"define internal {vector} @{self.name}({', '.join(f'{vector} %x{i}' for i in range(self.arguments))})"
        if self.function in OF_USUAL_ARGUMENTS:
            value, is_usual = OF_USUAL_ARGUMENTS[self.function](*values, block.name)
            rest = self._repair(block.operand(value), block.operand(is_usual))
            block.declarations.add(declaration(self._libm, type_of(f"float{self.bits}"), self.arguments))
        else:
            rest = [f"  ret {vector} {block.operand(FUNCTIONS[self.function](*values, block.name))}"]
        body = "\n".join(["entry:", *block.lines, *rest])
        return f"{''.join(sorted(block.declarations))}{head} noinline nounwind {{\n{body}\n}}\n"

    @property
    def _libm(self) -> str:
        return f"{self.function}f" if self.bits == 32 else self.function

    def _repair(self, result: str, usual: str) -> list[str]:
        """Recomputes the lanes with unusual arguments by libm."""
        lanes, scalar = self.lanes, type_of(f"float{self.bits}")
        arguments = ", ".join(f"{scalar} %a{i}" for i in range(self.arguments))
        call = f"  %exact = call {scalar} @{self._libm}({arguments})"
        if lanes == 1:
            return [
                f"  br i1 {usual}, label %end, label %call",
                "call:",
                call.replace("%a", "%x"),
                "  br label %end",
                "end:",
                f"  %result = phi {scalar} [{result}, %entry], [%exact, %call]",
                f"  ret {scalar} %result",
            ]
        vector, truth = type_of(self.dtype), f"<{lanes} x i1>"
        return [
            f"  %unusual = xor {truth} {usual}, splat (i1 true)",
            f"  %bits = bitcast {truth} %unusual to i{lanes}",
            f"  %any = icmp ne i{lanes} %bits, 0",
            "  br i1 %any, label %lane, label %end",
            "lane:",
            "  %i = phi i32 [0, %entry], [%next, %merge]",
            f"  %sofar = phi {vector} [{result}, %entry], [%merged, %merge]",
            f"  %is.unusual = extractelement {truth} %unusual, i32 %i",
            "  br i1 %is.unusual, label %call, label %merge",
            "call:",
            *(f"  %a{i} = extractelement {vector} %x{i}, i32 %i" for i in range(self.arguments)),
            call,
            f"  %repaired = insertelement {vector} %sofar, {scalar} %exact, i32 %i",
            "  br label %merge",
            "merge:",
            f"  %merged = phi {vector} [%sofar, %lane], [%repaired, %call]",
            "  %next = add nuw nsw i32 %i, 1",
            f"  %more = icmp slt i32 %next, {lanes}",
            "  br i1 %more, label %lane, label %end",
            "end:",
            f"  %result = phi {vector} [{result}, %entry], [%merged, %merge]",
            f"  ret {vector} %result",
        ]
