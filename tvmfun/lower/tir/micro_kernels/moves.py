"""Moves of elements between rows of two arrays: transposes and copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, ClassVar

from tvm import tirx
from tvm.tirx import Stmt

from tvmfun.lower.tir.build import Expr, Size
from tvmfun.lower.tir.llvm_text import PREFIX
from tvmfun.lower.tir.micro_kernels.text import call, function, number, offset_by, order_of


class _Move:
    """A function that moves elements between rows of two arrays, whose steps are arguments; its fields are integers."""

    bits: int
    kind: ClassVar[str]

    @property
    def name(self) -> str:
        """The name of the function."""
        return f"{PREFIX}{self.kind}.{'.'.join(map(str, astuple(self)))}"  # type: ignore[call-overload]  # a dataclass

    @classmethod
    def of_name(cls, fields: Sequence[str]) -> Any:
        """The function of a name, from the fields after its kind."""
        return cls(*map(int, fields))

    def call(self, result: Expr, result_row: Size, source: Expr, source_row: Size, *counts: Size) -> Stmt:
        """The call of the function.

        Args:
            result: the load of the first element of the result.
            result_row: the elements from one row of the result to the next.
            source: the load of the first element of the source.
            source_row: the elements from one row of the source to the next.
            counts: the number of rows, if it is an argument.
        """
        steps = (number(row * (self.bits // 8), "int64") for row in (result_row, source_row))
        addresses = (tirx.address_of(result), tirx.address_of(source))
        return call(self.name, *addresses, *steps, *(number(count, "int32") for count in counts))


@dataclass(frozen=True)
class TileTranspose(_Move):
    """The transpose of a square tile: ``result[j, i] = source[i, j]``; the steps between rows are arguments."""

    bits: int
    lanes: int

    kind: ClassVar[str] = "transpose"

    def definition(self) -> str:
        """The function: each step exchanges off-diagonal blocks of half the size of the previous step's."""
        vector, lanes = f"<{self.lanes} x i{self.bits}>", range(self.lanes)
        lines = []
        for i in lanes:
            lines += [
                offset_by(f"source{i}", f"source{i - 1}" if i else "source", "%source.row" if i else 0),
                f"  %tile{i} = load {vector}, ptr %source{i}, align {self.bits // 8}",
            ]
        names = [f"tile{i}" for i in lanes]
        step = self.lanes // 2
        while step:
            following = [f"row{i}.{step}" for i in lanes]
            for upper in (row for row in lanes if not row & step):
                pair = f"{vector} %{names[upper]}, {vector} %{names[upper + step]}"
                for row, order in zip((upper, upper + step), exchange(step, self.lanes), strict=True):
                    lines.append(f"  %{following[row]} = shufflevector {pair}, {order_of(order)}")
            names, step = following, step // 2
        for i in lanes:
            lines += [
                offset_by(f"result{i}", f"result{i - 1}" if i else "result", "%result.row" if i else 0),
                f"  store {vector} %{names[i]}, ptr %result{i}, align {self.bits // 8}",
            ]
        parameters = "ptr %result, ptr %source, i64 %result.row, i64 %source.row"
        return function(self.name, parameters, "\n".join(["entry:", *lines, "  ret i32 0"]))


@dataclass(frozen=True)
class RowsCopy(_Move):
    """A copy of parts of rows, padded with zeros to whole vectors; the number of rows and their steps are arguments."""

    bits: int
    columns: int
    lanes: int

    kind: ClassVar[str] = "copy"

    def definition(self) -> str:
        """The function."""
        item = self.bits // 8
        vector = f"<{self.lanes} x i{self.bits}>"
        lines = ["entry:", "  br label %loop", "loop:", "  %i = phi i32 [0, %entry], [%next, %loop]"]
        for side in ("result", "source"):
            lines.append(f"  %{side}.at = phi ptr [%{side}, %entry], [%{side}.next, %loop]")
        for j, begin in enumerate(range(0, self.columns, self.lanes)):
            size = min(self.lanes, self.columns - begin)
            part = f"<{size} x i{self.bits}>"
            lines.append(offset_by(f"source{j}", "source.at", begin * item))
            lines.append(f"  %part{j} = load {part}, ptr %source{j}, align {item}")
            if size < self.lanes:
                order = order_of([*range(size), *[size] * (self.lanes - size)])
                lines.append(f"  %whole{j} = shufflevector {part} %part{j}, {part} zeroinitializer, {order}")
            lines.append(offset_by(f"result{j}", "result.at", begin * item))
            lines.append(
                f"  store {vector} %{'whole' if size < self.lanes else 'part'}{j}, ptr %result{j}, align {item}"
            )
        lines += [offset_by(f"{side}.next", f"{side}.at", f"%{side}.row") for side in ("result", "source")]
        lines += ["  %next = add nuw nsw i32 %i, 1", "  %more = icmp slt i32 %next, %count"]
        lines += ["  br i1 %more, label %loop, label %end", "end:", "  ret i32 0"]
        return function(
            self.name, "ptr %result, ptr %source, i64 %result.row, i64 %source.row, i32 %count", "\n".join(lines)
        )


def exchange(step: int, lanes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The indices of the elements of two concatenated rows that each row gets: the even and the odd blocks.

    >>> exchange(1, 4)
    ((0, 4, 2, 6), (1, 5, 3, 7))
    """
    upper = (c if not c & step else lanes + c - step for c in range(lanes))
    lower = (c + step if not c & step else lanes + c for c in range(lanes))
    return tuple(upper), tuple(lower)
