"""Shape ops: the same elements at other places, and the two ways to make elements from nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmfun import dtypes
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.op import Op, Spelling, dtype_name, plain, register, relax_spelling
from tvmfun.errors import ShapeError
from tvmfun.ops import pointwise

Ints = tuple[int, ...]


def _with_shape_argument(name: str, function) -> Spelling:
    """Relax passes some shapes as an argument and not as an attribute."""
    return Spelling(
        name,
        lambda exprs, params: function(exprs[0], params["shape"]),
        lambda call: ([call.args[0]], {"shape": plain(tuple(call.args[1].values))}),
    )


# -- reshape ---------------------------------------------------------------------------------------------------


def _reshape_shape(x: ShapeDtype, *, shape: Ints) -> ShapeDtype:
    if math.prod(shape) != x.size:
        raise ShapeError(
            "reshape",
            f"{shape} has {math.prod(shape)} elements",
            got=f"{x} with {x.size}",
            hint="sizes with the same product, one of which may be -1",
        )
    return replace(x, shape=shape)


def ravel_index(indices: tuple, shape: Ints) -> tirx.Expr | int:
    """The row-major position of the element at ``indices`` of ``shape``."""
    flat = 0
    for index, size in zip(indices, shape, strict=True):
        flat = flat * size + index
    return flat


def unravel_index(flat: Any, shape: Ints) -> tuple:
    """The indices of the element at row-major position ``flat`` of ``shape``."""
    indices = []
    for size in reversed(shape):
        indices.append(tirx.indexmod(flat, size))
        flat = tirx.indexdiv(flat, size)
    return tuple(reversed(indices))


def _reshape_places(shape: Ints, source: Ints, indices: tuple) -> tuple:
    """Where in ``source`` the element at ``indices`` of ``shape`` lies: axis by axis where sizes line up.

    Splitting the problem at common prefixes of the sizes keeps index arithmetic, and so the kernels, simple.
    """
    places: list = []
    i = j = 0
    while i < len(shape) or j < len(source):
        first_i, first_j = i, j
        left = right = 1
        while True:
            if left == right and (i > first_i or j > first_j) and left != 1:
                break
            if left <= right and i < len(shape):
                left *= shape[i]
                i += 1
            elif j < len(source):
                right *= source[j]
                j += 1
            elif i < len(shape):
                left *= shape[i]
                i += 1
            else:
                break
        if shape[first_i:i] == source[first_j:j]:
            places += indices[first_i:i]
        else:
            flat = ravel_index(indices[first_i:i], shape[first_i:i])
            places += unravel_index(flat, source[first_j:j])
    return tuple(places)


def _reshape(x: te.Tensor, *, shape: Ints) -> te.Tensor:
    source = plain(tuple(x.shape))
    if 0 in shape:
        return te.compute(shape, lambda *i: tirx.const(0, dtype_name(x)))
    return te.compute(shape, lambda *i: x(*_reshape_places(shape, source, i)))


reshape = register(
    Op(
        "reshape",
        "injective",
        _reshape_shape,
        _reshape,
        (lambda g, o, x, *, shape: reshape(g, shape=x.shape),),
        _with_shape_argument("relax.reshape", relax.op.reshape),
    )
)

# -- broadcast_to ----------------------------------------------------------------------------------------------


def _broadcast_shape(x: ShapeDtype, *, shape: Ints) -> ShapeDtype:
    if pointwise.broadcast_shapes("broadcast_to", [x.shape, shape]) != tuple(shape):
        raise ShapeError("broadcast_to", f"the shape does not broadcast to {shape}", got=repr(x))
    return replace(x, shape=shape)


def repeated(x: te.Tensor, shape: Ints, indices: tuple) -> tirx.Expr:
    """The element of ``x`` that broadcasting puts at ``indices`` of ``shape``."""
    own = indices[len(shape) - x.ndim :]
    return x(*(0 if plain(size) == 1 else i for i, size in zip(own, x.shape, strict=True)))


broadcast_to = register(
    Op(
        "broadcast_to",
        "injective",
        _broadcast_shape,
        lambda x, *, shape: te.compute(shape, lambda *i: repeated(x, shape, i)),
        (lambda g, o, x, *, shape: pointwise.sum_to(g, x.shape),),
        _with_shape_argument("relax.broadcast_to", relax.op.broadcast_to),
    )
)

# -- permute_dims ----------------------------------------------------------------------------------------------


def _permute_shape(x: ShapeDtype, *, axes: Ints) -> ShapeDtype:
    if sorted(axes) != list(range(x.ndim)):
        raise ShapeError("permute_dims", f"{axes} is no permutation of the axes", got=repr(x))
    return replace(x, shape=tuple(x.shape[axis] for axis in axes))


permute_dims = register(
    Op(
        "permute_dims",
        "injective",
        _permute_shape,
        lambda x, *, axes: te.compute(
            [x.shape[axis] for axis in axes], lambda *i: x(*(i[axes.index(axis)] for axis in range(len(axes))))
        ),
        (lambda g, o, x, *, axes: permute_dims(g, axes=tuple(map(int, np.argsort(axes)))),),
        relax_spelling("relax.permute_dims", relax.op.permute_dims, "axes"),
    )
)

# -- slice and pad: each other's transposes --------------------------------------------------------------------


def _slice_shape(x: ShapeDtype, *, start: Ints, stop: Ints, step: Ints) -> ShapeDtype:
    sizes = []
    for size, first, last, stride in zip(x.shape, start, stop, step, strict=True):
        if not (0 <= first <= size and 0 <= last <= size and stride > 0):
            raise ShapeError("slice", f"[{first}:{last}:{stride}] is outside an axis of size {size}", got=repr(x))
        sizes.append(max(0, -(-(last - first) // stride)))
    return replace(x, shape=tuple(sizes))


def _slice(x: te.Tensor, *, start: Ints, stop: Ints, step: Ints) -> te.Tensor:
    sizes = [max(0, -(-(last - first) // stride)) for first, last, stride in zip(start, stop, step, strict=True)]
    places = lambda i: (first + j * stride for first, j, stride in zip(start, i, step, strict=True))
    return te.compute(sizes, lambda *i: x(*places(i)))


def _slice_vjp(g: Array, out: Array, x: Array, *, start: Ints, stop: Ints, step: Ints) -> Array:
    interior = tuple(stride - 1 for stride in step)
    spans = (max(0, n * (stride - 1) + n - (stride - 1)) for n, stride in zip(g.shape, step, strict=True))
    high = tuple(size - first - span for size, first, span in zip(x.shape, start, spans, strict=True))
    return pad(g, pointwise.constant(0, g), low=start, high=high, interior=interior)


slice = register(Op("slice", "injective", _slice_shape, _slice, (_slice_vjp,)))


def _padded_sizes(shape: Ints, low: Ints, high: Ints, interior: Ints) -> Ints:
    spans = (max(0, size + (size - 1) * inner) for size, inner in zip(shape, interior, strict=True))
    return tuple(below + span + above for below, span, above in zip(low, spans, high, strict=True))


def _pad_shape(x: ShapeDtype, value: ShapeDtype, *, low: Ints, high: Ints, interior: Ints) -> ShapeDtype:
    if value.shape or value.dtype != x.dtype:
        raise ShapeError("pad", f"the padding value must be one {x.dtype}", got=repr(value))
    sizes = _padded_sizes(x.shape, low, high, interior)
    if any(size < 0 for size in sizes) or any(inner < 0 for inner in interior):
        raise ShapeError("pad", "negative padding must not exceed the axis", got=f"{x} to {sizes}")
    return replace(x, shape=sizes)


def padded(x: te.Tensor, value, low: Ints, high: Ints, interior: Ints, indices: tuple) -> tirx.Expr:
    """The element at ``indices`` of ``x`` after padding with ``value`` around and between its elements."""
    inside, places = [], []
    for i, size, below, above, inner in zip(indices, plain(tuple(x.shape)), low, high, interior, strict=True):
        offset = i - below if below else i
        span = size + (size - 1) * inner
        if below > 0:
            inside.append(i >= below)
        if above > 0:
            inside.append(i < below + span)
        if inner:
            inside.append(tirx.EQ(tirx.indexmod(offset, inner + 1), 0))
            offset = tirx.indexdiv(offset, inner + 1)
        places.append(offset)
    return tirx.if_then_else(tirx.all(*inside), x(*places), value) if inside else x(*places)


def _pad(x: te.Tensor, value: te.Tensor, *, low: Ints, high: Ints, interior: Ints) -> te.Tensor:
    sizes = _padded_sizes(plain(tuple(x.shape)), low, high, interior)
    if 0 in plain(tuple(x.shape)):
        return te.compute(sizes, lambda *i: value())
    return te.compute(sizes, lambda *i: padded(x, value(), low, high, interior, i))


def _unpad(g: Array, low: Ints, high: Ints, interior: Ints) -> Array:
    g = pad_or_crop(g, tuple(min(0, -n) for n in low), tuple(min(0, -n) for n in high))
    grown = tuple(max(0, -n) for n in low), tuple(max(0, -n) for n in high)
    if any(map(any, grown)):  # negative padding cut elements off: their cotangent is 0
        g = pad(g, pointwise.constant(0, g), low=grown[0], high=grown[1], interior=(0,) * g.ndim)
    if any(interior):
        g = slice(g, start=(0,) * g.ndim, stop=g.shape, step=tuple(inner + 1 for inner in interior))
    return g


def pad_or_crop(x: Array, low: Ints, high: Ints) -> Array:
    """Crops ``x`` where ``low`` and ``high`` are negative."""
    start = tuple(max(0, -n) for n in low)
    stop = tuple(size - max(0, -n) for size, n in zip(x.shape, high, strict=True))
    return slice(x, start=start, stop=stop, step=(1,) * x.ndim) if any(start) or stop != x.shape else x


def _pad_value_vjp(g: Array, out: Array, x: Array, value: Array, **params: Ints) -> Array:
    from tvmfun.ops import reduce

    everything = tuple(range(g.ndim))
    own = reduce.sum(_unpad(g, **params), axis=everything)
    return pointwise.subtract(reduce.sum(g, axis=everything), own)


def _pad_vjp(g: Array, out: Array, x: Array, value: Array, **params: Ints) -> Array:
    return _unpad(g, **params) if x.size else broadcast_to(pointwise.constant(0, g), shape=x.shape)


pad = register(Op("pad", "injective", _pad_shape, _pad, (_pad_vjp, _pad_value_vjp)))

# -- flip ------------------------------------------------------------------------------------------------------

flip = register(
    Op(
        "flip",
        "injective",
        lambda x, *, axes: x,
        lambda x, *, axes: te.compute(
            x.shape,
            lambda *i: x(
                *(size - 1 - j if k in axes else j for k, (j, size) in enumerate(zip(i, x.shape, strict=True)))
            ),
        ),
        (lambda g, o, x, *, axes: flip(g, axes=axes),),
    )
)

# -- concat ----------------------------------------------------------------------------------------------------


def _concat_shape(*xs: ShapeDtype, axis: int) -> ShapeDtype:
    rest = [(x.shape[:axis], x.shape[axis + 1 :], x.dtype) for x in xs]
    if any(other != rest[0] for other in rest):
        raise ShapeError(
            "concat", f"the dtypes and all sizes but those of axis {axis} must agree", got=", ".join(map(str, xs))
        )
    total = sum(x.shape[axis] for x in xs)
    return replace(xs[0], shape=(*xs[0].shape[:axis], total, *xs[0].shape[axis + 1 :]), weak=False)


def _concat(*xs: te.Tensor, axis: int) -> te.Tensor:
    begins = list(accumulate((plain(x.shape[axis]) for x in xs), initial=0))
    shape = [*xs[0].shape]
    shape[axis] = begins[-1]

    def element(*indices):
        result = None
        for x, begin, end in reversed(list(zip(xs, begins, begins[1:], strict=False))):
            if begin == end:
                continue
            here = x(*indices[:axis], indices[axis] - begin, *indices[axis + 1 :])
            result = here if result is None else tirx.if_then_else(indices[axis] < end, here, result)
        return tirx.const(0, dtype_name(xs[0])) if result is None else result

    return te.compute(shape, element)


def _concat_vjp(argnum: int, g: Array, out: Array, *xs: Array, axis: int) -> Array:
    begin = sum(x.shape[axis] for x in xs[:argnum])
    start = [0] * g.ndim
    stop = list(g.shape)
    start[axis], stop[axis] = begin, begin + xs[argnum].shape[axis]
    return slice(g, start=tuple(start), stop=tuple(stop), step=(1,) * g.ndim)


concat = register(
    Op(
        "concat",
        "injective",
        _concat_shape,
        _concat,
        _concat_vjp,
        Spelling(
            "relax.concat",
            lambda exprs, params: relax.op.concat(list(exprs), params["axis"]),
            lambda call: (list(call.args[0].fields), {"axis": plain(call.attrs.axis)}),
        ),
    )
)

# -- iota ------------------------------------------------------------------------------------------------------


def _iota_shape(*, shape: Ints, axis: int, dtype: str) -> ShapeDtype:
    return ShapeDtype(shape, dtypes.canonical(dtype))


iota = register(
    Op(
        "iota",
        "injective",
        _iota_shape,
        lambda *, shape, axis, dtype: te.compute(shape, lambda *i: tirx.Cast(dtype, i[axis])),
    )
)
