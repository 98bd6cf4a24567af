"""Square tiles transposed in vector registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tvm import ir, tirx
from tvm.tirx import AllocBuffer, Buffer, BufferStore, Stmt

from tvmfun.lower.machine import Machine
from tvmfun.lower.tir import build
from tvmfun.lower.tir.build import Axis, Env, Expr
from tvmfun.lower.tir.micro_kernels.moves import TileTranspose, exchange


def is_row_readable(value: Expr, axis: Axis, domain: Sequence[Axis]) -> bool:
    """Whether :func:`read_row` can read neighbours of ``value`` along ``axis`` as one vector.

    The value must be an element, a converted element, or the bits of several neighbours as one number.
    """
    load, parts = _loaded(value)
    if not isinstance(load, ir.TensorLoad) or not load.indices:
        return False
    *outer, last = load.indices
    if any(build.uses(index, axis.var) for index in outer):
        return False
    return build.stride(load.source, (*outer, _first(last)), axis, domain) == parts


def is_computed_along(value: Expr, axis: Axis, domain: Sequence[Axis]) -> bool:
    """Whether a value is computed from elements that are neighbours along ``axis``, or do not depend on it."""
    steps = {build.stride(load.source, load.indices, axis, domain) for load in build.loads(value)}
    return 1 in steps and steps <= {0, 1}


def read_row(value: Expr, env: Env, lanes: int) -> Expr:
    """The vector of ``lanes`` elements along the last dimension, from the one that ``value`` reads at ``env`` on."""
    load, parts = _loaded(value)
    *outer, last = (build.substitute(index, env) for index in load.indices)
    vector = load.source[(*outer, ramp(_first(last), lanes * parts))]
    dtype = f"{value.ty}x{lanes}"
    if isinstance(value, tirx.Cast):
        return tirx.Cast(dtype, vector)
    return vector if parts == 1 else tirx.reinterpret(dtype, vector)


def tile_lanes(dtype: str, machine: Machine) -> int:
    """The side of a square tile; narrower elements have the side of float32, so that all rows fit the registers."""
    return min(machine.lanes(dtype), machine.lanes("float32"))


def tile_dtype(dtype: str) -> str:
    """The dtype of the rows of a tile: unsigned bits if TVM cannot shuffle vectors of the elements' dtype."""
    bits = build.bits(dtype)
    return f"uint{max(bits, 8)}" if bits < 32 and not dtype.startswith(("int", "uint")) else dtype


def in_tile(value: Expr, dtype: str, lanes: int = 1) -> Expr:
    """A vector of ``lanes`` elements of a dtype, or a single one, as a row of a tile."""
    kept = tile_dtype(dtype)
    if dtype == "bool":
        return tirx.Cast(_vector_of(kept, lanes), value)
    return value if kept == dtype else tirx.reinterpret(_vector_of(kept, lanes), value)


def from_tile(value: Expr, dtype: str, lanes: int = 1) -> Expr:
    """A row of a tile, or a single element of it, as numbers of the dtype."""
    kept = tile_dtype(dtype)
    if dtype == "bool":
        zero = build.zero(kept)
        return tirx.NE(value, zero if lanes == 1 else tirx.Broadcast(zero, lanes))
    return value if kept == dtype else tirx.reinterpret(_vector_of(dtype, lanes), value)


def _vector_of(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def reads_several(value: Expr) -> bool:
    """Whether a value is made of the bits of several elements."""
    return _loaded(value)[1] > 1


def _loaded(value: Expr) -> tuple[Expr, int]:
    """The load of a value, and the number of elements per value."""
    load = value.value if isinstance(value, tirx.Cast) else build.bits_read(value)
    last = load.indices[-1] if isinstance(load, ir.TensorLoad) and load.indices else None
    return load, int(last.lanes) if isinstance(last, tirx.Ramp) else 1


def _first(index: Expr) -> Expr:
    return index.base if isinstance(index, tirx.Ramp) else index


def _first_of(source: Buffer, indices: Sequence[Expr]) -> ir.TensorLoad:
    """The load of the first element of a vector."""
    *outer, last = indices
    return source[(*outer, _first(last))]


def ramp(start: Expr, lanes: int) -> Expr:
    """The indices start, start + 1, ..."""
    return tirx.Ramp(start, tirx.const(1, str(start.ty)), lanes)


def shuffled(vectors: Sequence[Expr], order: Sequence[int]) -> Expr:
    """The lanes of vectors, one after another, in this order."""
    return tirx.Shuffle(list(vectors), [tirx.const(lane, "int32") for lane in order])


def rows(lanes: int, dtype: str, name: str) -> list[Buffer]:
    """A buffer for each row of a tile, which becomes a register; one for all rows would be too large for the stack."""
    return [build.scratch([lanes], dtype, name) for _ in range(lanes)]


def transpose_tile(read: Callable[[Any], Expr], write: Callable[[Any, Expr], Stmt], lanes: int, dtype: str) -> Stmt:
    """The statements that transpose ``lanes`` vectors in memory, by a micro-kernel if they are at equal distances.

    Args:
        read: returns the vector of a row, an integer or an expression.
        write: returns the statement that stores the vector of a row.
        lanes: the number of rows and of lanes.
        dtype: the dtype of the elements.
    """
    row = ir.Var("row", ir.PrimType("int32"))
    source, stored = read(row), write(row, tirx.Broadcast(build.zero(dtype), lanes))
    moved = None
    if isinstance(source, ir.TensorLoad) and isinstance(stored, BufferStore):
        first, result = _first_of(source.source, source.indices), _first_of(stored.buffer, stored.indices)
        moved = transpose_in_memory(first, result, row, lanes)
    return transpose_rows(read, write, lanes, dtype) if moved is None else moved


def transpose_in_memory(source: ir.TensorLoad, result: ir.TensorLoad, row: ir.Var, lanes: int) -> Stmt | None:
    """The call that transposes a square tile, given loads of the first elements of its rows.

    Args:
        source: the first element of a row of the tile; the others follow it in memory.
        result: the first element of a row of the transpose.
        row: the number of the row, in both.
        lanes: the number of rows.

    Returns:
        The statement; None if the rows are not at equal distances, if their numbers would be converted, or for bool,
        which is another type in registers than in memory.
    """
    axis = Axis(row, lanes)
    steps = [build.stride(load.source, load.indices, axis, [axis]) for load in (source, result)]
    if str(source.ty) != str(result.ty) or str(source.ty) == "bool" or not all(isinstance(step, int) for step in steps):
        return None
    source, result = (build.substitute(load, {row: build.index(axis, 0)}) for load in (source, result))
    return TileTranspose(build.bits(str(source.ty)), lanes).call(result, steps[1], source, steps[0])


def transpose_rows(read: Callable[[int], Expr], write: Callable[[int, Expr], Stmt], lanes: int, dtype: str) -> Stmt:
    """The statements that transpose ``lanes`` vectors in registers.

    Each step exchanges off-diagonal blocks of half the size of the previous step's, with two shuffles per pair of rows.
    The rows pass through local buffers, which become registers.
    """
    whole = [ramp(tirx.const(0, "int32"), lanes)]
    tile, following = rows(lanes, dtype, "tile"), rows(lanes, dtype, "tile")
    stmts: list[Stmt] = list(map(AllocBuffer, [*tile, *following]))
    stmts += [BufferStore(row, read(i), whole) for i, row in enumerate(tile)]
    step = lanes // 2
    while step:
        for upper in (row for row in range(lanes) if not row & step):
            lower = upper + step
            pair = [tile[upper][whole[0]], tile[lower][whole[0]]]
            for row, order in zip((upper, lower), _orders(step, lanes), strict=True):
                stmts.append(BufferStore(following[row], tirx.Shuffle(pair, order), whole))
        tile, following = following, tile
        step //= 2
    stmts += [write(i, row[whole[0]]) for i, row in enumerate(tile)]
    return build.seq(*stmts)


@cache
def _orders(step: int, lanes: int) -> list[tuple[Expr, ...]]:
    """The orders of :func:`~tvmfun.lower.tir.micro_kernels.moves.exchange` as expressions."""
    return [tuple(tirx.const(lane, "int32") for lane in order) for order in exchange(step, lanes)]
