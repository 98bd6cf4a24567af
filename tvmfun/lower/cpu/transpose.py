"""Square tiles transposed in vector registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import ir, tirx
from tvm.tirx import AllocBuffer, Buffer, BufferStore, Stmt

from . import build
from .build import Axis, Env, Expr


def is_row_readable(load: Expr, axis: Axis, domain: Sequence[Axis]) -> bool:
    """Whether `read_row` can read neighbours of `load` along `axis` as one vector."""
    # A tile of narrower elements would be more than registers hold.
    if not isinstance(load, ir.TensorLoad) or build.bits(str(load.ty)) < 32 or not load.indices:
        return False
    if any(build.uses(index, axis.var) for index in load.indices[:-1]):
        return False
    return build.stride(load.source, load.indices, axis, domain) == 1


def read_row(load: ir.TensorLoad, env: Env, lanes: int) -> Expr:
    """The vector of `lanes` elements that starts where `load` reads at `env`, along its last dimension."""
    *outer, last = (build.substitute(index, env) for index in load.indices)
    return load.source[(*outer, ramp(last, lanes))]


def ramp(start: Expr, lanes: int) -> Expr:
    """The indices start, start + 1, ..."""
    return tirx.Ramp(start, tirx.const(1, str(start.ty)), lanes)


def transpose_tile(read: Callable[[int], Expr], write: Callable[[int, Expr], Stmt], lanes: int, dtype: str) -> Stmt:
    """Transpose `lanes` vectors.

    Each step exchanges the off-diagonal blocks of half the size of the step before, with two shuffles
    per pair of rows. The rows pass through local buffers, which become registers.
    """
    tile = build.scratch([lanes, lanes], dtype, "tile")
    stmts: list[Stmt] = [AllocBuffer(tile)]
    stmts += [BufferStore(tile, read(row), _row_index(row, lanes)) for row in range(lanes)]
    step = lanes // 2
    while step:
        following = build.scratch([lanes, lanes], dtype, "tile")
        stmts.append(AllocBuffer(following))
        stmts += _exchange(tile, following, step, lanes)
        tile = following
        step //= 2
    stmts += [write(row, tile[tuple(_row_index(row, lanes))]) for row in range(lanes)]
    return build.seq(*stmts)


def _exchange(source: Buffer, target: Buffer, step: int, lanes: int) -> list[Stmt]:
    stmts = []
    for upper in range(lanes):
        lower = upper + step
        if upper & step:
            continue
        rows = [source[tuple(_row_index(row, lanes))] for row in (upper, lower)]
        first = [c if not c & step else lanes + c - step for c in range(lanes)]
        second = [c + step if not c & step else lanes + c for c in range(lanes)]
        for row, order in ((upper, first), (lower, second)):
            mixed = tirx.Shuffle(rows, [tirx.const(c, "int32") for c in order])
            stmts.append(BufferStore(target, mixed, _row_index(row, lanes)))
    return stmts


def _row_index(row: int, lanes: int) -> list[Expr]:
    return [tirx.const(row, "int32"), ramp(tirx.const(0, "int32"), lanes)]
