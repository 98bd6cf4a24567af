"""Operators that resample images."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tvmfun.core.array import ShapeDtype
from tvmfun.interop.relax import image
from tvmfun.interop.relay.operators.layouts import check_layout
from tvmfun.interop.relay.operators.table import LONGEST_AXIS, DType, Family, Floats, Ints, check_sizes, refuse

relay = Family(__name__)

_METHODS = ("nearest_neighbor", "linear", "cubic")


def _resized(
    where: str,
    x: Any,
    size: Ints,
    layout: str,
    method: str,
    mode: str,
    rounding: str = "",
    roi: Floats | None = None,
    alpha: float = -0.5,
    exclude: int = 0,
    extrapolation: float = 0.0,
    out_dtype: DType | None = None,
) -> Any:
    rank = len(layout) - 2
    check_layout(where, layout, "NC" + "DHW"[3 - rank :], x)
    if method not in _METHODS:
        raise refuse(where, f"method must be one of {', '.join(_METHODS)}", method)
    if len(size) != rank or (roi and len(roi) not in (0, 2 * rank)):
        raise refuse(where, f"there must be a size for each of {rank} axes", size)
    check_sizes(where, size, LONGEST_AXIS)
    if 0 in (*size, *(n for n, letter in zip(x.shape, layout, strict=True) if letter not in "NC")):
        raise refuse(where, "sizes must be positive", size)
    spatial = iter(size)
    shape = tuple(x.shape[i] if letter in "NC" else next(spatial) for i, letter in enumerate(layout))
    return image.resize(
        x,
        size,
        roi=roi or (),
        layout=layout,
        method=method,
        coordinate_transformation_mode=mode,
        rounding_method=rounding,
        cubic_alpha=alpha,
        cubic_exclude=exclude,
        extrapolation_value=extrapolation,
        result=ShapeDtype(shape, np.dtype(out_dtype or x.dtype)),
    )


def _resize(rank: int) -> Callable:
    def resize(
        x: Any,
        *,
        size: Ints,
        roi: Floats | None = None,
        layout: str = "NC" + "DHW"[3 - rank :],
        method: str = "linear",
        coordinate_transformation_mode: str = "half_pixel",
        rounding_method: str = "round",
        cubic_alpha: float = -0.5,
        cubic_exclude: int = 0,
        extrapolation_value: float = 0.0,
        out_dtype: DType | None = None,
    ) -> Any:
        mode, options = coordinate_transformation_mode, (cubic_alpha, cubic_exclude, extrapolation_value)
        return _resized(
            f"image.resize{rank}d", x, size, layout, method, mode, rounding_method, roi, *options, out_dtype
        )

    return resize


for _rank in (1, 2, 3):
    relay.reads(f"image.resize{_rank}d")(_resize(_rank))


def _scaled(where: str, x: Any, layout: str, scales: tuple[float, ...]) -> Ints:
    """The sizes of the spatial axes times their scales, rounded."""
    check_layout(where, layout, "NC" + "DHW"[3 - len(scales) :], x)
    if not all(0 < scale < LONGEST_AXIS for scale in scales):
        raise refuse(where, "the scales must be positive", scales)
    sizes = [size for size, letter in zip(x.shape, layout, strict=True) if letter not in "NC"]
    return tuple(math.floor(size * scale + 0.5) for size, scale in zip(sizes, scales, strict=True))


@relay.reads("nn.upsampling")
def _upsampling(
    x: Any,
    *,
    scale_h: float,
    scale_w: float,
    layout: str = "NCHW",
    method: str = "nearest_neighbor",
    align_corners: bool = False,
) -> Any:
    size = _scaled("nn.upsampling", x, layout, (scale_h, scale_w))
    mode = "align_corners" if align_corners else "asymmetric"
    return _resized("nn.upsampling", x, size, layout, method.removeprefix("bi"), mode)


@relay.reads("nn.upsampling3d")
def _upsampling3d(
    x: Any,
    *,
    scale_d: float,
    scale_h: float,
    scale_w: float,
    layout: str = "NCDHW",
    method: str = "nearest_neighbor",
    coordinate_transformation_mode: str = "half_pixel",
) -> Any:
    size = _scaled("nn.upsampling3d", x, layout, (scale_d, scale_h, scale_w))
    return _resized("nn.upsampling3d", x, size, layout, method.removeprefix("tri"), coordinate_transformation_mode)


@relay.reads("image.affine_grid")
def _affine_grid(theta: Any, *, target_shape: Ints) -> Any:
    check_sizes("image.affine_grid", target_shape, LONGEST_AXIS)
    return image.affine_grid(theta, target_shape, align_corners=True)


@relay.reads("image.grid_sample")
def _grid_sample(
    x: Any,
    grid: Any,
    *,
    method: str = "bilinear",
    layout: str = "NCHW",
    padding_mode: str = "zeros",
    align_corners: bool = True,
) -> Any:
    if method not in ("bilinear", "nearest", "bicubic") or padding_mode not in ("zeros", "border", "reflection"):
        raise refuse("image.grid_sample", "method or padding_mode is not known", f"{method}, {padding_mode}")
    check_layout("image.grid_sample", layout, layout if layout == "NCDHW" else "NCHW", x)
    if layout not in ("NCHW", "NCDHW"):
        raise refuse("image.grid_sample", "the channels must come first", layout)
    options = {"layout": layout, "padding_mode": padding_mode, "align_corners": align_corners}
    return image.grid_sample(x, grid, method=method, **options)
