"""Convolutions, their layouts and their patches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tvmfun import dtypes
from tvmfun import numpy as tnp
from tvmfun.core import dims
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.integer_convolution import integer_conv
from tvmfun.numpy.products import check_precision, reduced_precision
from tvmfun.numpy.promotion import NestedArrayLike, operands
from tvmfun.ops import conv as conv_ops
from tvmfun.typing import DTypeLike

__all__ = [
    "ConvDimensionNumbers",
    "conv",
    "conv_dimension_numbers",
    "conv_general_dilated",
    "conv_general_dilated_local",
    "conv_general_dilated_patches",
    "conv_transpose",
    "conv_with_general_padding",
    "padtype_to_pads",
]


class ConvDimensionNumbers(NamedTuple):
    """The roles of the axes of a convolution's arrays.

    ``lhs_spec`` and ``out_spec`` are the axes of the batch, of the channels, and then of space; ``rhs_spec`` those of
    the output channels, of the input channels, and then of space.
    """

    lhs_spec: Sequence[int]
    rhs_spec: Sequence[int]
    out_spec: Sequence[int]


def _letters(rank: int) -> str:
    """The names of the axes of space."""
    return "DHW"[-rank:] if rank <= 3 else "".join(map(str, range(rank)))


def default_layouts(rank: int) -> tuple[str, str, str]:
    """Channels first, for ``rank`` axes of space."""
    letters = _letters(rank)
    return f"NC{letters}", f"OI{letters}", f"NC{letters}"


def as_strings(dimension_numbers: Any, rank: int) -> tuple[str, str, str]:
    """Converts layouts (strings, :class:`ConvDimensionNumbers` or None) to strings for both arrays and the result."""
    if dimension_numbers is None:
        return default_layouts(rank)
    if not isinstance(dimension_numbers, ConvDimensionNumbers):
        return dimension_numbers
    layouts = []
    for pair, spec in zip(("NC", "OI", "NC"), dimension_numbers, strict=True):
        names = pair + _letters(rank)
        layouts.append("".join(names[list(spec).index(i)] for i in range(rank + 2)))
    return layouts[0], layouts[1], layouts[2]


def conv_dimension_numbers(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    dimension_numbers: tuple[str, str, str] | ConvDimensionNumbers | None,
) -> ConvDimensionNumbers:
    """Returns the layouts of a convolution as numbers of axes.

    Args:
        lhs_shape: of the array.
        rhs_shape: of the kernel.
        dimension_numbers: the layouts of the array, the kernel and the result, as strings; None for channels first.

    Source: ``jax.lax.conv_dimension_numbers``.

    >>> conv_dimension_numbers((1, 8, 8, 3), (3, 3, 3, 4), ("NHWC", "HWIO", "NHWC")).rhs_spec
    (3, 2, 0, 1)
    """
    if isinstance(dimension_numbers, ConvDimensionNumbers):
        return dimension_numbers
    if len(lhs_shape) != len(rhs_shape):
        got = f"{tuple(lhs_shape)} and {tuple(rhs_shape)}"
        raise ShapeError("conv_dimension_numbers", "both arrays must have the same number of axes", got=got)
    layouts = as_strings(dimension_numbers, len(lhs_shape) - 2)
    space = [letter for letter in layouts[1] if letter not in "OI"]
    found = []
    for layout, pair in zip(layouts, ("NC", "OI", "NC"), strict=True):
        if sorted(layout) != sorted([*pair, *space]):
            what = f"a layout is made of the letters {pair}{''.join(space)}"
            raise ArgumentError("conv_dimension_numbers", what, got=repr(layout))
        found.append(tuple(layout.index(letter) for letter in [*pair, *space]))
    return ConvDimensionNumbers(*found)


def patches_kernel(filter_shape: Sequence[int], channels: int, dtype: DTypeLike) -> Array:
    """The kernel, ``OI...``, that reads each element of a window of each channel: a part of the identity."""
    size = math.prod(filter_shape)
    kernel = tnp.reshape(tnp.eye(size, dtype=dtype), (size, 1, *filter_shape))
    return tnp.tile(kernel, (channels, *(1,) * (len(filter_shape) + 1)))


Padding = str | Sequence[tuple[int, int]]
Layouts = tuple[str, str, str] | ConvDimensionNumbers | None


def padding_pairs(
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
    """The permutation from ``layout`` to the axes that the op expects: ``N...C``, for kernels ``...IO``."""
    wanted = f"{spatial}IO" if kernel else f"N{spatial}C"
    if sorted(layout) != sorted(wanted):
        raise ArgumentError(name, f"a layout is made of the letters {wanted}", got=repr(layout))
    return tuple(layout.index(letter) for letter in wanted)


def conv_general_dilated(
    lhs: NestedArrayLike,
    rhs: NestedArrayLike,
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Layouts = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Returns the convolution (cross-correlation) of arrays with any number of spatial axes.

    Args:
        lhs: the array, of floats or integers; sums of integers wrap around.
        rhs: the kernel, of the same dtype after promotion.
        window_strides: one per spatial axis, in the order of the kernel's layout, as paddings and dilations.
        padding: ``"SAME"``, ``"SAME_LOWER"``, ``"VALID"``, or ``(low, high)`` per axis, also negative.
        lhs_dilation: distance between adjacent elements of ``lhs``, per spatial axis: a transposed convolution.
        rhs_dilation: the same for the kernel: an atrous convolution.
        dimension_numbers: the layouts of ``lhs``, ``rhs`` and the result. ``("NHWC", "HWIO", "NHWC")`` is
            the fastest; by default channels come first: ``("NCHW", "OIHW", "NCHW")``.
        feature_group_count: the number of groups that channels are split into.
        batch_group_count: the number of groups that the batch is split into; each is convolved with its part of the
            output channels of the kernel.
        precision: ``"high"`` allows GPUs to round float32 factors to 11 bits; see :class:`tvmfun.lax.Precision`.
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
    lhs, rhs = (tnp.asarray(x) for x in operands(name, tnp.asarray(lhs), tnp.asarray(rhs)))
    if lhs.dtype == bool:
        lhs, rhs = (tnp.asarray(x) for x in operands(name, lhs, rhs, floating=True))
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
    spatial = "".join(letter for letter in layouts[1] if letter not in "IO")
    x = tnp.permute_dims(lhs, _order(name, layouts[0], kernel=False, spatial=spatial))
    w = tnp.permute_dims(rhs, _order(name, layouts[1], kernel=True, spatial=spatial))
    back = _order(name, layouts[2], kernel=False, spatial=spatial)
    inputs = w.shape[-2] * feature_group_count
    if batch_group_count == 1 and x.shape[-1] != inputs:
        is_last = layouts[0] == "NC" + spatial and lhs.shape[-1] == rhs.shape[-2] * feature_group_count
        raise ShapeError(
            name,
            f"with a kernel of the layout {layouts[1]} an array of the layout {layouts[0]} must have {inputs} channels",
            got=f"{lhs.aval} and {rhs.aval}",
            hint=f'dimension_numbers=("N{spatial}C", "{spatial}IO", "N{spatial}C")' if is_last else "",
        )
    if batch_group_count > 1:
        x = _groups_as_channels(name, x, w, batch_group_count, feature_group_count)
        feature_group_count = batch_group_count
    sizes = [dims.maximum(0, (n - 1) * d + 1) for n, d in zip(x.shape[1:-1], dilation, strict=True)]
    spans = [(k - 1) * d + 1 for k, d in zip(w.shape[:-2], kernel_dilation, strict=True)]
    params = {
        "stride": stride,
        "padding": padding_pairs(name, padding, sizes, spans, stride),
        "dilation": dilation,
        "kernel_dilation": kernel_dilation,
        "groups": feature_group_count,
    }
    if dtypes.is_integer(x.dtype):
        result = integer_conv(x, w, **params)
    else:
        result = conv_ops.conv(x, w, **params, **reduced_precision(x.dtype, precision))
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
    lhs: NestedArrayLike,
    rhs: NestedArrayLike,
    window_strides: Sequence[int],
    padding: str,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Returns the convolution of arrays with channels first; see :func:`conv_general_dilated`."""
    products: dict[str, Any] = {"precision": precision, "preferred_element_type": preferred_element_type}
    return conv_general_dilated(lhs, rhs, window_strides, padding, **products)


def conv_with_general_padding(
    lhs: NestedArrayLike,
    rhs: NestedArrayLike,
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Returns the convolution of arrays with channels first; see :func:`conv_general_dilated`."""
    products: dict[str, Any] = {"precision": precision, "preferred_element_type": preferred_element_type}
    return conv_general_dilated(lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, **products)


def conv_transpose(
    lhs: NestedArrayLike,
    rhs: NestedArrayLike,
    strides: Sequence[int],
    padding: Padding,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Layouts = None,
    transpose_kernel: bool = False,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    use_consistent_padding: bool = False,
) -> Array:
    """Returns the transposed convolution, with ``strides`` positions for each element of ``lhs``.

    Args:
        lhs: the array, of floats or integers; sums of integers wrap around.
        rhs: the kernel, of the same dtype after promotion.
        strides: one per spatial axis.
        padding: ``"SAME"`` or ``"VALID"``, which give the sizes that a convolution with this stride and padding would
            need as its input, or ``(low, high)`` per axis for the array with its holes.
        rhs_dilation: distance between adjacent elements of the kernel.
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
    spatial = [axis for axis, letter in enumerate(layout) if letter not in "IO"]
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
    return list(padding_pairs("padtype_to_pads", padding, in_shape, window_shape, window_strides))


def conv_general_dilated_patches(
    lhs: NestedArrayLike,
    filter_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Layouts = None,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Returns the elements of each window of a convolution as channels: all positions of the first channel first.

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


def conv_general_dilated_local(
    lhs: NestedArrayLike,
    rhs: NestedArrayLike,
    window_strides: Sequence[int],
    padding: Padding,
    filter_shape: Sequence[int],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Layouts = None,
    precision: Any = None,
) -> Array:
    """Returns a convolution with a kernel of its own for each window, as in a locally connected layer.

    Args:
        lhs: the array, float.
        rhs: the kernels: their axes of space are those of the result, and their axis of input channels has one entry
            per element of a window, as :func:`conv_general_dilated_patches` orders them.
        window_strides: as for :func:`conv_general_dilated`, as are the other arguments.
        padding: as there.
        filter_shape: the sizes of a window along the axes of space.
        lhs_dilation: as there.
        rhs_dilation: as there.
        dimension_numbers: as there.
        precision: as there.

    Raises:
        ShapeError: if ``rhs`` does not have one kernel for each window.

    Source: ``jax.lax.conv_general_dilated_local``.

    >>> x = tnp.arange(4.0).reshape(1, 1, 4)
    >>> kernels = tnp.asarray([[[1.0, 1.0, 1.0], [0.0, 10.0, 100.0]]])  # an output channel, elements, windows
    >>> conv_general_dilated_local(x, kernels, (1,), "VALID", (2,))
    Array([[[  0.,  21., 302.]]], dtype=float32)
    """
    lhs, rhs = operands("conv_general_dilated_local", lhs, rhs)
    layout = conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    patches = conv_general_dilated_patches(
        lhs, filter_shape, window_strides, padding, lhs_dilation, rhs_dilation, layout, precision
    )
    patches = tnp.permute_dims(patches, tuple(layout.out_spec))
    kernels = tnp.permute_dims(rhs, tuple(layout.rhs_spec))
    if patches.shape[1:] != kernels.shape[1:]:
        elements, *space = patches.shape[1:]
        what = f"there must be kernels of {elements} elements for windows {tuple(space)}"
        raise ShapeError("conv_general_dilated_local", what, got=repr(rhs.aval))
    result = tnp.einsum("ni...,oi...->no...", patches, kernels, precision=precision)
    return tnp.permute_dims(result, tuple(tuple(layout.out_spec).index(i) for i in range(result.ndim)))
