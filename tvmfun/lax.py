"""Primitives with JAX's names: what NumPy has no word for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.numpy.promotion import operands
from tvmfun.ops import conv as conv_ops
from tvmfun.ops import linalg, pointwise

Padding = str | Sequence[tuple[int, int]]


def stop_gradient(x: Any) -> Any:
    """Returns the tree ``x``, through which no gradient flows.

    >>> import tvmfun
    >>> float(tvmfun.grad(lambda x: x * stop_gradient(x))(3.0))
    3.0
    """
    from tvmfun import dtypes, tree

    def stop(leaf: Any) -> Any:
        return (
            pointwise.stop_gradient(leaf) if isinstance(leaf, Array) and dtypes.is_float(leaf.dtype) else leaf
        )

    return tree.map(stop, x)


def erf(x: Any) -> Array:
    r"""Returns :math:`\frac{2}{\sqrt\pi} \int_0^x e^{-t^2} dt`, elementwise."""
    return pointwise.erf(*operands("erf", x, floating=True))


def erf_inv(x: Any) -> Array:
    """Returns the inverse of :func:`erf`, elementwise."""
    return pointwise.erf_inv(*operands("erf_inv", x, floating=True))


def rsqrt(x: Any) -> Array:
    r"""Returns :math:`1 / \sqrt x`, elementwise."""
    return pointwise.rsqrt(*operands("rsqrt", x, floating=True))


def logistic(x: Any) -> Array:
    r"""Returns :math:`1 / (1 + e^{-x})`, elementwise."""
    return pointwise.sigmoid(*operands("logistic", x, floating=True))


def bitcast_convert_type(x: Any, new_dtype: Any) -> Array:
    """Returns the bits of ``x`` read as another dtype of the same width."""
    from tvmfun import dtypes

    return pointwise.bitcast(tnp.asarray(x), dtype=dtypes.NAMES[dtypes.canonical(new_dtype)])


def dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]],
) -> Array:
    """Returns the product summed over pairs of contracted axes, for each index of the paired batch axes.

    Args:
        lhs: the left array.
        rhs: the right array, of the same dtype after promotion.
        dimension_numbers: ``((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))``.

    Returns:
        An array with the batch axes first, then the other axes of ``lhs``, then those of ``rhs``.

    Source: ``jax.lax.dot_general``.
    """
    (contract, batch) = dimension_numbers
    lhs, rhs = (tnp.asarray(x) for x in operands("dot_general", tnp.asarray(lhs), tnp.asarray(rhs)))
    pairs = [
        tuple(tuple(axis % x.ndim for axis in axes) for axes, x in zip(p, (lhs, rhs), strict=True))
        for p in (contract, batch)
    ]
    return linalg.dot_general(lhs, rhs, contract=pairs[0], batch=pairs[1])


# -- convolution and windows ---------------------------------------------------------------------------------


def _paddings(
    name: str, padding: Padding, sizes: Sequence[int], window: Sequence[int], strides: Sequence[int]
) -> tuple:
    if not isinstance(padding, str):
        pairs = tuple((int(low), int(high)) for low, high in padding)
        if len(pairs) != len(sizes):
            raise ShapeError(name, f"there must be {len(sizes)} pairs of paddings", got=str(padding))
        return pairs
    if padding.upper() == "VALID":
        return ((0, 0),) * len(sizes)
    if padding.upper() != "SAME":
        raise ArgumentError(name, "the padding must be 'SAME', 'VALID' or pairs", got=repr(padding))
    pairs = []
    for size, k, stride in zip(sizes, window, strides, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + k - size)
        pairs.append((total // 2, total - total // 2))
    return tuple(pairs)


def _layout(name: str, spec: str, first: str, last: str) -> tuple[int, ...]:
    """The axes of ``spec`` in the order batch (or spatial), ..., channels that the op expects."""
    spatial = [c for c in "DHW" if c in spec] or [c for c in spec if c not in first + last]
    order = [*first, *spatial] if first != "I" else [*spatial, "I"]
    return tuple(spec.index(c) for c in [*order, last])


def conv_general_dilated(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: tuple[str, str, str] | None = None,
    feature_group_count: int = 1,
) -> Array:
    """Returns the convolution (cross-correlation) of arrays with any number of spatial axes.

    Args:
        lhs: the array, float.
        rhs: the kernel, of the same dtype after promotion.
        window_strides: one per spatial axis.
        padding: ``"SAME"``, ``"VALID"``, or ``(low, high)`` per spatial axis; may be negative.
        lhs_dilation: places between elements of ``lhs`` plus one, per spatial axis: a transposed convolution.
        rhs_dilation: the same for the kernel: an atrous convolution.
        dimension_numbers: the layouts of ``lhs``, ``rhs`` and the result, such as ``("NHWC", "HWIO", "NHWC")``,
            which is the fastest; by default channels come first: ``("NCHW", "OIHW", "NCHW")``.
        feature_group_count: the number of groups that channels are split into.

    Raises:
        ShapeError: if channels, groups or ranks do not fit.

    Source: ``jax.lax.conv_general_dilated``.

    >>> x, w = tnp.ones((1, 4, 4, 1)), tnp.ones((3, 3, 1, 2))
    >>> conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")).shape
    (1, 2, 2, 2)
    """
    lhs, rhs = (tnp.asarray(x) for x in operands("conv", tnp.asarray(lhs), tnp.asarray(rhs), floating=True))
    spatial = lhs.ndim - 2
    if rhs.ndim != lhs.ndim or spatial < 1 or len(window_strides) != spatial:
        raise ShapeError(
            "conv",
            "the array, the kernel and the strides must have the same spatial axes",
            got=f"{lhs.aval}, {rhs.aval}, {tuple(window_strides)}",
        )
    axes = "DHW"[-spatial:]
    lhs_spec, rhs_spec, out_spec = dimension_numbers or (f"NC{axes}", f"OI{axes}", f"NC{axes}")
    x = tnp.permute_dims(lhs, _layout("conv", lhs_spec, "N", "C"))
    w = tnp.permute_dims(rhs, _layout("conv", rhs_spec, "I", "O"))
    ones = (1,) * spatial
    dilation = tuple(lhs_dilation or ones)
    kernel_dilation = tuple(rhs_dilation or ones)
    sizes = [max(0, (n - 1) * d + 1) for n, d in zip(x.shape[1:-1], dilation, strict=True)]
    spans = [(k - 1) * d + 1 for k, d in zip(w.shape[:-2], kernel_dilation, strict=True)]
    result = conv_ops.conv(
        x,
        w,
        stride=tuple(window_strides),
        padding=_paddings("conv", padding, sizes, spans, window_strides),
        dilation=dilation,
        kernel_dilation=kernel_dilation,
        groups=feature_group_count,
    )
    back = _layout("conv", out_spec, "N", "C")
    return tnp.permute_dims(result, tuple(back.index(i) for i in range(len(back))))


def _window(
    kind: str, op: Any, x: Any, window: Sequence[int], strides: Sequence[int] | None, padding: Padding
) -> Array:
    x = tnp.asarray(x)
    window = tuple(window)
    stride = tuple(strides or (1,) * len(window))
    pads = _paddings(kind, padding, x.shape, window, stride)
    if any(max(pair) >= k for pair, k in zip(pads, window, strict=True) if max(pair)):
        raise ShapeError(kind, "the padding must be smaller than the window", got=f"{pads} for {window}")
    return op(x, window=window, stride=stride, padding=pads)


def max_window(
    x: Any, window: Sequence[int], strides: Sequence[int] | None = None, padding: Padding = "VALID"
) -> Array:
    """Returns the maximum of each window; ``window`` and ``strides`` have one size per axis of ``x``.

    Its gradient goes to the first maximum of a window.
    """
    return _window("max_window", conv_ops.window_max, x, window, strides, padding)


def sum_window(
    x: Any, window: Sequence[int], strides: Sequence[int] | None = None, padding: Padding = "VALID"
) -> Array:
    """Returns the sum of each window; ``window`` and ``strides`` have one size per axis of ``x``."""
    return _window("sum_window", conv_ops.window_sum, x, window, strides, padding)
