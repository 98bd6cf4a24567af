"""Products of matrices, and convolutions in any order of the axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import lax
from tvmfun.core.array import ShapeDtype
from tvmfun.interop.layouts import channels_first
from tvmfun.interop.relax.products import conv_transpose
from tvmfun.interop.relay.operators.layouts import check_layout, laid_out, sides, stored
from tvmfun.interop.relay.operators.table import DType, Family, Ints, as_dtype, refuse
from tvmfun.transforms import vjp

relay = Family(__name__)


# -- matrices ----------------------------------------------------------------------------------------------------------


@relay.reads("nn.dense")
def _dense(x: Any, weight: Any, *, units: int | None = None, out_dtype: DType | None = None) -> Any:
    """``x @ weight.T``: weights are (outputs, inputs)."""
    return _matmul(x, weight, units=units, out_dtype=out_dtype, transpose_b=True)


@relay.reads("nn.matmul")
def _matmul(
    x: Any,
    y: Any,
    *,
    units: int | None = None,
    out_dtype: DType | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Any:
    x, y = (tnp.swapaxes(a, -1, -2) if t else a for a, t in ((x, transpose_a), (y, transpose_b)))
    if units is not None and y.shape[-1] != units:
        raise refuse("nn.matmul", f"units is {units}, and the weights must have as many", y.shape)
    return tnp.matmul(as_dtype(x, out_dtype), as_dtype(y, out_dtype))


@relay.reads("nn.batch_matmul")
def _batch_matmul(
    x: Any, y: Any, *, out_dtype: DType | None = None, transpose_a: bool = False, transpose_b: bool = False
) -> Any:
    if x.ndim != 3 or y.ndim != 3:
        raise refuse("nn.batch_matmul", "both arrays must have three axes", f"{x.ndim} and {y.ndim}")
    return _matmul(x, y, out_dtype=out_dtype, transpose_a=transpose_a, transpose_b=transpose_b)


@relay.reads("einsum")
def _einsum(arrays: tuple, *, equation: str) -> Any:
    return tnp.einsum(equation, *arrays)


# -- convolutions ------------------------------------------------------------------------------------------------------


def _kernel(name: str, kernel: Any, layout: str, inputs: Any, groups: int, transposed: bool) -> Any:
    """The kernel as (outputs, inputs per group, *spatial), or (inputs, outputs per group, *spatial) if transposed."""
    spatial = [letter for letter in layout if letter not in "OI"]
    order = ["I", "O", *spatial] if transposed else ["O", "I", *spatial]
    kernel = tnp.permute_dims(kernel, [layout.index(letter) for letter in order])
    if groups < 1 or (isinstance(inputs, int) and inputs % groups):
        raise refuse(name, f"groups must divide {inputs} channels", groups)
    # The kernel of a depthwise convolution is (channels, multiplier, ...) in TVM.
    if not transposed and groups == inputs == kernel.shape[0] and kernel.shape[1] > 1:
        kernel = tnp.reshape(kernel, (-1, 1, *kernel.shape[2:]))
    wanted = inputs if transposed else inputs // groups
    if kernel.shape[0 if transposed else 1] != wanted:
        raise refuse(name, f"the kernel must have {wanted} input channels", kernel.shape)
    return kernel


def _check_kernel(name: str, kernel: Any, outputs: int, channels: int | None, kernel_size: Ints | None) -> None:
    if channels is not None and channels != outputs:
        raise refuse(name, f"channels is {channels}, and the kernel must have as many", outputs)
    if kernel_size is not None and tuple(kernel_size) != tuple(kernel.shape[2:]):
        raise refuse(name, f"kernel_size is {kernel_size}, and the kernel must have this size", kernel.shape[2:])


def _per_axis(name: str, what: str, values: Ints, rank: int) -> Ints:
    values = values * rank if len(values) == 1 else values
    if len(values) != rank or any(value < 1 or value > 2**20 for value in values):
        raise refuse(name, f"{what} must be a positive integer for each of {rank} axes", values)
    return values


def _convolution(rank: int) -> Callable:
    name, spatial = f"nn.conv{rank}d", "DHW"[3 - rank :]
    ones = (1,) * rank

    def conv(
        x: Any,
        kernel: Any,
        *,
        strides: Ints = ones,
        padding: Ints = (0,) * rank,
        dilation: Ints = ones,
        groups: int = 1,
        channels: int | None = None,
        kernel_size: Ints | None = None,
        data_layout: str = f"NC{spatial}",
        kernel_layout: str = f"OI{spatial}",
        out_layout: str = "",
        out_dtype: DType | None = None,
    ) -> Any:
        check_layout(name, data_layout, f"NC{spatial}", x)
        kernel = channels_first(kernel)
        check_layout(name, kernel_layout, f"OI{spatial}", kernel)
        check_layout(name, out_layout or data_layout, f"NC{spatial}", x)
        kernel = _kernel(name, kernel, kernel_layout, x.shape[data_layout.index("C")], groups, False)
        _check_kernel(name, kernel, kernel.shape[0], channels, kernel_size)
        letters = "".join(letter for letter in data_layout if letter not in "NC")
        kernel_letters = "".join(letter for letter in kernel_layout if letter not in "OI")
        if letters != kernel_letters:
            raise refuse(name, "the layouts must have the spatial axes in one order", f"{data_layout}, {kernel_layout}")
        y = lax.conv_general_dilated(
            stored(x, data_layout),
            kernel,
            _per_axis(name, "strides", strides, rank),
            sides(name, padding, rank),
            rhs_dilation=_per_axis(name, "dilation", dilation, rank),
            dimension_numbers=(f"N{letters}C", f"OI{letters}", f"N{letters}C"),
            feature_group_count=groups,
            preferred_element_type=out_dtype,
        )
        return laid_out(y, data_layout, out_layout or data_layout)

    return conv


def _transposed_convolution(rank: int) -> Callable:
    name, spatial = f"nn.conv{rank}d_transpose", "DHW"[3 - rank :]
    ones = (1,) * rank
    # The label of the default in three dimensions says OI, and its kernels are (inputs, outputs per group, ...).
    default = f"IO{spatial}" if rank < 3 else f"OI{spatial}"

    def conv(
        x: Any,
        kernel: Any,
        *,
        channels: int | None = None,
        kernel_size: Ints | None = None,
        strides: Ints = ones,
        padding: Ints = (0,) * rank,
        output_padding: Ints = (0,) * rank,
        dilation: Ints = ones,
        groups: int = 1,
        data_layout: str = f"NC{spatial}",
        kernel_layout: str = default,
        out_layout: str = "",
        out_dtype: DType | None = None,
    ) -> Any:
        check_layout(name, data_layout, f"NC{spatial}", x)
        kernel = channels_first(kernel)
        check_layout(name, kernel_layout, f"OI{spatial}", kernel)
        check_layout(name, out_layout or data_layout, f"NC{spatial}", x)
        layout = f"IO{spatial}" if rank == 3 and kernel_layout == default else kernel_layout
        kernel = _kernel(name, kernel, layout, x.shape[data_layout.index("C")], groups, True)
        _check_kernel(name, kernel, kernel.shape[1] * groups, channels, kernel_size)
        extra = output_padding * rank if len(output_padding) == 1 else output_padding
        if len(extra) != rank:
            raise refuse(name, f"output_padding must have {rank} sizes", output_padding)
        pads = sides(name, padding, rank)
        letters = "".join(letter for letter in layout if letter not in "OI")
        y = conv_transpose(
            stored(x, data_layout),
            kernel,
            strides=_per_axis(name, "strides", strides, rank),
            padding=(*(low for low, _ in pads), *(high for _, high in pads)),
            output_padding=extra,
            dilation=_per_axis(name, "dilation", dilation, rank),
            groups=groups,
            data_layout=f"N{letters}C",
            kernel_layout=f"IO{letters}",
            out_layout=f"N{letters}C",
            result=ShapeDtype((), np.dtype(out_dtype or x.dtype)),
        )
        return laid_out(y, data_layout, out_layout or data_layout)

    return conv


for _rank in (1, 2, 3):
    relay.reads(f"nn.conv{_rank}d", layouts=True)(_convolution(_rank))
    relay.reads(f"nn.conv{_rank}d_transpose", layouts=True)(_transposed_convolution(_rank))


@relay.reads("nn.conv2d_backward_weight")
def _conv2d_backward_weight(
    gradient: Any,
    x: Any,
    *,
    strides: Ints = (1, 1),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Ints,
    data_layout: str = "NCHW",
    kernel_layout: str = "NCHW",
    out_layout: str = "OIHW",
    out_dtype: DType | None = None,
) -> Any:
    """The kernel's gradient. The layouts are those of the result's gradient, of the array, and of the kernel."""
    name = "nn.conv2d_backward_weight"
    check_layout(name, data_layout, "NCHW", gradient)
    check_layout(name, kernel_layout, "NCHW", x)
    if sorted(out_layout) != sorted("OIHW") or len(kernel_size) != 2 or groups < 1:
        raise refuse(name, "the kernel must have the axes O, I, H and W", out_layout)
    sizes = {
        "O": gradient.shape[data_layout.index("C")],
        "I": x.shape[kernel_layout.index("C")] // groups,
        "H": kernel_size[0],
        "W": kernel_size[1],
    }
    geometry = {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}
    layouts = {"data_layout": kernel_layout, "kernel_layout": out_layout, "out_layout": data_layout}
    conv = _convolution(2)
    zeros = tnp.zeros(tuple(sizes[letter] for letter in out_layout), x.dtype)
    _, pull = vjp(lambda kernel: channels_first(conv(x, kernel, **geometry, **layouts)), zeros)
    return as_dtype(pull(gradient)[0], out_dtype)
