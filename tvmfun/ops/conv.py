"""Convolution and pooling over channels-last arrays, and the ops that their derivatives need.

Arrays are (batch, *spatial, channels) and kernels (*spatial, input channels / groups, output channels), the
layout in which the innermost loops run over contiguous channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from tvm import te, tirx

from tvmfun import dtypes
from tvmfun.core import dims
from tvmfun.core.array import Array, ShapeDtype
from tvmfun.core.expressions import dtype_name, plain
from tvmfun.core.op import Kind, Op, register
from tvmfun.errors import DtypeError, ShapeError
from tvmfun.ops import formula
from tvmfun.ops import pointwise as pw
from tvmfun.ops import shape as shapes
from tvmfun.ops.parameters import Ints, Margins, Sizes, check_strides


def span(size: int, dilation: int) -> int:
    """The extent of ``size`` elements with ``dilation - 1`` holes between them."""
    return dims.maximum(0, (size - 1) * dilation + 1)


def _output_sizes(spatial: Ints, kernel: Ints, stride: Ints, padding: Margins, dilation: Ints, kernel_dilation: Ints):
    sizes = []
    for n, k, s, (low, high), d, kd in zip(spatial, kernel, stride, padding, dilation, kernel_dilation, strict=True):
        room = span(n, d) + low + high - span(k, kd)
        sizes.append(dims.maximum(0, room // s + 1))
    return tuple(sizes)


def _check_windows(
    name: str, spatial: Ints, stride: Ints, padding: Margins, dilation: Ints, kernel_dilation: Ints, groups: int
) -> None:
    """Raises for windows that do not move, holes of negative size, and margins that crop more than the array."""
    check_strides(name, "strides, dilations and groups", (*stride, *dilation, *kernel_dilation, groups))
    padded = [span(n, d) + low + high for n, d, (low, high) in zip(spatial, dilation, padding, strict=True)]
    if any(not dims.is_dynamic(size) and not 0 <= size < 2**31 for size in padded):
        what = "negative padding must not exceed the axis, and an axis with padding must be below 2**31"
        raise ShapeError(name, what, got=f"{spatial} to {tuple(padded)}")


def _has_margins(padding: Margins) -> bool:
    return any(pair != (0, 0) for pair in padding)


def _with_margins(x: te.Tensor, padding: Margins, dilation: Ints) -> te.Tensor:
    """``x`` with zeros around and between its spatial elements; negative padding crops."""
    if not _has_margins(padding) and all(d == 1 for d in dilation):
        return x
    low = (0, *(p[0] for p in padding), 0)
    high = (0, *(p[1] for p in padding), 0)
    interior = (0, *(d - 1 for d in dilation), 0)
    sizes = [span(plain(n), inner + 1) + a + b for n, a, b, inner in zip(x.shape, low, high, interior, strict=True)]
    zero = tirx.const(0, dtype_name(x))
    return te.compute(sizes, lambda *i: shapes.padded(x, zero, low, high, interior, i), name="padded")


def _accumulator(dtype: str) -> str:
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def _rounded(total: te.Tensor, dtype: str) -> te.Tensor:
    return total if dtype_name(total) == dtype else te.compute(total.shape, lambda *i: total(*i).astype(dtype))


# -- batching: the batch joins an axis that every convolution has ------------------------------------------------


def _merge_leading_axis(x: Array, axis: int, groups: int = 1) -> Array:
    """``x`` with its first axis merged into ``axis`` of the others, inside each of the ``groups`` of that axis."""
    size, *rest = x.shape
    split = [groups, rest[axis] // groups] if groups > 1 else [rest[axis]]
    parts = shapes.reshape(x, shape=(size, *rest[:axis], *split, *rest[axis + 1 :]))
    moved = shapes.move_axis(parts, 0, axis + len(split) - 1)
    return shapes.reshape(moved, shape=(*rest[:axis], size * rest[axis], *rest[axis + 1 :]))


def _split_leading_axis(x: Array, axis: int, size: int, groups: int = 1) -> Array:
    """The inverse of :func:`_merge_leading_axis` for a first axis of ``size``."""
    before, inner, after = x.shape[:axis], x.shape[axis] // size, x.shape[axis + 1 :]
    split = (groups, size, inner // groups) if groups > 1 else (size, inner)
    parts = shapes.reshape(x, shape=(*before, *split, *after))
    moved = shapes.move_axis(parts, axis + len(split) - 2, 0)
    return shapes.reshape(moved, shape=(size, *before, inner, *after))


def _no_results(rule: Callable[..., ShapeDtype], batched: tuple[bool, ...], args: tuple, params: dict) -> Array:
    """The results for an empty batch, whose axis could not be split again from the axis that it would join."""
    avals = [ShapeDtype(x.shape[flag:], x.dtype) for flag, x in zip(batched, args, strict=True)]
    return shapes.broadcast_to(pw.constant(0, args[0]), shape=(0, *rule(*avals, **params).shape))


# -- conv ------------------------------------------------------------------------------------------------------


def _conv_shape(
    x: ShapeDtype,
    w: ShapeDtype,
    *,
    stride: Ints,
    padding: Margins,
    dilation: Ints,
    kernel_dilation: Ints,
    groups: int,
    precision: Literal["tensorfloat32"] | None = None,
) -> ShapeDtype:
    if x.dtype != w.dtype or not dtypes.is_float(x.dtype):
        raise DtypeError("conv", "the array and the kernel must have one float dtype", got=f"{x} and {w}")
    if x.ndim != w.ndim or x.ndim < 3:
        raise ShapeError(
            "conv", "the array is (batch, *spatial, channels), the kernel (*spatial, in, out)", got=f"{x}, {w}"
        )
    _check_windows("conv", x.shape[1:-1], stride, padding, dilation, kernel_dilation, groups)
    if x.shape[-1] != w.shape[-2] * groups or w.shape[-1] % groups:
        raise ShapeError(
            "conv",
            f"the channels do not fit {groups} group(s)",
            got=f"{x} and {w}",
            hint="a kernel of (*spatial, in / groups, out)",
        )
    sizes = _output_sizes(x.shape[1:-1], w.shape[:-2], stride, padding, dilation, kernel_dilation)
    return ShapeDtype((x.shape[0], *sizes, w.shape[-1]), x.dtype)


def _conv(
    x: te.Tensor, w: te.Tensor, *, stride, padding, dilation, kernel_dilation, groups, precision: str | None = None
) -> te.Tensor:
    kernel, (channels, features) = plain(tuple(w.shape))[:-2], plain(tuple(w.shape))[-2:]
    sizes = _output_sizes(plain(tuple(x.shape))[1:-1], kernel, stride, padding, dilation, kernel_dilation)
    source = _with_margins(x, padding, dilation)
    window = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(kernel)]
    channel = te.reduce_axis((0, channels), "ci")
    total = _accumulator(dtype_name(x))

    def element(n, *rest):
        *at, feature = rest
        positions = [i * s + k * d for i, s, k, d in zip(at, stride, window, kernel_dilation, strict=True)]
        group = tirx.indexdiv(feature, features // groups) * channels if groups > 1 else 0
        product = source(n, *positions, group + channel).astype(total) * w(*window, channel, feature).astype(total)
        return te.sum(product, axis=[*window, channel])

    return _rounded(te.compute((x.shape[0], *sizes, features), element, name="conv"), dtype_name(x))


def turned(w: Array, groups: int) -> Array:
    """The kernel that is flipped along its spatial axes, with input and output channels exchanged in each group."""
    spatial = w.ndim - 2
    flipped = shapes.flip(w, axes=tuple(range(spatial)))
    sizes, channels, features = w.shape[:-2], w.shape[-2], w.shape[-1]
    if groups == 1:
        return shapes.permute_dims(flipped, axes=(*range(spatial), spatial + 1, spatial))
    # (…, in/g, g, out/g) -> (…, out/g, g, in/g)
    split = shapes.reshape(flipped, shape=(*sizes, channels, groups, features // groups))
    exchanged = shapes.permute_dims(split, axes=(*range(spatial), spatial + 2, spatial + 1, spatial))
    return shapes.reshape(exchanged, shape=(*sizes, features // groups, groups * channels))


def _conv_vjp_array(g: Array, out: Array, x: Array, w: Array, **params: Any) -> Array:
    return _input_gradient(g, w, x.shape, **params)


def _input_gradient(
    g: Array, w: Array, shape: Ints, *, stride, padding, dilation, kernel_dilation, groups, **precision: Any
) -> Array:
    """A convolution of the cotangent, strides and dilation exchanged, with the flipped and transposed kernel."""
    margins = []
    for n, k, s, (low, _), d, kd, m in zip(
        shape[1:-1], w.shape[:-2], stride, padding, dilation, kernel_dilation, g.shape[1:-1], strict=True
    ):
        below = span(k, kd) - 1 - low
        above = span(n, d) + span(k, kd) - 1 - span(m, s) - below
        margins.append((below, above))
    return conv(
        g,
        turned(w, groups),
        stride=dilation,
        padding=tuple(margins),
        dilation=stride,
        kernel_dilation=kernel_dilation,
        groups=groups,
        **precision,
    )


def _conv_vjp_kernel(g: Array, out: Array, x: Array, w: Array, **params: Any) -> Array:
    return conv_kernel_gradient(x, g, kernel=w.shape[:-2], **params)


def _conv_batch(batched: tuple[bool, ...], x: Array, w: Array, *, groups: int, **params: Any) -> Array:
    size, last = (x if batched[0] else w).shape[0], x.ndim - 1 - batched[0]
    if size == 0:
        return _no_results(_conv_shape, batched, (x, w), {"groups": groups, **params})
    if not batched[1]:
        return _split_leading_axis(conv(_merge_leading_axis(x, 0), w, groups=groups, **params), 0, size)
    if not batched[0]:
        return _split_leading_axis(
            conv(x, _merge_leading_axis(w, last, groups), groups=groups, **params), last, size, groups
        )
    return _split_leading_axis(
        conv(_merge_leading_axis(x, last), _merge_leading_axis(w, last), groups=size * groups, **params), last, size
    )


def _conv_flops(out: ShapeDtype, x: ShapeDtype, w: ShapeDtype, *, dilation: Ints, **params: Any) -> Any:
    # Products with the zeros between dilated elements of ``x`` do not count.
    return 2 * out.size * math.prod(w.shape[:-1]) // math.prod(dilation)


#: ``conv(x, w, stride=, padding=, dilation=, kernel_dilation=, groups=)``: the cross-correlation every framework calls
#: convolution. ``dilation`` puts holes between the elements of ``x`` (a transposed convolution).
#: ``precision="tensorfloat32"`` allows factors in float32 to be rounded to 11 bits, on GPUs.
conv = register(
    Op(
        "conv",
        "contraction",
        _conv_shape,
        _conv,
        (_conv_vjp_array, _conv_vjp_kernel),
        inexpensive=False,
        batch=_conv_batch,
        flops=_conv_flops,
    )
)

# -- conv_kernel_gradient: bilinear in the array and the cotangent, so conv and it are closed under derivatives --


def _kernel_gradient_shape(
    x: ShapeDtype,
    g: ShapeDtype,
    *,
    kernel: Ints,
    stride: Ints,
    padding: Margins,
    dilation: Ints,
    kernel_dilation: Ints,
    groups: int,
    precision: Literal["tensorfloat32"] | None = None,
) -> ShapeDtype:
    if x.dtype != g.dtype or not dtypes.is_float(x.dtype):
        raise DtypeError("conv_kernel_gradient", "both arrays must have one float dtype", got=f"{x} and {g}")
    if not x.ndim == g.ndim == len(kernel) + 2 or x.shape[0] != g.shape[0]:
        what = "the arrays are (batch, *spatial, channels), with one batch and the rank of the kernel"
        raise ShapeError("conv_kernel_gradient", what, got=f"{x}, {g} and {kernel}")
    _check_windows("conv_kernel_gradient", x.shape[1:-1], stride, padding, dilation, kernel_dilation, groups)
    if x.shape[-1] % groups or g.shape[-1] % groups:
        raise ShapeError("conv_kernel_gradient", f"the channels do not fit {groups} group(s)", got=f"{x} and {g}")
    sizes = _output_sizes(x.shape[1:-1], kernel, stride, padding, dilation, kernel_dilation)
    if not all(dims.always_le(n, most) for n, most in zip(g.shape[1:-1], sizes, strict=True)):
        raise ShapeError("conv_kernel_gradient", f"there are only {sizes} windows", got=f"{x} and {g}")
    return ShapeDtype((*kernel, x.shape[-1] // groups, g.shape[-1]), x.dtype)


def _kernel_gradient(
    x: te.Tensor,
    g: te.Tensor,
    *,
    kernel,
    stride,
    padding,
    dilation,
    kernel_dilation,
    groups,
    precision: str | None = None,
) -> te.Tensor:
    channels, features = plain(x.shape[-1]) // groups, plain(g.shape[-1])
    source = _with_margins(x, padding, dilation)
    n = te.reduce_axis((0, plain(x.shape[0])), "n")
    at = [te.reduce_axis((0, plain(size)), f"o{i}") for i, size in enumerate(g.shape[1:-1])]
    total = _accumulator(dtype_name(x))

    def element(*indices):
        *window, channel, feature = indices
        positions = [i * s + k * d for i, s, k, d in zip(at, stride, window, kernel_dilation, strict=True)]
        group = tirx.indexdiv(feature, features // groups) * channels if groups > 1 else 0
        product = source(n, *positions, group + channel).astype(total) * g(n, *at, feature).astype(total)
        return te.sum(product, axis=[n, *at])

    return _rounded(te.compute((*kernel, channels, features), element, name="conv_kernel_gradient"), dtype_name(x))


def _kernel_gradient_vjp_array(c: Array, out: Array, x: Array, g: Array, *, kernel: Ints, **params: Any) -> Array:
    return _input_gradient(g, c, x.shape, **params)


def _kernel_gradient_vjp_cotangent(c: Array, out: Array, x: Array, g: Array, *, kernel: Ints, **params: Any) -> Array:
    return conv(x, c, **params)


def _kernel_gradient_batch(batched: tuple[bool, ...], x: Array, g: Array, *, groups: int, **params: Any) -> Array:
    size, last = (x if batched[0] else g).shape[0], x.ndim - 1 - batched[0]
    if size == 0:
        return _no_results(_kernel_gradient_shape, batched, (x, g), {"groups": groups, **params})
    if not batched[1]:
        gradient = conv_kernel_gradient(_merge_leading_axis(x, last, groups), g, groups=groups, **params)
        return _split_leading_axis(gradient, last - 1, size)
    if not batched[0]:
        gradient = conv_kernel_gradient(x, _merge_leading_axis(g, last, groups), groups=groups, **params)
        return _split_leading_axis(gradient, last, size, groups)
    gradient = conv_kernel_gradient(
        _merge_leading_axis(x, last), _merge_leading_axis(g, last), groups=size * groups, **params
    )
    return _split_leading_axis(gradient, last, size)


conv_kernel_gradient = register(
    Op(
        "conv_kernel_gradient",
        "contraction",
        _kernel_gradient_shape,
        _kernel_gradient,
        (_kernel_gradient_vjp_array, _kernel_gradient_vjp_cotangent),
        inexpensive=False,
        batch=_kernel_gradient_batch,
        flops=lambda out, x, g, **params: 2 * out.size * math.prod(g.shape[:-1]),
    )
)

# -- pooling ---------------------------------------------------------------------------------------------------


def _window_sizes(x: ShapeDtype | te.Tensor, window: Ints, stride: Ints, padding: Margins) -> Ints:
    shape = plain(tuple(x.shape))
    ones = (1,) * len(shape)
    return _output_sizes(shape, window, stride, padding, ones, ones)


def _require_numbers(name: str, x: ShapeDtype) -> None:
    if x.dtype == dtypes.bool_:
        raise DtypeError(name, "bool has no such reduction", got=repr(x), hint="x.astype('int32')")


def _window_shape(x: ShapeDtype, *, window: Ints, stride: Ints, padding: Margins) -> ShapeDtype:
    if not len(window) == len(stride) == len(padding) == x.ndim:
        raise ShapeError("reduce_window", "there must be one window size, stride and padding per axis", got=repr(x))
    _require_numbers("reduce_window", x)
    check_strides("reduce_window", "windows and strides", (*window, *stride))
    return ShapeDtype(_window_sizes(x, window, stride, padding), x.dtype)


def _window_elements(x: te.Tensor, fill: Any, window: Ints, stride: Ints, padding: Margins):
    """The reduce axes of a window and the function from output and window indices to the element there."""
    low, high = (tuple(p[side] for p in padding) for side in (0, 1))
    axes = {i: te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(window) if k > 1}

    def element(*at):
        positions = tuple(i * s + axes.get(a, 0) for a, (i, s) in enumerate(zip(at, stride, strict=True)))
        return shapes.padded(x, fill, low, high, (0,) * x.ndim, positions)

    return axes, element


def _window_op(
    name: str, kind: Kind, shape: Callable, compute: Callable, vjp: tuple | None = None, **fields: Any
) -> Op:
    """Registers an op on windows. For batching, the batch is one more axis, with windows of one element."""

    def batch(batched: tuple[bool, ...], *args: Array, window: Ints, stride: Ints, padding: Margins, **params) -> Array:
        full = shapes.repeat_unbatched(batched, args)
        if "size" in params:
            params["size"] = (full[0].shape[0], *params["size"])
        return op(*full, window=(1, *window), stride=(1, *stride), padding=((0, 0), *padding), **params)

    op = register(Op(name, kind, shape, compute, vjp, inexpensive=False, batch=batch, window=True, **fields))
    return op


def _window_max(x: te.Tensor, *, window: Ints, stride: Ints, padding: Margins) -> te.Tensor:
    from tvmfun.ops.reduce import lowest, max_element

    axes, element = _window_elements(x, lowest(dtype_name(x)), window, stride, padding)
    sizes = _window_sizes(x, window, stride, padding)
    reduced = list(axes.values())
    return te.compute(sizes, lambda *i: max_element(element(*i), axis=reduced) if reduced else element(*i))


def _window_max_vjp(g: Array, out: Array, x: Array, **params: Any) -> Array:
    return window_put(g, window_argmax(x, out, **params), size=x.shape, **params)


def _window_sum(x: te.Tensor, *, window: Ints, stride: Ints, padding: Margins) -> te.Tensor:
    axes, element = _window_elements(x, tirx.const(0, dtype_name(x)), window, stride, padding)
    sizes = _window_sizes(x, window, stride, padding)
    reduced = list(axes.values())
    return te.compute(sizes, lambda *i: te.sum(element(*i), axis=reduced) if reduced else element(*i))


def _window_sum_vjp(g: Array, out: Array, x: Array, *, window: Ints, stride: Ints, padding: Margins) -> Array:
    """Adds to every element the cotangents of its windows: a window sum over the dilated cotangent."""
    low = tuple(k - 1 - p[0] for k, p in zip(window, padding, strict=True))
    interior = tuple(s - 1 for s in stride)
    high = tuple(
        n + k - 1 - (span(m, s) + below)
        for n, k, s, m, below in zip(x.shape, window, stride, g.shape, low, strict=True)
    )
    padded = shapes.pad(g, pw.constant(0, g), low=low, high=high, interior=interior)
    return window_sum(padded, window=window, stride=(1,) * g.ndim, padding=((0, 0),) * g.ndim)


def _window_flops(out: ShapeDtype, x: ShapeDtype, *, window: Ints, **params: Any) -> Any:
    return out.size * math.prod(window)


window_max = _window_op(
    "window_max",
    "reduction",
    _window_shape,
    _window_max,
    (_window_max_vjp,),
    precision="either",
    flops=_window_flops,
)
window_sum = _window_op("window_sum", "reduction", _window_shape, _window_sum, (_window_sum_vjp,), flops=_window_flops)


def _offset(indices: list, window: Ints) -> Any:
    return shapes.ravel_index(tuple(indices), window)


def _require_windows(
    name: str, x: ShapeDtype, windows: ShapeDtype, window: Ints, stride: Ints, padding: Margins
) -> None:
    """Checks that an argument has one element per window of ``x``; kernels would read beyond a smaller one."""
    expected = _window_shape(x, window=window, stride=stride, padding=padding).shape
    if windows.shape != expected:
        raise ShapeError(name, f"there must be one element per window, {expected}", got=repr(windows))


def _require_one_dtype(name: str, x: ShapeDtype, y: ShapeDtype) -> None:
    if x.dtype != y.dtype:
        raise DtypeError(name, "both arrays must have one dtype", got=f"{x} and {y}")


def _require_offsets(name: str, offset: ShapeDtype, window: Ints) -> None:
    if offset.dtype != dtypes.int32 or math.prod(window) >= 2**31:
        raise DtypeError(name, "offsets in windows are int32", got=f"{offset} for windows of {window}")


def _window_argmax_shape(x: ShapeDtype, out: ShapeDtype, *, window: Ints, stride: Ints, padding: Margins) -> ShapeDtype:
    _require_one_dtype("window_argmax", x, out)
    _require_windows("window_argmax", x, out, window, stride, padding)
    return ShapeDtype(out.shape, dtypes.int32)


def _window_argmax(x: te.Tensor, out: te.Tensor, *, window: Ints, stride: Ints, padding: Margins) -> te.Tensor:
    low = tuple(p[0] for p in padding)
    nowhere = tirx.const(math.prod(window), "int32")
    shape = plain(tuple(x.shape))

    # Unrolled over the small window: the first offset whose element is the maximum.
    def first(*at):
        result = nowhere
        for flat in reversed(range(math.prod(window))):
            offset = [plain(o) for o in shapes.unravel_index(flat, window)]
            positions = [i * s + o - below for i, s, o, below in zip(at, stride, offset, low, strict=True)]
            inside = (
                tirx.all(
                    *(
                        tirx.And(p >= 0, p < n)
                        for p, n, pad in zip(positions, shape, padding, strict=True)
                        if pad != (0, 0)
                    )
                )
                if _has_margins(padding)
                else tirx.const(True)
            )
            value = tirx.if_then_else(inside, x(*positions), out(*at)) if _has_margins(padding) else x(*positions)
            here = tirx.EQ(value, out(*at))
            if formula.is_float(value):
                here = tirx.Or(here, formula.is_nan(value))
            result = tirx.Select(tirx.And(inside, here), tirx.const(flat, "int32"), result)
        return result

    return te.compute(out.shape, first)


#: The offset in its window, row-major, of the first element of ``x`` that equals the window's maximum ``out``.
window_argmax = _window_op("window_argmax", "injective", _window_argmax_shape, _window_argmax)


def _window_put_shape(
    g: ShapeDtype, offset: ShapeDtype, *, size: Sizes, window: Ints, stride: Ints, padding: Margins
) -> ShapeDtype:
    _require_offsets("window_put", offset, window)
    for windows in (offset, g):
        _require_windows("window_put", ShapeDtype(size, g.dtype), windows, window, stride, padding)
    return ShapeDtype(size, g.dtype)


def _window_put(g: te.Tensor, offset: te.Tensor, *, size: Ints, window: Ints, stride: Ints, padding: Margins):
    """For each element, the sum of ``g`` over the windows whose offset points at it."""
    counts = [-(-k // s) for k, s in zip(window, stride, strict=True)]
    axes = {i: te.reduce_axis((0, c), f"j{i}") for i, c in enumerate(counts) if c > 1}
    sizes = plain(tuple(g.shape))
    zero = tirx.const(0, dtype_name(g))

    def element(*at):
        windows, offsets, valid = [], [], []
        for a, (i, k, s, (low, _), n) in enumerate(zip(at, window, stride, padding, sizes, strict=True)):
            if k == s == 1 and not low and n == size[a]:  # an axis that is not pooled
                windows.append(i)
                offsets.append(0)
                continue
            position = i + low
            w = tirx.indexdiv(position, s) - axes.get(a, 0)
            valid += [position - w * s < k, w >= 0, w < n]
            windows.append(tirx.max(tirx.min(w, n - 1), 0))
            offsets.append(position - w * s)
        points = tirx.EQ(offset(*windows), tirx.Cast("int32", tirx.convert(_offset(offsets, window))))
        return tirx.Select(tirx.all(*valid, points), g(*windows), zero)

    if 0 in sizes:
        return te.compute(size, lambda *i: zero)
    reduced = list(axes.values())
    return te.compute(size, lambda *i: te.sum(element(*i), axis=reduced) if reduced else element(*i))


def _window_put_vjp(c: Array, out: Array, g: Array, offset: Array, *, size: Ints, **params: Any) -> Array:
    return window_take(c, offset, **params)


#: ``window_put(g, offset, size=, ...)``: zeros of shape ``size`` to which each window adds its ``g`` at its ``offset``.
window_put = _window_op("window_put", "reduction", _window_put_shape, _window_put, (_window_put_vjp, None))


def _window_take_shape(
    x: ShapeDtype, offset: ShapeDtype, *, window: Ints, stride: Ints, padding: Margins
) -> ShapeDtype:
    _require_offsets("window_take", offset, window)
    _require_windows("window_take", x, offset, window, stride, padding)
    return ShapeDtype(offset.shape, x.dtype)


def _window_take(x: te.Tensor, offset: te.Tensor, *, window: Ints, stride: Ints, padding: Margins) -> te.Tensor:
    shape = plain(tuple(x.shape))

    def element(*at):
        offsets = shapes.unravel_index(offset(*at), window)
        positions = [i * s + o - low for i, s, o, (low, _) in zip(at, stride, offsets, padding, strict=True)]
        return x(*(tirx.max(tirx.min(p, n - 1), 0) for p, n in zip(positions, shape, strict=True)))

    if 0 in shape:  # all windows consist of padding
        return te.compute(offset.shape, lambda *at: tirx.const(0, dtype_name(x)))
    return te.compute(offset.shape, element)


def _window_take_vjp(c: Array, out: Array, x: Array, offset: Array, **params: Any) -> Array:
    return window_put(c, offset, size=x.shape, **params)


#: ``window_take(x, offset, ...)``: the element at ``offset`` of each window; the transpose of ``window_put``.
window_take = _window_op("window_take", "injective", _window_take_shape, _window_take, (_window_take_vjp, None))
