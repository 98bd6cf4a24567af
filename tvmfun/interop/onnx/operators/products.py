"""Products of matrices, and convolutions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes, lax
from tvmfun.interop.onnx.operators.shapes import ints
from tvmfun.interop.onnx.operators.table import Family
from tvmfun.interop.onnx.operators.windows import Geometry, bilinear

onnx = Family(__name__)

onnx.reads("MatMul")(lambda x, y: tnp.matmul(x, y))
onnx.reads("Det")(lambda x: tnp.linalg.det(x))


@onnx.reads("Einsum")
def _einsum(*xs: Any, equation: str) -> Any:
    return tnp.einsum(equation.replace(" ", ""), *xs)


@onnx.reads("Gemm")
def _gemm(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    broadcast: int = 0,
) -> Any:
    y = tnp.matmul(a.T if transA else a, b.T if transB else b)
    if alpha != 1:
        y = tnp.astype(y * alpha, a.dtype)
    if c is None:
        return y
    return y + (c if beta == 1 else tnp.astype(c * beta, a.dtype))


# -- convolutions ------------------------------------------------------------------------------------------------------


def convolved(x: Any, w: Any, geometry: Geometry, group: int) -> Any:
    """The convolution of (batch, channels, *spatial) with a kernel (outputs, inputs / groups, *window)."""
    letters = "DHW"[-geometry.rank :] if geometry.rank <= 3 else "ABDEFGH"[: geometry.rank]
    layouts = (f"NC{letters}", f"OI{letters}", f"NC{letters}")
    return lax.conv_general_dilated(
        x, w, geometry.strides, geometry.pads, None, geometry.dilations, layouts, feature_group_count=group
    )


def _with_bias(y: Any, bias: Any) -> Any:
    return y if bias is None else y + tnp.reshape(bias, (-1, *(1,) * (y.ndim - 2)))


@onnx.reads("Conv")
def _conv(x: Any, w: Any, bias: Any = None, *, group: int = 1, **options: Any) -> Any:
    geometry = Geometry.of(x.shape, options | {"kernel_shape": w.shape[2:]})
    return _with_bias(convolved(x, w, geometry, group), bias)


@onnx.reads("ConvTranspose")
def _conv_transpose(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    group: int = 1,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """The transposed convolution with a kernel (inputs, outputs / groups, *window)."""
    rank = x.ndim - 2
    stride, dilation = strides or (1,) * rank, dilations or (1,) * rank
    extra, sides = output_padding or (0,) * rank, list(pads or (0,) * (2 * rank))
    spans = [(k - 1) * d for k, d in zip(w.shape[2:], dilation, strict=True)]
    full = [s * (n - 1) + e + span + 1 for n, s, e, span in zip(x.shape[2:], stride, extra, spans, strict=True)]
    wanted = output_shape or ([n * s for n, s in zip(x.shape[2:], stride, strict=True)] if "SAME" in auto_pad else None)
    margins = list(zip(sides[:rank], sides[rank:], strict=True))
    if wanted is not None:
        totals = [whole - size for whole, size in zip(full, wanted[-rank:], strict=True)]
        low_first = auto_pad == "SAME_UPPER"
        margins = [(t // 2, t - t // 2) if low_first else (t - t // 2, t // 2) for t in totals]
    inputs, outputs = w.shape[0], w.shape[1]
    kernel = tnp.reshape(w, (group, inputs // group, outputs, *w.shape[2:]))
    kernel = tnp.reshape(tnp.swapaxes(kernel, 1, 2), (group * outputs, inputs // group, *w.shape[2:]))
    kernel = tnp.flip(kernel, tuple(range(2, rank + 2)))
    pairs = [(span - low, span - high + e) for span, (low, high), e in zip(spans, margins, extra, strict=True)]
    letters = "DHW"[-rank:]
    layouts = (f"NC{letters}", f"OI{letters}", f"NC{letters}")
    ones = (1,) * rank
    y = lax.conv_general_dilated(
        x, kernel, ones, pairs, tuple(stride), tuple(dilation), layouts, feature_group_count=group
    )
    return _with_bias(y, bias)


@onnx.reads("Col2Im", static=(1, 2))
def _col2im(
    x: Any,
    image_shape: np.ndarray,
    block_shape: np.ndarray,
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """The sum of blocks at their positions in an image: the transpose of taking them out."""
    image, block = ints(image_shape), ints(block_shape)
    options = {"kernel_shape": block, "dilations": dilations, "pads": pads, "strides": strides}
    geometry = Geometry.of((1, 1, *image), {k: v for k, v in options.items() if v is not None})
    counts = geometry.counts
    batch, channels = x.shape[0], x.shape[1] // math.prod(block)
    columns = tnp.reshape(x, (batch, channels, *block, *counts))
    padded = [n + low + high for n, (low, high) in zip(image, geometry.pads, strict=True)]
    result = tnp.zeros((batch, channels, *padded), dtype=x.dtype)
    for offsets in itertools.product(*map(range, block)):
        starts = [o * d for o, d in zip(offsets, geometry.dilations, strict=True)]
        where = [slice(b, b + (n - 1) * s + 1, s) for b, n, s in zip(starts, counts, geometry.strides, strict=True)]
        result = result.at[(slice(None), slice(None), *where)].add(columns[(slice(None), slice(None), *offsets)])
    inner = tuple(slice(low, low + n) for n, (low, _) in zip(image, geometry.pads, strict=True))
    return result[(slice(None), slice(None), *inner)]


@onnx.reads("DeformConv")
def _deform_conv(
    x: Any,
    w: Any,
    offset: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    group: int = 1,
    offset_group: int = 1,
    **options: Any,
) -> Any:
    """A convolution of images whose windows are read at positions with offsets, bilinearly."""
    batch, channels, height, width = x.shape
    geometry = Geometry.of(x.shape, options | {"kernel_shape": w.shape[2:]})
    rows, columns = geometry.counts
    kh, kw = w.shape[2:]
    offsets = tnp.reshape(offset, (batch, offset_group, kh, kw, 2, rows, columns))
    (sy, sx), (dy, dx) = geometry.strides, geometry.dilations
    (top, _), (left, _) = geometry.pads
    y = (np.arange(kh) * dy)[:, None, None, None] + (np.arange(rows) * sy - top)[None, None, :, None]
    z = (np.arange(kw) * dx)[None, :, None, None] + (np.arange(columns) * sx - left)[None, None, None, :]
    ys = tnp.asarray(y.astype(x.dtype)) + offsets[:, :, :, :, 0]
    zs = tnp.asarray(z.astype(x.dtype)) + offsets[:, :, :, :, 1]
    groups = tnp.reshape(x, (batch * offset_group, channels // offset_group, height, width))
    flat = lambda c: tnp.reshape(c, (batch * offset_group, -1))
    read = bilinear(groups, flat(ys), flat(zs))
    read = tnp.reshape(read, (batch, offset_group, channels // offset_group, kh, kw, rows, columns))
    if mask is not None:
        read = read * tnp.reshape(mask, (batch, offset_group, 1, kh, kw, rows, columns))
    read = tnp.reshape(read, (batch, group, channels // group, kh, kw, rows, columns))
    kernel = tnp.reshape(w, (group, w.shape[0] // group, *w.shape[1:]))
    result = tnp.einsum("ngcijhw,gocij->ngohw", read, kernel)
    return _with_bias(tnp.reshape(result, (batch, w.shape[0], rows, columns)), bias)


# -- products of integers ----------------------------------------------------------------------------------------------


def _shifted(x: Any, zero: Any, axis: int | None = None) -> Any:
    """Integers minus their zero point, which may differ along an axis."""
    wide = tnp.astype(x, "int32")
    if zero is None:
        return wide
    zero = tnp.astype(tnp.asarray(zero), "int32")
    if zero.ndim == 1 and zero.size > 1 and axis is not None:
        zero = tnp.reshape(zero, (-1, *(1,) * (x.ndim - axis % x.ndim - 1)))
    return wide - (tnp.reshape(zero, ()) if zero.size == 1 else zero)


@onnx.reads("MatMulInteger", frozen=(2, 3))
def matmul_integer(a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    """The product of matrices of bytes, as 32-bit integers."""
    return tnp.matmul(_shifted(a, a_zero, -2), _shifted(b, b_zero, -1))


@onnx.reads("ConvInteger", frozen=(2, 3))
def conv_integer(x: Any, w: Any, x_zero: Any = None, w_zero: Any = None, *, group: int = 1, **options: Any) -> Any:
    """The convolution of bytes, as 32-bit integers: each product and sum is exact in double precision."""
    geometry = Geometry.of(x.shape, options | {"kernel_shape": w.shape[2:]})
    wide = tnp.astype(_shifted(x, x_zero), dtypes.float64), tnp.astype(_shifted(w, w_zero, 0), dtypes.float64)
    return tnp.astype(convolved(*wide, geometry, group), "int32")
