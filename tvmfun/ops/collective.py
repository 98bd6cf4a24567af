"""Collectives: exchanges between the examples of a named axis.

Under ``vmap`` the examples lie along an axis of one array, and a collective is an op along it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvmfun import dtypes
from tvmfun.core.array import ShapeDtype
from tvmfun.core.batching import Batched, move_from_front, move_front, repeat
from tvmfun.core.op import Op, Platform, register
from tvmfun.core.program import Program
from tvmfun.errors import ProgramError, ShapeError
from tvmfun.ops import pointwise as pw
from tvmfun.ops import reduce as reductions
from tvmfun.ops import shape as shapes
from tvmfun.ops.parameters import Size, check_axes

Names = tuple[str, ...]


def _unbound(platform: Platform, *, axis_names: Names, **params: Any) -> Program:
    raise ProgramError(
        "compile",
        "a collective can only be compiled where its axis is known",
        got=f"an axis named {' and '.join(map(repr, axis_names))}",
        hint="vmap(f, axis_name=...)",
    )


def _collective(name: str, shape: Callable, over: Callable, vjp: Callable | None, batch: Callable, **fields: Any) -> Op:
    rules = None if vjp is None else (vjp,)
    return register(Op(name, "call", shape, _unbound, rules, batch=batch, over_axis=over, **fields))


def _without_name(axis_names: Names, axis_name: str) -> Names:
    return tuple(name for name in axis_names if name != axis_name)


def _same_shape(x: ShapeDtype, *, axis_names: Names) -> ShapeDtype:
    return x


# -- psum, pmax, pmin --------------------------------------------------------------------------------------------------


def _reducing(name: str, along: Callable, alone: Callable) -> Callable:
    """The batching rule of a reduction: the axis is gone, so the result is the same for all examples."""

    def over(axis_name: str, size: Any, batched: tuple, x: Any, *, axis_names: Names) -> Batched:
        total = along(x, axis=(0,)) if batched[0] else alone(x, size)
        rest = _without_name(axis_names, axis_name)
        return Batched((_by_name[name](total, axis_names=rest) if rest else total,), (False,))

    return over


def _times(x: Any, size: Any) -> Any:
    return pw.multiply(x, x.dtype.type(size))


#: ``psum(x, axis_names=)``: the sum over all examples of the named axes; each gets the same.
psum = _collective(
    "psum",
    _same_shape,
    _reducing("psum", reductions.sum, _times),
    lambda g, o, x, *, axis_names: psum(g, axis_names=axis_names),
    lambda batched, x, *, axis_names: psum(x, axis_names=axis_names),
    precision="high",
)
#: ``pmax(x, axis_names=)``: the maximum over all examples of the named axes.
pmax = _collective(
    "pmax",
    _same_shape,
    _reducing("pmax", reductions.max, lambda x, size: x),
    None,
    lambda batched, x, *, axis_names: pmax(x, axis_names=axis_names),
)
#: ``pmin(x, axis_names=)``: the minimum over all examples of the named axes.
pmin = _collective(
    "pmin",
    _same_shape,
    _reducing("pmin", reductions.min, lambda x, size: x),
    None,
    lambda batched, x, *, axis_names: pmin(x, axis_names=axis_names),
)
_by_name = {"psum": psum, "pmax": pmax, "pmin": pmin}

# -- axis_index --------------------------------------------------------------------------------------------------------


def _index_shape(*, axis_names: Names) -> ShapeDtype:
    return ShapeDtype((), dtypes.int32)


def _index_over(axis_name: str, size: Any, batched: tuple, *, axis_names: Names) -> Any:
    return shapes.iota(shape=(size,), axis=0, dtype="int32")


#: ``axis_index(axis_names=)``: the position of the example along the named axis.
axis_index = register(Op("axis_index", "call", _index_shape, _unbound, over_axis=_index_over))

# -- all_gather, psum_scatter ------------------------------------------------------------------------------------------


def _gather_shape(x: ShapeDtype, *, axis_names: Names, size: Size, axis: int, tiled: bool) -> ShapeDtype:
    check_axes("all_gather", ShapeDtype(x.shape if tiled else (size, *x.shape), x.dtype), (axis,))
    if tiled:
        return replace(x, shape=(*x.shape[:axis], x.shape[axis] * size, *x.shape[axis + 1 :]))
    return replace(x, shape=(*x.shape[:axis], size, *x.shape[axis:]))


def _gather_over(axis_name, count, batched, x, *, axis_names, size, axis, tiled):
    x = move_from_front(x if batched[0] else repeat(x, size), axis)
    if tiled:
        x = shapes.reshape(x, shape=(*x.shape[:axis], size * x.shape[axis + 1], *x.shape[axis + 2 :]))
    return Batched((x,), (False,))


#: ``all_gather(x, axis_names=, size=, axis=, tiled=)``: the values of all examples, stacked along a new ``axis`` or, if
#: ``tiled``, put one after the other along an old one.
all_gather = _collective(
    "all_gather",
    _gather_shape,
    _gather_over,
    lambda g, o, x, **params: psum_scatter(g, **params),
    lambda batched, x, *, axis, **params: all_gather(x, axis=axis + 1, **params),
)


def _scatter_shape(x: ShapeDtype, *, axis_names: Names, size: Size, axis: int, tiled: bool) -> ShapeDtype:
    check_axes("psum_scatter", x, (axis,))
    whole = x.shape[axis]
    if whole % size if tiled else whole != size:
        what = "divisible by" if tiled else "equal to"
        raise ShapeError("psum_scatter", f"axis {axis} must be {what} the number of examples, {size}", got=repr(x))
    kept = (whole // size,) if tiled else ()
    return replace(x, shape=(*x.shape[:axis], *kept, *x.shape[axis + 1 :]))


def _scatter_over(axis_name, count, batched, x, *, axis_names, size, axis, tiled):
    x = reductions.sum(x, axis=(0,)) if batched[0] else _times(x, size)
    if tiled:
        x = shapes.reshape(x, shape=(*x.shape[:axis], size, x.shape[axis] // size, *x.shape[axis + 1 :]))
    return move_front(x, axis)


#: ``psum_scatter(x, axis_names=, size=, axis=, tiled=)``: the sum over all examples; each gets its part.
psum_scatter = _collective(
    "psum_scatter",
    _scatter_shape,
    _scatter_over,
    lambda g, o, x, **params: all_gather(g, **params),
    lambda batched, x, *, axis, **params: psum_scatter(x, axis=axis + 1, **params),
    precision="high",
)

# -- ppermute, all_to_all ----------------------------------------------------------------------------------------------


def _permute_shape(x: ShapeDtype, *, axis_names: Names, perm: tuple[tuple[int, int], ...]) -> ShapeDtype:
    return x


def _permute_over(axis_name, size, batched, x, *, axis_names, perm):
    x = x if batched[0] else repeat(x, size)
    source = {target: origin for origin, target in perm}
    zero = shapes.broadcast_to(x.dtype.type(0), shape=(1, *x.shape[1:]))
    rows = []
    for i in range(size):
        start, stop = [0] * x.ndim, list(x.shape)
        if i in source:
            start[0], stop[0] = source[i], source[i] + 1
        rows.append(shapes.slice(x, start=tuple(start), stop=tuple(stop), step=(1,) * x.ndim) if i in source else zero)
    return shapes.concat(*rows, axis=0)


#: ``ppermute(x, axis_names=, perm=)``: each example sends its value on, by pairs ``(from, to)``; the others get zeros.
ppermute = _collective(
    "ppermute",
    _permute_shape,
    _permute_over,
    lambda g, o, x, *, axis_names, perm: ppermute(
        g, axis_names=axis_names, perm=tuple((target, origin) for origin, target in perm)
    ),
    lambda batched, x, **params: ppermute(x, **params),
)


def _exchange_shape(x: ShapeDtype, *, axis_names: Names, size: Size, split: int, concat: int) -> ShapeDtype:
    check_axes("all_to_all", x, (split,))
    check_axes("all_to_all", x, (concat,))
    if x.shape[split] % size:
        raise ShapeError("all_to_all", f"axis {split} must be divisible by the number of examples", got=f"{x}, {size}")
    sizes = list(x.shape)
    sizes[split] //= size
    sizes[concat] *= size
    return replace(x, shape=tuple(sizes))


def _exchange_over(axis_name, count, batched, x, *, axis_names, size, split, concat):
    x = x if batched[0] else repeat(x, size)
    part = x.shape[split + 1] // size
    x = shapes.reshape(x, shape=(*x.shape[: split + 1], size, part, *x.shape[split + 2 :]))
    # Axes: sender, ..., receiver at split + 1, ...; the receiver goes to the front, the sender before `concat`.
    x = move_front(x, split + 1)
    order = list(range(x.ndim))
    order.insert(concat + 1, order.pop(1))
    x = shapes.permute_dims(x, axes=tuple(order))
    at = concat + 1
    return shapes.reshape(x, shape=(*x.shape[:at], x.shape[at] * x.shape[at + 1], *x.shape[at + 2 :]))


#: ``all_to_all(x, axis_names=, size=, split=, concat=)``: each example cuts its value along ``split``, sends one part
#: to each, and puts the parts it gets one after the other along ``concat``.
all_to_all = _collective(
    "all_to_all",
    _exchange_shape,
    _exchange_over,
    lambda g, o, x, *, split, concat, **params: all_to_all(g, split=concat, concat=split, **params),
    lambda batched, x, *, split, concat, **params: all_to_all(x, split=split + 1, concat=concat + 1, **params),
)
