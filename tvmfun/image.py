"""Images in other sizes, by the names, kernels and numbers of ``jax.image``."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvmfun import dtypes
from tvmfun import numpy as tnp
from tvmfun.boundary import publish
from tvmfun.core.array import Array
from tvmfun.errors import ArgumentError, ShapeError
from tvmfun.names import missing as _missing
from tvmfun.numpy.creation import as_shape
from tvmfun.resampling import combined, multiplied
from tvmfun.typing import ArrayLike

__all__ = ["ResizeMethod", "resize", "scale_and_translate"]


class ResizeMethod(enum.Enum):
    """The kernel that weighs the elements around a position.

    Source: ``jax.image.ResizeMethod``.

    >>> ResizeMethod.from_string("bilinear")
    <ResizeMethod.LINEAR: 1>
    """

    NEAREST = 0
    LINEAR = 1
    LANCZOS3 = 2
    LANCZOS5 = 3
    CUBIC = 4

    @staticmethod
    def from_string(s: str) -> ResizeMethod:
        """Returns the method of a name: ``"nearest"``, ``"linear"``, ``"cubic"``, ``"lanczos3"``, ``"lanczos5"``.

        ``"bilinear"``, ``"trilinear"`` and ``"triangle"`` are linear, ``"bicubic"`` and ``"tricubic"`` cubic.

        Raises:
            ArgumentError: if the name is none of these.
        """
        for method, names in _NAMES.items():
            if s in names:
                return method
        hint = ", ".join(repr(name) for names in _NAMES.values() for name in names)
        raise ArgumentError("ResizeMethod", "the method is unknown", got=repr(s), hint=hint)


_NAMES = {
    ResizeMethod.NEAREST: ("nearest",),
    ResizeMethod.LINEAR: ("linear", "bilinear", "trilinear", "triangle"),
    ResizeMethod.LANCZOS3: ("lanczos3",),
    ResizeMethod.LANCZOS5: ("lanczos5",),
    ResizeMethod.CUBIC: ("cubic", "bicubic", "tricubic"),
}


def resize(
    image: ArrayLike, shape: Sequence[int], method: str | ResizeMethod, antialias: bool = True, precision: Any = None
) -> Array:
    r"""Returns an array with more or fewer elements along its axes, and values in between interpolated.

    Along an axis of :math:`n` elements that becomes one of :math:`m`, element :math:`j` lies at
    :math:`(j + 1/2)\, n / m - 1/2` and is the mean of the elements around, weighted by a kernel.

    Args:
        image: an array; integers become floats, unless the method is nearest.
        shape: the sizes of all axes; those that stay are not touched.
        method: ``"nearest"``, ``"linear"`` (a triangle), ``"cubic"`` (Keys's kernel with a = -1/2), ``"lanczos3"`` or
            ``"lanczos5"``, or another name of :class:`ResizeMethod`.
        antialias: whether kernels grow as the image shrinks, so that every element counts.
        precision: of the products in JAX; here they always sum in float32 at least.

    Raises:
        ArgumentError: if the method is unknown.
        ShapeError: if there is not a size for each axis, or an axis without elements is to get some.

    Source: follows ``jax.image.resize``; Keys, "Cubic Convolution Interpolation for Digital Image Processing" (1981).

    >>> resize(tnp.asarray([1.0, 2.0]), (4,), "linear")
    Array([1.  , 1.25, 1.75, 2.  ], dtype=float32)
    """
    where = "resize"
    image, sizes = tnp.asarray(image), as_shape(where, shape)
    if len(sizes) != image.ndim:
        raise ShapeError(where, "there must be a size for each axis", got=f"{sizes} for {image.aval!r}")
    changed = [(axis, n, m) for axis, (n, m) in enumerate(zip(image.shape, sizes, strict=True)) if n != m]
    if any(m and not n for _, n, m in changed):
        raise ShapeError(where, "an axis without elements must stay so", got=f"{sizes} for {image.aval!r}")
    kernel = _kernel(method)
    if kernel is None:
        for axis, n, m in changed:
            positions = np.floor((np.arange(m, dtype="float32") + np.float32(0.5)) * np.float32(n) / np.float32(m or 1))
            image = tnp.take(image, np.minimum(positions, n - 1).astype("int32"), axis=axis)
        return image
    image = _as_float(image)
    for axis, n, m in changed:
        image = combined(image, _weights(np, n, m, (m or n) / n, 0.0, kernel, antialias), axis)
    return image


def scale_and_translate(
    image: ArrayLike,
    shape: Sequence[int],
    spatial_dims: Sequence[int],
    scale: ArrayLike,
    translation: ArrayLike,
    method: str | ResizeMethod,
    antialias: bool = True,
    precision: Any = None,
) -> Array:
    r"""Returns an array stretched and moved along some of its axes: the position :math:`x` goes to :math:`s x + t`.

    Elements from outside of the array are 0. Also differentiable with respect to the scale and the translation.

    Args:
        image: an array; integers become floats.
        shape: the sizes of all axes of the result.
        spatial_dims: the axes to stretch and move.
        scale: a vector with a factor for each of them.
        translation: a vector with a distance for each of them, in elements of the result.
        method: ``"linear"``, ``"cubic"``, ``"lanczos3"`` or ``"lanczos5"``, or another name of :class:`ResizeMethod`
            but nearest.
        antialias: whether kernels grow as the image shrinks, so that every element counts.
        precision: of the products in JAX; here they always sum in float32 at least.

    Raises:
        ArgumentError: if the method is unknown or nearest.
        ShapeError: if sizes, axes, factors and distances do not fit.

    Source: follows ``jax.image.scale_and_translate``.

    >>> scale_and_translate(tnp.asarray([1.0, 2.0, 3.0]), (3,), (0,), tnp.ones(1), tnp.asarray([1.0]), "linear")
    Array([0., 1., 2.], dtype=float32)
    """
    where = "scale_and_translate"
    image, sizes = _as_float(tnp.asarray(image)), as_shape(where, shape)
    scale, translation = tnp.asarray(scale), tnp.asarray(translation)
    axes = [axis + image.ndim if axis < 0 else axis for axis in spatial_dims]
    if len(sizes) != image.ndim or any(not 0 <= axis < image.ndim for axis in axes) or len(set(axes)) < len(axes):
        got = f"{sizes} and axes {tuple(spatial_dims)} for {image.aval!r}"
        raise ShapeError(where, "there must be a size for each axis, and spatial_dims must be axes", got=got)
    if scale.shape != (len(axes),) or translation.shape != (len(axes),):
        got = f"{scale.shape} and {translation.shape}"
        raise ShapeError(where, f"scale and translation must have the shape ({len(axes)},)", got=got)
    fixed = [axis for axis in range(image.ndim) if axis not in axes and image.shape[axis] != sizes[axis]]
    if fixed:
        raise ShapeError(where, f"the size of axis {fixed[0]} must stay", got=f"{sizes} for {image.aval!r}")
    kernel = _kernel(method)
    if kernel is None:
        raise ArgumentError(where, "the method must not be nearest", got=repr(method), hint='"linear"')
    dtype = tnp.result_type(scale, translation)
    dtype = dtype if dtypes.is_float(dtype) else dtypes.DEFAULT_FLOAT
    scale, translation = tnp.astype(scale, dtype), tnp.astype(translation, dtype)
    for i, axis in enumerate(axes):
        weights = _weights(tnp, image.shape[axis], sizes[axis], scale[i], translation[i], kernel, antialias)
        image = multiplied(image, tnp.astype(weights, image.dtype), axis=axis)
    return image


def _as_float(image: Array) -> Array:
    return image if dtypes.is_float(image.dtype) else tnp.astype(image, dtypes.DEFAULT_FLOAT)


def _weights(xp: Any, n: int, m: int, scale: Any, translation: Any, kernel: Callable, antialias: bool) -> Any:
    """The matrix of shape (n, m) that makes ``m`` elements of ``n``, with the functions of NumPy or of ours."""
    step = 1.0 / scale
    width = xp.maximum(step, 1.0) if antialias else 1.0
    dtype = getattr(scale, "dtype", "float64")
    positions = (xp.arange(m, dtype=dtype) + 0.5) * step - translation * step - 0.5
    distance = xp.abs(positions[None, :] - xp.arange(n, dtype=dtype)[:, None]) / width
    weights = kernel(xp, distance)
    total = xp.sum(weights, axis=0, keepdims=True)
    # Where the kernel meets no element there is nothing to take the mean of.
    is_some = xp.abs(total) > 1000 * float(np.finfo(np.float32).eps)
    weights = xp.where(is_some, weights / xp.where(is_some, total, 1.0), 0.0)
    inside = (positions >= -0.5) & (positions <= n - 0.5)
    return xp.where(inside[None, :], weights, 0.0)


def _linear(xp: Any, x: Any) -> Any:
    return xp.maximum(0.0, 1.0 - x)


def _cubic(xp: Any, x: Any) -> Any:
    near = ((1.5 * x - 2.5) * x) * x + 1.0
    far = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return xp.where(x >= 2.0, 0.0, xp.where(x >= 1.0, far, near))


def _lanczos(radius: float) -> Callable:
    def kernel(xp: Any, x: Any) -> Any:
        product = radius * xp.sin(math.pi * x) * xp.sin(math.pi * x / radius)
        # Near 0 both sines lose their digits, and the quotient is 1.
        is_far = x > 1e-3
        value = xp.where(is_far, product / xp.where(is_far, math.pi**2 * x * x, 1.0), 1.0)
        return xp.where(x > radius, 0.0, value)

    return kernel


_KERNELS: dict[ResizeMethod, Callable | None] = {
    ResizeMethod.NEAREST: None,
    ResizeMethod.LINEAR: _linear,
    ResizeMethod.CUBIC: _cubic,
    ResizeMethod.LANCZOS3: _lanczos(3.0),
    ResizeMethod.LANCZOS5: _lanczos(5.0),
}


def _kernel(method: str | ResizeMethod) -> Callable | None:
    return _KERNELS[method if isinstance(method, ResizeMethod) else ResizeMethod.from_string(method)]


__getattr__ = _missing(__name__)
publish(globals())
