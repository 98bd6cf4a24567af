"""Relax operators that sum products: matrix products and convolutions."""

from __future__ import annotations

from typing import Any

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core.array import ShapeDtype
from tvmfun.interop.relax.table import TRANSLATIONS, Translation, reads
from tvmfun.interop.relax.windows import pads_by_axis


@reads("relax.matmul")
def _matmul(x: Any, y: Any, *, result: ShapeDtype) -> Any:
    return tnp.matmul(tnp.astype(x, result.dtype), tnp.astype(y, result.dtype))


@reads("relax.outer")
def _outer(x: Any, y: Any) -> Any:
    return tnp.outer(x, y)


@reads("relax.einsum")
def _einsum(arrays: tuple, *, subscripts: str) -> Any:
    return tnp.einsum(subscripts, *arrays)


def _conv(
    x: Any,
    kernel: Any,
    *,
    strides: tuple,
    padding: tuple,
    dilation: tuple,
    groups: int,
    data_layout: str,
    kernel_layout: str,
    out_layout: str,
    result: ShapeDtype,
) -> Any:
    return lax.conv_general_dilated(
        tnp.astype(x, result.dtype),
        tnp.astype(kernel, result.dtype),
        strides,
        pads_by_axis(padding),
        rhs_dilation=dilation,
        dimension_numbers=(data_layout, kernel_layout, out_layout),
        feature_group_count=groups,
    )


def conv_transpose(
    x: Any,
    kernel: Any,
    *,
    strides: tuple,
    padding: tuple,
    output_padding: tuple,
    dilation: tuple,
    groups: int,
    data_layout: str,
    kernel_layout: str,
    out_layout: str,
    result: ShapeDtype,
) -> Any:
    """A convolution of the array with holes by the turned kernel, whose channels are exchanged group by group."""
    spatial = "".join(letter for letter in data_layout if letter not in "NC")
    kernel = tnp.permute_dims(kernel, [kernel_layout.index(letter) for letter in f"IO{spatial}"])
    inputs, outputs, *sizes = kernel.shape
    kernel = tnp.flip(
        tnp.reshape(kernel, (groups, inputs // groups, outputs, *sizes)), tuple(range(3, kernel.ndim + 1))
    )
    kernel = tnp.reshape(tnp.swapaxes(kernel, 1, 2), (groups * outputs, inputs // groups, *sizes))
    reach = [(size - 1) * step for size, step in zip(sizes, dilation, strict=True)]
    margins = [
        (span - low, span - high + extra)
        for span, (low, high), extra in zip(reach, pads_by_axis(padding), output_padding, strict=True)
    ]
    return lax.conv_general_dilated(
        tnp.astype(x, result.dtype),
        tnp.astype(kernel, result.dtype),
        (1,) * len(sizes),
        margins,
        lhs_dilation=strides,
        rhs_dilation=dilation,
        dimension_numbers=(data_layout, f"OI{spatial}", out_layout),
        feature_group_count=groups,
    )


for _rank in (1, 2, 3):
    for _name, _function in ((f"conv{_rank}d", _conv), (f"conv{_rank}d_transpose", conv_transpose)):
        TRANSLATIONS[f"relax.nn.{_name}"] = Translation(f"relax.nn.{_name}", _function)
