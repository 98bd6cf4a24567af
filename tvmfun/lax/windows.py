"""Convolutions and reductions over sliding windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from tvmfun import dtypes, tree
from tvmfun import numpy as tnp
from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.core.op import Op
from tvmfun.core.trace import Tracer
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.lax import elements
from tvmfun.lax.arrays import slice_in_dim
from tvmfun.lax.layouts import ConvDimensionNumbers, as_strings, conv_dimension_numbers, patches_kernel
from tvmfun.numpy.products import check_precision
from tvmfun.numpy.promotion import convert, operands
from tvmfun.ops import conv as conv_ops
from tvmfun.ops import pointwise
from tvmfun.ops import shape as shapes

Padding = str | Sequence[tuple[int, int]]
Layouts = tuple[str, str, str] | ConvDimensionNumbers | None


def _paddings(
    name: str, padding: Padding, sizes: Sequence[int], window: Sequence[int], strides: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """The padding of each axis, given as pairs or by name."""
    if not isinstance(padding, str):
        if len(padding) != len(sizes) or any(len(pair) != 2 for pair in padding):
            raise ShapeError(name, f"there must be {len(sizes)} pairs of paddings", got=str(padding))
        return tuple((dims.index(low), dims.index(high)) for low, high in padding)
    kind = padding.upper()
    if kind == "VALID":
        return ((0, 0),) * len(sizes)
    if kind not in ("SAME", "SAME_LOWER"):
        raise ArgumentError(name, "the padding must be 'SAME', 'SAME_LOWER', 'VALID' or pairs", got=repr(padding))
    pairs = []
    for size, k, stride in zip(sizes, window, strides, strict=True):
        total = dims.maximum(0, (-(-size // stride) - 1) * stride + k - size)
        less, more = total // 2, total - total // 2
        pairs.append((less, more) if kind == "SAME" else (more, less))
    return tuple(pairs)


def _order(name: str, layout: str, *, kernel: bool, spatial: str) -> tuple[int, ...]:
    """Which axis of ``layout`` is each axis that the op expects: ``N...C``, for kernels ``...IO``."""
    wanted = f"{spatial}IO" if kernel else f"N{spatial}C"
    if sorted(layout) != sorted(wanted):
        raise ArgumentError(name, f"a layout is made of the letters {wanted}", got=repr(layout))
    return tuple(layout.index(letter) for letter in wanted)


def conv_general_dilated(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Layouts = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Returns the convolution (cross-correlation) of arrays with any number of spatial axes.

    Args:
        lhs: the array, float.
        rhs: the kernel, of the same dtype after promotion.
        window_strides: one per spatial axis.
        padding: ``"SAME"``, ``"SAME_LOWER"``, ``"VALID"``, or ``(low, high)`` per axis, also negative.
        lhs_dilation: places between elements of ``lhs`` plus one, per spatial axis: a transposed convolution.
        rhs_dilation: the same for the kernel: an atrous convolution.
        dimension_numbers: the layouts of ``lhs``, ``rhs`` and the result. ``("NHWC", "HWIO", "NHWC")`` is
            the fastest; by default channels come first: ``("NCHW", "OIHW", "NCHW")``.
        feature_group_count: the number of groups that channels are split into.
        batch_group_count: the number of groups that the batch is split into; each is convolved with its part of the
            output channels of the kernel.
        precision: accepted and without effect: float32 products are always exact float32.
        preferred_element_type: the dtype to multiply, to sum and to return in; by default that of the arrays.

    Raises:
        ShapeError: if channels, groups or ranks do not fit.

    Source: ``jax.lax.conv_general_dilated``.

    >>> x, w = tnp.ones((1, 4, 4, 1)), tnp.ones((3, 3, 1, 2))
    >>> conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")).shape
    (1, 2, 2, 2)
    """
    name = "conv_general_dilated"
    check_precision(name, precision)
    if preferred_element_type is not None:
        lhs, rhs = (tnp.astype(x, preferred_element_type) for x in (lhs, rhs))
    lhs, rhs = (tnp.asarray(x) for x in operands(name, tnp.asarray(lhs), tnp.asarray(rhs), floating=True))
    rank = lhs.ndim - 2
    ones = (1,) * rank
    stride, dilation = tuple(window_strides), tuple(lhs_dilation or ones)
    kernel_dilation = tuple(rhs_dilation or ones)
    if rank < 1 or rhs.ndim != lhs.ndim or not rank == len(stride) == len(dilation) == len(kernel_dilation):
        raise ShapeError(
            name,
            "the array, the kernel, the strides and the dilations must have the same spatial axes",
            got=f"{lhs.aval}, {rhs.aval}, strides {stride}, dilations {dilation} and {kernel_dilation}",
        )
    if min(*stride, *dilation, *kernel_dilation) < 1:
        raise ArgumentError(name, "strides and dilations are positive", got=f"{stride}, {dilation}, {kernel_dilation}")
    layouts = as_strings(dimension_numbers, rank)
    spatial = "".join(letter for letter in layouts[0] if letter not in "NC")
    x = tnp.permute_dims(lhs, _order(name, layouts[0], kernel=False, spatial=spatial))
    w = tnp.permute_dims(rhs, _order(name, layouts[1], kernel=True, spatial=spatial))
    back = _order(name, layouts[2], kernel=False, spatial=spatial)
    if batch_group_count > 1:
        x = _groups_as_channels(name, x, w, batch_group_count, feature_group_count)
        feature_group_count = batch_group_count
    sizes = [dims.maximum(0, (n - 1) * d + 1) for n, d in zip(x.shape[1:-1], dilation, strict=True)]
    spans = [(k - 1) * d + 1 for k, d in zip(w.shape[:-2], kernel_dilation, strict=True)]
    result = conv_ops.conv(
        x,
        w,
        stride=stride,
        padding=_paddings(name, padding, sizes, spans, stride),
        dilation=dilation,
        kernel_dilation=kernel_dilation,
        groups=feature_group_count,
    )
    return tnp.permute_dims(result, tuple(back.index(axis) for axis in range(result.ndim)))


def _groups_as_channels(name: str, x: Array, w: Array, groups: int, feature_groups: int) -> Array:
    """Groups of the batch as groups of channels."""
    batch, *sizes, channels = x.shape
    if feature_groups > 1:
        raise ArgumentError(name, "only one group count can be more than 1", got=f"{feature_groups} and {groups}")
    if batch % groups or w.shape[-1] % groups:
        raise ShapeError(name, f"batch and output channels must be multiples of {groups}", got=f"{x.aval} and {w.aval}")
    parts = tnp.reshape(x, (groups, batch // groups, *sizes, channels))
    return tnp.reshape(tnp.moveaxis(parts, 0, -2), (batch // groups, *sizes, groups * channels))


def conv(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Returns the convolution of arrays with channels first; see :func:`conv_general_dilated`."""
    products: dict[str, Any] = {"precision": precision, "preferred_element_type": preferred_element_type}
    return conv_general_dilated(lhs, rhs, window_strides, padding, **products)


def conv_with_general_padding(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Returns the convolution of arrays with channels first; see :func:`conv_general_dilated`."""
    products: dict[str, Any] = {"precision": precision, "preferred_element_type": preferred_element_type}
    return conv_general_dilated(lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, **products)


def conv_transpose(
    lhs: Any,
    rhs: Any,
    strides: Sequence[int],
    padding: Padding,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Layouts = None,
    transpose_kernel: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
    use_consistent_padding: bool = False,
) -> Array:
    """Returns the transposed convolution, with ``strides`` places for each element of ``lhs``.

    Args:
        lhs: the array, float.
        rhs: the kernel, of the same dtype after promotion.
        strides: one per spatial axis.
        padding: ``"SAME"`` or ``"VALID"``, which give the sizes that a convolution with this stride and padding would
            need as its input, or ``(low, high)`` per axis for the array with its holes.
        rhs_dilation: places between elements of the kernel plus one.
        dimension_numbers: the layouts of ``lhs``, ``rhs`` and the result, by default channels last: ``("NHWC", "HWIO",
            "NHWC")``.
        transpose_kernel: whether to flip the kernel and exchange its channels, which makes this the derivative of a
            convolution.
        precision: as for :func:`conv_general_dilated`.
        preferred_element_type: as for :func:`conv_general_dilated`.
        use_consistent_padding: whether pairs of paddings are those of the convolution that this one transposes, and
            not of the array with its holes.

    Source: ``jax.lax.conv_transpose``.

    >>> conv_transpose(tnp.ones((1, 3, 1)), tnp.ones((2, 1, 1)), (2,), "VALID").shape
    (1, 6, 1)
    """
    rhs = tnp.asarray(rhs)
    rank = rhs.ndim - 2
    if dimension_numbers is None:
        letters = "DHW"[-rank:] if 1 <= rank <= 3 else "".join(map(str, range(rank)))
        dimension_numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    dimension_numbers = as_strings(dimension_numbers, rank)
    layout = dimension_numbers[1]
    spatial = [layout.index(letter) for letter in dimension_numbers[0] if letter not in "NC"]
    dilation = tuple(rhs_dilation or (1,) * rank)
    if isinstance(padding, str):
        if padding.upper() not in ("SAME", "VALID"):
            raise ArgumentError("conv_transpose", "the padding must be 'SAME', 'VALID' or pairs", got=repr(padding))
        spans = [(rhs.shape[axis] - 1) * d + 1 for axis, d in zip(spatial, dilation, strict=True)]
        padding = [_transposed_padding(k, s, padding.upper()) for k, s in zip(spans, strides, strict=True)]
    elif use_consistent_padding:
        spans = [(rhs.shape[axis] - 1) * d + 1 for axis, d in zip(spatial, dilation, strict=True)]
        padding = [(k - 1 - low, k - 1 - high) for k, (low, high) in zip(spans, padding, strict=True)]
    if transpose_kernel:
        rhs = tnp.swapaxes(tnp.flip(rhs, tuple(spatial)), layout.index("I"), layout.index("O"))
    return conv_general_dilated(
        lhs,
        rhs,
        (1,) * rank,
        padding,
        strides,
        dilation,
        dimension_numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def _transposed_padding(span: int, stride: int, padding: str) -> tuple[int, int]:
    if padding == "VALID":
        return span - 1, span - 1 + max(stride - span, 0)
    total = span + stride - 2
    low = span - 1 if stride > span - 1 else -(-total // 2)
    return low, total - low


def padtype_to_pads(
    in_shape: Sequence[int], window_shape: Sequence[int], window_strides: Sequence[int], padding: str
) -> list[tuple[int, int]]:
    """Returns the padding of each axis that ``"SAME"``, ``"SAME_LOWER"`` or ``"VALID"`` means.

    >>> padtype_to_pads((5, 5), (3, 2), (1, 2), "SAME")
    [(1, 1), (0, 1)]
    """
    if not isinstance(padding, str):
        raise ArgumentError("padtype_to_pads", "the padding is given by name", got=repr(padding))
    return list(_paddings("padtype_to_pads", padding, in_shape, window_shape, window_strides))


def conv_general_dilated_patches(
    lhs: Any,
    filter_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Layouts = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Returns what each window of a convolution reads, as channels: all places of the first channel, of the next, ...

    Args:
        lhs: the array, float.
        filter_shape: the sizes of a window along the axes of space.
        window_strides: as for :func:`conv_general_dilated`, as are the other arguments.
        padding: as there.
        lhs_dilation: as there.
        rhs_dilation: as there.
        dimension_numbers: as there.
        precision: as there.
        preferred_element_type: as there.

    Source: ``jax.lax.conv_general_dilated_patches``.

    >>> x = tnp.arange(4.0).reshape(1, 1, 4)
    >>> conv_general_dilated_patches(x, (2,), (1,), "VALID")[0]
    Array([[0., 1., 2.],
           [1., 2., 3.]], dtype=float32)
    """
    lhs, window = tnp.asarray(lhs), tuple(filter_shape)
    layout = conv_dimension_numbers(lhs.shape, (1, 1, *window), dimension_numbers)
    channels = lhs.shape[layout.lhs_spec[1]]
    kernel = patches_kernel(window, channels, lhs.dtype)
    kernel = tnp.permute_dims(kernel, tuple(tuple(layout.rhs_spec).index(i) for i in range(kernel.ndim)))
    return conv_general_dilated(
        lhs,
        kernel,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        layout,
        feature_group_count=channels,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def _window(name: str, op: Op, x: Any, window: Sequence[int], strides: Sequence[int] | None, padding: Padding) -> Array:
    x = tnp.asarray(x)
    window = tuple(window)
    stride = tuple(strides or (1,) * len(window))
    if not len(window) == len(stride) == x.ndim:
        raise ShapeError(name, "there must be one size and stride per axis", got=f"{window}, {stride} for {x.aval}")
    pads = _paddings(name, padding, x.shape, window, stride)
    if any(side >= max(k, 1) for pair, k in zip(pads, window, strict=True) if pair != (0, 0) for side in pair):
        raise ShapeError(name, "the padding must be smaller than the window", got=f"{pads} for {window}")
    return op(x, window=window, stride=stride, padding=pads)


def max_window(
    x: Any, window: Sequence[int], strides: Sequence[int] | None = None, padding: Padding = "VALID"
) -> Array:
    """Returns the maximum of each window; its gradient goes to the first maximum of a window.

    Args:
        x: the array.
        window: the size of the windows along each axis of ``x``.
        strides: the distance between windows along each axis; by default 1.
        padding: ``"SAME"``, ``"VALID"``, or ``(low, high)`` per axis, less than a window; never the maximum.

    >>> max_window([1, 3, 2, 0], (2,), (2,))
    Array([3, 2], dtype=int32)
    """
    return _window("max_window", conv_ops.window_max, x, window, strides, padding)


def sum_window(
    x: Any, window: Sequence[int], strides: Sequence[int] | None = None, padding: Padding = "VALID"
) -> Array:
    """Returns the sum of each window; the arguments are those of :func:`max_window`."""
    return _window("sum_window", conv_ops.window_sum, x, window, strides, padding)


def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Callable[[Any, Any], Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """Returns the elements of each window combined by an associative and commutative function.

    Args:
        operand: an array, or a tree of arrays of one shape.
        init_value: a scalar, or such a tree of them, that changes nothing when it is combined with an element: what
            an array is padded with.
        computation: ``(x, y) -> result``, elementwise; x, y and the result are trees as ``operand``. For ``lax.add``,
            ``max`` and ``min`` on windows without holes there is one op; others are applied along one axis after the
            other.
        window_dimensions: the size of the windows along each axis.
        window_strides: the distance between windows along each axis; by default 1.
        padding: ``"SAME"``, ``"SAME_LOWER"``, ``"VALID"``, or ``(low, high)`` per axis, also negative.
        base_dilation: places between elements of the array plus one; they are padding.
        window_dilation: places between elements of a window plus one.

    Source: ``jax.lax.reduce_window``.

    >>> reduce_window(tnp.asarray([1, 2, 3, 4]), 1, elements.mul, (2,))
    Array([ 2,  6, 12], dtype=int32)
    """
    name = "reduce_window"
    leaves, structure = tree.flatten(operand)
    arrays = [tnp.asarray(leaf) for leaf in leaves]
    starts = [convert(name, s, x.dtype) for s, x in zip(tree.leaves(init_value), arrays, strict=True)]
    rank, shape = arrays[0].ndim, arrays[0].shape
    window, ones = tuple(window_dimensions), (1,) * rank
    stride, dilation, holes = (tuple(x or ones) for x in (window_strides, base_dilation, window_dilation))
    if any(x.shape != shape for x in arrays) or not rank == len(window) == len(stride) == len(dilation) == len(holes):
        raise ShapeError(
            name,
            "there must be one size, stride and dilation per axis",
            got=f"{window}, {stride}, {dilation}, {holes} for {arrays[0].aval}",
        )
    if min((*window, *stride, *dilation, *holes, 1)) < 1:
        raise ArgumentError(name, "sizes, strides and dilations are positive", got=f"{window}, {stride}, {dilation}")
    spans = tuple((k - 1) * d + 1 for k, d in zip(window, holes, strict=True))
    paddings = _paddings(name, padding, shape, spans, stride)
    low, high = (tuple(pair[side] for pair in paddings) for side in (0, 1))
    interior = tuple(d - 1 for d in dilation)
    padded = [
        shapes.pad(x, s, low=low, high=high, interior=interior) if any((*low, *high, *interior)) else x
        for x, s in zip(arrays, starts, strict=True)
    ]
    known = _known_window(computation, starts[0]) if rank and len(arrays) == 1 and holes == ones else None
    if known is not None:
        return tree.unflatten(structure, [known(padded[0], window=window, stride=stride, padding=((0, 0),) * rank)])
    combine = lambda x, y: tree.leaves(computation(tree.unflatten(structure, x), tree.unflatten(structure, y)))
    for axis, (k, span, step, hole) in enumerate(zip(window, spans, stride, holes, strict=True)):
        count = max(0, (padded[0].shape[axis] - span) // step + 1)
        length = (count - 1) * step + 1 if count else 0
        parts = [[slice_in_dim(x, i * hole, i * hole + length, step, axis) for x in padded] for i in range(k)]
        padded = reduce(combine, parts)
    return tree.unflatten(structure, padded)


def _known_window(computation: Callable, start: Any) -> Callable[..., Array] | None:
    """The op for a function whose neutral element is ``start``, if there is one."""
    if isinstance(start, Tracer) or start.dtype == dtypes.bool_:
        return None
    value, dtype = np.asarray(start)[()], start.dtype
    is_float = dtypes.is_float(dtype)
    if computation is elements.add and value == 0:
        return conv_ops.window_sum
    if computation is elements.max and value == (-np.inf if is_float else np.iinfo(dtype).min):
        return conv_ops.window_max
    if computation is elements.min and value == (np.inf if is_float else np.iinfo(dtype).max):
        # The opposite order: of the negative numbers, or of all bits inverted.
        turned = pointwise.negative if is_float else pointwise.bitwise_not
        return lambda x, **params: turned(conv_ops.window_max(turned(x), **params))
    return None
