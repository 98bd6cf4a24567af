"""Relax operators that resample images."""

from __future__ import annotations

import itertools
from functools import reduce
from operator import add, and_, mul, or_
from typing import Any

import numpy as np

import tvmfun.numpy as tnp
from tvmfun import dtypes
from tvmfun.core.array import ShapeDtype
from tvmfun.interop.relax.table import reads, refuse
from tvmfun.interop.relax.windows import channels_first, from_channels_first

# -- resize ------------------------------------------------------------------------------------------------------------


def _coordinates(n: int, m: int, mode: str, begin: float, end: float) -> np.ndarray:
    """The coordinates of the result's ``m`` pixels among ``n`` pixels, in single precision as in TVM's kernels."""
    indices, one = np.arange(m, dtype=np.float32), np.float32(1)
    scale = np.float32(n) / np.float32(m)
    if mode in ("half_pixel", "pytorch_half_pixel"):
        if mode == "pytorch_half_pixel" and m == 1:
            return np.zeros(1, np.float32)
        return (indices + one / 2) * scale - one / 2
    if mode == "align_corners":
        return np.float32(n - 1) / np.float32(max(m - 1, 1)) * indices
    if mode == "asymmetric":
        return scale * indices
    if mode == "tf_half_pixel_for_nn":
        return (indices + one / 2) * scale
    if mode == "tf_crop_and_resize":
        if m == 1:
            return np.asarray([0.5 * (begin + end) * (n - 1)], np.float32)
        return (begin * (n - 1) + indices * (end - begin) * np.float32(n - 1) / np.float32(m - 1)).astype(np.float32)
    raise refuse("relax.image.resize", "the coordinate transformation is not known", mode)


def _nearest(where: np.ndarray, n: int, mode: str, rounding: str) -> np.ndarray:
    rounding = rounding or ("round" if mode == "align_corners" else "floor")
    half, epsilon = np.float32(0.5), np.float32(1e-5)
    if rounding == "floor" and mode == "asymmetric" and len(where) % n == 0:
        return np.arange(len(where)) // (len(where) // n)
    rounded = {
        "round": lambda: np.rint(where),
        "round_prefer_floor": lambda: np.ceil(where - half),
        "round_prefer_ceil": lambda: np.floor(where + half),
        "floor": lambda: np.floor(where + epsilon),
        "ceil": lambda: np.ceil(where - epsilon),
    }
    if rounding not in rounded:
        raise refuse("relax.image.resize", "the rounding method is not known", rounding)
    return rounded[rounding]().astype(np.int64)


def _cubic_weights(t: np.ndarray, alpha: float) -> list[np.ndarray]:
    """Keys's kernel at the distances of four neighbours."""
    t2, t3 = t * t, t * t * t
    return [
        alpha * (t3 - 2 * t2 + t),
        (alpha + 2) * t3 - (3 + alpha) * t2 + 1,
        -(alpha + 2) * t3 + (3 + 2 * alpha) * t2 - alpha * t,
        -alpha * t3 + alpha * t2,
    ]


def _taps(where: np.ndarray, n: int, method: str, alpha: float, exclude: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """The pixels that each pixel of the result is read from, with their weights."""
    base = np.floor(where)
    fraction = (where - base).astype(np.float64)
    if method == "linear":
        weights, first = [1 - fraction, fraction], 0
    else:
        weights, first = _cubic_weights(fraction, alpha), -1
    indices = [base.astype(np.int64) + first + i for i in range(len(weights))]
    if exclude and method == "cubic":
        weights = [np.where((p < 0) | (p >= n), 0.0, w) for p, w in zip(indices, weights, strict=True)]
        total = sum(weights)
        weights = [w / total for w in weights]
    return [(np.clip(p, 0, n - 1), w) for p, w in zip(indices, weights, strict=True)]


def resize(
    x: Any,
    size: tuple,
    *,
    roi: tuple,
    layout: str,
    method: str,
    coordinate_transformation_mode: str,
    rounding_method: str,
    cubic_alpha: float,
    cubic_exclude: int,
    extrapolation_value: float,
    result: ShapeDtype,
) -> Any:
    """Resamples each axis separately, with indices and weights that are known from the sizes."""
    mode, rank = coordinate_transformation_mode, len(size)
    x = channels_first(x, layout)
    work = x if dtypes.is_float(x.dtype) else tnp.astype(x, "float32")
    # The corners come axis by axis in two dimensions, and in the opposite order in three.
    corners = list(zip(roi[:rank], roi[rank:], strict=True)) if roi else [(0.0, 0.0)] * rank
    outside = []
    for axis, (m, (begin, end)) in enumerate(zip(size, corners if rank == 2 else corners[::-1], strict=True), 2):
        n = x.shape[axis]
        where = _coordinates(n, m, mode, begin, end)
        if method == "nearest_neighbor":
            work = tnp.take(work, np.clip(_nearest(where, n, mode, rounding_method), 0, n - 1), axis=axis)
        else:
            column = (-1, *(1,) * (work.ndim - axis - 1))
            taps = _taps(where, n, method, cubic_alpha, bool(cubic_exclude))
            parts = [tnp.take(work, p, axis=axis) * np.reshape(w, column).astype(work.dtype) for p, w in taps]
            work = reduce(add, parts)
        if mode == "tf_crop_and_resize":
            outside.append(np.reshape((where < 0) | (where > n - 1), (-1, *(1,) * (work.ndim - axis - 1))))
    if outside:
        work = tnp.where(reduce(or_, outside), tnp.asarray(extrapolation_value, dtype=work.dtype), work)
    return from_channels_first(tnp.astype(work, result.dtype), layout)


reads("relax.image.resize2d")(resize)
reads("relax.image.resize3d")(resize)

# -- grids -------------------------------------------------------------------------------------------------------------


@reads("relax.image.affine_grid")
def affine_grid(theta: Any, size: tuple, *, align_corners: bool) -> Any:
    """The coordinates of pixels after affine maps, between -1 and 1, with the axes batch, coordinate and pixel."""
    rank = len(size)
    if align_corners and 1 in size:
        raise refuse("relax.image.affine_grid", "a single pixel cannot be at both corners", size)
    axes = []
    for axis, n in enumerate(size):
        indices = tnp.arange(n, dtype=theta.dtype)
        steps = indices * ((2.0 - 1e-7) / (n - 1)) - 1 if align_corners else indices * (2.0 / n) + (1.0 / n - 1)
        axes.append(tnp.reshape(steps, (-1, *(1,) * (rank - axis - 1))))
    column = lambda i: tnp.reshape(theta[:, :, i], (*theta.shape[:2], *(1,) * rank))
    # The columns of the matrix begin with the fastest axis.
    terms = [column(rank - 1 - axis) * steps for axis, steps in enumerate(axes)]
    return tnp.broadcast_to(reduce(add, terms, column(rank)), (*theta.shape[:2], *size))


def _reflected(where: Any, n: int, align_corners: bool) -> Any:
    """The coordinate after reflections at both ends, as often as needed."""
    span, start = (n - 1, 0.0) if align_corners else (n, -0.5)
    if span == 0:
        return tnp.zeros_like(where)
    distance = tnp.abs(where - start)
    times = tnp.floor(distance / span)
    rest = distance - times * span
    turned = tnp.where(tnp.fmod(times, 2) == 0, rest + start, span - rest + start)
    return tnp.where((where >= start) & (where <= span + start), where, turned)


@reads("relax.image.grid_sample")
def grid_sample(x: Any, grid: Any, *, method: str, layout: str, padding_mode: str, align_corners: bool) -> Any:
    """The pixels at the coordinates of a grid, interpolated."""
    sizes = x.shape[2:]
    rank = len(sizes)

    def placed(where: Any, n: int) -> Any:
        if padding_mode == "reflection":
            where = _reflected(where, n, align_corners)
        return where if padding_mode == "zeros" else tnp.clip(where, 0, n - 1)

    batch = tnp.reshape(tnp.arange(x.shape[0], dtype="int32"), (-1, *(1,) * rank))

    def pixels(indices: list) -> Any:
        """The elements at integer coordinates, with the axes batch, result and channels; zeros outside."""
        inside = reduce(and_, [(index >= 0) & (index < n) for index, n in zip(indices, sizes, strict=True)])
        safe = [tnp.astype(tnp.clip(index, 0, n - 1), "int32") for index, n in zip(indices, sizes, strict=True)]
        found = tnp.moveaxis(x, 1, -1)[(batch, *safe)]
        return tnp.where(inside[..., None], found, 0)

    # The first of the grid's coordinates belongs to the last axis.
    wheres = []
    for axis, n in enumerate(sizes):
        unit = grid[:, rank - 1 - axis]
        wheres.append((unit + 1) * ((n - 1) / 2) if align_corners else (unit + 1) * (n / 2) - 0.5)
    if method == "nearest":
        value = pixels([tnp.round(placed(where, n)) for where, n in zip(wheres, sizes, strict=True)])
        return tnp.moveaxis(value, -1, 1)
    cubic = method == "bicubic"
    taps = []
    for where, n in zip(wheres, sizes, strict=True):
        where = where if cubic else placed(where, n)
        base = tnp.floor(where)
        fraction = where - base
        if cubic:
            weights = _cubic_weights(fraction, -0.75)
            taps.append([(placed(base + i - 1, n), w) for i, w in enumerate(weights)])
        else:
            taps.append([(base, 1 - fraction), (base + 1, fraction)])
    terms = []
    for corner in itertools.product(*taps):
        indices, weights = zip(*corner, strict=True)
        # Reflected neighbours can lie between two pixels; they are cut off as in TVM.
        terms.append(pixels([tnp.trunc(index) for index in indices]) * reduce(mul, weights)[..., None])
    return tnp.moveaxis(reduce(add, terms), -1, 1)
