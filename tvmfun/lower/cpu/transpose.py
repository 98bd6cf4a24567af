"""Square tiles transposed in vector registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import ir, tirx
from tvm.tirx import AllocBuffer, Buffer, BufferStore, Stmt

from . import build
from .build import Axis, Env, Expr


def is_row_readable(load: Expr, axis: Axis, domain: Sequence[Axis]) -> bool:
    """Whether `read_row` can read neighbours of `load` along `axis` as one vector.

    It is an element, or the bits of several that lie one after the other as one number.
    """
    # A tile of narrower elements would be more than registers hold.
    if build.bits(str(load.ty)) < 32:
        return False
    load, parts = _parts(load)
    if not isinstance(load, ir.TensorLoad) or not load.indices:
        return False
    *outer, last = load.indices
    if any(build.uses(index, axis.var) for index in outer):
        return False
    return build.stride(load.source, (*outer, last if parts == 1 else last.base), axis, domain) == parts


def read_row(load: Expr, env: Env, lanes: int) -> Expr:
    """The vector of `lanes` elements that starts where `load` reads at `env`, along its last dimension."""
    dtype = str(load.ty)
    load, parts = _parts(load)
    *outer, last = (build.substitute(index, env) for index in load.indices)
    if parts == 1:
        return load.source[(*outer, ramp(last, lanes))]
    return tirx.reinterpret(f"{dtype}x{lanes}", load.source[(*outer, ramp(last.base, lanes * parts))])


def is_vector_read(load: Expr) -> bool:
    """Whether it is the bits of several elements."""
    return _parts(load)[1] > 1


def _parts(load: Expr) -> tuple[Expr, int]:
    """What is loaded, and how many elements make one number."""
    if not isinstance(load, ir.Call) or load.op.name != "tirx.reinterpret":
        return load, 1
    (inner,) = load.args
    is_vector = isinstance(inner, ir.TensorLoad) and isinstance(inner.indices[-1], tirx.Ramp)
    return (inner, int(inner.indices[-1].lanes)) if is_vector else (load, 1)


def ramp(start: Expr, lanes: int) -> Expr:
    """The indices start, start + 1, ..."""
    return tirx.Ramp(start, tirx.const(1, str(start.ty)), lanes)


def rows(lanes: int, dtype: str, name: str) -> list[Buffer]:
    """A register for each row of a tile; one buffer for all would be too large for the stack."""
    return [build.scratch([lanes], dtype, name) for _ in range(lanes)]


def transpose_tile(read: Callable[[int], Expr], write: Callable[[int, Expr], Stmt], lanes: int, dtype: str) -> Stmt:
    """Transpose `lanes` vectors.

    Each step exchanges the off-diagonal blocks of half the size of the step before, with two shuffles
    per pair of rows. The rows pass through local buffers, which become registers.
    """
    whole = [ramp(tirx.const(0, "int32"), lanes)]
    tile = rows(lanes, dtype, "tile")
    stmts: list[Stmt] = list(map(AllocBuffer, tile))
    stmts += [BufferStore(row, read(i), whole) for i, row in enumerate(tile)]
    step = lanes // 2
    while step:
        following = rows(lanes, dtype, "tile")
        stmts += map(AllocBuffer, following)
        for upper in (row for row in range(lanes) if not row & step):
            lower = upper + step
            pair = [tile[upper][whole[0]], tile[lower][whole[0]]]
            for row, order in ((upper, _upper(step, lanes)), (lower, _lower(step, lanes))):
                mixed = tirx.Shuffle(pair, [tirx.const(c, "int32") for c in order])
                stmts.append(BufferStore(following[row], mixed, whole))
        tile = following
        step //= 2
    stmts += [write(i, row[whole[0]]) for i, row in enumerate(tile)]
    return build.seq(*stmts)


def _upper(step: int, lanes: int) -> list[int]:
    """Of two rows one after the other, what the upper one gets: the first of each two blocks."""
    return [c if not c & step else lanes + c - step for c in range(lanes)]


def _lower(step: int, lanes: int) -> list[int]:
    return [c + step if not c & step else lanes + c for c in range(lanes)]
