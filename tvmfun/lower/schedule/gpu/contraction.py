"""Products of matrices on GPUs: tiles through shared memory in a pipeline of copies, multiplied by tensor cores.

A block computes a tile of the result. While it multiplies a pair of tiles of the operands, the following pairs are on
their way into shared memory. The sums pass through shared memory once more, so that each thread applies the epilogue to
neighbouring elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tvm import ir, tirx
from tvm.target import Target
from tvm.tirx import Buffer, Stmt

from tvmfun.core import dims
from tvmfun.core.expressions import of_size
from tvmfun.lower.schedule.gpu import operands, tiles, vectors
from tvmfun.lower.schedule.gpu.column_sums import ColumnSum, without_column_sums
from tvmfun.lower.schedule.gpu.columns import emit_columns
from tvmfun.lower.schedule.gpu.launch import over_points
from tvmfun.lower.schedule.gpu.mainloops import BARRIER_BYTES, MainLoop
from tvmfun.lower.schedule.gpu.operands import TileLoader
from tvmfun.lower.schedule.gpu.primitives import definition
from tvmfun.lower.schedule.gpu.products import HALF, Product, match, with_epilogues
from tvmfun.lower.schedule.gpu.results import Epilogue
from tvmfun.lower.schedule.gpu.tensor_maps import TiledOperand
from tvmfun.lower.schedule.gpu.vectors import address, call
from tvmfun.lower.schedule.stage_passes import inline_maps
from tvmfun.lower.schedule.stages import parse, without_empty
from tvmfun.lower.target import number
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Env, Expr, volume
from tvmfun.ops.dot import TENSORFLOAT32

# Rows of tiles that run at the same time and share columns in L2.
_GROUP = 8
# Vectors of a tile whose epilogues a thread computes together, so that their reads wait for memory together.
_TOGETHER = 4
_INT = "int32"


def schedule(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
    """Returns the kernel as a tiled product, with everything else in it as its epilogue; None if it is not one.

    Products of float16 and bfloat16 use tensor cores, which sum in float32; so do products of float32 whose attribute
    ``tvmfun.precision`` allows tf32. Other products are exact.
    """
    return schedule_in_place(function, target, ())


def schedule_in_place(
    function: tirx.PrimFunc, target: Target, in_place: Sequence[tuple[Buffer, Buffer]]
) -> tirx.PrimFunc | None:
    """Like :func:`schedule`, with some outputs written over inputs instead of being parameters.

    Args:
        function: the kernel.
        target: the target.
        in_place: inputs, and the outputs to write over them. Each element of such an input is read only where the
            same element of its output is computed, which stores all of its results last.
    """
    arch = str(target.attrs.get("arch", ""))
    if number(arch) < 80:
        return None  # asynchronous copies and most formats of tensor cores begin there
    stages, temps = parse(function)
    stages, sums = without_column_sums(inline_maps(without_empty(stages), temps))
    product = match(with_epilogues(stages, [*temps, *(one.terms.output for one in sums)]))
    if product is None or not (product.left.rows and product.right.rows) or len(sums) > 1:
        return None
    reduced = function.attrs.get("tvmfun.precision") == TENSORFLOAT32
    format = product.dtype if product.dtype in HALF or not reduced else "tf32"
    # The address of a part of an array, such as the row of a loop's step, is not known when maps are encoded.
    whole = () if function.attrs.get("tvmfun.inside") else function.params
    kernel = _Kernel.of(product, temps, arch, format, next(iter(sums), None), whole)
    emitted, params = kernel.emit(), list(function.params)
    for source, output in in_place:
        emitted = build.replace_buffers(emitted, {output: source})
        params = [param for param in params if not param.same_as(output)]
    body = build.root(emitted)
    function = tirx.PrimFunc(params, body, function.ret_type, function.attrs)
    units = f"{kernel.loop.instruction} {kernel.loop.dtype}"
    return function.with_attr("tvmfun.rule", "product").with_attr(tiles.UNITS, units)


@dataclass(frozen=True, eq=False)
class _Kernel:
    """The statements of one product."""

    product: Product
    loop: MainLoop
    left: TileLoader
    right: TileLoader
    #: The operands that the copy engine moves, or None.
    tiled: tuple[TiledOperand | None, TiledOperand | None]
    epilogue: Epilogue
    thread: ir.Var
    block: ir.Var
    splits: int
    sum: ColumnSum | None

    @classmethod
    def of(
        cls,
        product: Product,
        temps: list[Buffer],
        arch: str,
        format: str,
        sum: ColumnSum | None,
        whole: Sequence[Buffer],
    ) -> _Kernel:
        """Chooses the tiles and how they are read.

        Args:
            product: the product.
            temps: the intermediates.
            arch: the architecture.
            format: the format in which factors are multiplied.
            sum: the sum of columns of a result, if there is one.
            whole: the parameters that are whole arrays.
        """
        sides = product.left, product.right
        readings = [operands.reading(side, product) for side in sides]
        tile, splits = tiles.choose(format, dims.typical(product.sizes), arch)
        loop = tile.loop(format, *(tile.kind.keeps_by_term(format, reading.by_term) for reading in readings))
        thread, block = ir.Var("thread", _INT), ir.Var("block", _INT)
        loaders = [
            TileLoader(side, product, reading, loop.threads, thread, layout, loop.needs_rounded)
            for side, reading, layout in zip(sides, readings, (loop.left, loop.right), strict=True)
        ]
        if sum is not None and splits == 1:
            temps = [*temps, sum.terms.output]
        maps = [stage.value for stage in product.stage.epilogues]
        tiled = tuple(
            TiledOperand.match(side, product, loader.reading, loader.layout, [other.value, *maps], whole)
            for side, other, loader in zip(sides, sides[::-1], loaders, strict=True)
        )
        return cls(product, loop, *loaders, tiled, Epilogue(product, temps), thread, block, splits, sum)

    def emit(self) -> Stmt:
        """The launches: one; or one for partial sums over ranges of the terms, and one that adds them.

        A column sum has a launch that adds the sums of all tiles of a column, or the terms of partial sums.
        """
        if self.splits == 1:
            if self.sum is None:
                return self._launch(None)
            parts = self._sums_of_tiles
            return build.seq(tirx.AllocBuffer(parts), self._launch(None), emit_columns(self.sum.over_tiles(parts)))
        partials = build.buffer((self.splits, *self.product.sizes[:3]), "float32", "partials")
        added = [tirx.AllocBuffer(partials), self._launch(partials), self._sum(partials)]
        if self.sum is None:
            return build.seq(*added)
        return build.seq(tirx.AllocBuffer(self.sum.terms.output), *added, emit_columns(self.sum.over_terms))

    @cached_property
    def _sums_of_tiles(self) -> Buffer:
        """The sums of columns over the rows of each tile."""
        _, rows, columns, _ = self.product.sizes
        return build.buffer((build.ceil_div(rows, self.loop.rows), columns), "float32", "column_sums")

    def _sum(self, partials: Buffer) -> Stmt:
        """The launch that adds partial sums, in order, and applies the epilogue."""
        batch, rows, columns, _ = self.product.sizes
        width = self.epilogue.width

        def point(index: Expr) -> Stmt:
            column = tirx.floormod(index, columns // width) * width
            row = tirx.floormod(tirx.floordiv(index, columns // width), rows)
            matrix = tirx.floordiv(index, columns // width * rows)

            def load(to: Buffer, split: Expr) -> Stmt:
                return vectors.move(address(to, 0), address(partials, split, matrix, row, column), width, "float32")

            def fill(held: Buffer) -> Stmt:
                part, allocation = vectors.private(width, "float32", "part")
                split = ir.Var("split", _INT)
                added = [tirx.BufferStore(held, held[lane] + part[lane], [lane]) for lane in range(width)]
                loop = tirx.For(split, 1, self.splits - 1, tirx.ForKind.SERIAL, build.seq(load(part, split), *added))
                return build.seq(allocation, load(held, tirx.const(0, _INT)), loop)

            last = vectors.whole(partials, *(size - 1 for size in partials.shape))
            return build.seq(last, self.epilogue.emit(build.unflatten(self.product.batch, matrix), row, column, fill))

        return over_points(batch * rows * columns // width, point)

    def _launch(self, partials: Buffer | None) -> Stmt:
        """The loops over blocks and threads; sums go to the epilogue, or to ``partials`` if there are any."""
        batch, rows, columns, _ = self.product.sizes
        row_tiles, column_tiles = build.ceil_div(rows, self.loop.rows), build.ceil_div(columns, self.loop.columns)
        tile = tirx.floormod(self.block, row_tiles * column_tiles)
        matrix = tirx.floordiv(self.block, row_tiles * column_tiles)
        split = tirx.floordiv(matrix, batch)
        matrix = tirx.floormod(matrix, batch)
        # Blocks with neighbouring indices run together: groups of rows, and in each all columns.
        group = tirx.floordiv(tile, _GROUP * column_tiles)
        inside = tirx.floormod(tile, _GROUP * column_tiles)
        is_whole = isinstance(row_tiles, int) and row_tiles % _GROUP == 0
        height = _GROUP if is_whole else tirx.min(tirx.const(_GROUP, _INT), row_tiles - group * _GROUP)
        row = (group * _GROUP + tirx.floormod(inside, height)) * self.loop.rows
        column = tirx.floordiv(inside, height) * self.loop.columns
        env = build.unflatten(self.product.batch, matrix)

        def results(shared: Buffer) -> Stmt:
            if partials is None:
                return self._results(env, row, column, shared)
            return self._store_partials(partials, (split, matrix), row, column, shared)

        body = self._tile(env, row, column, split, results)
        for variable, extent, tag in (
            (self.thread, self.loop.threads, "threadIdx.x"),
            (self.block, self.splits * batch * row_tiles * column_tiles, "blockIdx.x"),
        ):
            axis = tirx.IterVar(ir.Range(0, extent), ir.Var(tag, _INT), tirx.IterVar.ThreadIndex, tag)
            body = tirx.For(variable, 0, extent, tirx.ForKind.THREAD_BINDING, body, axis)
        return body

    def _tile(self, env: Env, row: Expr, column: Expr, split: Expr, results: Callable[[Buffer], Stmt]) -> Stmt:
        """The result's tile at ``row`` and ``column``, summed over one range of the terms."""
        loop = self.loop
        shared = tirx.decl_buffer(
            (loop.shared_bytes,), "uint8", name="shared", scope="shared.dyn", data_alignment=loop.alignment
        )
        sums, sums_allocation = vectors.private(loop.sums, "float32", "sums")
        terms = volume(self.product.reduce)
        steps = build.ceil_div(build.ceil_div(terms, loop.depth), self.splits)
        begins = split * (steps * loop.depth) if self.splits > 1 else tirx.const(0, _INT)
        sides = ((self.left, row, 0), (self.right, column, loop.left.nbytes))
        registers = [
            None if tiled is not None else loader.registers()
            for (loader, _, _), tiled in zip(sides, self.tiled, strict=True)
        ]
        has_copies = any(held is None and tiled is None for held, tiled in zip(registers, self.tiled, strict=True))
        end: Expr = tirx.const(terms, _INT) if isinstance(terms, int) else of_size(terms)
        if self.splits > 1:
            end = tirx.min(end, begins + steps * loop.depth)

        def stage(step: Expr) -> Expr:
            return tirx.floormod(step, loop.stages) * loop.stage_bytes

        def begin(step: Expr) -> Stmt:
            """Copies, or computes in registers, the tiles of a step."""
            stmts = []
            term = begins + step * loop.depth
            for (loader, first, offset), held, tiled in zip(sides, registers, self.tiled, strict=True):
                if held is not None:
                    stmts.append(loader.compute(env, first, term, end, held[0]))
                elif tiled is None:
                    stmts.append(loader.copy(env, first, term, end, shared, stage(step) + offset))
            return build.seq(self._boxes(env, (row, column), term, shared, step), *stmts)

        def finish(step: Expr) -> Stmt | None:
            """Stores the elements that were computed in registers."""
            stores = [
                loader.store(held[0], shared, stage(step) + offset)
                for (loader, _, offset), held in zip(sides, registers, strict=True)
                if held is not None
            ]
            return build.seq(*stores) if stores else None

        commit = call("tvmfun_copies_commit") if has_copies else None
        first = []
        for i in range(loop.ahead):
            start = build.seq(begin(tirx.const(i, _INT)), finish(tirx.const(i, _INT)))
            if not isinstance(steps, int):
                start = tirx.IfThenElse(tirx.const(i, _INT) < steps, start, None)
            first += [start, commit] if not isinstance(steps, int) or i < steps else [commit]
        step = ir.Var("step", _INT)
        following = step + loop.ahead
        is_needed = following < steps
        multiply = call(
            f"{loop.name}_multiply",
            address(sums, 0),
            address(shared, stage(step)),
            address(shared, stage(step) + loop.left.nbytes),
            source=loop.source,
        )
        stored = finish(following)
        in_background = lambda *stmts: stmts if loop.is_asynchronous else ()
        body = build.seq(
            call(f"tvmfun_copies_wait<{loop.ahead - 1}>") if has_copies else None,
            self._await_boxes(shared, step),
            *in_background(None if all(self.tiled) else call("tvmfun_publish")),
            call("tvmfun_barrier"),
            tirx.IfThenElse(is_needed, begin(following), None),
            commit,
            multiply,
            None if stored is None else tirx.IfThenElse(is_needed, stored, None),
        )
        return build.seq(
            vectors.allocated(shared, loop.shared_bytes),
            sums_allocation,
            *(held[1] for held in registers if held is not None),
            call(f"tvmfun_clear<{loop.sums}>", address(sums, 0)),
            self._make_barriers(shared),
            *first,
            tirx.For(step, 0, steps, tirx.ForKind.SERIAL, body),
            call("tvmfun_copies_wait<0>") if has_copies else None,
            *in_background(call(f"{loop.name}_finish", address(sums, 0), source=loop.source)),
            call("tvmfun_barrier"),
            call(f"{loop.name}_spill", address(shared, 0), address(sums, 0), source=loop.source),
            call("tvmfun_barrier"),
            results(shared),
        )

    # -- the copy engine -----------------------------------------------------------------------------------------------

    def _barrier(self, shared: Buffer, step: Expr) -> Expr:
        """The address of the barrier that counts the bytes of a step's tiles."""
        return address(shared, self.loop.barriers + tirx.floormod(step, self.loop.stages) * BARRIER_BYTES)

    def _make_barriers(self, shared: Buffer) -> Stmt | None:
        """Makes a barrier for each stage, which all threads and the copy engine see afterwards."""
        if not any(self.tiled):
            return None
        make = lambda i: call(
            "tvmfun_make_barrier", self._barrier(shared, tirx.const(i, _INT)), source=definition("tvmfun_expect")
        )
        made = build.seq(*map(make, range(self.loop.stages)), call("tvmfun_publish"))
        return build.seq(tirx.IfThenElse(tirx.EQ(self.thread, 0), made, None), call("tvmfun_barrier"))

    def _boxes(self, env: Env, firsts: tuple[Expr, Expr], term: Expr, shared: Buffer, step: Expr) -> Stmt | None:
        """Lets one thread begin the copies of a step's tiles by the copy engine."""
        if not any(self.tiled):
            return None
        barrier = self._barrier(shared, step)
        at = tirx.floormod(step, self.loop.stages) * self.loop.stage_bytes
        bytes_of_step = sum(tiled.nbytes for tiled in self.tiled if tiled is not None)
        stmts = [call("tvmfun_expect", barrier, tirx.const(bytes_of_step, _INT))]
        for tiled, first, offset in zip(self.tiled, firsts, (0, self.loop.left.nbytes), strict=True):
            if tiled is not None:
                stmts.append(tiled.copy(env, first, term, shared, at + offset, barrier))
        copies = tirx.IfThenElse(tirx.EQ(self.thread, 0), build.seq(*stmts), None)
        return build.seq(copies, call("tvmfun_converge"))

    def _await_boxes(self, shared: Buffer, step: Expr) -> Stmt | None:
        """Waits for the copies of a step."""
        if not any(self.tiled):
            return None
        parity = tirx.floormod(tirx.floordiv(step, self.loop.stages), 2)
        return call("tvmfun_await", self._barrier(shared, step), parity, source=definition("tvmfun_expect"))

    def _results(self, env: Env, first_row: Expr, first_column: Expr, shared: Buffer) -> Stmt:
        """The epilogue of a tile whose sums are in shared memory."""

        def body(row: Expr, column: Expr, sums: Expr) -> Stmt:
            move = lambda to, source: vectors.move(to, source, self.epilogue.width, "float32")
            fill = lambda held: move(address(held, 0), sums)
            if self.sum is None:
                return self.epilogue.emit(env, row, column, fill)
            # The terms of a column sum overwrite the sums that they are computed from.
            keep = {self.sum.terms.output: lambda held: move(sums, address(held, 0))}
            return self.epilogue.emit(env, row, column, fill, keep)

        stores = self._over_tile(first_row, first_column, shared, self.epilogue.width, body)
        if self.sum is None:
            return stores
        return build.seq(stores, call("tvmfun_barrier"), self._sum_columns(first_row, first_column, shared))

    def _sum_columns(self, first_row: Expr, first_column: Expr, shared: Buffer) -> Stmt:
        """Stores the sums of a tile's columns, whose terms are in shared memory."""
        _, rows, columns, _ = self.product.sizes
        parts = self._sums_of_tiles
        count = tirx.min(tirx.const(self.loop.rows, _INT), rows - first_row)
        stmts = [vectors.whole(parts, *(size - 1 for size in parts.shape))]
        for start in range(0, self.loop.columns, self.loop.threads):
            column = self.thread + start
            to = address(parts, tirx.floordiv(first_row, self.loop.rows), first_column + column)
            add = call("tvmfun_sum_column", to, address(shared, column * 4), count, self.loop.result_length)
            exists = tirx.And(column < self.loop.columns, first_column + column < columns)
            stmts.append(tirx.IfThenElse(exists, add, None))
        return build.seq(*stmts)

    def _store_partials(
        self, partials: Buffer, at: tuple[Expr, Expr], first_row: Expr, first_column: Expr, shared: Buffer
    ) -> Stmt:
        """Stores the sums of a tile; ``at`` is the range of terms and the matrix."""
        width = math.gcd(4, self.product.sizes[2])
        move = lambda row, column, sums: vectors.move(address(partials, *at, row, column), sums, width, "float32")
        return self._over_tile(first_row, first_column, shared, width, move)

    def _over_tile(
        self, first_row: Expr, first_column: Expr, shared: Buffer, width: int, body: Callable[[Expr, Expr, Expr], Stmt]
    ) -> Stmt:
        """A loop over a tile's elements, ``width`` at a time, that runs ``body(row, column, address of the sums)``."""
        loop = self.loop
        per_row = loop.columns // width
        count = build.ceil_div(loop.rows * per_row, loop.threads)
        together = math.gcd(count, _TOGETHER)
        outer, inner = ir.Var("i", _INT), ir.Var("together", _INT)
        vector = (outer * together + inner) * loop.threads + self.thread
        row, column = tirx.floordiv(vector, per_row), tirx.floormod(vector, per_row) * width
        _, rows, columns, _ = self.product.sizes
        exists = tirx.And(first_row + row < rows, first_column + column < columns)
        if loop.rows * per_row % loop.threads:
            exists = tirx.And(row < loop.rows, exists)
        sums = address(shared, (row * loop.result_length + column) * 4)
        stmt = body(first_row + row, first_column + column, sums)
        stmt = tirx.IfThenElse(exists, stmt, None)
        stmt = tirx.For(inner, 0, together, tirx.ForKind.UNROLLED, stmt)
        return tirx.For(outer, 0, count // together, tirx.ForKind.SERIAL, stmt)
