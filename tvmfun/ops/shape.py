"""Shape ops: the same elements at other indices, and the two ops that create elements."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.expressions import dtype_name, plain, scalar
from tvmfun.core.op import Op, register
from tvmfun.core.relax import Spelling
from tvmfun.core.trace import argument, producer
from tvmfun.errors import DtypeError, ShapeError
from tvmfun.ops import formula, pointwise
from tvmfun.ops.parameters import Dtype, Ints, Size, Sizes, check_axes, check_strides
from tvmfun.ops.simplify import made_by


def _with_shape_argument(name: str) -> Spelling:
    """The spelling of ops whose shape is an argument in Relax; its functions take a 0 for an abbreviation."""

    def read(call: relax.Call):
        data, shape = call.args
        return ([data], {"shape": plain(tuple(shape.values))}) if isinstance(shape, relax.ShapeExpr) else None

    return Spelling(
        name,
        lambda exprs, params: relax.Call(tvm.ir.Op.get(name), [exprs[0], relax.ShapeExpr(params["shape"])]),
        read,
    )


def repeat_unbatched(batched: tuple[bool, ...], args: tuple[Array, ...]) -> list[Array]:
    """The arguments with a leading batch axis; those without one are repeated along it."""
    size = next(x.shape[0] for flag, x in zip(batched, args, strict=True) if flag)
    return [x if flag else broadcast_to(x, shape=(size, *np.shape(x))) for flag, x in zip(batched, args, strict=True)]


# -- reshape ---------------------------------------------------------------------------------------------------


def _reshape_shape(x: ShapeDtype, *, shape: Sizes) -> ShapeDtype:
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


def _reshape_indices(shape: Ints, source: Ints, indices: tuple) -> tuple:
    """The indices into ``source`` of the element at ``indices`` of ``shape``: axis by axis where sizes line up.

    Without axes of size 1, and split at common prefixes of the sizes, index arithmetic stays simple, and so do kernels.
    """
    positions: list = []
    i = j = 0
    while i < len(shape) or j < len(source):
        if i < len(shape) and shape[i] == 1:
            i += 1
            continue
        if j < len(source) and source[j] == 1:
            positions.append(0)
            j += 1
            continue
        first_i, first_j = i, j
        left = right = 1
        while True:
            if left == right and (i > first_i or j > first_j) and left != 1:
                break
            if dims.typical(left) <= dims.typical(right) and i < len(shape):
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
            positions += indices[first_i:i]
        else:
            flat = ravel_index(indices[first_i:i], shape[first_i:i])
            positions += unravel_index(flat, source[first_j:j])
    return tuple(positions)


def _reshape(x: te.Tensor, *, shape: Ints) -> te.Tensor:
    source = plain(tuple(x.shape))
    if 0 in shape:
        return te.compute(shape, lambda *i: tirx.const(0, dtype_name(x)))
    return te.compute(shape, lambda *i: x(*_reshape_indices(shape, source, i)))


def _reshape_simplify(x: Any, *, shape: Ints) -> Any:
    if np.shape(x) == shape:
        return x
    if isinstance(x, np.generic):
        return broadcast_to(x, shape=shape)
    if made_by(x, "reshape"):
        return reshape(argument(x, 0), shape=shape)
    if made_by(x, "broadcast_to"):
        # If only axes of size 1 are added or removed, reshape the operand of the broadcast instead.
        inner = argument(x, 0)
        own = (1,) * (x.ndim - np.ndim(inner)) + np.shape(inner)
        if math.prod(own) == 1:
            return broadcast_to(reshape(inner, shape=()), shape=shape)
        if [n for n in x.shape if n != 1] == [n for n in shape if n != 1]:
            sizes = iter([size for size, n in zip(own, x.shape, strict=True) if n != 1])
            kept = tuple(1 if n == 1 else next(sizes) for n in shape)
            return broadcast_to(reshape(inner, shape=kept), shape=shape)
    return None


reshape = register(
    Op(
        "reshape",
        "injective",
        _reshape_shape,
        _reshape,
        (lambda g, o, x, *, shape: reshape(g, shape=x.shape),),
        _with_shape_argument("relax.reshape"),
        batch=lambda batched, x, *, shape: reshape(x, shape=(x.shape[0], *shape)),
        simplify=_reshape_simplify,
        view=True,
        precision="kept",
    )
)

# -- broadcast_to ----------------------------------------------------------------------------------------------


def _broadcast_shape(x: ShapeDtype, *, shape: Sizes) -> ShapeDtype:
    if pointwise.broadcast_shapes("broadcast_to", [x.shape, shape]) != tuple(shape):
        raise ShapeError("broadcast_to", f"the shape does not broadcast to {shape}", got=repr(x))
    return replace(x, shape=shape)


def repeated(x: te.Tensor, shape: Ints, indices: tuple) -> tirx.Expr:
    """The element of ``x`` that broadcasting puts at ``indices`` of ``shape``."""
    own = indices[len(shape) - x.ndim :]
    return x(*(0 if plain(size) == 1 else i for i, size in zip(own, x.shape[:], strict=True)))


def _broadcast_batch(batched: tuple[bool, ...], x: Array, *, shape: Ints) -> Array:
    added = len(shape) + 1 - x.ndim
    kept = reshape(x, shape=(x.shape[0], *(1,) * added, *x.shape[1:])) if added else x
    return broadcast_to(kept, shape=(x.shape[0], *shape))


def _broadcast_simplify(x: Any, *, shape: Ints) -> Any:
    if np.shape(x) == shape:
        return x
    if made_by(x, "broadcast_to"):
        return broadcast_to(argument(x, 0), shape=shape)
    if made_by(x, "reshape"):
        inner = argument(x, 0)
        if x.ndim > inner.ndim and x.shape == (1,) * (x.ndim - inner.ndim) + inner.shape:
            return broadcast_to(inner, shape=shape)
    return None


broadcast_to = register(
    Op(
        "broadcast_to",
        "injective",
        _broadcast_shape,
        lambda x, *, shape: te.compute(shape, lambda *i: repeated(x, shape, i)),
        (lambda g, o, x, *, shape: pointwise.sum_to(g, x.shape),),
        _with_shape_argument("relax.broadcast_to"),
        batch=_broadcast_batch,
        simplify=_broadcast_simplify,
    )
)

# -- permute_dims ----------------------------------------------------------------------------------------------


def _permute_shape(x: ShapeDtype, *, axes: Ints) -> ShapeDtype:
    if sorted(axes) != list(range(x.ndim)):
        raise ShapeError("permute_dims", f"{axes} is not a permutation of the axes", got=repr(x))
    return replace(x, shape=tuple(x.shape[axis] for axis in axes))


def _permute_simplify(x: Any, *, axes: Ints) -> Any:
    if axes == tuple(range(len(axes))):
        return x
    if made_by(x, "permute_dims"):
        inner, order = argument(x, 0), producer(x).params["axes"]
        return permute_dims(inner, axes=tuple(order[axis] for axis in axes))
    return None


def _in_order(axes: Any) -> bool:
    return axes is not None and all(axis >= 0 for axis in plain(axes))


permute_dims = register(
    Op(
        "permute_dims",
        "injective",
        _permute_shape,
        lambda x, *, axes: te.compute(
            [x.shape[axis] for axis in axes], lambda *i: x(*(i[axes.index(axis)] for axis in range(len(axes))))
        ),
        (lambda g, o, x, *, axes: permute_dims(g, axes=tuple(map(int, np.argsort(axes)))),),
        Spelling(
            "relax.permute_dims",
            lambda exprs, params: relax.op.permute_dims(exprs[0], params["axes"]),
            lambda call: (list(call.args), {"axes": plain(call.attrs.axes)}) if _in_order(call.attrs.axes) else None,
        ),
        batch=lambda batched, x, *, axes: permute_dims(x, axes=(0, *(axis + 1 for axis in axes))),
        simplify=_permute_simplify,
        precision="kept",
    )
)


def move_axis(x: Array, source: int, target: int) -> Array:
    """``x`` with axis ``source`` moved to position ``target``."""
    axes = [axis for axis in range(x.ndim) if axis != source]
    axes.insert(target, source)
    return x if source == target else permute_dims(x, axes=tuple(axes))


# -- slice and pad: each other's transposes --------------------------------------------------------------------


def _slice_shape(x: ShapeDtype, *, start: Sizes, stop: Sizes, step: Ints) -> ShapeDtype:
    sizes = []
    for size, first, last, stride in zip(x.shape, start, stop, step, strict=True):
        if not (0 <= first <= size and 0 <= last <= size and stride > 0):
            raise ShapeError("slice", f"[{first}:{last}:{stride}] is outside an axis of size {size}", got=repr(x))
        sizes.append(dims.maximum(0, -(-(last - first) // stride)))
    return replace(x, shape=tuple(sizes))


def _slice(x: te.Tensor, *, start: Ints, stop: Ints, step: Ints) -> te.Tensor:
    spans = zip(start, stop, step, strict=True)
    sizes = [dims.maximum(0, -(-(last - first) // stride)) for first, last, stride in spans]
    # The step after a single element may be too large for the type of an index.
    steps = [stride if size not in (0, 1) else 1 for size, stride in zip(sizes, step, strict=True)]
    positions = lambda i: (first + j * stride for first, j, stride in zip(start, i, steps, strict=True))
    return te.compute(sizes, lambda *i: x(*positions(i)))


def _slice_vjp(g: Array, out: Array, x: Array, *, start: Ints, stop: Ints, step: Ints) -> Array:
    interior = tuple(stride - 1 for stride in step)
    spans = (dims.maximum(0, n * (stride - 1) + n - (stride - 1)) for n, stride in zip(g.shape, step, strict=True))
    high = tuple(size - first - span for size, first, span in zip(x.shape, start, spans, strict=True))
    return pad(g, pointwise.constant(0, g), low=start, high=high, interior=interior)


def _slice_batch(batched: tuple[bool, ...], x: Array, *, start: Ints, stop: Ints, step: Ints) -> Array:
    return slice(x, start=(0, *start), stop=(x.shape[0], *stop), step=(1, *step))


def _slice_simplify(x: Any, **params: Ints) -> Any:
    return x if _slice_shape(x.aval, **params).shape == x.shape else None


slice = register(
    Op(
        "slice",
        "injective",
        _slice_shape,
        _slice,
        (_slice_vjp,),
        batch=_slice_batch,
        simplify=_slice_simplify,
        precision="kept",
    )
)


def _padded_sizes(shape: Ints, low: Ints, high: Ints, interior: Ints) -> Ints:
    spans = (dims.maximum(0, size + (size - 1) * inner) for size, inner in zip(shape, interior, strict=True))
    return tuple(below + span + above for below, span, above in zip(low, spans, high, strict=True))


def _pad_shape(x: ShapeDtype, value: ShapeDtype, *, low: Sizes, high: Sizes, interior: Ints) -> ShapeDtype:
    if value.shape or value.dtype != x.dtype:
        raise ShapeError("pad", f"the padding value must be one {x.dtype}", got=repr(value))
    sizes = _padded_sizes(x.shape, low, high, interior)
    check_strides("pad", "the distances of elements", tuple(inner + 1 for inner in interior))
    if any(size < 0 for size in sizes):
        raise ShapeError("pad", "negative padding must not exceed the axis", got=f"{x} to {sizes}")
    return replace(x, shape=sizes)


def padded(x: te.Tensor, value, low: Ints, high: Ints, interior: Ints, indices: tuple) -> tirx.Expr:
    """The element at ``indices`` of ``x`` after padding with ``value`` around and between its elements."""
    inside, positions = [], []
    for i, size, below, above, inner in zip(indices, plain(tuple(x.shape)), low, high, interior, strict=True):
        offset = i - below if below != 0 else i
        span = size + (size - 1) * inner
        if not dims.always_le(below, 0):
            inside.append(i >= below)
        if not dims.always_le(above, 0):
            inside.append(i < below + span)
        if inner:
            inside.append(tirx.EQ(tirx.indexmod(offset, inner + 1), 0))
            offset = tirx.indexdiv(offset, inner + 1)
        positions.append(offset)
    return tirx.if_then_else(tirx.all(*inside), x(*positions), value) if inside else x(*positions)


def _pad(x: te.Tensor, value: te.Tensor, *, low: Ints, high: Ints, interior: Ints) -> te.Tensor:
    sizes = _padded_sizes(plain(tuple(x.shape)), low, high, interior)
    if 0 in plain(tuple(x.shape)):
        return te.compute(sizes, lambda *i: value())
    return te.compute(sizes, lambda *i: padded(x, value(), low, high, interior, i))


def _unpad(g: Array, low: Ints, high: Ints, interior: Ints) -> Array:
    grown = tuple(dims.maximum(0, -n) for n in low), tuple(dims.maximum(0, -n) for n in high)
    if any(n != 0 for side in grown for n in side):  # negative padding cut elements off: their cotangent is 0
        g = pad(g, pointwise.constant(0, g), low=grown[0], high=grown[1], interior=(0,) * g.ndim)
    # Cropped only now: one side may crop more than the other side left.
    g = pad_or_crop(g, tuple(dims.minimum(0, -n) for n in low), tuple(dims.minimum(0, -n) for n in high))
    if any(interior):
        g = slice(g, start=(0,) * g.ndim, stop=g.shape, step=tuple(inner + 1 for inner in interior))
    return g


def pad_or_crop(x: Array, low: Ints, high: Ints) -> Array:
    """Crops ``x`` where ``low`` and ``high`` are negative."""
    start = tuple(dims.maximum(0, -n) for n in low)
    stop = tuple(size - dims.maximum(0, -n) for size, n in zip(x.shape, high, strict=True))
    crops = any(n != 0 for n in start) or stop != x.shape
    return slice(x, start=start, stop=stop, step=(1,) * x.ndim) if crops else x


def _pad_value_vjp(g: Array, out: Array, x: Array, value: Array, **params: Ints) -> Array:
    from tvmfun.ops import reduce

    everything = tuple(range(g.ndim))
    own = reduce.sum(_unpad(g, **params), axis=everything)
    return reduce.sum(g, axis=everything) - own


def _pad_vjp(g: Array, out: Array, x: Array, value: Array, **params: Ints) -> Array:
    return _unpad(g, **params) if x.size != 0 else broadcast_to(pointwise.constant(0, g), shape=x.shape)


def _pad_batch(batched: tuple[bool, ...], x: Array, value: Array, *, low: Ints, high: Ints, interior: Ints) -> Array:
    params = {"low": low, "high": high, "interior": interior}
    lead = {key: (0, *amounts) for key, amounts in params.items()} if batched[0] else params
    if not batched[1]:
        return pad(x, value, **lead)
    # There is one padding value per call: pad with any value, and replace it by the values of the examples.
    own = broadcast_to(np.bool_(True), shape=x.shape[batched[0] :])
    padded_x = pad(x, pointwise.constant(0, x), **lead)
    values = reshape(value, shape=(value.shape[0], *(1,) * len(low)))
    return pointwise.where(pad(own, np.bool_(False), **params), padded_x, values)


def _pad_simplify(x: Any, value: Any, *, low: Ints, high: Ints, interior: Ints) -> Any:
    spread = (inner for inner, size in zip(interior, np.shape(x), strict=True) if size not in (0, 1))
    return x if all(n == 0 for n in (*low, *high, *spread)) else None


pad = register(
    Op(
        "pad",
        "injective",
        _pad_shape,
        _pad,
        (_pad_vjp, _pad_value_vjp),
        batch=_pad_batch,
        simplify=_pad_simplify,
    )
)

# -- flip ------------------------------------------------------------------------------------------------------


def _flip_shape(x: ShapeDtype, *, axes: Ints) -> ShapeDtype:
    check_axes("flip", x, axes)
    return x


def _flip_simplify(x: Any, *, axes: Ints) -> Any:
    if not axes:
        return x
    if made_by(x, "flip"):
        before = producer(x).params["axes"]
        return flip(argument(x, 0), axes=tuple(axis for axis in range(x.ndim) if (axis in axes) != (axis in before)))
    return None


flip = register(
    Op(
        "flip",
        "injective",
        _flip_shape,
        lambda x, *, axes: te.compute(
            x.shape,
            lambda *i: x(
                *(size - 1 - j if k in axes else j for k, (j, size) in enumerate(zip(i, x.shape, strict=True)))
            ),
        ),
        (lambda g, o, x, *, axes: flip(g, axes=axes),),
        batch=lambda batched, x, *, axes: flip(x, axes=tuple(axis + 1 for axis in axes)),
        simplify=_flip_simplify,
        precision="kept",
    )
)

# -- concat ----------------------------------------------------------------------------------------------------


def _concat_shape(*xs: ShapeDtype, axis: int) -> ShapeDtype:
    check_axes("concat", xs[0], (axis,))
    rest = [(x.shape[:axis], x.shape[axis + 1 :], x.dtype) for x in xs]
    if any(other != rest[0] for other in rest):
        raise ShapeError(
            "concat", f"the dtypes and all sizes but those of axis {axis} must agree", got=", ".join(map(str, xs))
        )
    total = sum(x.shape[axis] for x in xs)
    shape = (*xs[0].shape[:axis], total, *xs[0].shape[axis + 1 :])
    return ShapeDtype(shape, xs[0].dtype, weak=all(x.weak for x in xs))


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


def _concat_simplify(*xs: Any, axis: int) -> Any:
    parts = [x for x in xs if x.shape[axis] != 0] or xs[:1]
    if len(parts) == 1:
        return None if parts[0].weak_type else parts[0]
    return concat(*parts, axis=axis) if len(parts) < len(xs) else None


def _is_plain(call: relax.Call) -> bool:
    return isinstance(call.args[0], relax.Tuple) and call.attrs.axis is not None and call.attrs.axis >= 0


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
            lambda call: (list(call.args[0].fields), {"axis": plain(call.attrs.axis)}) if _is_plain(call) else None,
        ),
        batch=lambda batched, *xs, axis: concat(*repeat_unbatched(batched, xs), axis=axis + 1),
        simplify=_concat_simplify,
        precision="kept",
    )
)

# -- iota ------------------------------------------------------------------------------------------------------


def _iota_shape(*, shape: Sizes, axis: int, dtype: Dtype) -> ShapeDtype:
    result = ShapeDtype(shape, dtypes.canonical(dtype))
    check_axes("iota", result, (axis,))
    if result.dtype == dtypes.bool_:
        raise DtypeError("iota", "indices are numbers", got=dtype)
    return result


def _iota(*, shape: Ints, axis: int, dtype: str) -> te.Tensor:
    def number(index: Any) -> Any:
        if dtype == "bfloat16":
            return formula.rounded_to_bfloat16(index)
        # TVM would move a cast to unsigned into a difference of indices, whose factors may be negative.
        is_hidden = dtype in formula.NARROW or dtype.startswith("uint")
        return tirx.Cast(dtype, formula.hidden(index) if is_hidden else index)

    return te.compute(shape, lambda *i: number(i[axis]))


iota = register(
    Op(
        "iota",
        "injective",
        _iota_shape,
        _iota,
    )
)

# -- dim_size --------------------------------------------------------------------------------------------------


def _dim_size_shape(*, size: Size, dtype: Dtype) -> ShapeDtype:
    return ShapeDtype((), dtypes.canonical(dtype), weak=True)


#: ``dim_size(size=, dtype=)``: the value of a dynamic size, with a weak dtype like that of a Python integer.
dim_size = register(
    Op(
        "dim_size",
        "injective",
        _dim_size_shape,
        lambda *, size, dtype: te.compute((), lambda: scalar(size, dtype)),
    )
)
