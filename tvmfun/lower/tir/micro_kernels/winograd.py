"""The transforms of Winograd's algorithm for convolutions with 3x3 kernels, F(2x2, 3x3) and F(3x3, 2x2).

Each multiplies a square by a small matrix from the left, and by its transpose from the right: ``M s M^T``. The elements
of the square are vectors of neighbouring channels.

Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tvm import tirx
from tvm.tirx import Stmt

from tvmfun.lower.tir.build import Expr
from tvmfun.lower.tir.llvm_text import PREFIX, Instructions, type_of
from tvmfun.lower.tir.micro_kernels.text import call, function, number, offset_by

#: The size of an element in bytes.
_ITEM = 4


def _half(value: Expr) -> Expr:
    return value * tirx.const(0.5, "float32")


def _kernel(g: Sequence[Expr]) -> list[Expr]:
    """G."""
    return [g[0], _half(g[0] + g[2] + g[1]), _half(g[0] + g[2] - g[1]), g[2]]


def _patch(d: Sequence[Expr]) -> list[Expr]:
    """B^T."""
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _result(m: Sequence[Expr]) -> list[Expr]:
    """A^T."""
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


def _cotangent(g: Sequence[Expr]) -> list[Expr]:
    """G of F(3x3, 2x2)."""
    return [g[0], _half(g[0] + g[1]), _half(g[0] - g[1]), g[1]]


def _gradient(m: Sequence[Expr]) -> list[Expr]:
    """A^T of F(3x3, 2x2)."""
    return [m[0] + m[1] + m[2], m[1] - m[2], m[1] + m[2] - m[3]]


class _Matrix(NamedTuple):
    """The sides of the square and of its transform, and the product of the matrix and a column."""

    side: int
    result_side: int
    times: Callable[[Sequence[Expr]], list[Expr]]


_MATRICES = {
    "kernel": _Matrix(3, 4, _kernel),
    "patch": _Matrix(4, 4, _patch),
    "result": _Matrix(4, 2, _result),
    "cotangent": _Matrix(2, 4, _cotangent),
    "gradient": _Matrix(4, 3, _gradient),
}


class Steps(NamedTuple):
    """The elements of an array from one row of a square to the next, and from one column to the next."""

    down: int
    across: int


class Panels(NamedTuple):
    """The vectors of a panel, and the elements from one panel to the next."""

    vectors: int
    step: int


class Inside(NamedTuple):
    """The rows and columns of a square that are inside of an array, as bits; elements outside are 0."""

    rows: Expr
    columns: Expr


@dataclass(frozen=True)
class WinogradTransform:
    """The transform of a square of vectors, ``M s M^T``, for all channels.

    Args:
        matrix: "kernel", "patch", "result", "cotangent" or "gradient".
        lanes: the elements of a vector, of type float32.
        result: the steps of the results.
        source: the steps of the square.
        clipped: whether parts of the square may be outside of an array.
        panels: the panels of the results' channels, if they are in panels.
        part: the elements from one square to the next, if several are added up before the transform.
    """

    matrix: str
    lanes: int
    result: Steps
    source: Steps
    clipped: bool = False
    panels: Panels | None = None
    part: int | None = None

    @property
    def name(self) -> str:
        """The name of the function."""
        panels = "" if self.panels is None else ".".join(map(str, self.panels))
        numbers = [self.lanes, *self.result, *self.source, int(self.clipped), self.part or ""]
        return f"{PREFIX}winograd.{self.matrix}.{'.'.join(map(str, numbers))}.{panels}"

    @classmethod
    def of_name(cls, fields: Sequence[str]) -> WinogradTransform:
        """The function of a name, from the fields after its kind."""
        matrix, lanes, down, across, source_down, source_across, clipped, part, *panels = fields
        result, source = Steps(int(down), int(across)), Steps(int(source_down), int(source_across))
        in_panels = Panels(*map(int, panels)) if len(panels) == 2 else None
        return cls(matrix, int(lanes), result, source, clipped == "1", in_panels, int(part) if part else None)

    def call(
        self,
        result: Expr,
        source: Expr,
        vectors: int,
        start: Expr | int = 0,
        inside: Inside | None = None,
        parts: int | None = None,
    ) -> Stmt:
        """The call of the function.

        Args:
            result: the load of the first element of the results.
            source: the load of an element of the array that the square is part of.
            vectors: the number of vectors of channels, a multiple of the vectors of a panel.
            start: the elements from ``source`` to the start of the square, which may be outside.
            inside: the rows and columns that exist, if parts of the square may not.
            parts: the number of squares to add up, if there are several.
        """
        if (inside is not None, parts is not None) != (self.clipped, self.part is not None):
            raise AssertionError(self.name)
        in_panel = 1 if self.panels is None else self.panels.vectors
        numbers = [number(start, "int64") * _ITEM, number(vectors // in_panel, "int32")]
        numbers += [] if inside is None else [number(bits, "int32") for bits in inside]
        numbers += [] if parts is None else [number(parts, "int32")]
        return call(self.name, tirx.address_of(result), tirx.address_of(source), *numbers)

    def definition(self) -> str:
        """The function: a loop over the vectors, with the whole square in registers."""
        matrix = _MATRICES[self.matrix]
        parameters = "ptr %result, ptr %array, i64 %start, i32 %count"
        parameters += ", i32 %rows, i32 %columns" if self.clipped else ""
        parameters += "" if self.part is None else ", i32 %parts"
        text = ["entry:", offset_by("source", "array", "%start")]
        text += self._positions_inside(matrix.side) if self.clipped else []
        text += ["  br label %panel", "panel:", "  %i = phi i32 [0, %entry], [%i.next, %panel.end]"]
        for side in ("result", "source"):
            text.append(f"  %{side}.panel = phi ptr [%{side}, %entry], [%{side}.panel.next, %panel.end]")
        text += ["  br label %loop", "loop:", "  %j = phi i32 [0, %panel], [%j.next, %next]"]
        for side in ("result", "source"):
            text.append(f"  %{side}.at = phi ptr [%{side}.panel, %panel], [%{side}.next, %next]")
        text += [*self._loaded(matrix.side), *self._transformed(matrix), "  br label %next", "next:"]
        text += [offset_by(f"{side}.next", f"{side}.at", self.lanes * _ITEM) for side in ("result", "source")]
        panels = self.panels or Panels(1, self.lanes)
        text += ["  %j.next = add nuw nsw i32 %j, 1", f"  %more.vectors = icmp slt i32 %j.next, {panels.vectors}"]
        text += ["  br i1 %more.vectors, label %loop, label %panel.end", "panel.end:"]
        text.append(offset_by("result.panel.next", "result.panel", panels.step * _ITEM))
        text.append(offset_by("source.panel.next", "source.panel", panels.vectors * self.lanes * _ITEM))
        text += ["  %i.next = add nuw nsw i32 %i, 1", "  %more = icmp slt i32 %i.next, %count"]
        text += ["  br i1 %more, label %panel, label %end", "end:", "  ret i32 0"]
        return function(self.name, parameters, "\n".join(text))

    @property
    def _vector(self) -> str:
        return type_of(f"float32x{self.lanes}")

    def _positions_inside(self, side: int) -> list[str]:
        """The bits of all positions, row by row."""
        text = []
        for a in range(side):
            text += [
                f"  %row.bit{a} = and i32 %rows, {1 << a}",
                f"  %row.inside{a} = icmp ne i32 %row.bit{a}, 0",
                f"  %bits{a} = select i1 %row.inside{a}, i32 %columns, i32 0",
                f"  %shifted{a} = shl i32 %bits{a}, {side * a}",
                f"  %inside{a} = or i32 %shifted{a}, {f'%inside{a - 1}' if a else 0}",
            ]
        return text

    def _loaded(self, side: int) -> list[str]:
        """Loads the vectors of the square, or their sums, as ``%s0``, ``%s1``, ..., row by row."""
        first = "s" if self.part is None else "first"
        text: list[str] = []
        for k in range(side * side):
            offset = self._offset(k, side)
            load = [offset_by(f"at{k}", "source.at", offset), f"  %loaded{k} = {self._load(f'at{k}')}"]
            if not self.clipped:
                text += [line.replace("%loaded", f"%{first}") for line in load]
                continue
            text += [
                f"  %bit{k} = and i32 %inside{side - 1}, {1 << k}",
                f"  %is.inside{k} = icmp ne i32 %bit{k}, 0",
                f"  br i1 %is.inside{k}, label %load{k}, label %merge{k}",
                f"load{k}:",
                *load,
                f"  br label %merge{k}",
                f"merge{k}:",
                f"  %{first}{k} = phi {self._vector} [zeroinitializer, %{f'merge{k - 1}' if k else 'loop'}], "
                f"[%loaded{k}, %load{k}]",
            ]
        return text if self.part is None else text + self._added(side, self.part)

    def _offset(self, k: int, side: int) -> int:
        """The offset in bytes of a vector of the square."""
        return (k // side * self.source.down + k % side * self.source.across) * _ITEM

    def _load(self, pointer: str) -> str:
        return f"load {self._vector}, ptr %{pointer}, align {_ITEM}"

    def _added(self, side: int, step: int) -> list[str]:
        """Adds the other squares to the vectors of the first one."""
        count = side * side
        text = ["  br label %part", "part:", "  %p = phi i32 [1, %loop], [%p.next, %part.next]"]
        text.append("  %part.before = phi ptr [%source.at, %loop], [%part.at, %part.next]")
        text += [f"  %s{k} = phi {self._vector} [%first{k}, %loop], [%sum{k}, %part.next]" for k in range(count)]
        text += ["  %more.parts = icmp slt i32 %p, %parts", "  br i1 %more.parts, label %part.next, label %summed"]
        text += ["part.next:", offset_by("part.at", "part.before", step * _ITEM)]
        for k in range(count):
            offset = self._offset(k, side)
            text += [
                offset_by(f"part.at{k}", "part.at", offset),
                f"  %part{k} = {self._load(f'part.at{k}')}",
                f"  %sum{k} = fadd {self._vector} %s{k}, %part{k}",
            ]
        return [*text, "  %p.next = add nuw nsw i32 %p, 1", "  br label %part", "summed:"]

    def _transformed(self, matrix: _Matrix) -> list[str]:
        """Transforms the columns, then the rows, and stores each row."""
        block, side = Instructions(), range(matrix.side)
        dtype = f"float32x{self.lanes}"
        square = [[block.variable(f"s{a * matrix.side + b}", dtype) for b in side] for a in side]
        columns = [[block.name(x) for x in matrix.times([row[b] for row in square])] for b in side]
        for a in range(matrix.result_side):
            for b, value in enumerate(matrix.times([column[a] for column in columns])):
                operand = block.operand(value)
                block.lines += [
                    offset_by(f"to{a}.{b}", "result.at", (a * self.result.down + b * self.result.across) * _ITEM),
                    f"  store {self._vector} {operand}, ptr %to{a}.{b}, align {_ITEM}",
                ]
        return block.lines
