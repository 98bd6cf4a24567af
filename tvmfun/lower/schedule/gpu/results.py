"""Results of matrix products: sums in shared memory, through the epilogues, to global memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import Buffer, Stmt

from tvmfun.lower.schedule.gpu import vectors
from tvmfun.lower.schedule.gpu.products import Product
from tvmfun.lower.schedule.gpu.vectors import address
from tvmfun.lower.schedule.stages import contains
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Env, Expr
from tvmfun.lower.tir.walk import find, rewrite


@dataclass(frozen=True, eq=False)
class Map:
    """An element of a result in terms of the axes of the product."""

    output: Buffer
    index: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, eq=False)
class Epilogue:
    """The maps applied to each sum, in order, which may read the sum and the results of the maps before.

    Args:
        product: the product.
        temps: the buffers that are not read afterwards.
    """

    product: Product
    temps: Sequence[Buffer]

    @cached_property
    def maps(self) -> tuple[Map, ...]:
        """The maps, the first of which is the sum itself."""
        stage = self.product.stage
        maps = [Map(stage.output, stage.index, stage.output[tuple(stage.index)])]
        for own in stage.epilogues:
            env = {axis.var: mine.var for axis, mine in zip(own.space, stage.space, strict=True)}
            index = tuple(build.substitute(index, env) for index in own.index)
            maps.append(Map(own.output, index, build.substitute(own.value, env)))
        return tuple(maps)

    @cached_property
    def stored(self) -> tuple[Buffer, ...]:
        """The results that others read."""
        outputs = [own.output for own in self.maps]
        return tuple(output for output in outputs if not contains(self.temps, output))

    @cached_property
    def width(self) -> int:
        """The neighbouring columns that a thread computes at once, so that it stores them as one vector."""
        axis, domain = self.product.right.rows[-1], self.product.stage.space
        stores = [(own.output, own.index) for own in self.maps if contains(self.stored, own.output)]
        most = 8 if all(vectors.size_of(str(buffer.dtype)) <= 2 for buffer, _ in stores) else 4
        widths = [vectors.contiguous_width(access, axis, domain) or 1 for access in stores]
        return math.gcd(most, axis.extent, max(widths))

    def emit(
        self,
        env: Env,
        row: Expr,
        column: Expr,
        fill: Callable[[Buffer], Stmt],
        keep: Mapping[Buffer, Callable[[Buffer], Stmt]] = MappingProxyType({}),
    ) -> Stmt:
        """The statements for ``width`` neighbours. Results are stored last, as they may be written over inputs.

        Args:
            env: the position on the batch axes.
            row: the row of the matrix.
            column: the first column.
            fill: the statement that writes their sums to registers.
            keep: for results of maps, a statement that reads their registers.
        """
        columns = self.product.right.rows
        at = {**env, **build.unflatten(self.product.left.rows, row), **build.unflatten(columns, column)}
        last = columns[-1].var
        lanes = [{**at, last: at[last] + lane} for lane in range(self.width)]
        held, allocation = vectors.private(self.width, "float32", "sums")
        stmts: list[Stmt] = [allocation, fill(held)]
        stores: list[Stmt] = []
        results: dict[Buffer, Buffer] = {self.maps[0].output: held}
        fetched: list[tuple[ir.TensorLoad, Buffer]] = []
        for own in self.maps:
            stmts += self._fetches(own, at, results, fetched)
            if own is not self.maps[0]:
                results[own.output], allocation = vectors.private(self.width, str(own.output.dtype), own.output.name)
                stmts.append(allocation)
                for lane, here in enumerate(lanes):
                    value = build.substitute(_with_registers(own.value, lane, results, fetched), here)
                    stmts.append(tirx.BufferStore(results[own.output], value, [lane]))
            if contains(self.stored, own.output):
                stores += self._stores(own, lanes, results[own.output])
            if own.output in keep:
                stores.append(keep[own.output](results[own.output]))
        return build.seq(*stmts, *stores)

    def _stores(self, own: Map, lanes: Sequence[Env], values: Buffer) -> list[Stmt]:
        """The stores of one result, as vectors if its neighbours are neighbours in memory."""
        if self._is_vector((own.output, own.index)):
            target = address(own.output, *(build.substitute(index, lanes[0]) for index in own.index))
            return [vectors.move(target, address(values, 0), self.width, str(own.output.dtype))]
        indices = [[build.substitute(index, here) for index in own.index] for here in lanes]
        return [tirx.BufferStore(own.output, values[lane], index) for lane, index in enumerate(indices)]

    def _fetches(self, own: Map, at: Env, results: dict, fetched: list) -> list[Stmt]:
        """Reads the vectors that a map always needs; other elements it reads one by one."""
        stmts: list[Stmt] = []
        choices = [node for node in find(own.value, ir.Call) if build.is_choice(node)]
        conditional = [load for choice in choices for load in build.loads(choice)]
        for load in build.loads(own.value):
            is_known = load.source in results or any(_is_same(load, other) for other, _ in fetched)
            if is_known or any(load.same_as(other) for other in conditional):
                continue
            if self._is_vector((load.source, load.indices)):
                buffer, allocation = vectors.private(self.width, str(load.source.dtype), "read")
                start = address(load.source, *(build.substitute(index, at) for index in load.indices))
                stmts += [allocation, vectors.move(address(buffer, 0), start, self.width, str(buffer.dtype))]
                fetched.append((load, buffer))
        return stmts

    def _is_vector(self, access: vectors.Access) -> bool:
        """Whether the neighbours that a thread computes are one aligned vector, or two, in memory."""
        if any(build.loads(index) for index in access[1]) or self.width == 1:
            return False
        width = vectors.contiguous_width(access, self.product.right.rows[-1], self.product.stage.space)
        return width > 0 and (width % self.width == 0 or width * vectors.size_of(str(access[0].dtype)) == 16)


def _with_registers(value: Expr, lane: int, results: dict[Buffer, Buffer], fetched: Sequence) -> Expr:
    """Replaces loads of one lane's value by the registers that already hold them."""

    def visit(load: ir.TensorLoad) -> Expr:
        if load.source in results:
            return results[load.source][lane]
        return next((buffer[lane] for other, buffer in fetched if _is_same(load, other)), load)

    return rewrite(value, (ir.TensorLoad, visit))


def _is_same(load: ir.TensorLoad, other: ir.TensorLoad) -> bool:
    return load.source.same_as(other.source) and tvm_ffi.structural_equal(load, other)
