"""Normal distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvmfun import lax
from tvmfun import numpy as tnp
from tvmfun.core.array import Array
from tvmfun.lax.staging import compiled_for_all_shapes
from tvmfun.numpy.creation import Shape, as_shape
from tvmfun.random.keys import check_key
from tvmfun.random.uniforms import bound, float_dtype, float_request, rounded, uniform
from tvmfun.typing import ArrayLike, DTypeLike, Key


def normal(key: Key, shape: Shape = (), dtype: DTypeLike | None = "float32") -> Array:
    r"""Returns floats of the standard normal distribution, :math:`\sqrt 2 \operatorname{erf}^{-1}(u)`.

    >>> from tvmfun import random
    >>> normal(random.key(0), (2,)).shape
    (2,)
    """
    key, shape, dtype = float_request("normal", key, shape, dtype)
    return _normal(key, shape=shape, dtype=dtype)


@compiled_for_all_shapes("dtype")
def _normal(key: Array, *, shape: tuple, dtype: np.dtype) -> Array:
    low = np.nextafter(dtype.type(-1), dtype.type(0), dtype=dtype)
    return normal_of(uniform(key, shape, dtype, low, 1.0))


def normal_of(uniform: Array) -> Array:
    """A standard normal number from ``uniform``, which is uniform between -1 and 1."""
    root = uniform.dtype.type(math.sqrt(2))
    return rounded(tnp.multiply(root, rounded(lax.erf_inv(uniform))))


def truncated_normal(
    key: Key, lower: ArrayLike, upper: ArrayLike, shape: Shape | None = None, dtype: DTypeLike | None = "float32"
) -> Array:
    r"""Returns floats of the standard normal distribution within the open interval from ``lower`` to ``upper``.

    They are :math:`\sqrt 2 \operatorname{erf}^{-1}(u)` with :math:`u` uniform between
    :math:`\operatorname{erf}(\text{lower} / \sqrt 2)` and :math:`\operatorname{erf}(\text{upper} / \sqrt 2)`.

    Args:
        key: the key.
        lower: the lower bound, a number or an array that broadcasts to ``shape``.
        upper: the upper bound, likewise.
        shape: of the result; by default that of the bounds together.
        dtype: of the result, a float.

    Raises:
        ShapeError: if the bounds do not broadcast to the shape.

    >>> from tvmfun import random
    >>> values = truncated_normal(random.key(0), -1.0, 1.0, (100,))
    >>> bool(tnp.all(tnp.abs(values) < 1))
    True
    """
    key = check_key("truncated_normal", key)
    dtype = float_dtype("truncated_normal", dtype)
    ends = bound("truncated_normal", lower, dtype), bound("truncated_normal", upper, dtype)
    sizes = np.broadcast_shapes(*map(np.shape, ends)) if shape is None else as_shape("truncated_normal", shape)
    return _truncated_normal(key, *ends, shape=sizes, dtype=dtype)


@compiled_for_all_shapes("dtype")
def _truncated_normal(key: Array, *ends: Any, shape: tuple, dtype: np.dtype) -> Array:
    root = dtype.type(math.sqrt(2))
    scaled = (rounded(tnp.asarray(tnp.divide(end, root))) for end in ends)
    low, high = (tnp.broadcast_to(rounded(lax.erf(end)), shape) for end in scaled)
    values = normal_of(uniform(key, shape, dtype, low, high))
    # Rounding may reach the bounds, which do not belong to the interval.
    return tnp.clip(values, _next(ends[0], dtype.type(math.inf)), _next(ends[1], dtype.type(-math.inf)))


def _next(bound: Any, direction: np.generic) -> Any:
    """The next float in a direction: a constant if the bound is one."""
    if isinstance(bound, np.generic):
        return np.nextafter(bound, direction)
    return tnp.nextafter(lax.stop_gradient(bound), direction)
